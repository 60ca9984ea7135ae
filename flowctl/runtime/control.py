"""What the threads of one run share: the core behind its lock, and how the run will end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.driver import DriverCore, Turn, pump
from flowctl.core.messages import LongCall
from flowctl.core.pacing.figures import SeenTargets
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.instrumentation.snapshot import LongCallView, Waits
from flowctl.range_ports import ReceiptLog
from flowctl.wire.frames import Saved

# -- Which reports of bolts are saved, for bolts that begin no third batch before that ---------


class Reports(NamedTuple):
    """How many reports came over a bolt's connection, which ``epoch`` numbers."""

    epoch: int
    number: int


class SavesTold:
    """Which reports on ranges are saved, to tell the bolts.

    Not thread-safe: the caller holds the control's lock.  ``is_awaited``: bolts wait for the save
    of some of the last reports.
    """

    def __init__(self) -> None:
        self.is_awaited: bool = False
        self._ranges: set[int] = set()  # tuples that were reported on since the last save began
        self._came: dict[str, Reports] = {}
        self._waiting: set[str] = set()  # bolts whose last reports are not saved
        self._news: dict[str, Reports] = {}

    def reported(self, bolt: str, epoch: int, tuple_id: int, *, is_awaited: bool) -> bool:
        """Count a report; ``is_awaited``: the bolt wants to know when it is saved.

        Returns whether a slot is held up already, as the report before this one is not saved.
        """
        before = self._came.get(bolt)
        count = before.number if before is not None and before.epoch == epoch else 0
        self._came[bolt] = Reports(epoch, count + 1)
        if not is_awaited:
            return False
        self.is_awaited = True
        self._waiting.add(bolt)
        is_held_up = tuple_id in self._ranges
        self._ranges.add(tuple_id)
        return is_held_up

    def covered(self) -> dict[str, Reports]:
        """Return the reports that a save that begins now will hold; for :meth:`saved`."""
        self._ranges.clear()
        self.is_awaited = bool(self._waiting)
        return {bolt: self._came[bolt] for bolt in self._waiting}

    def saved(self, covered: dict[str, Reports]) -> None:
        """Note that the save succeeded."""
        self._waiting.difference_update([b for b, r in covered.items() if self._came[b] == r])
        self._news.update(covered)

    def take(self, bolts: Mapping[str, AdaptiveFlowConsumer]) -> list[tuple[str, Saved]]:
        """Return the notices for ``bolts`` on saved reports; none for a bolt that connected
        since.
        """
        if not self._news:
            return []
        news, self._news = self._news, {}
        return [
            (bolt, Saved(reports.number))
            for bolt, reports in news.items()
            if bolt in bolts and bolts[bolt].epoch == reports.epoch
        ]


# -- The calls of ``process`` that take long, as bolts tell them with their heartbeats ---------


class LongCalls:
    """Long calls of ``process`` that the bolts of a run report.

    Not thread-safe: guarded by the lock of :class:`.RunControl`.  ``overdue`` counts the calls that
    took longer than ``call.timeout_s``.
    """

    def __init__(self) -> None:
        self.overdue: int = 0
        self._told: dict[str, tuple[float, Sequence[LongCall]]] = {}  # by bolt: when, and what
        # The same of threads that went on without their bolts, the oldest first.
        self._stuck: list[tuple[str, tuple[float, Sequence[LongCall]]]] = []

    def take(self, bolt: str, calls: Sequence[LongCall], now_s: float) -> None:
        """Take the report of ``bolt`` that these calls, and no others, take long."""
        if calls:
            self._told[bolt] = (now_s, calls)
        else:
            self._told.pop(bolt, None)

    def joined(self, bolt: str) -> None:
        """``bolt`` came, or came back: none of its calls takes long."""
        self._told.pop(bolt, None)

    def left(self, bolt: str, *, is_stuck: bool) -> None:
        """``bolt`` went.  ``is_stuck``: because a call does not return."""
        told = self._told.pop(bolt, None)
        if is_stuck and told is not None:
            self._stuck.append((bolt, told))

    def returned(self, bolt: str) -> None:
        """A call came back for which ``bolt`` had left."""
        for place, (of, _) in enumerate(self._stuck):
            if of == bolt:
                del self._stuck[place]
                return

    @property
    def is_one_stuck(self) -> bool:
        """Whether a call took longer than it may and, as far as is known, is not back."""
        return self.overdue > 0 and bool(self._told or self._stuck)

    def views(self, now_s: float) -> tuple[LongCallView, ...]:
        """Return the calls for display, the longest first."""
        views = [
            LongCallView(
                bolt=bolt,
                partition=call.partition,
                first=call.first,
                last=call.last,
                for_s=call.for_s + now_s - told_s,
            )
            for bolt, (told_s, calls) in [*self._told.items(), *self._stuck]
            for call in calls
        ]
        return tuple(sorted(views, key=lambda view: -view.for_s))


# -- What the threads of one run share ---------------------------------------------------------


_NOTHING: Final = Checkpoint()


class RunControl:
    """The lock, the core that it guards, and the end of the run.

    ``core`` is touched only with ``lock`` held; ``room`` is a condition on the same lock that the
    reader waits on.  Everything else here is set by one thread and read by others, or is an
    Event.  The first error wins.
    """

    def __init__(
        self,
        core: DriverCore,
        *,
        clock: Callable[[], float] = time.monotonic,
        restored: Checkpoint = _NOTHING,
    ) -> None:
        """``restored`` is the checkpoint of earlier runs."""
        self.core = core
        self.clock = clock
        self.lock: threading.Lock = threading.Lock()
        self.room: threading.Condition = threading.Condition(self.lock)
        self.reader_waits = False
        self.reader_done: threading.Event = threading.Event()
        self.has_read_all = False  # the producer said that there are no more records
        self.stopping: threading.Event = threading.Event()  # no more intake, no more emissions
        # All is done, or nothing more will be waited for.
        self.finished: threading.Event = threading.Event()
        self.error: BaseException | None = None
        self.targets: SeenTargets = SeenTargets()  # targets that bolts pace; guarded by the lock
        self.long_calls: LongCalls = LongCalls()  # guarded by the lock
        self.places: dict[str, tuple[str, int]] = {}  # host and process of each bolt that connected
        # The store's content, as far as we know: changed by the saving thread, one at a time.
        self.saved: Checkpoint = Checkpoint()
        self.saved_cumulative: int = 0  # saved records below the cumulative acks
        self.note_saved(restored.partitions)
        # Done by earlier runs.
        self.records_before: int = restored.records
        self.records_saved: int = restored.records
        self.store_away_since_s: float | None = None
        # All that was acked until then is in the store; None: nothing was saved yet.
        self.saved_until_s: float | None = None
        self.receipt_log: ReceiptLog | None = None  # gets receipts before a checkpoint is saved
        self.store_survives = True  # reported by the store, see CheckpointStore
        # Both are set by the sender when it listens: one wakes it, the other says how long it has
        # waited so far, and why.
        self.wake: Callable[[], None] = lambda: None
        self.save_soon: Callable[[], None] = lambda: None  # set by the checkpointer
        self.saves_told: SavesTold = SavesTold()
        # Gets each turn and its bounds, with the lock held, if the run is recorded.
        self.on_turn: Callable[[tuple[Any, ...], Turn], None] | None = None
        self.spout_waits: Callable[[], Waits] = Waits

    def turn(
        self, now_s: float, *, emits_max: int, bytes_max: int | None, heard_until_s: float | None
    ) -> Turn:
        """Take one turn of the core, as of :func:`flowctl.core.driver.pump`.  Holding the lock."""
        bounds = (now_s, emits_max, bytes_max, heard_until_s)
        turn = pump(
            self.core, now_s, emits_max=emits_max, bytes_max=bytes_max, heard_until_s=heard_until_s
        )
        if self.on_turn is not None:
            self.on_turn(bounds, turn)
        return turn

    def note_saved(self, partitions: Mapping[str, PartitionCheckpoint]) -> None:
        """Note that the store now holds ``partitions`` in this state."""
        saved = self.saved.partitions
        self.saved_cumulative += sum(
            [
                state.records - (saved[name].records if name in saved else 0)
                for name, state in partitions.items()
            ]
        )
        saved.update(partitions)

    def all_saved(self) -> Checkpoint:
        """Return a copy of ``saved`` that does not change; from any thread.  O(partitions)."""
        return Checkpoint(dict(self.saved.partitions))

    def fail(self, error: BaseException) -> None:
        """Stop the run because of ``error``: intake ends, what was acked is still saved."""
        if self.error is None:
            self.error = error
        self.stop()

    def fail_soon(self, error: BaseException) -> None:
        """As :meth:`fail`, for the sender, which holds the lock and needs no wake-up."""
        if self.error is None:
            self.error = error
        self.stopping.set()
        self.room.notify_all()

    def is_all_done(self) -> bool:
        """Whether the whole input was read and acked without an error."""
        return self.error is None and self.is_input_done()

    def is_input_done(self) -> bool:
        """Whether the whole input was read and acked."""
        with self.lock:
            return self.has_read_all and self.core.is_drained

    def stop(self) -> None:
        """Send no more; the run ends when the tuples in flight are acked, or after a grace
        period.
        """
        self.stopping.set()
        with self.room:
            self.room.notify_all()
        self.wake()
