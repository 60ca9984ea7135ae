"""How long the slots of a bolt are idle, and which of their calls take long.

Calls are watched in the same way behind every door.  The code that runs user code notes when a call
begins and ends; another thread looks now and then: in a bolt its link, with each heartbeat, and in
a task of Spark :mod:`flowctl.delivery.bounded`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from flowctl.bolts.batch import Batch
from flowctl.core.messages import LongCall
from flowctl.core.records import Position
from flowctl.errors import CallTooLongError

# -- How long a bolt has been idle -------------------------------------------------------------


class Idleness:
    """Cumulative idle time of a bolt with ``slots`` process threads.

    Not thread-safe: the caller holds a lock (a wait inside :meth:`one` may release it).
    The total is the mean over the slots, so it grows by one second a second when all are idle,
    whatever their number.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._total_s = 0.0  # seconds of past waits, all slots together
        self._since_sum_s = 0.0  # sum of the start times of current waits
        self.idle_slots: int = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one slot as idle inside the block."""
        since_s = self.begin()
        try:
            yield
        finally:
            self.end(since_s)

    def begin(self) -> float:
        """Count one slot as idle from now on; return what :meth:`end` takes."""
        since_s = time.monotonic()
        self.idle_slots += 1
        self._since_sum_s += since_s
        return since_s

    def end(self, since_s: float) -> None:
        """Count a slot as no longer idle."""
        self.idle_slots -= 1
        # Exactly 0 when no slot is idle, or rounding errors would accumulate.
        self._since_sum_s = self._since_sum_s - since_s if self.idle_slots else 0.0
        self._total_s += time.monotonic() - since_s

    def total_s(self) -> float:
        """Idle time until now [s], 0 or more."""
        total_s = self._total_s
        if self.idle_slots:
            total_s += self.idle_slots * time.monotonic() - self._since_sum_s
        return total_s / self._slots


# -- Calls of ``process`` or ``fn`` that are under way -----------------------------------------


#: A call that takes this long is shown to users [s]: far longer than calls should take.
TELL_AFTER_S: Final = 30.0
#: Cancelled code may want this long to tidy up [s]; a call that has not ended then counts as one
#: that can't be cancelled.
CANCEL_MAX_S: Final = 5.0
# As many as a screen shows; a bolt may have thousands of slots.
_TOLD_MAX: Final = 8


class UnderWay(Protocol):
    """A call under way."""

    @property
    def batch(self) -> Batch:
        """The batch that the call works on."""

    @property
    def began_at_s(self) -> float:
        """When the call began, by ``time.monotonic``."""

    def overdue(self, error: CallTooLongError) -> None:
        """Report ``error`` for this call, as it took too long.  Called once, by another thread."""


class Calls:
    """The calls under way in one bolt or task.

    ``timeout_s`` bounds each of them [s]; None: no bound. :meth:`begin` and :meth:`end` are for the
    threads that call, the rest for the thread that watches.  ``patience_s`` is added to the bound
    if calls that reach it are cancelled first.
    """

    __slots__ = ("_over", "_under_way", "patience_s", "timeout_s")

    def __init__(self, timeout_s: float | None = None) -> None:
        self.timeout_s: float | None = timeout_s
        self.patience_s: float = 0.0
        # Changed by single operations of dicts, which need no lock: who takes a call out of the
        # first reports it.
        self._under_way: dict[int, UnderWay] = {}  # keyed by id()
        self._over: dict[int, UnderWay] = {}  # calls reported as failed that have not returned

    def begin(self, call: UnderWay) -> None:
        """Note that ``call`` begins."""
        self._under_way[id(call)] = call

    def end(self, call: UnderWay) -> bool:
        """Note that ``call`` has ended; return whether to report it: not if it took too long."""
        if self._under_way.pop(id(call), None) is not None:
            return True
        self._over.pop(id(call), None)
        return False

    @property
    def over(self) -> int:
        """The number of calls that took too long and have not returned."""
        return len(self._over)

    def end_overdue(self, now_s: float) -> bool:
        """Report the calls past the bound as failed; return whether there were any."""
        if self.timeout_s is None:
            return False
        before_s = now_s - self.timeout_s - self.patience_s
        found = False
        for key, call in list(self._under_way.items()):
            if call.began_at_s > before_s:
                continue
            self._over[key] = call
            if self._under_way.pop(key, None) is None:  # it has just ended
                del self._over[key]
                continue
            found = True
            error = too_long(self.timeout_s)
            call.batch.overdue = error  # before it is reported: what fails may be put back at once
            call.overdue(error)
        return found

    def long(self, now_s: float) -> list[LongCall]:
        """Return the calls that take long, the longest first."""
        if not self._under_way and not self._over:
            return []
        calls = [*self._over.values()]
        calls += [c for c in list(self._under_way.values()) if now_s - c.began_at_s >= TELL_AFTER_S]
        calls.sort(key=lambda call: call.began_at_s)
        return [_told(call, now_s) for call in calls[:_TOLD_MAX]]


def too_long(timeout_s: float) -> CallTooLongError:
    """Return the error of a call that took longer than ``timeout_s``."""
    return CallTooLongError(f"a call took longer than {timeout_s:g} s (call_timeout_s)")


def _told(call: UnderWay, now_s: float) -> LongCall:
    first, last = _where(call.batch)
    return LongCall(call.batch.span.partition, first, last, now_s - call.began_at_s)


def _where(batch: Batch) -> tuple[Position, Position]:
    """Return the positions of the first and last record that the call may be working on."""
    index = batch.reading_index
    if index is not None:
        try:
            position = batch[index].position
        except Exception:  # records that are made while they are read, in another thread
            return batch.span.first, batch.span.last
        return position, position
    return batch.span.first, batch.span.last
