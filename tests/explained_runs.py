"""Runs in virtual time whose event logs tests explain."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from flowctl.bolts.slots import TELL_AFTER_S
from flowctl.config import Settings
from flowctl.core.messages import LongCall
from flowctl.core.records import Checkpoint
from flowctl.core.spout import SpoutCore
from flowctl.instrumentation.event_log import EventLog, read_lines
from flowctl.instrumentation.explained import LoggedRun, runs_of
from flowctl.instrumentation.run_events import RunEvents
from flowctl.instrumentation.snapshot import WaitReason, Waits
from flowctl.runtime.control import RunControl
from flowctl.runtime.meter import Meter
from flowctl_lab.simulation.engine import Simulation
from flowctl_lab.simulation.scenario import Scenario

BEGAN = datetime(2026, 11, 22, 10, 30, 0, tzinfo=timezone.utc)
_LOOK_S = 0.25  # as a run looks
_WAIT_S = 0.01  # how finely the waits of the simulated spout are measured


class WatchedSimulation:
    """A simulated run, watched as a real one is, with an event log in ``path``."""

    def __init__(self, scenario: Scenario, path: Path, *, bolts: Any = None) -> None:
        self.simulation = Simulation(scenario, Settings(), 1, keep_log=True)
        self.loop = self.simulation.loop
        self.core: SpoutCore = self.simulation.spouts[0].core
        self.control = RunControl(self.core, clock=self._now)
        self.control.spout_waits = self._waits
        restored = Checkpoint()
        self._meter = Meter(self.control, None, job="orders", restored=restored, bolts=bolts)
        self._path = path
        self._told = RunEvents(
            "orders",
            self.simulation.settings,
            clock=self._now,
            now=lambda: BEGAN + timedelta(seconds=self.loop.now_s),
            log=EventLog(str(path), run=1, bytes_max=1 << 20),
        )
        self._waited = dict.fromkeys(WaitReason, 0.0)
        self._seen = 0  # lines of the simulation's log
        self.hangs: tuple[str, float] | None = None  # a bolt, and since when a call runs there

    def _now(self) -> float:
        return self.loop.now_s

    def run(self) -> LoggedRun:
        """Run to the end, and return what the log says."""
        self._told.started()
        self.loop.at(0.0, self._measure)
        self.loop.at(_LOOK_S, self._look)
        self.simulation.run()
        self._look(self.loop.now_s, None, None)
        self._told.finished(self._meter.report("finished", None, 1))
        [run] = runs_of(read_lines(str(self._path)))
        return run

    def _measure(self, at_s: float, _: Any, __: Any) -> None:
        """As the sender: a simulated spout does its work in no time, so it always waits."""
        self._waited[self._reason()] += _WAIT_S
        self.loop.at(at_s + _WAIT_S, self._measure)

    def _reason(self) -> WaitReason:
        if self.core.intake.buffer:
            return WaitReason.MAX_PENDING if self.core.is_at_limit else WaitReason.BACKPRESSURE
        is_read = self.simulation.spouts[0].workload.is_read
        return WaitReason.LAST_TUPLES if is_read else WaitReason.NO_INPUT

    def _waits(self) -> Waits:
        waited = {f"{reason}_s": s for reason, s in self._waited.items() if reason}
        return Waits(**waited)

    def _look(self, at_s: float, _: Any, __: Any) -> None:
        log = self.simulation.log or []
        for line in log[self._seen :]:
            if line[2] == "event":
                self._meter.take(line[3])
                self._told.happened(line[3])
        self._seen = len(log)
        if self.hangs is not None and at_s - self.hangs[1] > TELL_AFTER_S:
            call = LongCall("p", 7, 7, at_s - self.hangs[1])
            self.control.long_calls.take(self.hangs[0], [call], at_s)
        self._told.look(self._meter.snapshot("running", ""))
        self.loop.at(at_s + _LOOK_S, self._look)
