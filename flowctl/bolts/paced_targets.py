"""What a bolt reports to its spout about the targets that its process paces.

:mod:`flowctl.pacing` is above the bolts and says here where to ask; without it nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import Final

from flowctl.core.pacing.figures import TARGETS_MAX, TargetFigures

# As often as a person can read; each second takes some hundred bytes for each target.
_EVERY_S: Final = 1.0

_ask: Callable[[], Sequence[TargetFigures]] = tuple


def tell(ask: Callable[[], Sequence[TargetFigures]]) -> None:
    """From now on, bolts of this process report what ``ask`` returns; thread-safe."""
    global _ask
    _ask = ask


class TargetTeller:
    """When a bolt reports.  Two threads that ask at once may report the same, which is harmless."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = 0.0

    def due(self, now_s: float) -> list[TargetFigures]:
        """Return what to report now, most of the time nothing.  Of many targets, the busiest."""
        if now_s < self._next_s:
            return []
        self._next_s = now_s + _EVERY_S
        return nlargest(TARGETS_MAX, _ask(), key=lambda told: told.call_s + told.waited_s)
