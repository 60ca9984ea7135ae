"""The bolt's side of tuple trees: new edges at emit, reports to the acker at ack and fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from flowctl.core.trees.rotating import ACKER_BUCKETS, RotatingMap
from flowctl.errors import JobError

# A tuple's places in its trees: root id → id of its edge there (S72).  Root ids stay the same down
# a whole tree.  Empty: in no tree, untracked.  Ids have 64 bits, unsigned.
Edges: TypeAlias = Mapping[int, int]

# Gives a new id each time: random, 1 to 2^64 - 1, never 0 (which would be no edge at all).  Comes
# from outside, as the core draws no random numbers.
NextId: TypeAlias = Callable[[], int]


class Anchored:
    """The edges of a tuple at a bolt; a subclass adds its values.

    Owned by the bolt that was given it, equal only to itself.  ``is_settled``: it was acked or
    failed there; ``edges`` become empty when it was held for too long.
    """

    __slots__ = ("edges", "is_settled")

    def __init__(self, edges: Edges) -> None:
        self.edges: Edges = edges
        self.is_settled: bool = False


class PendingAcks:
    """The edges that one bolt has made and not yet reported to the acker (S64–S66, S80).

    Making an edge costs no message: input tuple → XOR of its new edges is kept here, and rides on
    the input's ack.  The new id goes downstream as it is, to the acker within that XOR.

    An input without new edges has 0 here.  Rotated like the acker's ledger; a bolt that holds a
    tuple for longer calls :meth:`reset_timeout`.  A tuple whose edges were forgotten fails its
    trees and is in none any more: acked as if it had made no edge, it would complete a tree in
    which those edges are still open, if another bolt has prolonged it.  Not thread-safe.
    """

    __slots__ = ("_made", "_next_id", "expired")

    def __init__(self, next_id: NextId, *, buckets: int = ACKER_BUCKETS) -> None:
        self._made: RotatingMap[Anchored, int] = RotatingMap(buckets)
        self._next_id = next_id
        self.expired: int = 0  # inputs that were neither acked nor failed in time

    def __len__(self) -> int:
        return len(self._made)

    def emit(self, anchors: Sequence[Anchored], targets: int) -> list[dict[int, int]]:
        """Return the edges of a new tuple for each of ``targets`` receivers.

        Each receiver has an edge of its own from each anchor.  Without anchors, or from untracked
        ones, it is untracked (S83).  :class:`JobError`, and nothing changed, if an anchor
        was acked or failed before: its trees could not count the new tuple any more.
        """
        tracked = [anchor for anchor in anchors if anchor.edges]
        if not tracked:
            return [{} for _ in range(targets)]
        if any(anchor.is_settled for anchor in tracked):
            raise JobError(
                "emit: an anchor was acked or failed already.", remedy="Emit first, then ack."
            )
        return [self._emit_one(tracked) for _ in range(targets)]

    def _emit_one(self, anchors: Sequence[Anchored]) -> dict[int, int]:
        edges: dict[int, int] = {}
        for anchor in anchors:
            edge = self._next_id()
            self._made.put(anchor, (self._made.get(anchor) or 0) ^ edge)
            for root in anchor.edges:  # XOR: two anchors can be of one tree
                edges[root] = edges.get(root, 0) ^ edge
        return edges

    def ack(self, anchor: Anchored) -> list[tuple[int, int]]:
        """Settle an input; return (root id, value) for the acker of each root.

        An input that was settled before gives nothing: the first settlement counts.
        """
        if anchor.is_settled:
            return []
        anchor.is_settled = True
        made = self._made.remove(anchor) or 0
        return [(root, edge ^ made) for root, edge in anchor.edges.items()]

    def fail(self, anchor: Anchored) -> list[int]:
        """Settle an input; return the root ids that fail with it, whatever other edges they
        have.
        """
        if anchor.is_settled:
            return []
        anchor.is_settled = True
        self._made.remove(anchor)
        return list(anchor.edges)

    def reset_timeout(self, anchor: Anchored) -> list[int]:
        """Return the root ids whose time restarts; nothing if it is settled."""
        if anchor.is_settled:
            return []
        self._made.touch(anchor)
        return list(anchor.edges)

    def on_tick(self) -> list[int]:
        """Forget inputs that were held for too long; return the root ids that fail with them."""
        dropped = self._made.rotate()
        self.expired += len(dropped)
        failed: list[int] = []
        for anchor in dropped:
            failed += anchor.edges
            anchor.edges = {}
        return failed
