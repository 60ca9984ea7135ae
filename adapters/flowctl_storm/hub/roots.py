"""The roots of a topology: source records whose trees are not complete, and records to resend."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from flowctl.core.buffer import Cut
from flowctl.core.events import FlowEvent, TupleGaveUp
from flowctl.core.failures import NOTHING_SUCCEEDED, DeadTuple
from flowctl.core.intake import Intake
from flowctl.core.letters import REJECTED_PREFIX
from flowctl.core.records import Checkpoint, Record
from flowctl.core.retry import RetryQueue
from flowctl.core.settings import CoreSettings
from flowctl.core.trees.acker import AckerLedger, TreeOutcome, Verdict, owner_of
from flowctl.core.trees.anchors import NextId
from flowctl.core.trees.rotating import TickTimer
from flowctl.core.trees.spout_trees import SpoutTrees
from flowctl_storm.hub import tree_root as told
from flowctl_storm.hub.blame import FailedAt, RootBlame
from flowctl_storm.hub.news import News, RootEmitted, RootEnd, Wanted, step
from flowctl_storm.hub.tree_root import Drops, Part, Root

# Most records planted in one step: enough to fill a tuple, few enough to take some 1 ms.
PLANT_RECORDS: Final = 256


class TreeRules(NamedTuple):
    """The rules for trees.

    ``next_id`` gives random 64-bit ids; ``ackers`` ledgers share the trees (0: nothing is tracked);
    a tree that is not complete after one to two ``timeout_s`` expires.  ``max_pending`` bounds the
    roots that were planted and are not done, including those that wait for their back-off (None:
    only the stages' windows do); it does not delay retries.  ``chance`` gives numbers from 0 to 1
    for the jitter of back-offs (None: none).
    """

    next_id: NextId
    ackers: int = 1
    timeout_s: float = 30.0
    max_pending: int | None = None
    chance: Callable[[], float] | None = None


class Roots:
    """Intake, pending trees, the ackers' ledgers, and retries.  Not thread-safe.

    A root that fails is sent again after a back-off, and is given up after ``retry.attempts_max``
    failures; one that expires is sent again at once, however often (as in ``core/recovery.py``).
    If the guarantee allows no retries, either is dropped, counted and reported; then trees only
    serve statistics and bound the roots in flight, and with ``ackers`` 0 there are none.  ``news``
    holds the ``wanted`` reports, for the driver of the hub to take.
    """

    def __init__(
        self,
        settings: CoreSettings,
        restored: Checkpoint,
        events: deque[FlowEvent],
        *,
        rules: TreeRules,
        wanted: Wanted,
        has_dead_letter: bool = False,
    ) -> None:
        guarantee = settings.guarantee.processing
        self.intake: Intake = Intake(settings.buffer, restored, events, guarantee)
        self.trees: SpoutTrees = SpoutTrees(rules.next_id, has_ackers=rules.ackers > 0)
        self.ledgers: list[AckerLedger] = [AckerLedger() for _ in range(rules.ackers)]
        self._owners = range(rules.ackers)
        self.wanted = wanted
        self.news: deque[News] = deque()
        self.acked: int = 0
        self.failed: int = 0
        self.expired: int = 0
        self.replayed: int = 0
        self.dropped: int = 0
        self.dead_lettered: int = 0
        self.handed_over: int = 0
        self.pending: int = 0  # including those that wait for a retry
        self.pending_max: int = 0
        self.drops: Drops = Drops()
        self.sends_again: bool = guarantee.sends_again
        self._commits_acked = guarantee.commits_acked
        self._parts: dict[str, Part] = {}
        self._retries: RetryQueue[Root] = RetryQueue(settings.retry, rules.chance)
        self.blame: RootBlame = RootBlame(settings.retry, events, restored.records)
        self.gave_up: TupleGaveUp | None = None  # the first that no dead letter keeps
        self._has_dead_letter = has_dead_letter
        self._dying: deque[tuple[Root, TupleGaveUp, FailedAt | None]] = deque()  # where they failed
        self._dead: dict[int, Root] = {}  # given to it, by number
        self._numbers = 0
        self._events = events
        self.tree_timeout_s: float = rules.timeout_s
        self._timer: TickTimer | None = None  # set when the first time is passed in

    # -- what goes out -------------------------------------------------------------------

    def take(self, new_max: int = PLANT_RECORDS) -> Sequence[Root]:
        """Return the roots to plant next: retries first, then new records.

        At most ``new_max`` are new; retries are not limited.
        """
        again = self._retries.take()
        if again is not None:
            return (again,)
        intake = self.intake
        # Held back: its position is not saved yet.
        if new_max <= 0 or not intake.buffer or intake.is_held:
            return ()
        cut: Cut = intake.buffer.cut(min(new_max, PLANT_RECORDS), 1 << 62)
        part = self._parts.get(cut.partition) or self._open(cut.partition)
        part.pending += len(cut.records)
        self.pending += len(cut.records)
        self.pending_max = max(self.pending_max, self.pending)
        return [Root(part, seq, record) for seq, record in enumerate(cut.records, cut.seq)]

    def _open(self, partition: str) -> Part:
        ledger = self.intake.ledgers[partition] if self._commits_acked else None
        part = self._parts[partition] = Part(partition, ledger)
        return part

    @property
    def has_next(self) -> bool:
        """Whether :meth:`take` returns something."""
        return self._retries.has_ready or bool(self.intake.buffer)

    def ledger_of(self, root_id: int) -> AckerLedger:
        """Return the ledger responsible for ``root_id``, always the same one."""
        if len(self.ledgers) == 1:  # the usual case, and checked for each edge
            return self.ledgers[0]
        owner = owner_of(root_id, self._owners)
        assert isinstance(owner, int)
        return self.ledgers[owner]

    def planted(self, root: Root, value: Any) -> None:
        """Note that ``value`` was emitted for ``root``; notify listeners the first time only."""
        if self.wanted.steps:
            self._number(root)
            if not root.replays:
                self.news.append(step("emitted", root))
        if self.wanted.emits:
            self.news.append(RootEmitted(root.spout, value))

    def take_news(self) -> Sequence[News]:
        """Return the wanted news since the last call, in order."""
        taken = tuple(self.news)
        self.news.clear()
        return taken

    # -- how it ends ---------------------------------------------------------------------

    def started_at_s(self, now_s: float) -> float | None:
        """Return ``now_s`` if the root being planted is sampled, else None."""
        samples = self.wanted.samples
        return now_s if samples is not None and samples() else None

    def done(self, root: Root, age_s: float | None = None) -> None:
        """Note that the whole tree is acked, so that its record counts as acked."""
        if self.wanted.steps and root.number:
            self.news.append(step("acked", root))
        # otherwise another driver reads its partition, and it counts nowhere
        if not root.part.is_gone:
            self._count_done(root)
            self._tell(root, None, age_s)

    def _count_done(self, root: Root) -> None:
        part = root.part
        part.pending -= 1
        self.pending -= 1
        self.acked += 1
        ledger = part.ledger
        if ledger is not None:
            position = root.record.position
            before = ledger.cumulative_seq
            ledger.ack(root.seq, root.seq + 1, position, position)
            self.intake.uncommitted -= ledger.cumulative_seq - before
            self.intake.undone -= 1
            self.intake.touch((part.name,))

    def on_verdict(
        self, verdict: Verdict, reason: str, now_s: float, at: FailedAt | None = None
    ) -> None:
        """Take an acker's verdict on a tree; ``reason`` and ``at`` tell why and where it failed."""
        if verdict.outcome is TreeOutcome.PROLONGED:
            self.trees.on_reset_timeout(verdict.root)
        elif verdict.outcome is TreeOutcome.COMPLETE:
            end = self.trees.on_ack(verdict.root, task=verdict.spout, now_s=now_s)
            if end is not None:
                self.done(end.tree.message_id, end.age_s)
        else:
            end = self.trees.on_fail(verdict.root, task=verdict.spout, now_s=now_s)
            if end is not None:
                root: Root = end.tree.message_id
                root.note_failed_at(at.bolt if at is not None else "")
                self._fail(root, verdict.outcome, reason, now_s, age_s=end.age_s, at=at)

    def refuse(self, root: Root, reason: str, now_s: float) -> None:
        """Fail ``root``, which could not be planted, as if its tree had failed."""
        self._fail(root, TreeOutcome.FAILED, reason, now_s)

    def _fail(
        self,
        root: Root,
        outcome: TreeOutcome,
        reason: str,
        now_s: float,
        *,
        age_s: float | None = None,
        at: FailedAt | None = None,
    ) -> None:
        if root.part.is_gone:
            return
        self._number(root)
        is_expired = outcome is TreeOutcome.EXPIRED
        self.expired += is_expired
        self.failed += not is_expired
        if not self.sends_again:
            self._drop(root, reason, now_s)
        elif (due_s := self._retry_at_s(root, at, now_s, is_expired=is_expired)) is not None:
            self._go_again(root, reason, due_s, now_s, at.bolt if at is not None else "")
        else:
            self._give_up(root, at, reason, now_s)
        self._tell(root, reason, age_s)

    def _retry_at_s(
        self, root: Root, at: FailedAt | None, now_s: float, *, is_expired: bool
    ) -> float | None:
        """Schedule ``root``; return when it is sent again, None if its attempts have run out."""
        if is_expired:
            self._retries.add(root, not_before_s=now_s, now_s=now_s)
            return now_s
        if at is not None and at.stage is not None:
            if not self.blame.counts(root, at, left=self.left, now_s=now_s):
                root.refusals += 1
                return self._retries.refusal(root, root.refusals, now_s)
            root.judged_at_s = now_s
        root.faults += 1
        return self._retries.fault(root, root.faults, now_s)

    def set_aside(self, partition: str, record: Record, reason: str, now_s: float) -> bool:
        """Set an unsendable ``record`` aside for the dead letter store; False without room."""
        buffer = self.intake.buffer
        before = buffer.records
        if not self.intake.offer(partition, [record], now_s, [0]):
            return False
        if buffer.records > before:  # otherwise an earlier run has finished the record
            cut = buffer.take_last()
            root = Root(self._parts.get(partition) or self._open(partition), cut.seq, record)
            root.part.pending += 1
            self.pending += 1
            self.failed += 1
            self._number(root)
            self._part_with(root, f"{REJECTED_PREFIX}{reason}", now_s)
            self._tell(root, reason, None)
        return True

    def _number(self, root: Root) -> None:
        """Give ``root`` a number, as it is about to be reported for the first time."""
        if not root.number:
            self._numbers += 1
            root.number = self._numbers

    def _go_again(self, root: Root, reason: str, due_s: float, now_s: float, bolt: str) -> None:
        if self.wanted.steps:
            self.news.append(step("retried", root, reason))
        root.replays += 1
        self.replayed += 1
        self._events.append(told.failed(root, reason, bolt=bolt, retry_at_s=due_s, at_s=now_s))

    def _give_up(self, root: Root, at: FailedAt | None, reason: str, now_s: float) -> None:
        is_kept = at is None or at.stage is None or self.blame.is_keepable(root, at)
        if not is_kept:
            reason = f"{reason} ({NOTHING_SUCCEEDED})"
        if self.wanted.steps:
            self.news.append(step("gave_up", root, reason))
        self._events.append(self._part_with(root, reason, now_s, at=at, is_kept=is_kept))

    def _part_with(
        self,
        root: Root,
        reason: str,
        now_s: float,
        *,
        at: FailedAt | None = None,
        is_kept: bool = True,
    ) -> TupleGaveUp:
        """Give ``root`` to the dead letter; if that is impossible, the run has to fail."""
        gave_up = told.gave_up(root, reason, at_s=now_s)
        if self._has_dead_letter and is_kept:
            self._dying.append((root, gave_up, at))
        else:
            self.gave_up = self.gave_up or gave_up
        return gave_up

    def _drop(self, root: Root, reason: str, now_s: float) -> None:
        """Count, report and forget ``root``, as this mode has no retries."""
        self.dropped += 1
        self.pending -= 1
        root.part.pending -= 1
        self.drops.add(root, reason, now_s)

    def poll_dead_letter(self) -> DeadTuple | None:
        """Return the next root for the dead letter, whose attempts ran out, or None.

        While other roots are left, a root waits if nothing has succeeded at its place of failure
        yet: if the run fails for that reason, such roots were good records, and the next run begins
        with them.
        """
        while self._dying:
            root, gave_up, at = self._dying[0]
            if not root.part.is_gone and self._is_doubtful(root, at):
                return None
            self._dying.popleft()
            if not root.part.is_gone:
                self._dead[root.number] = root
                return DeadTuple(gave_up, (root.record,))
        return None

    def _is_doubtful(self, root: Root, at: FailedAt | None) -> bool:
        if at is None or at.stage is None or self.blame.has_succeeded(root, at):
            return False
        return bool(self.intake.buffer) or self.left > 0

    @property
    def left(self) -> int:
        """The number of roots that are not done, without those waiting for the dead letter."""
        dying = self._dying and sum(not root.part.is_gone for root, *_ in self._dying)
        return self.pending - (dying or 0)

    def on_dead_lettered(self, number: int, now_s: float) -> None:
        """Count a root that is safe in the store as acked; ignore one whose partition is gone."""
        root = self._dead.pop(number, None)
        if root is None or root.part.is_gone:
            return
        self._count_done(root)
        self.dead_lettered += 1
        self._events.append(told.dead_lettered(root, at_s=now_s))

    def _tell(self, root: Root, reason: str | None, age_s: float | None) -> None:
        if self.wanted.ends or age_s is not None:
            part, record = root.part, root.record
            partition = part.name[len(part.spout) + 1 :]
            end = RootEnd(part.spout, partition, record.position, record.value, reason, age_s)
            self.news.append(end)

    # -- partitions go -------------------------------------------------------------------

    def hold_back(self, partition: str) -> int:
        """Plant no more of ``partition``; return its roots that are not done.  O(waiting)."""
        if not self._commits_acked:
            return 0  # committed before it was sent: it stays with this driver
        self.intake.buffer.drop(partition)
        part = self._parts.get(partition)
        if part is None:
            return 0
        left = self._retries.discard_where(lambda root: root.part is part)
        self._hand_over(part, len(left))
        return part.pending

    def forget(self, partition: str, now_s: float) -> int:
        """Forget ``partition``, which another driver reads; return its roots in flight.

        Results of its trees no longer count here.  Their entries stay with the ackers until they
        expire: if they were removed, late acks would open them again and leave orphans.
        """
        del now_s
        under_way = self.hold_back(partition)
        part = self._parts.pop(partition, None)
        if part is not None and self._commits_acked:
            part.is_gone = True
            self._hand_over(part, under_way)
        return under_way

    def _hand_over(self, part: Part, roots: int) -> None:
        part.pending -= roots
        self.pending -= roots
        self.handed_over += roots

    # -- time passes ---------------------------------------------------------------------

    def next_s(self) -> float | None:
        """Return when to call :meth:`on_time` next, or None."""
        dues = (self._retries.next_due_s(), self.blame.next_s())
        due_s = min((at_s for at_s in dues if at_s is not None), default=None)
        if self._timer is None or not (self.trees or any(self.ledgers)):
            return due_s
        # A tick is due *after* this time.
        tick_s = self._timer.due_after_s + 1e-3
        return tick_s if due_s is None else min(due_s, tick_s)

    def on_time(self, now_s: float) -> bool:
        """Make due retries ready; return whether a tick has passed, which checks the trees."""
        self._retries.ripen(now_s)
        self.blame.on_time(now_s)
        if self._timer is None:
            self._timer = TickTimer(self.tree_timeout_s, now_s=now_s)
        if not self._timer.take(now_s=now_s):
            return False
        reason = f"its tree was not complete after {self.tree_timeout_s:g} s"
        for end in self.trees.on_tick(now_s=now_s):
            self._fail(end.tree.message_id, TreeOutcome.EXPIRED, reason, now_s, age_s=end.age_s)
        for ledger in self.ledgers:
            for verdict in ledger.on_tick():
                self.on_verdict(verdict, reason, now_s)
        return True

    @property
    def ended(self) -> int:
        """The number of roots that have ended, in whatever way."""
        return self.acked + self.dropped + self.handed_over

    @property
    def to_go_again(self) -> int:
        """The number of roots that wait for their back-off, or to be planted again."""
        return len(self._retries)

    @property
    def is_drained(self) -> bool:
        """Whether every record that was read is done."""
        return not self.pending and not self.intake.buffer
