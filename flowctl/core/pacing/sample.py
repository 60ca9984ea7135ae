"""What was observed of a target in a short time, by one process or by all its callers."""

from __future__ import annotations

from typing import NamedTuple

from flowctl.core.pacing.leases import Sums


class Sample(NamedTuple):
    """Sums over ``span_s`` seconds.

    ``cost`` and ``call_s`` are of the calls that succeeded.  ``in_flight`` is the most calls at
    once, ``resting`` how many of them rest after a refusal; for many processes the sum over them.
    ``is_held``: some caller waited for a permit; ``is_rate_held``: one that had a permit waited for
    budget.  ``told_rate``: the rate that the target says it takes [cost/s]; 0: it says nothing.
    """

    span_s: float
    calls: int = 0
    cost: float = 0.0
    call_s: float = 0.0
    refused: int = 0
    in_flight: int = 0
    is_held: bool = False
    is_rate_held: bool = False
    resting: int = 0
    told_rate: float = 0.0

    @classmethod
    def of(
        cls,
        span_s: float,
        done: Sums,
        *,
        in_flight: int,
        is_held: bool,
        is_rate_held: bool,
        resting: int,
        told_rate: float = 0.0,
    ) -> Sample:
        """Return the sample of what was ``done`` in ``span_s`` seconds, and of the peaks.

        The sums of a server that lost its data start again, so a difference may be below 0: then it
        counts as 0.
        """
        return cls(
            span_s,
            max(0, done.calls),
            max(0.0, done.cost),
            max(0.0, done.call_s),
            max(0, done.refused),
            in_flight,
            is_held,
            is_rate_held,
            resting,
            told_rate,
        )

    @property
    def mean_s(self) -> float:
        """Mean duration of a call that succeeded [s]; 0 without one."""
        return self.call_s / self.calls if self.calls else 0.0

    @property
    def is_bound(self) -> bool:
        """Whether the target, not its callers, decided how much was sent.

        Callers that do nothing but wait for its answers would send more if it were quicker.
        """
        return self.is_held or self.call_s >= BUSY_SHARE * self.span_s * self.in_flight > 0


# Callers spend at least this share of their time in calls: what they do in between hardly matters.
BUSY_SHARE = 0.75
