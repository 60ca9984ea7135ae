"""Time that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """A monotonic clock that a test controls: ``clock()`` is ``now_s``.  Not thread-safe."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        """Return the time [s], as ``time.monotonic`` does."""
        return self._now_s

    def advance(self, by_s: float) -> float:
        """Advance by ``by_s`` seconds, which may be 0; return the new time.

        Raises ValueError for a step back: monotonic time never goes back.
        """
        if by_s < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-by_s} s")
        self._now_s += by_s
        return self._now_s

    def advance_to(self, at_s: float) -> float:
        """Advance to ``at_s``, or stay if that has passed; return the new time."""
        self._now_s = max(self._now_s, at_s)
        return self._now_s
