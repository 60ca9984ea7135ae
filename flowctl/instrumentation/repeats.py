"""Failures that come by the hundred: the first of a kind is shown at once, the rest as a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from flowctl.core import events as ev
from flowctl.instrumentation.reasons import KINDS_MAX, OTHERS, folded

# As often as the plain view writes a line: an error in every record becomes a line in five seconds.
TELL_EVERY_S: Final = 5.0

_KINDS: Final = (
    ev.TupleFailed,
    ev.TupleGaveUp,
    ev.TupleDeadLettered,
    ev.TupleDropped,
    ev.RecordsRejected,
)


class _Kind:
    """One event class with one folded reason."""

    __slots__ = ("last", "told_at_s", "untold")

    def __init__(self, event: ev.FlowEvent, now_s: float) -> None:
        self.last = event
        self.told_at_s = now_s
        self.untold = 0


class Repeats:
    """Tells repeated failures of one kind from news.  Bounded; for one thread.

    Two are of one kind if they are of one class and their reasons differ in numbers and quoted
    parts only.  A kind that was quiet for :data:`TELL_EVERY_S` is news again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[tuple[type[ev.FlowEvent], str], _Kind] = {}

    def is_news(self, event: ev.FlowEvent) -> bool:
        """Whether to show ``event`` now; otherwise it is counted for :meth:`due`."""
        if not isinstance(event, _KINDS):
            return True
        key = (type(event), folded(_reason_of(event)))
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = (type(event), OTHERS)
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _Kind(event, self._clock())
            return True
        kind.last = event
        kind.untold += len(event.positions) if isinstance(event, ev.RecordsRejected) else 1
        return False

    def due(self, *, is_end: bool = False) -> Iterator[tuple[ev.FlowEvent, int]]:
        """Yield the last event of each kind that is due, and how many there were.

        Those already shown, at once or here, are not counted again.  ``is_end``: all kinds are due.
        """
        now_s = self._clock()
        for key, kind in list(self._kinds.items()):
            if not is_end and now_s - kind.told_at_s < TELL_EVERY_S:
                continue
            if kind.untold:
                yield kind.last, kind.untold
                kind.untold = 0
                kind.told_at_s = now_s
            else:
                del self._kinds[key]


def _reason_of(event: ev.FlowEvent) -> str:
    if isinstance(event, ev.RecordsRejected):
        return event.reasons[0]
    return getattr(event, "reason", "")
