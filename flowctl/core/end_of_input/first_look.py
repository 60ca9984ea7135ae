"""The first bolts to answer wait a little for the next ones, which tell what a call costs."""

from __future__ import annotations

from flowctl.core.service import ServicePool

# So much of the time that first tuples took so far.  Where calls are what costs, bolts of one speed
# answer within a quarter of it, whatever they hold: all of them then share what is left in one more
# round.  Where records are what costs, a quarter of a first tuple is 1/32 of a share at most.
_PART = 0.25


class FirstLook:
    """One wait, from when the first bolt answers.  Not thread-safe."""

    __slots__ = ("_is_on", "_until_s")

    def __init__(self) -> None:
        self._until_s: float | None = None  # None: nobody has answered
        self._is_on = False

    def holds(self, pool: ServicePool, now_s: float, *, is_useful: bool) -> bool:
        """Whether a bolt that has answered gets nothing yet.

        ``is_useful``: what the next ones will say may tell what a call costs.  Asked at the first
        answer; later it changes nothing.
        """
        if self._until_s is None:
            wait_s = _PART * pool.mean_s if is_useful and not pool.is_split else 0.0
            self._until_s = now_s + wait_s
        self._is_on = now_s < self._until_s and pool.first_calls > 0
        return self._is_on

    def next_s(self) -> float | None:
        """When to ask again on behalf of bolts that got nothing for this reason; None: for none."""
        return self._until_s if self._is_on else None

    def on_deadline(self, now_s: float) -> None:
        """Time has passed."""
        if self._until_s is not None and now_s >= self._until_s:
            self._is_on = False
