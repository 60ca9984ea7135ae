"""The tuple on its way: what the spout remembers of it until it is acked."""

from __future__ import annotations

import msgspec

from flowctl.core.buffer import Cut
from flowctl.core.records import Position


class TupleIds:
    """Numbers for tuples, from 1; ``last`` is the newest.  Not thread-safe."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Return a number that no tuple has."""
        self.last += 1
        return self.last


class Search(msgspec.Struct, gc=False, eq=False):
    """What the outcome of one piece of a failed tuple says of the others, which wait for it.

    ``suspect`` holds the record that fails, should this piece succeed; ``aside`` is what follows.
    """

    suspect: FlowTuple | None
    aside: FlowTuple | None


class FlowTuple(msgspec.Struct, gc=False, eq=False):
    """A contiguous run of records of one partition, sent until one sending is acked.

    Mutable, owned by the core.  ``attempt`` counts sendings; ``faults`` those that ended because
    ``process`` raised or its worker died, which alone lead to giving up; ``refusals`` those that
    the target refused while it took others; ``avoid`` names the
    bolts that it should not go to again while another is left; ``held_by`` is the bolt that it was
    sent to last.  Not tracked by the collector: it is in no cycle, and there are many.
    """

    tuple_id: int
    cut: Cut
    attempt: int = 0
    faults: int = 0
    refusals: int = 0
    avoid: set[str] | None = None
    held_by: str | None = None
    is_limited: bool = True  # it was not sent earlier because windows were full
    is_hedged: bool = False  # another bolt was given it as well
    is_given_up: bool = False  # its attempts ran out, or process rejected it
    search: Search | None = None  # it is a piece by which a record is looked for
    sent_at_s: float = 0.0
    deadline_s: float = 0.0
    due_s: float = 0.0  # when its ack is expected; kept only at the end of the input

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
