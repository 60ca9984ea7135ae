"""The law in this process alone: without Redis, or while it is away."""

from __future__ import annotations

from typing import Final

from flowctl.core.pacing.law import TargetLaw
from flowctl.pacing.gate import Gate, Known

# Seconds between samples: one process sees its own calls at once, so each step of the law takes
# some samples.
TICK_S: Final = 0.1


class LocalSource:
    """A :class:`flowctl.pacing.gate.Source`; each call that ends runs the law.

    ``rate``: cost a second.  The gate's lock guards it.
    """

    __slots__ = ("_before", "_gate", "_rate", "_sampled_at_s", "law")

    def __init__(self, gate: Gate, law: TargetLaw, *, rate: float) -> None:
        self._gate = gate
        self._rate = rate
        self.law: TargetLaw = law
        now_s = gate.clock()
        self._sampled_at_s = now_s
        self._before = gate.take_sums()
        gate.rate.set_rate(rate, now_s)
        gate.set_permits(law.limit)

    def on_wanted(self, now_s: float) -> None:
        """Do nothing: only ended calls count."""

    def known(self) -> Known:
        """Return the limit that this process has learned."""
        return Known(self.law.limit, self.law.reason, is_shared=False)

    def on_left(self, now_s: float) -> None:
        """Run the law if it is time."""
        span_s = now_s - self._sampled_at_s
        if span_s < TICK_S:
            return
        gate = self._gate
        sums = gate.take_sums()
        self.law.on_sample(now_s, sums.since(self._before, span_s))
        self._before, self._sampled_at_s = sums, now_s
        learned = self.law.rate
        gate.set_rate(min(self._rate, learned), now_s, is_learned=learned < self._rate)
        if self.law.limit != gate.permits:
            gate.set_permits(self.law.limit)
