"""What all that share a target have reported to the shared store, for people."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from flowctl.core.pacing.leases import Claim, Sums


class StoredTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one target.

    ``seen_s`` ago some worker was there.  ``recent``: the sums of the last ``recent_s`` seconds of
    its use; ``jobs``: all sums, by job.  ``leased``: permits that workers hold.  ``operator``: what
    was set by hand.
    """

    target: str
    limit: int
    reason: str
    budget: float | None
    leased: int
    seen_s: float
    recent: Sums
    recent_s: float
    jobs: Mapping[str, Sums]
    claims: tuple[Claim, ...]
    operator: Mapping[str, float]

    @property
    def used(self) -> float:
        """Calls in it, on average over ``recent_s``, of calls that ended (Little's law)."""
        return self.recent.call_s / self.recent_s if self.recent_s else 0.0

    @property
    def calls_per_s(self) -> float:
        """Calls a second that succeeded."""
        return self.recent.calls / self.recent_s if self.recent_s else 0.0

    @property
    def cost_per_s(self) -> float:
        """Cost a second of calls that succeeded."""
        return self.recent.cost / self.recent_s if self.recent_s else 0.0
