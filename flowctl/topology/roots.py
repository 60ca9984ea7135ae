"""The roots of a topology: source records whose trees are not complete, and those to go again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from flowctl.core.acker import AckerLedger, TreeOutcome, Verdict, owner_of
from flowctl.core.anchors import NextId
from flowctl.core.buffer import Cut
from flowctl.core.events import FlowEvent, TupleFailed, TupleGaveUp
from flowctl.core.intake import Intake
from flowctl.core.records import Checkpoint, Position, Record
from flowctl.core.retry import backoff_s
from flowctl.core.rotating import TickTimer
from flowctl.core.settings import CoreSettings
from flowctl.core.trees import SpoutTrees

# Records that are planted at once: enough to fill a tuple, few enough to take some 1 ms.
_PLANT_RECORDS: Final = 256


class RootEnd(msgspec.Struct, frozen=True):
    """What a spout's callbacks are told; ``value`` is what the source gave (S82).

    ``reason`` None: the tree is complete.  ``age_s``: since its emission; None: not sampled (S62).
    """

    spout: str
    partition: str
    position: Position
    value: Any
    reason: str | None = None
    age_s: float | None = None


# Is told of every end; must not block, as the hub waits.
OnEnd: TypeAlias = Callable[[RootEnd], None]


class RootWatch(NamedTuple):
    """Who watches roots.  Nothing here may block, as the hub waits.

    ``on_end`` hears of every end, or (not ``hears_all``) of sampled roots' only; ``on_emit`` of
    each emission: the spout's name and the value.
    """

    on_end: OnEnd | None = None
    hears_all: bool = True
    samples: Callable[[], bool] | None = None
    on_emit: Callable[[str, Any], None] | None = None


class Root:
    """One source record that is not done.  ``faults``: how often its tree has failed."""

    __slots__ = ("faults", "partition", "record", "replays", "seq")

    def __init__(self, partition: str, seq: int, record: Record) -> None:
        self.partition = partition
        self.seq = seq
        self.record = record
        self.faults = 0
        self.replays = 0

    @property
    def spout(self) -> str:
        """Partitions carry the name of their spout."""
        return self.partition.partition(":")[0]


class Roots:
    """Intake, pending trees, the ackers' ledgers, and retries.  Not thread-safe.

    A root that fails goes again after a back-off, and is given up after ``retry.attempts_max``
    failures; one that expires goes again at once, however often (as in ``core/recovery.py``).
    """

    def __init__(
        self,
        settings: CoreSettings,
        restored: Checkpoint,
        events: deque[FlowEvent],
        *,
        next_id: NextId,
        ackers: int,
        tree_timeout_s: float,
        watch: RootWatch,
    ) -> None:
        self.intake = Intake(settings.buffer, restored, events)
        self.trees = SpoutTrees(next_id, has_ackers=ackers > 0)
        self.ledgers = [AckerLedger() for _ in range(ackers)]
        self._owners = range(ackers)
        self.gave_up: TupleGaveUp | None = None
        self.acked = self.failed = self.expired = self.replayed = 0
        self.pending = self.pending_max = 0  # also those that wait to go again
        self._settings = settings.retry
        self._events = events
        self.watch = watch
        self._tree_timeout_s = tree_timeout_s
        self._timer: TickTimer | None = None  # from the first time that a clock is seen
        self._waiting: list[tuple[float, int, Root]] = []
        self._ready: deque[Root] = deque()
        self._scheduled = 0  # makes two with the same time differ

    # -- what goes out -------------------------------------------------------------------

    def take(self) -> Sequence[Root]:
        """Return what is to be planted next: what goes again first, then new records."""
        if self._ready:
            return (self._ready.popleft(),)
        if not self.intake.buffer:
            return ()
        cut: Cut = self.intake.buffer.cut(_PLANT_RECORDS, 1 << 62)
        self.pending += len(cut.records)
        self.pending_max = max(self.pending_max, self.pending)
        return [Root(cut.partition, seq, record) for seq, record in enumerate(cut.records, cut.seq)]

    @property
    def has_next(self) -> bool:
        """Whether :meth:`take` gives something."""
        return bool(self._ready) or bool(self.intake.buffer)

    def ledger_of(self, root_id: int) -> AckerLedger:
        """Return the ledger that keeps account of ``root_id``, always the same one (S125)."""
        if len(self.ledgers) == 1:  # nearly always, and asked for each edge
            return self.ledgers[0]
        owner = owner_of(root_id, self._owners)
        assert isinstance(owner, int)
        return self.ledgers[owner]

    # -- how it ends ---------------------------------------------------------------------

    def started_at_s(self, now_s: float) -> float | None:
        """Return ``now_s`` if the root that is planted now is sampled (S62)."""
        samples = self.watch.samples
        return now_s if samples is not None and samples() else None

    def done(self, root: Root, age_s: float | None = None) -> None:
        """The whole tree is acked: only now its record counts as acked."""
        record = root.record
        ledger = self.intake.ledgers[root.partition]
        before = ledger.cumulative_seq
        ledger.ack(root.seq, root.seq + 1, record.position, record.position)
        self.intake.uncommitted -= ledger.cumulative_seq - before
        self.acked += 1
        self.pending -= 1
        self._tell(root, None, age_s)

    def on_verdict(self, verdict: Verdict, reason: str, now_s: float) -> None:
        """An acker has judged a tree; ``reason`` is why, if it failed."""
        if verdict.outcome is TreeOutcome.PROLONGED:
            self.trees.on_reset_timeout(verdict.root)
        elif verdict.outcome is TreeOutcome.COMPLETE:
            end = self.trees.on_ack(verdict.root, task=verdict.spout, now_s=now_s)
            if end is not None:
                self.done(end.tree.message_id, end.age_s)
        else:
            end = self.trees.on_fail(verdict.root, task=verdict.spout, now_s=now_s)
            if end is not None:
                self._fail(end.tree.message_id, verdict.outcome, reason, now_s, end.age_s)

    def refuse(self, root: Root, reason: str, now_s: float) -> None:
        """``root`` could not even be planted: it fails as its tree would."""
        self._fail(root, TreeOutcome.FAILED, reason, now_s)

    def _fail(
        self,
        root: Root,
        outcome: TreeOutcome,
        reason: str,
        now_s: float,
        age_s: float | None = None,
    ) -> None:
        if outcome is TreeOutcome.EXPIRED:
            self.expired += 1
            self._go_again(root, now_s, reason, now_s)
        else:
            self.failed += 1
            root.faults += 1
            if root.faults >= self._settings.attempts_max:
                self._give_up(root, reason, now_s)
            else:
                due_s = now_s + backoff_s(root.faults, self._settings)
                self._go_again(root, due_s, reason, now_s)
        self._tell(root, reason, age_s)

    def _go_again(self, root: Root, due_s: float, reason: str, now_s: float) -> None:
        root.replays += 1
        self.replayed += 1
        if due_s > now_s:
            self._scheduled += 1
            heappush(self._waiting, (due_s, self._scheduled, root))
        else:
            self._ready.append(root)
        position = root.record.position
        self._events.append(
            TupleFailed(
                at_s=now_s,
                bolt=root.spout,
                tuple_id=root.seq,
                attempt=root.replays,
                partition=root.partition,
                first=position,
                last=position,
                reason=reason,
                retry_at_s=due_s,
            )
        )

    def _give_up(self, root: Root, reason: str, now_s: float) -> None:
        position = root.record.position
        event = TupleGaveUp(
            at_s=now_s,
            tuple_id=root.seq,
            partition=root.partition,
            first=position,
            last=position,
            attempts=root.faults,
            bolts=(root.spout,),
            reason=reason,
        )
        self.gave_up = self.gave_up or event
        self._events.append(event)

    def _tell(self, root: Root, reason: str | None, age_s: float | None) -> None:
        on_end, hears_all, _, _ = self.watch
        if on_end is not None and (hears_all or age_s is not None):
            spout, _, partition = root.partition.partition(":")
            record = root.record
            on_end(RootEnd(spout, partition, record.position, record.value, reason, age_s))

    # -- time passes ---------------------------------------------------------------------

    def next_s(self) -> float | None:
        """When :meth:`on_time` wants to be called, or None."""
        due_s = self._waiting[0][0] if self._waiting else None
        if self._timer is None or not (self.trees or any(self.ledgers)):
            return due_s
        # A tick is due *after* this.
        tick_s = self._timer.due_after_s + 1e-3
        return tick_s if due_s is None else min(due_s, tick_s)

    def on_time(self, now_s: float) -> bool:
        """Make due retries ready; True if a tick has passed and trees were judged by it."""
        while self._waiting and self._waiting[0][0] <= now_s:
            self._ready.append(heappop(self._waiting)[2])
        if self._timer is None:
            self._timer = TickTimer(self._tree_timeout_s, now_s=now_s)
        if not self._timer.take(now_s=now_s):
            return False
        reason = f"its tree was not complete after {self._tree_timeout_s:g} s"
        for end in self.trees.on_tick(now_s=now_s):
            self._fail(end.tree.message_id, TreeOutcome.EXPIRED, reason, now_s, end.age_s)
        for ledger in self.ledgers:
            for verdict in ledger.on_tick():
                self.on_verdict(verdict, reason, now_s)
        return True

    @property
    def is_drained(self) -> bool:
        """Every record that was read is done."""
        return not self.pending and not self.intake.buffer
