"""Hosts as loopback addresses of this machine, where it allows no network namespaces.

They have an address each, and nothing else of their own: no name, no Python, no link that could be
cut.  So scenarios that need one of these are skipped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.cluster.network import ALIASES, NAMES, Host

_NET = "127.77.0"  # not 127.0.0: what others have bound to 127.0.0.1 does not matter


def unavailable() -> str:
    """Return why there can be no such hosts here; "" if there can."""
    if importlib.util.find_spec("yaml") is None:
        return "PyYAML is not installed (make cluster installs it)"
    with socket.socket() as probe:
        try:
            probe.bind((f"{_NET}.1", 0))
        except OSError as error:
            return f"there is only one loopback address: {error.strerror}"
    return ""


class LoopbackHost(Host):
    """One host.  All of them share a Python, and this machine's name and files."""

    has_links = False
    options = ("--set", "listen.tls=on")  # off by itself on loopback

    def __init__(self, name: str, number: int, folder: Path) -> None:
        super().__init__(name, "", number, folder)
        self.address = self.reached_as = f"{_NET}.{number}"
        self.home = self._seen_as
        self._running: list[subprocess.Popen[bytes]] = []

    def named(self, text: str) -> str:
        """Return ``text`` with addresses in the place of the names that deploy/ uses."""
        return _NAME.sub(lambda found: _ADDRESSES[found[0]], text)

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        """Return the command line; ``CLUSTER_HOST`` says which host it is."""
        return ["env", f"CLUSTER_HOST={self.name}", *map(str, argv)]

    def start(
        self, argv: Sequence[str | Path], *, log: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """As on any host; it is killed with the others at the end."""
        process = super().start(argv, log=log, env=env)
        self._running.append(process)
        return process

    def stop(self) -> None:
        """Kill what was started, with what it has started."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):  # a session of its own each
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_ADDRESSES = {
    alias: f"{_NET}.{number}"
    for number, name in enumerate(NAMES, start=1)
    for alias in ALIASES.get(name, "").split()
}
_WORDS = "|".join(map(re.escape, _ADDRESSES))
_NAME = re.compile(rf"(?<![\w.-])(?:{_WORDS})(?![\w.@]|://)")


@contextlib.contextmanager
def network(folder: Path) -> Iterator[dict[str, Host]]:
    """Make the hosts; kill all that still runs on them at the end."""
    (folder / "node").mkdir()
    hosts = {name: LoopbackHost(name, n, folder) for n, name in enumerate(NAMES, start=1)}
    for host in hosts.values():
        host.node.mkdir()
    try:
        yield dict(hosts)
    finally:
        for host in hosts.values():
            host.stop()
