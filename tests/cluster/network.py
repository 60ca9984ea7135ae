"""Hosts as network namespaces on a bridge: each has its own address, name and hosts file.

The bridge is in a namespace too, so nothing of the machine's own network is touched.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NAMES = ("d", "m", "w1", "w2", "r", "p")  # driver, master, workers, Redis, Postgres
# What deploy/compose.yaml and deploy/README.md call them.
ALIASES = {
    "d": "driver driver.internal",
    "m": "master",
    "r": "valkey redis",
    "p": "postgres db.internal",
}
_NETNS = Path("/etc/netns")  # where `ip netns exec` looks for a namespace's own /etc
_NOBODY = "02:00:00:00:00:99"  # a hardware address that no host has


# What hosts are made of and what their programs are started with, and where Debian has it.
_COMMANDS = {
    "ip": "iproute2", "unshare": "util-linux", "mount": "mount", "hostname": "hostname",
}  # fmt: skip


def unavailable() -> str:
    """Return why there can be no such hosts here; "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if importlib.util.find_spec("yaml") is None:
        return "PyYAML is not installed (make cluster installs it)"
    for command, package in _COMMANDS.items():
        if shutil.which(command) is None:
            return f"there is no `{command}` command (Debian: {package})"
    probe = f"fc{os.getpid()}probe"
    made = _try("ip", "netns", "add", probe)
    if made.returncode:
        return f"network namespaces can't be made here: {made.stderr.strip()}"
    try:
        bridge = _try("ip", "-n", probe, "link", "add", "b0", "type", "bridge")
        return f"bridges can't be made here: {bridge.stderr.strip()}" if bridge.returncode else ""
    finally:
        _try("ip", "netns", "del", probe)


class Host:
    """One host.  Programs that are started here see its name, its address and its own ``node``."""

    has_links = True  # which can be cut; and a name and a Python of its own
    options: Sequence[str] = ()  # what flowctl is told besides

    def __init__(self, name: str, tag: str, number: int, folder: Path) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.namespace = f"{tag}{name}"
        self.reached_as = name
        self.node = folder / name  # its own files
        self.home = self.node  # where its Python is installed
        self.sessions: list[int] = []  # of the programs that were started
        self._lan = f"{tag}lan"
        self._seen_as = folder / "node"  # where its programs see them

    def named(self, text: str) -> str:
        """Return ``text``, in which names of hosts are as this host knows them."""
        return text

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        """Return the command line that runs ``argv`` on this host, in a process of its own."""
        prepare = f'hostname {self.name} && mount --bind "$1" "$2" && shift 2 && exec "$@"'
        return [
            *("ip", "netns", "exec", self.namespace, "unshare", "--uts"),
            *("sh", "-c", prepare, "sh", str(self.node), str(self._seen_as)),
            *map(str, argv),
        ]

    def start(
        self, argv: Sequence[str | Path], *, log: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program; its output goes to the file ``log`` of this host."""
        with (self.node / log).open("ab") as output:
            started = subprocess.Popen(
                self.command(argv),
                env=os.environ | (env or {}),
                cwd=self.node,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.sessions.append(started.pid)
        return started

    def run(self, *argv: str | Path, env: Mapping[str, str] | None = None) -> str:
        """Run a program to its end; return its output."""
        done = subprocess.run(
            self.command(argv),
            env=os.environ | (env or {}),
            cwd=self.node,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{argv} on {self.name}: {done.stdout}{done.stderr}")
        return done.stdout

    # -- faults ----------------------------------------------------------------------------

    def cut(self) -> None:
        """Take its cable out at the other end: what it sends goes nowhere, and nobody is told."""
        _ip("-n", self._lan, "link", "set", "dev", self.name, "nomaster")

    def mend(self) -> None:
        """Put the cable back."""
        _ip("-n", self._lan, "link", "set", "dev", self.name, "master", "lan")

    def narrow(self, bits_per_s: int) -> None:
        """Let it send no faster than this, with a queue of half a second."""
        _try("tc", "-n", self.namespace, "qdisc", "del", "dev", "eth0", "root")
        if bits_per_s:
            shape = ("tbf", "rate", f"{bits_per_s}bit", "burst", "32kbit", "latency", "500ms")
            _run("tc", "-n", self.namespace, "qdisc", "add", "dev", "eth0", "root", *shape)

    def cut_towards(self, other: Host) -> None:
        """What this host sends to ``other`` is lost; the other direction works."""
        place = ("dev", "eth0", "lladdr", _NOBODY, "nud", "permanent")
        _ip("-n", self.namespace, "neigh", "replace", other.address, *place)

    def mend_towards(self, other: Host) -> None:
        """The other direction works again too."""
        _ip("-n", self.namespace, "neigh", "del", other.address, "dev", "eth0")


@contextlib.contextmanager
def network(folder: Path) -> Iterator[dict[str, Host]]:
    """Make the hosts; remove them and all that still runs on them at the end.

    ``folder`` has a name of its own among those of this process.
    """
    tag = f"fc{os.getpid()}{folder.name}"
    hosts = {name: Host(name, tag, n, folder) for n, name in enumerate(NAMES, start=1)}
    (folder / "node").mkdir()
    try:
        _make_lan(f"{tag}lan")
        for host in hosts.values():
            host.node.mkdir()
            _plug_in(host, f"{tag}lan")
        table = "".join(
            f"{host.address} {name} {ALIASES.get(name, '')}\n" for name, host in hosts.items()
        )
        for host in hosts.values():
            etc = _NETNS / host.namespace
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
        yield hosts
    finally:
        for namespace in (*(host.namespace for host in hosts.values()), f"{tag}lan"):
            _remove(namespace)


def remove_left_behind() -> None:
    """Remove the hosts of runs that were killed: their names say whose they are."""
    for line in _try("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        owner = re.match(r"fc(\d+)\D", name)
        if owner and not Path("/proc", owner[1]).exists():
            _remove(name)


def _remove(namespace: str) -> None:
    for pid in _try("ip", "netns", "pids", namespace).stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), 9)
    _try("ip", "netns", "del", namespace)
    shutil.rmtree(_NETNS / namespace, ignore_errors=True)


def _make_lan(name: str) -> None:
    _ip("netns", "add", name)
    _ip("-n", name, "link", "add", "lan", "type", "bridge")
    _ip("-n", name, "link", "set", "lan", "up")


def _plug_in(host: Host, lan: str) -> None:
    _ip("netns", "add", host.namespace)
    peer = ("peer", "name", host.name, "netns", lan)
    _ip("-n", host.namespace, "link", "add", "eth0", "type", "veth", *peer)
    _ip("-n", lan, "link", "set", "dev", host.name, "master", "lan", "up")
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", host.namespace, "link", "set", device, "up")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*argv: str) -> None:
    done = _try(*argv)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _try(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False)
