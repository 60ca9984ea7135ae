"""A scenario's trace on real bolts: the driver reads its records, the bolts sleep its times.

Both sides draw what the simulator draws, from the scenario and the seed alone.  A folder is all
that they share: ``start`` in it holds the common time 0, by the machine's monotonic clock.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from flowctl.bolts.batch import Batch
from flowctl.core.records import Checkpoint, Record
from flowctl.ports import SourceChunk
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.oracle import arrivals_s
from flowctl_lab.simulation.scenario import Death, Scenario
from flowctl_lab.simulation.workload import Workload, workload_of

WARM: Final = "warm"  # the partition of the one tuple that is there before time 0
TRACE: Final = "p"
# From the start file's being written to time 0: far longer than the writing takes.
_LEAD_S: Final = 0.05
_LOOK_EVERY_S: Final = 0.02  # at files: for the start, and by a dead bolt for its end
# A tuple that comes this soon after the one before was held back by it; the round trip without load
# that the scenarios have.
_FOLLOWS_WITHIN_S: Final = 0.002
# A poll should return within some 0.1 s, and who returns empty-handed is not asked for 0.05 s.
_ARRIVAL_WAIT_MAX_S: Final = 0.15
COUNT: Final = struct.Struct(">I")  # what a bolt asks of the sink: so many records


def start_s(place: Path) -> float | None:
    """Time 0, or None if it is not yet known."""
    try:
        return float((place / "start").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _await_start(place: Path) -> float:
    while (at_s := start_s(place)) is None:
        time.sleep(_LOOK_EVERY_S)
    return at_s


class TraceWorker:
    """``process``: sleeps as long as the trace says that the tuple takes at this bolt, now.

    Deadlines are absolute: what a sleep overran is taken off the next one, if that tuple was
    waiting; what flowctl takes between two tuples is not hidden.  Thread-safe.
    """

    def __init__(self, scenario: Scenario, seed: int, place: str, sink_port: int | None) -> None:
        self._arguments = (scenario, seed, place, sink_port)
        self._place = Path(place)
        self._sink_port = sink_port
        self._tells_pid = bool(scenario.freezes or scenario.pauses or scenario.deaths)
        self._tuple_s, self._record_s = scenario.tuple_s, scenario.record_s
        self._machines = [Machine(scenario, seed, bolt) for bolt in range(scenario.bolts)]
        self._workload = workload_of(scenario, seed, 0)
        self._returned: Machine | None = None  # whose fate it is, after a death
        self._start_s: float | None = None
        self._slot = threading.local()

    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments

    def __setstate__(self, arguments: tuple[Any, ...]) -> None:
        """On a worker, before it connects: the place to be dead."""
        self.__init__(*arguments)  # type: ignore[misc]
        scenario: Scenario = arguments[0]
        if scenario.is_as_shipped:
            self._connect(scenario)
        began_s = start_s(self._place)
        if scenario.deaths and began_s is not None:
            death = self._my_death(scenario.deaths)
            self._returned = self._machines[death.bolt]
            self._stay_dead(death, began_s)

    def _connect(self, scenario: Scenario) -> None:
        """A job as shipped begins when all workers are there; they connect then, or when due."""
        number = next(n for n in range(scenario.bolts) if self._claims(f"ready{n}"))
        if number == scenario.bolts - 1:  # the last to come
            _write_whole(self._place / "start", repr(time.monotonic() + _LEAD_S))
        due_s = _await_start(self._place) + scenario.connects_at_s(number)
        time.sleep(max(0.0, due_s - time.monotonic()))

    def _claims(self, name: str) -> bool:
        """Whether this worker is the first that wants ``name``."""
        try:
            (self._place / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _my_death(self, deaths: Sequence[Death]) -> Death:
        """The first that nobody has taken: a worker does not know yet which bolt it will be."""
        for number, death in enumerate(deaths):
            if self._claims(f"death{number}"):
                return death
        raise RuntimeError("a worker died that should not have.")

    def _stay_dead(self, death: Death, began_s: float) -> None:
        back_s = None if death.back_at_s is None else began_s + death.back_at_s
        while not (self._place / "over").exists():
            if back_s is not None and time.monotonic() >= back_s:
                return
            time.sleep(_LOOK_EVERY_S)

    def __call__(self, batch: Batch) -> None:
        now_s = time.monotonic()
        if batch.span.partition == WARM:
            time.sleep(self._tuple_s + self._record_s * len(batch))
            return
        if self._start_s is None:
            self._begin(batch.bolt)
        assert self._start_s is not None
        slot = self._slot
        if now_s - getattr(slot, "through_at_s", 0.0) < _FOLLOWS_WITHIN_S:
            now_s -= slot.overran_s
        position = batch[0].position
        assert isinstance(position, int)
        work_s = self._workload.cost_s(position, len(batch), batch.attempt)
        machine = self._returned or self._machines[int(batch.bolt[1:]) - 1]
        finish_s = machine.profile.finish(now_s - self._start_s, work_s) + self._start_s
        # A bolt that is about to die has no finish: it sleeps until the signal comes.
        time.sleep(min(max(0.0, finish_s - time.monotonic()), threading.TIMEOUT_MAX))
        slot.overran_s = time.monotonic() - finish_s
        if self._sink_port is not None:
            self._write(batch, self._sink_port)
        slot.through_at_s = time.monotonic()

    def _begin(self, bolt: str) -> None:
        if self._tells_pid:
            _write_whole(self._place / f"{bolt}.pid", str(os.getpid()))
        self._start_s = _await_start(self._place)

    def _write(self, batch: Batch, port: int) -> None:
        """Write to the shared sink, one request at a time; returns when it is through."""
        slot = self._slot
        if not hasattr(slot, "sink"):
            slot.sink = socket.create_connection(("127.0.0.1", port))
            slot.sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        in_sink: Callable[[], Any] = getattr(batch, "in_sink", nullcontext)
        with in_sink():
            slot.sink.sendall(COUNT.pack(len(batch)))
            if not slot.sink.recv(1):
                raise RuntimeError("the sink is gone.")
        slot.overran_s = 0.0  # it was the sink's time


def _write_whole(path: Path, text: str) -> None:
    """So that no reader sees half of it."""
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


class TraceProducer:
    """One tuple to start the bolts, then, when ``is_ready`` says so, the trace from time 0 on."""

    def __init__(
        self, scenario: Scenario, seed: int, place: Path, is_ready: Callable[[], bool]
    ) -> None:
        self._place = place
        self._is_ready = is_ready
        self._workload: Workload = workload_of(scenario, seed, 0)
        self._arrivals = arrivals_s(scenario)
        self._left: list[Record] = []  # read and not given out yet
        self._read_to = 0  # the record after the last that was read
        # A tuple of the usual size, or a small one where the size is free.  None where nothing may
        # be known before: a job as shipped.
        self.warm_records = 0 if scenario.is_as_shipped else min(scenario.sizes[0], 100)
        self._is_warm = not self.warm_records
        self._end_late_s = scenario.end_late_s
        self.start_s: float | None = None

    @property
    def records(self) -> int:
        """All, the first tuple too."""
        return (self._workload.records or 0) + self.warm_records

    def partitions(self) -> Sequence[str]:
        return [WARM, TRACE]

    def open(self, checkpoint: Checkpoint) -> None:
        if checkpoint.partitions:
            raise RuntimeError("a trace starts at its beginning.")

    def poll(self, max_records: int) -> SourceChunk | None:
        if not self._is_warm:
            self._is_warm = True
            return SourceChunk(WARM, [Record(n, None) for n in range(self.warm_records)])
        if not self.warm_records:
            return self._read_at_once(max_records)
        if self.start_s is None:
            if not self._is_ready():
                return SourceChunk(TRACE, [])
            self.start_s = time.monotonic() + _LEAD_S
            _write_whole(self._place / "start", repr(self.start_s))
            time.sleep(max(0.0, self.start_s - time.monotonic()))
        return self._read(max_records, self.start_s)

    def _read(self, max_records: int, began_s: float) -> SourceChunk | None:
        if not self._left:
            if self._workload.is_read:
                return None
            self._left = self._workload.read(self._arrived(began_s))
            self._read_to += len(self._left)
        records, self._left = self._left[:max_records], self._left[max_records:]
        return SourceChunk(TRACE, records)

    def _read_at_once(self, max_records: int) -> SourceChunk | None:
        """All is there before the workers, who begin by themselves; the end may be told late."""
        if self._left or not self._workload.is_read:
            return self._read(max_records, 0.0)
        self.start_s = start_s(self._place)
        is_told = self.start_s is not None and time.monotonic() >= self.start_s + self._end_late_s
        return None if is_told else SourceChunk(TRACE, [])

    def _arrived(self, began_s: float) -> int | None:
        """The end of the records that are there (None: all); waits a little for the next ones."""
        if self._arrivals is None:
            return None
        next_at_s = self._arrivals[self._workload.block_of(self._read_to)]
        wait_s = next_at_s - (time.monotonic() - began_s)
        if wait_s > _ARRIVAL_WAIT_MAX_S:
            return self._read_to
        time.sleep(max(0.0, wait_s))
        there = bisect_right(self._arrivals, time.monotonic() - began_s)
        return sum(self._workload.block(there - 1)) if there else 0

    def close(self) -> None:
        pass
