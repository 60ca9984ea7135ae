"""How many calls a target takes at once: the guard of shared sinks, on pooled samples.

Three limits, the smallest counts:

- the **ramp** (:mod:`flowctl.core.pacing.ramp`) begins low and grows while more brings more;
- the **guard** (:mod:`flowctl.core.sink_guard`) looks for the fewest calls that keep the goodput
  once calls take longer than they could;
- **refusals** (:mod:`flowctl.core.pacing.refused`) say exactly what was too much.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final, NamedTuple

from flowctl.core.events import FlowEvent, SinkCapChanged
from flowctl.core.pacing.headroom import Headroom
from flowctl.core.pacing.ramp import Ramp
from flowctl.core.pacing.refused import PooledRefusals
from flowctl.core.pacing.sample import Sample
from flowctl.core.sink_guard.guard import SinkGuard

# The mean duration of calls, for how late a change is seen: the last four samples or so.
_MEAN_GAIN: Final = 0.25


class Bounds(NamedTuple):
    """What the user allows: ``least`` and ``most`` calls in flight, and how many at the start."""

    least: int = 1
    most: int = 1000
    start: int = 4

    def clamped(self, limit: float) -> int:
        """Return the allowed whole number at or below ``limit``, or the least."""
        return max(self.least, int(min(self.most, limit)))


class TargetLaw:
    """``limit``: the calls in flight that the target is given; ``reason``: why, for people.

    ``leave``: the part of what is learned that is left to others.  ``tick_s``: how far samples are
    apart, and how long a decision takes to reach those who call.  ``known``: the limit that another
    has learned; None: nothing is known.
    Pure; not thread-safe; O(1) per sample.
    """

    __slots__ = (
        "_bounds", "_events", "_guard", "_headroom", "_mean_s", "_ramp", "_refusals", "_tick_s",
        "limit", "reason",
    )  # fmt: skip

    def __init__(
        self, bounds: Bounds, *, leave: float = 0.0, tick_s: float, known: int | None = None
    ) -> None:
        self._bounds = bounds
        self._tick_s = tick_s
        self._events: deque[FlowEvent] = deque()
        self._guard = SinkGuard(self._events)
        self._refusals = PooledRefusals()
        start = bounds.clamped(bounds.start if known is None else known)
        self._headroom = Headroom(leave) if leave else None
        self._ramp = Ramp(float(start), is_known=known is not None)
        self._mean_s = 0.0
        self.limit: int = start
        self.reason = "start" if known is None else "learned before"

    @property
    def bounds(self) -> Bounds:
        """What the user allows; may be changed while it runs."""
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: Bounds) -> None:
        self._bounds = bounds

    @property
    def lag_s(self) -> float:
        """How long until a change of the limit is seen in samples that hold nothing else."""
        return 2 * self._tick_s + self._mean_s

    def on_sample(self, now_s: float, sample: Sample) -> None:
        """Take what was seen since the last sample, and decide."""
        if sample.calls:
            gain = _MEAN_GAIN if self._mean_s else 1.0
            self._mean_s += gain * (sample.mean_s - self._mean_s)
        headroom = self._headroom
        if headroom is None:
            self._learn(now_s, sample)
            self.limit = self._bounds.clamped(self._learned)
        elif headroom.is_resting and headroom.rest(now_s, sample, self.lag_s):
            self.limit = self._bounds.clamped(headroom.whole(now_s, self._learned))
        else:
            self._learn(now_s - headroom.rested_s, sample)
            self.limit = self._bounds.clamped(self._learned)
            is_sure = self._refusals.cap == inf or self._refusals.is_confirmed
            headroom.on_learned(now_s, self.limit, sample, is_found=self._is_found, is_sure=is_sure)

    @property
    def _learned(self) -> float:
        return min(self._ramp.level, self._guard.cap, self._refusals.cap)

    @property
    def _is_found(self) -> bool:
        """Whether the target, not only the start, is the limit."""
        return self._ramp.is_found or min(self._guard.cap, self._refusals.cap) < inf

    def _learn(self, now_s: float, sample: Sample) -> None:
        lag_s = self.lag_s
        self._guard.on_sample(now_s, sample, sent_at_s=now_s - lag_s)
        if self._refusals.on_sample(now_s, sample, lag_s):
            self._say("refused" if sample.refused else "trying more than was refused")
        self._take_ramp(now_s, sample, lag_s)
        while self._events:
            event = self._events.popleft()
            if isinstance(event, SinkCapChanged):
                self._say(event.reason)

    def _take_ramp(self, now_s: float, sample: Sample, lag_s: float) -> None:
        learned = min(self._guard.cap, self._refusals.cap)
        if learned < inf:
            self._ramp.hold_at(max(learned, 1.0), now_s)
            return
        before = self._ramp.level
        self._ramp.on_sample(now_s, sample, lag_s, float(self._bounds.most))
        if self._ramp.level != before:
            more = self._ramp.level > before
            self._say("more calls helped" if more else "more calls did not help")

    def _say(self, reason: str) -> None:
        self.reason = reason
