"""Emits that nobody receives: counted, and reported in a few lines however many there are."""

from __future__ import annotations

from collections import deque
from typing import Final

from flowctl.core.events import EmitUndelivered, FlowEvent

# The first ones are reported at once, more of the same kind after this: often enough to be noticed.
_TELL_EVERY_S: Final = 10.0


class _Kind:
    """Emits of one source that are not delivered for one reason."""

    __slots__ = ("bolt", "told_at_s", "untold")

    def __init__(self) -> None:
        self.bolt = ""  # the last one that made one
        self.untold = 0
        self.told_at_s: float | None = None


class Undelivered:
    """Part of ``TopologyCore``, not thread-safe.  ``emits`` counts them all."""

    def __init__(self, events: deque[FlowEvent]) -> None:
        self.emits: int = 0
        self._events = events
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._untold = 0

    def add(self, source: str, bolt: str, reason: str) -> None:
        """``bolt`` emitted a value as ``source`` that reaches nobody; reported at the next
        :meth:`flush`."""
        self.emits += 1
        self._untold += 1
        kind = self._kinds.setdefault((source, reason), _Kind())
        kind.bolt = bolt
        kind.untold += 1

    def flush(self, now_s: float) -> None:
        """Report what was added, of each kind at most every ten seconds."""
        if not self._untold:
            return
        for (source, reason), kind in self._kinds.items():
            told_at_s = kind.told_at_s
            is_due = told_at_s is None or now_s - told_at_s >= _TELL_EVERY_S
            if kind.untold and is_due:
                self._tell(source, reason, kind, now_s)

    def _tell(self, source: str, reason: str, kind: _Kind, now_s: float) -> None:
        self._events.append(
            EmitUndelivered(
                at_s=now_s, bolt=kind.bolt, source=source, emits=kind.untold, reason=reason
            )
        )
        self._untold -= kind.untold
        kind.untold = 0
        kind.told_at_s = now_s
