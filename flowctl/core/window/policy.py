"""What a window policy gets and what it decides."""

from __future__ import annotations

from typing import Protocol

import msgspec

from flowctl.core.cost import ServiceModel
from flowctl.core.state import Signal


class AckSample(msgspec.Struct, frozen=True, gc=False):
    """One ack as a policy sees it.

    ``wait_s`` is the time the tuple queued at the bolt (None: no telemetry), ``was_limited``
    says that the bolt's window was full when this tuple was sent or later, while there was
    something to send.  ``idle_total_s`` is how long the bolt had been idle in all when the tuple
    began (None: no telemetry), ``slots`` how many tuples it works on at once.  ``service`` is what
    the acks of this bolt have said about its speed, this one included.
    """

    now_s: float
    sent_at_s: float
    ack_rtt_s: float
    wait_s: float | None
    service_s: float | None
    records: int
    was_limited: bool
    service: ServiceModel
    idle_total_s: float | None = None
    slots: int = 1


class WindowPolicy(Protocol):
    """The window of one bolt, in tuples.  Pure; not thread-safe.

    ``window`` may be fractional; a bolt may hold ``int(window)`` tuples, at least one.  A policy
    that counts in work sets ``work_max_s`` (else None): the bolt may be sent a tuple while it
    holds less than so many seconds of work; ``window`` then says about how many tuples that is.
    """

    window: float
    work_max_s: float | None

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Take an ack, move the window; return what it says of the bolt, None for no news."""

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """A tuple that was sent at ``sent_at_s`` expired at ``now_s``."""

    @property
    def threshold_s(self) -> float | None:
        """The RTT above which the last ack counted as slow; None where there is no such thing."""
