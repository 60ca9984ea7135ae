"""Counts of what one process has seen of a target, since the process first called it."""

from __future__ import annotations

from copy import copy

import msgspec

from flowctl.core.pacing.leases import Sums
from flowctl.core.pacing.sample import Sample


class CallCounts(msgspec.Struct):
    """Sums since the process first called the target.  Not thread-safe: the gate's lock guards it.

    ``cost`` and ``call_s`` [s] count calls that succeeded.  ``waited_s`` [s] was spent before calls
    on waiting for permits and budget.  Peaks since they were last taken: ``in_flight`` (calls and
    resting permits), ``want`` (these and waiting calls) and ``resting``.  ``is_held`` and
    ``is_rate_held``: a caller waited for a permit, or for budget.  ``told_rate`` [cost/s]: the rate
    that the target says it takes now; 0: it says nothing.
    """

    calls: int = 0
    cost: float = 0.0
    call_s: float = 0.0
    refused: int = 0
    failed: int = 0
    waited_s: float = 0.0
    in_flight: int = 0
    want: int = 0
    is_held: bool = False
    is_rate_held: bool = False
    resting: int = 0
    told_rate: float = 0.0

    @property
    def sums(self) -> Sums:
        """The sums, without the peaks."""
        return Sums(self.calls, self.cost, self.call_s, self.refused, self.failed, self.waited_s)

    def since(self, before: CallCounts, span_s: float) -> Sample:
        """Return the sample of the last ``span_s`` seconds; ``before``: the sums at their start."""
        return Sample.of(
            span_s,
            self.sums.minus(before.sums),
            in_flight=self.in_flight,
            is_held=self.is_held,
            is_rate_held=self.is_rate_held,
            resting=self.resting,
            told_rate=self.told_rate,
        )

    def copy(self) -> CallCounts:
        """Return an independent copy."""
        return copy(self)
