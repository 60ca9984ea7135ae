"""What the threads of one run share: the core behind its lock, and how the run will end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from flowctl.core.driver import DriverCore
from flowctl.core.pacing.figures import SeenTargets
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.instrumentation.snapshot import Waits
from flowctl.range_ports import ReceiptLog
from flowctl.runtime.long_calls import LongCalls
from flowctl.runtime.saves_told import SavesTold

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
        """``restored`` is what earlier runs saved."""
        self.core = core
        self.clock = clock
        self.lock: threading.Lock = threading.Lock()
        self.room: threading.Condition = threading.Condition(self.lock)
        self.reader_waits = False
        self.reader_done: threading.Event = threading.Event()
        self.has_read_all = False  # the producer said that there are no more records
        self.stopping: threading.Event = threading.Event()  # no more intake, no more emissions
        # Nothing is left to do, or nothing more will be waited for.
        self.finished: threading.Event = threading.Event()
        self.error: BaseException | None = None
        self.targets: SeenTargets = SeenTargets()  # that bolts pace; guarded by the lock
        self.long_calls: LongCalls = LongCalls()  # guarded by the lock
        self.places: dict[str, tuple[str, int]] = {}  # host and process of each bolt that connected
        # What the store holds, as far as we know: changed by whoever saves, one thread at a time.
        self.saved: Checkpoint = Checkpoint()
        self.saved_cumulative: int = 0  # records of it below the cumulative acks
        self.note_saved(restored.partitions)
        # Done by earlier runs.
        self.records_before: int = restored.records
        self.records_saved: int = restored.records
        self.store_away_since_s: float | None = None
        # All that was acked until then is in the store; None: nothing was saved yet.
        self.saved_until_s: float | None = None
        self.receipt_log: ReceiptLog | None = None  # what is kept before a checkpoint is saved
        self.store_survives = True  # as the store says, see CheckpointStore
        # Both are set by the sender when it listens: one wakes it, the other says how long it has
        # waited so far, and why.
        self.wake: Callable[[], None] = lambda: None
        self.save_soon: Callable[[], None] = lambda: None  # set by the checkpointer
        self.saves_told: SavesTold = SavesTold()
        self.spout_waits: Callable[[], Waits] = Waits

    def note_saved(self, partitions: Mapping[str, PartitionCheckpoint]) -> None:
        """The store now also holds ``partitions``, or holds them in this state."""
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
        with self.lock:
            return self.has_read_all and self.core.is_drained and self.error is None

    def stop(self) -> None:
        """Send no more; the run ends when what is in flight is acked, or after a grace period."""
        self.stopping.set()
        with self.room:
            self.room.notify_all()
        self.wake()
