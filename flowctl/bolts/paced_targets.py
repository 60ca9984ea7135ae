"""Reports of a bolt to its spout on the targets that its process paces.

:mod:`flowctl.pacing` is above the bolts and registers its figures here; without it nothing is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import Final

from flowctl.core.pacing.figures import TARGETS_MAX, TargetFigures

# Seconds between reports: as often as a person can read; each costs some hundred bytes for each
# target.
_EVERY_S: Final = 1.0

_ask: Callable[[], Sequence[TargetFigures]] = tuple


def tell(ask: Callable[[], Sequence[TargetFigures]]) -> None:
    """Let bolts of this process report what ``ask`` returns from now on; thread-safe."""
    global _ask
    _ask = ask


class TargetTeller:
    """Decides when a bolt reports.

    Two threads that ask at once may report the same, which is harmless.
    """

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = 0.0

    def due(self, now_s: float) -> list[TargetFigures]:
        """Return the figures to report now, mostly none.  If there are many targets, the
        busiest.
        """
        if now_s < self._next_s:
            return []
        self._next_s = now_s + _EVERY_S
        return nlargest(TARGETS_MAX, _ask(), key=lambda told: told.call_s + told.waited_s)
