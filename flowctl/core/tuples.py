"""The tuple on its way: what the spout remembers of it until it is acked."""

from __future__ import annotations

from flowctl.core.buffer import Cut
from flowctl.core.records import Position


class FlowTuple:
    """A contiguous run of records of one partition, sent until one sending is acked.

    Mutable, owned by the core.  ``attempt`` counts sendings; ``faults`` those that ended because
    ``process`` raised or its worker died, which alone lead to giving up; ``avoid`` names the
    bolts that it should not go to again while another is left; ``held_by`` is the bolt that it was
    sent to last.
    """

    __slots__ = (
        "attempt",
        "avoid",
        "cut",
        "deadline_s",
        "due_s",
        "faults",
        "held_by",
        "is_hedged",
        "is_limited",
        "sent_at_s",
        "tuple_id",
    )

    def __init__(self, tuple_id: int, cut: Cut) -> None:
        self.tuple_id = tuple_id
        self.cut = cut
        self.attempt = 0
        self.faults = 0
        self.avoid: set[str] | None = None
        self.held_by: str | None = None
        self.is_limited = True  # it was not sent earlier because windows were full
        self.sent_at_s = 0.0
        self.deadline_s = 0.0
        self.due_s = 0.0  # when its ack is expected; kept only at the end of the input
        self.is_hedged = False  # another bolt was given it as well

    @property
    def first(self) -> Position:
        return self.cut.records[0].position

    @property
    def last(self) -> Position:
        return self.cut.records[-1].position

    def shun(self, bolt: str) -> None:
        """Remember that ``bolt`` did not manage this tuple."""
        if self.avoid is None:
            self.avoid = set()
        self.avoid.add(bolt)

    def trust(self, bolt: str) -> None:
        """``bolt`` is at work on it after all."""
        if self.avoid is not None:
            self.avoid.discard(bolt)
