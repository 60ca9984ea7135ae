"""Room that is left to others: learn the limit, then stay below it and learn no more for a while.

A law that only ever sees the part that it uses would take that for the whole, and go up again.  So
learning and resting take turns: the limit is learned at full load for some seconds, then the part
is used for half a minute, twice as long each time that learning finds the same again.

The part is one of what fills the target, not of the limit, which may be a step above that: by
Little's law the goodput at full load times what a call takes while nobody queues.
"""

from __future__ import annotations

from typing import Final

from flowctl.core.pacing.sample import Sample

# A limit that has not changed for so long is learned; a search takes a step every second or so.
_STABLE_S: Final = 2.5
# The next time as long, at least: enough for a step up and the answer to it.
_REST_S: Final = 30.0
# At the end learning is .5 % of the time: of a live service's calls, 99 % don't see it.
_REST_MAX_S: Final = 600.0
# The same limit again: within a tenth, or one call.
_SAME_SHARE: Final = 0.1
# Calls take so much longer than when the rest began: the target has changed.
_SLOWER: Final = 1.5
_MEAN_GAIN: Final = 0.25
_CALM_GAIN: Final = 1 / 16  # of some seconds


class Headroom:
    """Pure; not thread-safe."""

    __slots__ = (
        "_calm_s", "_goodput", "_learned", "_limit", "_mean_s", "_rest_s", "_since_s", "_until_s",
        "_used", "rested_s",
    )  # fmt: skip

    def __init__(self, leave: float) -> None:
        self._used = 1 - leave
        self._goodput = 0.0  # at full load [calls/s]
        self._calm_s = 0.0  # what a call takes while resting
        self.rested_s: float = 0.0  # in all: the law's clock stands still meanwhile
        self._limit = 0  # the one that is being learned
        self._since_s = -1.0  # it has not changed since; or the rest began; below 0: not begun
        self._learned = 0  # the last one
        self._rest_s = _REST_S
        self._until_s: float | None = None  # of the rest; None: learning
        self._mean_s = 0.0  # of calls, as the rest began

    @property
    def is_resting(self) -> bool:
        """Whether the part is used now, and nothing learned."""
        return self._until_s is not None

    def part(self, limit: float) -> float:
        """What of ``limit`` is used while resting."""
        filled = self._goodput * self._calm_s
        # A mean that is far off, of calls that are all different, must not leave more than a half.
        return self._used * min(limit, max(filled, limit / 2) if filled else limit)

    def on_learned(self, now_s: float, limit: int, sample: Sample, *, is_found: bool) -> None:
        """The law saw a sample; ``is_found``: something did limit it, not only its start."""
        if sample.span_s > 0:
            goodput = sample.calls / sample.span_s
            gain = _MEAN_GAIN if self._goodput else 1.0
            self._goodput += gain * (goodput - self._goodput)
        if self._since_s < 0 or not _is_same(limit, self._limit):
            self._limit, self._since_s = limit, now_s
        elif is_found and now_s - self._since_s >= _STABLE_S:
            again = _is_same(limit, self._learned)
            self._rest_s = min(_REST_MAX_S, 2 * self._rest_s) if again else _REST_S
            self._learned = limit
            self._since_s, self._until_s = now_s, now_s + self._rest_s
            self._mean_s = 0.0

    def rest(self, now_s: float, sample: Sample, lag_s: float) -> bool:
        """Take a sample of a rest; return whether the rest goes on."""
        assert self._until_s is not None
        is_over = now_s >= self._until_s or self._is_changed(now_s, sample, lag_s)
        if is_over:
            self.rested_s += now_s - self._since_s
            self._until_s, self._since_s = None, -1.0
        return not is_over

    def _is_changed(self, now_s: float, sample: Sample, lag_s: float) -> bool:
        if now_s - self._since_s < lag_s or not sample.calls:
            return False
        if not self._mean_s:
            self._mean_s = sample.mean_s
        gain = _CALM_GAIN if self._calm_s else 1.0
        self._calm_s += gain * (sample.mean_s - self._calm_s)
        self._mean_s += _MEAN_GAIN * (min(sample.mean_s, self._mean_s) - self._mean_s)
        return sample.refused > 0 or sample.mean_s > _SLOWER * self._mean_s


def _is_same(limit: int, other: int) -> bool:
    return abs(limit - other) <= max(1.0, _SAME_SHARE * other)
