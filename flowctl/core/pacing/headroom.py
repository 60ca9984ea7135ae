"""Room that is left to others: learn the limit, then stay below it and learn no more for a while.

A law that only ever sees the part that it uses would take that for the whole, and go up again.  So
learning and resting take turns: the limit is learned at full load for some seconds, then the part
is used for half a minute, twice as long each time that learning finds the same again.

The part is one of what fills the target, not of the limit, which may be a step above that: by
Little's law the goodput at full load times what a call takes while nobody queues.  It is seldom a
whole number, and of ten calls half of one is a twentieth: the two next to it take turns.
"""

from __future__ import annotations

from math import floor
from typing import Final

from flowctl.core.pacing.sample import Sample

# Callers that use less of the limit are not slowed by it: their goodput is not the target's.
_FULL: Final = 0.8
# A limit that has not changed for so long is learned; a search takes a step every second or so.
_STABLE_S: Final = 2.5
# A limit that refusals have set may be far too low until it is tried again, after 150 calls
# (:mod:`~flowctl.core.pacing.refused`).  Where calls are so slow that this takes longer than ten
# seconds, it is taken as it is: a live service waits while the target is full.
_STABLE_UNSURE_S: Final = 10.0
# The next time as long, at least: enough for a step up and the answer to it.
_REST_S: Final = 30.0
# At the end learning is .5 % of the time: of a live service's calls, 99 % don't see it.
_REST_MAX_S: Final = 600.0
# The same limit again: within a tenth, or one call.
_SAME_SHARE: Final = 0.1
# Calls take so much longer than when the rest began: the target has changed.
_SLOWER: Final = 1.5
# In so many samples in a row: of calls that differ, one sample in 60 has so slow ones by accident.
_SLOWER_SAMPLES: Final = 3
_MEAN_GAIN: Final = 0.25
_CALM_SAMPLES: Final = 16  # of some seconds
# Of two whole numbers the other one follows when so much was used too much, or too little [s, in
# calls at once].  With less, permits move more often than a worker hears of it.
_TURN: Final = 1.0


class Headroom:
    """Pure; not thread-safe."""

    __slots__ = (
        "_at_s", "_calls", "_calm", "_calm_s", "_goodput", "_learned", "_limit", "_mean_s", "_owed",
        "_rest_s", "_since_s", "_slower", "_span_s", "_until_s", "_used", "_whole", "rested_s",
    )  # fmt: skip

    def __init__(self, leave: float) -> None:
        self._used = 1 - leave
        self._calls, self._span_s = 0, 0.0  # at full load, since the limit stands still
        self._goodput = 0.0  # at full load [calls/s]; known in a rest
        self._calm_s, self._calm = 0.0, 0  # what a call takes while resting, by so many samples
        self.rested_s: float = 0.0  # in all: the law's clock stands still meanwhile
        self._limit = 0  # the one that is being learned
        self._since_s = -1.0  # it has not changed since; or the rest began; below 0: not begun
        self._learned = 0  # the last one
        self._rest_s = _REST_S
        self._until_s: float | None = None  # of the rest; None: learning
        self._mean_s = 0.0  # of calls, as the rest began
        self._slower = 0  # samples in a row
        self._whole, self._at_s, self._owed = 0, 0.0, 0.0  # the number used now, since, and not

    @property
    def is_resting(self) -> bool:
        """Whether the part is used now, and nothing learned."""
        return self._until_s is not None

    def part(self, limit: float) -> float:
        """What of ``limit`` is used while resting."""
        filled = self._goodput * self._calm_s
        # A mean that is far off, of calls that are all different, must not leave more than a half.
        return self._used * min(limit, max(filled, limit / 2) if filled else limit)

    def whole(self, now_s: float, limit: float) -> int:
        """Return how many calls at once to use now: over time :meth:`part` of ``limit``."""
        part = self.part(limit)
        if not self._whole:
            self._whole = floor(part + 0.5)
        else:
            self._owed += (part - self._whole) * (now_s - self._at_s)
            if abs(self._owed) >= _TURN:
                self._whole += 1 if self._owed > 0 else -1
        self._at_s = now_s
        self._whole = max(floor(part), min(floor(part) + 1, self._whole))
        self._owed = max(-_TURN, min(_TURN, self._owed))
        return self._whole

    def on_learned(
        self, now_s: float, limit: int, sample: Sample, *, is_found: bool, is_sure: bool
    ) -> None:
        """The law saw a sample.

        ``is_found``: something did limit it, not only its start.  ``is_sure``: more was tried.
        """
        if self._since_s < 0 or not _is_same(limit, self._limit):
            self._limit, self._since_s = limit, now_s
            self._calls, self._span_s = 0, 0.0
            return
        if sample.is_bound and sample.in_flight >= _FULL * limit:
            self._calls += sample.calls
            self._span_s += sample.span_s
        stable_s = _STABLE_S if is_sure else _STABLE_UNSURE_S
        if is_found and now_s - self._since_s >= stable_s:
            again = _is_same(limit, self._learned)
            self._rest_s = min(_REST_MAX_S, 2 * self._rest_s) if again else _REST_S
            self._learned = limit
            self._since_s, self._until_s = now_s, now_s + self._rest_s
            self._mean_s, self._calm, self._slower = 0.0, 0, 0
            self._goodput = self._calls / self._span_s if self._span_s > 0 else 0.0
            self._whole, self._owed = 0, 0.0

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
        self._calm = min(_CALM_SAMPLES, self._calm + 1)
        self._calm_s += (sample.mean_s - self._calm_s) / self._calm
        self._mean_s += _MEAN_GAIN * (min(sample.mean_s, self._mean_s) - self._mean_s)
        self._slower = self._slower + 1 if sample.mean_s > _SLOWER * self._mean_s else 0
        return sample.refused > 0 or self._slower >= _SLOWER_SAMPLES


def _is_same(limit: int, other: int) -> bool:
    return abs(limit - other) <= max(1.0, _SAME_SHARE * other)
