"""What happens to the bolts' processes, at its time: SIGSTOP, SIGCONT, SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.profile import INFINITE_S
from tests.benchmarks.control_trace import start_s

_LOOK_EVERY_S = 0.02  # for the start, and for the process id of a bolt that has just begun


def signals_of(machines: Sequence[Machine]) -> list[tuple[float, int, signal.Signals]]:
    """What to send when, and to which bolt, in order."""
    plan: list[tuple[float, int, signal.Signals]] = []
    for bolt, machine in enumerate(machines):
        for begin_s, end_s in machine.frozen:
            plan.append((begin_s, bolt, signal.SIGSTOP))
            if end_s < INFINITE_S:
                plan.append((end_s, bolt, signal.SIGCONT))
        plan += [(death.at_s, bolt, signal.SIGKILL) for death in machine.deaths]
    return sorted(plan)


class Faults:
    """One thread.  Bolts tell their process ids in files in ``place``, as ``b1.pid``.

    Each bolt must be a process of its own, as on Spark: threads share their signals.
    """

    def __init__(self, machines: Sequence[Machine], place: Path) -> None:
        self._plan = signals_of(machines)
        self._place = place
        self._over = threading.Event()
        self._stopped: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def start(self) -> None:
        if self._plan:
            self._thread.start()

    def end(self) -> None:
        """No more faults; who stands still goes on.  May be called again."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        for pid in self._stopped:
            _send(pid, signal.SIGCONT)
        self._stopped.clear()

    def _run(self) -> None:
        began_s = start_s(self._place)
        while began_s is None:
            if self._over.wait(_LOOK_EVERY_S):
                return
            began_s = start_s(self._place)
        for at_s, bolt, number in self._plan:
            if self._over.wait(max(0.0, began_s + at_s - time.monotonic())):
                return
            self._harm(bolt, number)

    def _harm(self, bolt: int, number: signal.Signals) -> None:
        told = self._place / f"b{bolt + 1}.pid"
        while not told.exists():
            if self._over.wait(_LOOK_EVERY_S):
                return
        pid = int(told.read_text())
        _send(pid, number)
        (self._stopped.add if number is signal.SIGSTOP else self._stopped.discard)(pid)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended since
        os.kill(pid, number)
