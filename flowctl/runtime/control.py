"""What the threads of one run share: the core behind its lock, and how the run is to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from flowctl.core.driver import DriverCore
from flowctl.core.records import Checkpoint
from flowctl.instrumentation.snapshot import Waits


class RunControl:
    """The one lock, the core that it guards, and the end of the run.

    ``core`` is touched only with ``lock`` held; ``room`` is a condition on the same lock that the
    reader waits on.  Everything else here is set by one thread and read by others, or is an
    Event.  The first error wins.
    """

    def __init__(self, core: DriverCore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.core = core
        self.clock = clock
        self.lock: threading.Lock = threading.Lock()
        self.room: threading.Condition = threading.Condition(self.lock)
        self.reader_waits = False
        self.reader_done: threading.Event = threading.Event()
        self.has_read_all = False  # the producer said that there is no more
        self.stopping: threading.Event = threading.Event()  # no more intake, no more emissions
        self.finished: threading.Event = (
            threading.Event()
        )  # nothing left to do, or no more to be waited for
        self.error: BaseException | None = None
        self.places: dict[str, tuple[str, int]] = {}  # host and process of each bolt that came
        self.saved: Checkpoint = Checkpoint()  # what the store holds, as far as we know
        self.records_before = 0  # done by earlier runs
        self.records_saved = 0
        self.store_away_since_s: float | None = None
        self.store_survives = True  # as the store says, see CheckpointStore
        # Both are the sender's, set when it listens: wakes it; how long it waited so far, and why.
        self.wake: Callable[[], None] = lambda: None
        self.spout_waits: Callable[[], Waits] = Waits

    def fail(self, error: BaseException) -> None:
        """Stop the run because of ``error``: intake ends, what was acked is still saved."""
        if self.error is None:
            self.error = error
        self.stop()

    def fail_soon(self, error: BaseException) -> None:
        """As :meth:`fail`, for the sender, which holds the lock and needs no waking."""
        if self.error is None:
            self.error = error
        self.stopping.set()
        self.room.notify_all()

    def is_all_done(self) -> bool:
        """Whether the whole input is read and acked, without an error."""
        with self.lock:
            return self.has_read_all and self.core.is_drained and self.error is None

    def stop(self) -> None:
        """Send no more; the run ends when what is in flight is acked, or after a grace."""
        self.stopping.set()
        with self.room:
            self.room.notify_all()
        self.wake()
