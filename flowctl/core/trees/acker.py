"""The acker: knows when a whole tuple tree is done, from one 64-bit number per tree (S76–S79).

Every edge of a tree, that is every sending of a tuple, has a random id.  The ledger XORs each id in
when the edge is created and again when it is acked; the creation rides on the ack of the parent
(S65).  So the value is 0 when every edge has been acked, however the messages were ordered.
``spout_trees`` beside this is the spout's side of it, ``anchors`` the bolt's.

Two different sets of edges XOR to the same value with a chance of 2^-64: a tree of which m
messages arrive is taken as complete too early with a chance of at most m / 2^64.  At 100,000
messages a second that is once in 5.8 million years.

What is said to an acker, and what it says to spouts, belongs to no tree and is never tracked itself
(S125): such a message that is lost costs an expiry and a replay, never a record.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from flowctl.core.trees.rotating import ACKER_BUCKETS, RotatingMap
from flowctl.errors import InternalError

TaskId: TypeAlias = int | str  # a receiver: a copy of a spout, a bolt or the acker


def owner_of(root: int, ackers: Sequence[TaskId]) -> TaskId:
    """Return which of ``ackers`` tracks ``root``: always the same one (S125).

    Root ids are random, so the remainder shares them out evenly.  All callers must have the same
    list in the same order; trees that are pending when it changes expire and go again.
    """
    if not ackers:
        raise InternalError(
            "there is no acker to own a tree.", remedy="Without ackers, track nothing."
        )
    return ackers[root % len(ackers)]


class TreeOutcome(enum.Enum):
    """The outcome of a tree."""

    COMPLETE = "complete"  # every tuple of it was acked
    FAILED = "failed"  # a bolt failed a tuple of it
    EXPIRED = "expired"  # not complete in time: for the spout it failed
    PROLONGED = "prolonged"  # a bolt needs longer: its time restarts


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What the acker reports to ``spout`` about its tree ``root``."""

    root: int
    spout: TaskId
    outcome: TreeOutcome


class _Account:
    """What the ledger knows of one tree; ``spout`` is None until its init came."""

    __slots__ = ("is_failed", "spout", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.spout: TaskId | None = None
        self.is_failed = False


class AckerLedger:
    """The trees of one acker.  Pure and not thread-safe; memory: one small object a tree.

    Messages may come in any order, so a tree is opened by whatever comes first and judged only once
    its spout is known.  Each message must arrive at most once.  A second init is recognised because
    the spout is known by then; it is ignored, as it could make a tree look complete.  A second ack
    is not recognised; it only keeps its tree from completing until it expires.

    ``remembers_early_fails`` False is the literal rule (S78): a fail that overtakes its init is
    ignored, and the tree has to expire.

    Counts, for metrics: ``complete``, ``failed``, ``expired`` trees; ``orphans``, what expired
    without an init (late messages of trees that are done); ``duplicate_inits``;
    ``unknown_fails``, those ignored by the literal rule.
    """

    __slots__ = (
        "_remembers_early_fails",
        "_trees",
        "complete",
        "duplicate_inits",
        "expired",
        "failed",
        "orphans",
        "unknown_fails",
    )

    def __init__(self, *, buckets: int = ACKER_BUCKETS, remembers_early_fails: bool = True) -> None:
        self._trees: RotatingMap[int, _Account] = RotatingMap(buckets)
        self._remembers_early_fails = remembers_early_fails
        self.complete: int = 0
        self.failed: int = 0
        self.expired: int = 0
        self.orphans: int = 0
        self.duplicate_inits: int = 0
        self.unknown_fails: int = 0

    def __len__(self) -> int:
        return len(self._trees)

    def on_init(self, root: int, value: int, spout: TaskId) -> Verdict | None:
        """Take an init: ``spout`` has sent the first tuples of ``root``; ``value`` is the XOR of
        their ids.
        """
        tree = self._trees.get(root)
        if tree is None:
            tree = self._open(root)
        elif tree.spout is not None:
            self.duplicate_inits += 1
            return None
        tree.spout = spout
        tree.value ^= value
        if tree.value == 0:  # wins over failed (S77)
            return self._close(root, spout, TreeOutcome.COMPLETE)
        return self._close(root, spout, TreeOutcome.FAILED) if tree.is_failed else None

    def on_ack(self, root: int, value: int) -> Verdict | None:
        """Take the ack of a tuple; ``value`` is its id XOR the ids of the tuples that came from
        it.
        """
        tree = self._trees.get(root)
        if tree is None:
            self._open(root, value)
            return None
        tree.value ^= value
        if tree.value or tree.spout is None:
            return None
        return self._close(root, tree.spout, TreeOutcome.COMPLETE)

    def on_fail(self, root: int) -> Verdict | None:
        """Take the failure of a tuple of ``root``, with which the whole tree fails."""
        tree = self._trees.get(root)
        if tree is None:
            if not self._remembers_early_fails:
                self.unknown_fails += 1
                return None
            tree = self._open(root)
        tree.is_failed = True
        if tree.spout is None:
            return None
        return self._close(root, tree.spout, TreeOutcome.FAILED)

    def on_reset_timeout(self, root: int) -> Verdict | None:
        """Restart the tree's time, as a bolt needs longer: here and, if known, at its spout.

        An unknown root is ignored: either it is done, or its time has not begun yet.
        """
        tree = self._trees.get(root)
        if tree is None:
            return None
        self._trees.touch(root)
        return Verdict(root, tree.spout, TreeOutcome.PROLONGED) if tree.spout is not None else None

    def on_tick(self) -> list[Verdict]:
        """Expire the trees that are too old.  Those whose spout is unknown are only counted."""
        dropped = self._trees.rotate()
        verdicts = [
            Verdict(root, tree.spout, TreeOutcome.EXPIRED)
            for root, tree in dropped.items()
            if tree.spout is not None
        ]
        self.expired += len(verdicts)
        self.orphans += len(dropped) - len(verdicts)
        return verdicts

    def _open(self, root: int, value: int = 0) -> _Account:
        tree = _Account(value)
        self._trees.put(root, tree)
        return tree

    def _close(self, root: int, spout: TaskId, outcome: TreeOutcome) -> Verdict:
        self._trees.remove(root)
        if outcome is TreeOutcome.COMPLETE:
            self.complete += 1
        else:
            self.failed += 1
        return Verdict(root, spout, outcome)
