"""What stands between two loops: a bounded queue, and the emits that it refused."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Inbox(Protocol[T_co]):
    """Where a loop's messages come from."""

    def consume(
        self, handle: Callable[[T_co], None], until: Callable[[], bool] | None = None
    ) -> int:
        """Give a batch of messages to ``handle``, in order; return how many.

        Ends early, before it takes another, when ``until()`` is true.
        """


class BoundedQueue(Generic[T]):
    """Holds ``capacity`` items at most and refuses more; never blocks.

    Any thread may offer, one consumes.  ``wake`` is called after an item is in: the consumer's
    :meth:`flowctl.runtime.wait.Waiter.wake`, so that its wait ends.
    """

    def __init__(self, capacity: int, *, wake: Callable[[], None] | None = None) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._wake = wake
        # Between those who offer; taking only makes room, so the consumer needs no lock.
        self._offering = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: T) -> bool:
        """Put ``item`` in and return True, or return False: full."""
        with self._offering:
            if len(self._items) >= self._capacity:
                return False
            self._items.append(item)
        if self._wake is not None:
            self._wake()
        return True

    def consume(self, handle: Callable[[T], None], until: Callable[[], bool] | None = None) -> int:
        """As :class:`Inbox`; a batch is what was there at the start, so that it has an end."""
        present = len(self._items)
        for count in range(present):
            if until is not None and until():
                return count
            handle(self._items.popleft())
        return present


class IteratorInbox(Generic[T]):
    """An iterator as a loop's input, as Spark gives it to a task (ruling P).

    Nothing is pulled that can't be handled: the exit condition is asked before each pull.
    ``next`` on the iterator may block, which no wait strategy can shorten.
    """

    def __init__(self, items: Iterator[T], *, batch_max: int = 64) -> None:
        # So many between two looks at a stop; each look costs less than a microsecond.
        self._batch_max = batch_max
        self._items = items
        self.is_at_end = False

    def consume(self, handle: Callable[[T], None], until: Callable[[], bool] | None = None) -> int:
        """As :class:`Inbox`; 0 with ``is_at_end`` when there will be no more."""
        count = 0
        while count < self._batch_max and not (until is not None and until()):
            try:
                item = next(self._items)
            except StopIteration:
                self.is_at_end = True
                break
            handle(item)
            count += 1
        return count


class PendingEmits(Generic[T]):
    """The overflow buffer: emits that the next one refused, in their order (S41, S52).

    Emitting never blocks.  It is bounded by its loop, which asks for no more output while
    anything is in here: it never holds more than one call of the user's code emitted.
    For one thread.
    """

    __slots__ = ("_kept", "_transfer", "emitted_count", "kept_max")

    def __init__(self, transfer: Callable[[T], bool]) -> None:
        self._transfer = transfer  # False: refused, try again later
        self._kept: deque[T] = deque()
        self.emitted_count = 0
        self.kept_max = 0  # the most it ever held

    def __len__(self) -> int:
        return len(self._kept)

    def has_pending(self) -> bool:
        """Whether an emit waits: the exit condition of a bolt's consumption."""
        return bool(self._kept)

    def emit(self, items: Iterable[T]) -> None:
        """One emission: a message for each of its targets, perhaps none."""
        self.emitted_count += 1
        for item in items:
            # Behind those that wait, even if there were room now: no emit overtakes another.
            if self._kept or not self._transfer(item):
                self._kept.append(item)
        self.kept_max = max(self.kept_max, len(self._kept))

    def flush(self) -> bool:
        """Hand over in order until one is refused; return whether none is left."""
        kept = self._kept
        while kept:
            if not self._transfer(kept[0]):
                return False
            kept.popleft()
        return True
