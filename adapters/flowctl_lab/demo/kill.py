"""``demo --kill``: the driver in its own process, killed by SIGKILL, then started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from flowctl.adapters import load_adapter
from flowctl.errors import InfrastructureError
from flowctl.instrumentation.numbers import percent
from flowctl_lab.demo import journal
from flowctl_lab.demo.demo_job import Show
from flowctl_lab.demo.plan import JOB, Places, Plan

# Seconds between looks: short enough to kill within 1 % of the chosen place, without loading the
# server.
_POLL_S = 0.05
_SHOW_CURSOR = "\x1b[?25h"


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a kill.

    ``saved`` is the number of records in the checkpoint, ``begun`` of those that the bolts had
    begun, by their journal, and ``ran_again`` of those among these that the next run began again.
    """

    at: float
    saved: int
    begun: int
    ran_again: int

    @property
    def bound(self) -> int:
        """The most records that may run again: those begun but not in the saved checkpoint."""
        return self.begun - self.saved


def kill_and_resume(plan: Plan, places: Places, redis_url: str, *, show: Show) -> Kill:
    """Run the job in a child, kill it, run it to its end in a second child.

    Raises :class:`InfrastructureError` when a child fails or ends before it could be killed.
    """
    store = load_adapter("flowctl_redis", "redis").RedisCheckpointStore(redis_url)
    child = _start(places.root, redis_url, show)
    try:
        _wait_for(child, store, records=round(plan.kill_at * plan.records))
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    _give_terminal_back()
    saved = store.load(JOB).records
    store.close()
    click.echo(f"killed the driver (SIGKILL) at {percent(saved / plan.records)}; starting again")
    _run_to_end(_start(places.root, redis_url, show))
    return _measure(places, plan, saved)


def _start(directory: Path, redis_url: str, show: Show) -> subprocess.Popen[bytes]:
    # The interpreter's own options (-X, -W) don't matter here; its environment is inherited.
    command = [sys.executable, "-m", "flowctl_lab.demo.child", str(directory), redis_url]
    command += [show.mode, *([] if show.page is None else [show.page.place])]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _wait_for(child: subprocess.Popen[bytes], store: Any, *, records: int) -> None:
    while store.load(JOB).records < records:
        if child.poll() is not None:
            raise InfrastructureError(
                f"The driver ended with exit code {child.returncode} before it could be killed.",
                remedy="Give it more time with --seconds.",
            )
        time.sleep(_POLL_S)


def _run_to_end(child: subprocess.Popen[bytes]) -> None:
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.wait()  # Ctrl-C reached the child too: let it save
        raise
    if code:
        raise InfrastructureError(
            f"The resumed driver ended with exit code {code}.", remedy="See its message above."
        )


def _measure(places: Places, plan: Plan, saved: int) -> Kill:
    before, after = journal.epochs(places.journal)[-2:]
    begun = journal.begun(places.journal, before)
    again = begun & journal.begun(places.journal, after)
    return Kill(at=saved / plan.records, saved=saved, begun=len(begun), ran_again=len(again))


def _give_terminal_back() -> None:
    # The killed child's live view had hidden the cursor.
    if sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR + "\n")
        sys.stderr.flush()
