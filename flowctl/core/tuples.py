"""The tuple in flight: what the spout remembers of it until it is acked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from flowctl.core.buffer import Cut
from flowctl.core.records import Position, position_of

Ids: TypeAlias = Sequence[int]  # ids of tuples

#: It never failed: earlier than any time that a clock shows.
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
    """What the outcome of one piece of a failed tuple means for the other pieces, which wait for
    it.

    If this piece succeeds, ``suspect`` holds the record that fails; ``aside`` is the piece behind
    it.
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
    ordinal: int = 0  # its number among the tuples sent to the bolt, from 1
    window_limited: bool = True  # it was not sent earlier because windows were full
    is_hedged: bool = False  # another bolt was given it as well
    is_given_up: bool = False  # its attempts ran out, or process rejected it
    is_culprit: bool = False  # it holds the record that made the whole tuple fail
    is_aside: bool = False  # it lay behind a record that fails, or is a part of what did
    search: Search | None = None  # set while it is a piece of a search
    sent_at_s: float = 0.0
    deadline_s: float = 0.0
    due_s: float = 0.0  # when its ack is expected; kept only at the end of the input

    @property
    def first(self) -> Position:
        return position_of(self.cut.records, 0)

    @property
    def last(self) -> Position:
        return position_of(self.cut.records, -1)

    def piece(self, tuple_id: int, cut: Cut) -> FlowTuple:
        """Return a tuple of ``cut``, which was a part of this one."""
        return FlowTuple(
            tuple_id,
            cut,
            held_by=self.held_by,
            deadline_s=self.deadline_s,
            judged_at_s=self.judged_at_s,
            is_aside=self.is_aside,
        )

    def recut(self, cut: Cut) -> None:
        """Hold ``cut`` from now on."""
        self.cut = cut

    # -- it goes to bolts ----------------------------------------------------------------

    def begin_attempt(self) -> int:
        """Count a sending; return its number, from 1."""
        self.attempt += 1
        return self.attempt

    def sent(
        self, bolt: str, now_s: float, deadline_s: float, ordinal: int, window_limited: bool
    ) -> None:
        """Note that it is sent to ``bolt``, as its tuple number ``ordinal``, and is late at
        ``deadline_s``.

        ``window_limited``: windows were full until now.
        """
        before = self.held_by
        if before is not None and before != bolt:
            if self.held_before is None:
                self.held_before = set()
            self.held_before.add(before)
        self.held_by = bolt
        self.attempt += 1  # as begin_attempt does, without its call for each tuple
        self.sent_at_s, self.deadline_s = now_s, deadline_s
        self.ordinal, self.window_limited = ordinal, window_limited

    def sent_with(self, whole: FlowTuple) -> None:
        """Take over the sending of ``whole``: it was a part of that tuple then."""
        self.attempt, self.sent_at_s = whole.attempt, whole.sent_at_s

    def hedged(self) -> None:
        """Note that another bolt is given it as well."""
        self.is_hedged = True

    def wait_until(self, deadline_s: float) -> None:
        """Let it be late from ``deadline_s`` on; of the retries, the one with the earliest deadline
        goes first.
        """
        self.deadline_s = deadline_s

    def wait_anew(self, now_s: float) -> None:
        """Measure from ``now_s`` what is otherwise measured from its sending."""
        self.sent_at_s = now_s

    def expect_ack(self, due_s: float) -> float:
        """Expect its ack at ``due_s``; return that."""
        self.due_s = due_s
        return due_s

    def was_given(self, bolt: str) -> bool:
        """Whether it was ever sent to ``bolt``, which may still have it or report it."""
        return bolt == self.held_by or (self.held_before is not None and bolt in self.held_before)

    def avoid(self, bolt: str) -> None:
        """Remember that ``bolt`` did not manage this tuple."""
        if self.avoided is None:
            self.avoided = set()
        self.avoided.add(bolt)

    def allow(self, bolt: str) -> None:
        """No longer avoid ``bolt``, which is working on it after all."""
        if self.avoided is not None:
            self.avoided.discard(bolt)

    # -- it fails ------------------------------------------------------------------------

    def judged(self, now_s: float) -> None:
        """Note that it failed: only successes of what is sent from now on would clear its place."""
        self.judged_at_s = now_s

    def faulted(self) -> None:
        """Count its failure against it."""
        self.faults += 1

    def refused(self) -> None:
        """Note that it was refused, or that its failure does not count."""
        self.refusals += 1

    def forgiven(self) -> None:
        """Take back its last fault, as it was not to blame."""
        self.faults -= 1

    def give_up(self) -> None:
        """Mark it as not to be sent any more."""
        self.is_given_up = True

    def take_faults(self, faults: int, *, is_culprit: bool = False) -> None:
        """Take over ``faults`` of the tuple it was cut from.

        ``is_culprit``: the record that made that tuple fail is in this one.
        """
        self.faults = faults
        self.is_culprit = self.is_culprit or is_culprit

    def take_blame(self, whole: FlowTuple) -> None:
        """Take over the history of ``whole``, as the cause of its failure may be in this part; it
        may go to the same bolts.
        """
        self.take_faults(whole.faults, is_culprit=whole.is_culprit)
        self.refusals = whole.refusals
        self.avoided = set(whole.avoided) if whole.avoided else None

    def lay_aside(self) -> None:
        """Mark it as what lay behind a record that fails: its parts show how many others do."""
        self.is_aside = True

    def begin_search(self, search: Search | None) -> None:
        """Try it as a piece of ``search``, if there is one."""
        self.search = search

    def end_search(self) -> Search | None:
        """Make it a piece like any other; return the search that its outcome would have decided."""
        search, self.search = self.search, None
        return search


def by_deadline(flow_tuple: FlowTuple) -> tuple[bool, float, int]:
    """Return the sort key of ready retries: the earlier deadline first, then the older tuple
    (S18).

    Those in which a record is known to fail go last: the others show whether their target is well.
    """
    return flow_tuple.is_culprit, flow_tuple.deadline_s, flow_tuple.tuple_id
