"""Which tuples of this connection a bolt already has, so that it does not process any twice."""

from __future__ import annotations

from typing import Final

# A copy follows the first sending within a few timeouts.  At 1,000 tuples a second that is a few
# thousand tuples ago; an older copy is processed again, which at-least-once delivery allows.
# So many are known, and at most twice as many.
KNOWN_MIN: Final = 1 << 13
# So many new ones are at most kept apart, in the order in which they came.
_APART_MAX: Final = 1 << 8


class KnownTuples:
    """Ids of the tuples that are queued, being processed or done.  Not thread-safe.

    When a timeout expires and no other bolt can take the tuple, the spout sends it to the same bolt
    again.  That bolt still has the first copy and acks it sooner or later, as the connection loses
    nothing.  Processing the copy too would be waste; for a bolt that keeps state between calls it
    would be wrong: a join would match an input with itself, and the input's real partner would wait
    until its tree expires.

    Ids of tuples that failed, were refused or given back must be forgotten: the spout sends these
    again on purpose.  ``arrived`` counts what came, copies too.
    """

    __slots__ = ("_apart", "_begun", "_highest", "_ids", "_older", "_slots", "arrived")

    def __init__(self, slots: int = 1) -> None:
        # The newest, and KNOWN_MIN before them.  They go all at once: a dict that loses its first
        # key each time it gets one is slow.
        self._ids: set[int] = set()
        self._older: set[int] = set()
        # Ids rise, so nearly all are known to be new by the highest.  These are appended to a list:
        # a set of thousands is scattered in memory, and a bolt that sleeps between two tuples finds
        # none of it in the cache.
        self._apart: list[int] = []
        self._highest = -1
        self._begun: dict[int, None] = {}
        self._slots = slots
        self.arrived: int = 0

    def add(self, tuple_id: int) -> bool:
        """Remember ``tuple_id``; return False if it was known, so this is a copy."""
        self.arrived += 1
        if tuple_id > self._highest:
            self._highest = tuple_id
            self._apart.append(tuple_id)
            if len(self._apart) >= _APART_MAX:
                self._sort_in()
            return True
        self._sort_in()
        if tuple_id in self._ids or tuple_id in self._older:
            return False
        self._put(tuple_id)
        return True

    def _sort_in(self) -> None:
        for tuple_id in self._apart:
            self._put(tuple_id)
        self._apart.clear()

    def _put(self, tuple_id: int) -> None:
        if len(self._ids) >= KNOWN_MIN:
            self._older, self._ids = self._ids, set()
        self._ids.add(tuple_id)

    @property
    def begun(self) -> list[int]:
        """What the slots are at work on; nothing for one slot, whose acks say it already."""
        return list(self._begun)

    def begin(self, tuple_id: int) -> None:
        """A slot takes it from the queue."""
        if self._slots > 1:
            self._begun[tuple_id] = None

    def end(self, tuple_id: int) -> None:
        """It is done, or failed."""
        self._begun.pop(tuple_id, None)

    def forget(self, *tuple_ids: int) -> None:
        """These may come again."""
        self._sort_in()
        for tuple_id in tuple_ids:
            self._ids.discard(tuple_id)
            self._older.discard(tuple_id)
