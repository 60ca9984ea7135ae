"""The spout's side of tuple trees: planting them, and what the spout learns about their end.

There are no callbacks: an end is returned as a value, and the tree is no longer pending by then
(S49).
"""

from __future__ import annotations

from functools import reduce
from operator import xor
from typing import Any

import msgspec

from flowctl.core.trees.acker import TaskId, TreeOutcome
from flowctl.core.trees.anchors import NextId
from flowctl.core.trees.rotating import SPOUT_BUCKETS, RotatingMap
from flowctl.errors import InternalError

# A root id that is pending already comes with a chance of pending / 2^64.  Eight in a row are not
# chance: the source of ids repeats itself.
ROOT_ID_TRIES_MAX = 8


class TreeInit(msgspec.Struct, frozen=True, gc=False):
    """For the acker: ``spout`` has planted ``root``; ``value`` is the XOR of its first edges."""

    root: int
    value: int
    spout: TaskId


class Tree(msgspec.Struct, frozen=True):
    """What a spout remembers of a tuple it emitted.

    ``task`` emitted it; ``message_id`` and ``values`` are what the user gave, for ``ack`` and
    ``fail`` and their variants with values (S82); ``started_at_s`` is None unless sampled (S62).
    """

    task: TaskId
    message_id: Any
    stream: str
    values: Any
    started_at_s: float | None


class TreeEnd(msgspec.Struct, frozen=True):
    """A tree has ended: report COMPLETE as an ack, FAILED and EXPIRED as a fail.

    ``age_s`` is from emission to end, None unless sampled: only then it counts in metrics (S51).
    """

    tree: Tree
    outcome: TreeOutcome
    age_s: float | None

    @property
    def is_ack(self) -> bool:
        return self.outcome is TreeOutcome.COMPLETE


class Planting(msgspec.Struct, frozen=True):
    """The result of one emission.

    ``edges``: from the tuple to each target, in the order of the targets, empty if untracked.
    ``init``: for the acker that owns the root.  ``end``: an ack that is due at once.
    """

    edges: list[dict[int, int]]
    init: TreeInit | None = None
    end: TreeEnd | None = None


class SpoutTrees:
    """The trees that the tasks of one spout have planted and wait for.  Not thread-safe.

    ``emitted`` counts emissions, also untracked ones and those without a receiver; ``late`` counts
    messages about trees that are no longer pending.  ``len()`` is what a limit on pending trees
    looks at.
    """

    __slots__ = ("_has_ackers", "_next_id", "_pending", "emitted", "late")

    def __init__(self, next_id: NextId, *, has_ackers: bool, buckets: int = SPOUT_BUCKETS) -> None:
        self._pending: RotatingMap[int, Tree] = RotatingMap(buckets)
        self._next_id = next_id
        self._has_ackers = has_ackers
        self.emitted: int = 0
        self.late: int = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, root: int) -> bool:
        return root in self._pending

    def emit(
        self,
        task: TaskId,
        targets: int,
        *,
        values: Any,
        message_id: Any = None,
        stream: str = "default",
        started_at_s: float | None = None,
    ) -> Planting:
        """Plant the tree of a tuple that ``task`` emits to ``targets`` receivers.

        It is tracked if it has a ``message_id`` (anything but None) and there are ackers (S57);
        with no ackers it ends at once, as acked (S58).  Zero targets: nothing is tracked and
        nothing ends (S74); what that means for the message is the caller's to decide.
        ``started_at_s`` is the time now if the sampler fired, else None.
        """
        self.emitted += 1
        if message_id is None or not targets:
            return Planting([{} for _ in range(targets)])
        tree = Tree(task, message_id, stream, values, started_at_s)
        if not self._has_ackers:
            age_s = None if started_at_s is None else 0.0
            end = TreeEnd(tree, TreeOutcome.COMPLETE, age_s)
            return Planting([{} for _ in range(targets)], end=end)
        root = self._new_root()
        ids = [self._next_id() for _ in range(targets)]
        self._pending.put(root, tree)
        return Planting([{root: i} for i in ids], init=TreeInit(root, reduce(xor, ids), task))

    def _new_root(self) -> int:
        """Return an id that none of the pending trees has (S73)."""
        for _ in range(ROOT_ID_TRIES_MAX):
            root = self._next_id()
            if root not in self._pending:
                return root
        raise InternalError(
            f"next_id gave {ROOT_ID_TRIES_MAX} ids in a row that are pending.",
            remedy="Ids must be random, of 64 bits.",
        )

    def on_ack(self, root: int, *, task: TaskId, now_s: float) -> TreeEnd | None:
        """End ``root``, which the acker reports to ``task`` as complete; None if it isn't pending
        (S50).

        :class:`InternalError` if another task planted it; nothing is changed then.
        """
        return self._end(root, task, TreeOutcome.COMPLETE, now_s)

    def on_fail(self, root: int, *, task: TaskId, now_s: float) -> TreeEnd | None:
        """As :meth:`on_ack`, for a tree that failed or expired at the acker."""
        return self._end(root, task, TreeOutcome.FAILED, now_s)

    def on_reset_timeout(self, root: int) -> bool:
        """Restart the time of ``root``; False if it is no longer pending."""
        return self._pending.touch(root)

    def on_tick(self, *, now_s: float) -> list[TreeEnd]:
        """Expire trees that are pending for too long, so that a broken bolt can't block a spout
        (S48).
        """
        return [
            TreeEnd(tree, TreeOutcome.EXPIRED, _age_s(tree, now_s))
            for tree in self._pending.rotate().values()
        ]

    def _end(self, root: int, task: TaskId, outcome: TreeOutcome, now_s: float) -> TreeEnd | None:
        tree = self._pending.get(root)
        if tree is None:
            self.late += 1
            return None
        if tree.task != task:
            raise InternalError(
                f"mismatched task ids: tree {root:#x} of task {tree.task!r} ended at {task!r}.",
                remedy="Please report it.",
            )
        self._pending.remove(root)
        return TreeEnd(tree, outcome, _age_s(tree, now_s))


def _age_s(tree: Tree, now_s: float) -> float | None:
    return None if tree.started_at_s is None else now_s - tree.started_at_s
