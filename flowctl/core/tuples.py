"""The tuple on its way: what the spout remembers of it until it is acked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from flowctl.core.buffer import Cut
from flowctl.core.records import Position

Ids: TypeAlias = Sequence[int]  # of tuples

#: It never failed: before any time that a clock shows.
NEVER_JUDGED = -1.0


class TupleIds:
    """Numbers for tuples, from 1; ``last`` is the newest.  Not thread-safe."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: int = 0

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
    the target refused while it took others, or that ended while nothing succeeded; ``judged_at_s``
    is when it failed last, or the tuple that this one was cut from; again before anything has
    succeeded does not count.
    ``avoided`` names the bolts that it should not go to again while another is left; ``held_by`` is
    the bolt that it was sent to last, ``held_before`` those before it.  Not tracked by the
    collector: it is in no cycle, and there are many.
    """

    tuple_id: int
    cut: Cut
    attempt: int = 0
    faults: int = 0
    refusals: int = 0
    judged_at_s: float = NEVER_JUDGED
    avoided: set[str] | None = None
    held_by: str | None = None
    held_before: set[str] | None = None
    ordinal: int = 0  # which one it was of those that went to the bolt, from 1
    window_limited: bool = True  # it was not sent earlier because windows were full
    is_hedged: bool = False  # another bolt was given it as well
    is_given_up: bool = False  # its attempts ran out, or process rejected it
    is_culprit: bool = False  # what made the tuple fail that it was cut from is in it
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

    def give(self, bolt: str) -> None:
        """It is sent to ``bolt``."""
        before = self.held_by
        if before is not None and before != bolt:
            if self.held_before is None:
                self.held_before = set()
            self.held_before.add(before)
        self.held_by = bolt

    def was_given(self, bolt: str) -> bool:
        """Whether it was ever sent to ``bolt``, which may still have it or speak of it."""
        return bolt == self.held_by or (self.held_before is not None and bolt in self.held_before)

    def avoid(self, bolt: str) -> None:
        """Remember that ``bolt`` did not manage this tuple."""
        if self.avoided is None:
            self.avoided = set()
        self.avoided.add(bolt)

    def allow(self, bolt: str) -> None:
        """``bolt`` is at work on it after all."""
        if self.avoided is not None:
            self.avoided.discard(bolt)


def by_deadline(flow_tuple: FlowTuple) -> tuple[float, int]:
    """The order of tuples that are ready to go again: of two with one deadline the older (S18)."""
    return flow_tuple.deadline_s, flow_tuple.tuple_id
