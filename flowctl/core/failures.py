"""What becomes of tuples that failed: sent again, perhaps in pieces, or given up (S109, S110).

A fault is ``process`` raising, or its worker dying.  A refusal is the target having no room: no
fault, but congestion.  :mod:`flowctl.core.target` says which faults count against records.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import msgspec

from flowctl.core.blame import REFUSALS_MAX, given_up_first_max
from flowctl.core.book import Book, Lost
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.events import (
    TupleDeadLettered,
    TupleDropped,
    TupleFailed,
    TupleGaveUp,
    TupleRefused,
)
from flowctl.core.isolation import Isolation
from flowctl.core.letters import redrive_number
from flowctl.core.records import AckOutcome, Record
from flowctl.core.retry import CONTENT_ATTEMPTS_MAX, RetryQueue
from flowctl.core.state import Liveness
from flowctl.core.target import Refused, Target
from flowctl.core.tuples import FlowTuple, by_deadline

#: Stands in the reason then, for those who say what to do.
NOTHING_SUCCEEDED = "nothing has succeeded so far, so this is not the records' fault"

# Later than any deadline, in the order of coming [s]: what asked a target that is down asks again
# once all others have, as one of them may succeed.
_BEHIND_S: Final = 1e9


class DeadTuple(msgspec.Struct, frozen=True, gc=False):
    """A tuple whose attempts ran out, or a record that was rejected: why, and its records."""

    gave_up: TupleGaveUp
    records: Sequence[Record]


class Keeper(enum.Enum):
    """What gets the tuples that are not sent any more: given up, or in a mode without retries."""

    CALLER = "caller"  # forgotten here, and given out by poll_lost
    DEAD_LETTER = "dead_letter"  # given up: pending until it is safe there; dropped: only reported
    NOBODY = "nobody"  # given up: the run has to fail; dropped: only reported


class Failures:
    """Part of ``TupleCore``, not thread-safe.

    ``retries`` holds what is sent again.  ``gave_up`` is the first tuple whose attempts ran out, if
    there is nowhere to keep it; ``dying`` counts those that are not yet safe in the dead letter.
    ``chance`` gives the jitter of back-offs, numbers from 0 to 1; None: no jitter.  ``in_place``:
    as :class:`flowctl.core.target.Target` has it.  ``done_before``: records that earlier runs did;
    the core's to set.
    """

    def __init__(
        self,
        book: Book,
        keeper: Keeper = Keeper.NOBODY,
        chance: Callable[[], float] | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        self.retries: RetryQueue[FlowTuple] = RetryQueue(
            book.settings.retry, chance, rank=by_deadline
        )
        self.target: Target = Target(book, self.retries, in_place=in_place)
        self.isolation: Isolation = Isolation(book, self.retries)
        self.gave_up: TupleGaveUp | None = None
        self.dying: int = 0
        self._given_up = 0
        self.done_before: int = 0
        self.has_dead_letter: bool = keeper is Keeper.DEAD_LETTER
        self._is_caller_keeper = keeper is Keeper.CALLER
        self._ends_run = keeper is Keeper.NOBODY  # a tuple that is given up does
        self._dead: deque[tuple[FlowTuple, TupleGaveUp]] = deque()
        self._book = book
        self._sends_again = book.guarantee.sends_again

    def fault(
        self,
        flow_tuple: FlowTuple,
        bolt: str,
        reason: str,
        now_s: float,
        *,
        record_index: int | None = None,
        may_be_target: bool = True,
        is_content: bool = False,
    ) -> AckOutcome:
        """Count a fault of ``flow_tuple`` on ``bolt``: it is sent again, in pieces, or given up.

        ``record_index``: the record that was being read, if known.  ``may_be_target``:
        as far as can be seen, the target may be to blame.  ``is_content``: the error is about what
        was sent, and comes again: once a record has failed alone, it is not tried further; but if
        nobody keeps it, so that the run ends, all others are done while it waits.
        """
        is_content = is_content and not self._ends_run
        self._book.counters.tuples_failed += 1
        flow_tuple.avoid(bolt)
        if (consumer := self._book.bolts.get(bolt)) is not None:
            consumer.on_failed()
        if not self._sends_again:
            self.drop(flow_tuple, bolt, reason, now_s)
            return AckOutcome.DROPPED
        target = self.target
        if may_be_target:
            outcome = self._blame_target(flow_tuple, bolt, reason, now_s, record_index)
            if outcome is not None:
                return outcome
        may_wait = may_be_target and target.may_wait(flow_tuple, now_s)
        if not may_be_target or target.has_worked_since(flow_tuple):
            target.note_answered(now_s)
        flow_tuple.faulted()
        flow_tuple.judged(now_s)
        if self.isolation.will_cut(flow_tuple, record_index, is_content=is_content):
            self._tell_failed(flow_tuple, bolt, reason, now_s, retry_at_s=now_s)
        if self.isolation.take(flow_tuple, record_index, now_s, is_content=is_content):
            return AckOutcome.FAILED
        is_final = is_content and flow_tuple.faults >= CONTENT_ATTEMPTS_MAX
        due_s = None if is_final else self.retries.fault(flow_tuple, flow_tuple.faults, now_s)
        if due_s is None and may_wait:
            flow_tuple.forgiven()
            due_s = self._excuse(flow_tuple, now_s)
        if due_s is None:
            self._give_up(flow_tuple, reason, now_s)
            return AckOutcome.GAVE_UP
        self._tell_failed(flow_tuple, bolt, reason, now_s, retry_at_s=due_s)
        return AckOutcome.FAILED

    def _blame_target(
        self,
        flow_tuple: FlowTuple,
        bolt: str,
        reason: str,
        now_s: float,
        record_index: int | None,
    ) -> AckOutcome | None:
        """Send ``flow_tuple`` again without a fault if the target may be to blame; else None."""
        target = self.target
        if target.is_at_fault(flow_tuple, reason, now_s):
            flow_tuple.judged(now_s)
            retry_at_s = self._refuse(flow_tuple, bolt, reason, None, now_s)
            flow_tuple.wait_until(now_s + _BEHIND_S)
            if target.asks_with_part(flow_tuple):
                self.isolation.ask_with_part(
                    flow_tuple, record_index, now_s, not_before_s=retry_at_s
                )
            return AckOutcome.REFUSED
        if target.may_be_at_fault(flow_tuple):
            retry_at_s = self._excuse(flow_tuple, now_s)
            self._tell_failed(flow_tuple, bolt, reason, now_s, retry_at_s=retry_at_s)
            return AckOutcome.FAILED
        return None

    def _excuse(self, flow_tuple: FlowTuple, now_s: float) -> float:
        """This fault does not count; return when it is sent again."""
        flow_tuple.refused()
        return self.retries.refusal(flow_tuple, flow_tuple.refusals, now_s)

    def refuse(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, refusal: Refused, now_s: float
    ) -> AckOutcome:
        """The target refused ``flow_tuple`` on ``consumer``: it is sent again, without a fault.

        One that is refused again and again while others are not is itself the cause: a fault.
        """
        self._book.counters.calls_refused += 1
        if not self.target.is_down:
            flow_tuple.refused()
        if flow_tuple.refusals > REFUSALS_MAX:
            return self.fault(flow_tuple, consumer.bolt, refusal.reason, now_s)
        if not self._sends_again:
            self.drop(flow_tuple, consumer.bolt, refusal.reason, now_s)
            return AckOutcome.DROPPED
        self.target.on_refused(flow_tuple, refusal, now_s)
        flow_tuple.avoid(consumer.bolt)  # it rests now
        consumer.on_refused(flow_tuple.sent_at_s, now_s)
        if consumer.liveness is Liveness.RESTING:
            self._book.alarms.set(consumer, consumer.rests_until_s)
        due_s = self._refuse(flow_tuple, consumer.bolt, refusal.reason, refusal.after_s, now_s)
        if refusal.done and flow_tuple.search is None:
            self.isolation.split(flow_tuple, refusal.done, now_s, not_before_s=due_s)
        return AckOutcome.REFUSED

    def _refuse(
        self, flow_tuple: FlowTuple, bolt: str, reason: str, after_s: float | None, now_s: float
    ) -> float:
        """Schedule it without a fault and report that; return when it is sent again.

        Cap and breaker, not this wait, slow down what is sent.
        """
        due_s = self.retries.refusal(flow_tuple, flow_tuple.refusals, now_s, after_s=after_s)
        self._book.events.append(
            TupleRefused(
                at_s=now_s,
                bolt=bolt,
                tuple_id=flow_tuple.tuple_id,
                attempt=flow_tuple.attempt,
                reason=reason,
                retry_at_s=due_s,
            )
        )
        return due_s

    def _tell_failed(
        self, flow_tuple: FlowTuple, bolt: str, reason: str, now_s: float, *, retry_at_s: float
    ) -> None:
        self._book.events.append(
            TupleFailed(
                at_s=now_s,
                bolt=bolt,
                tuple_id=flow_tuple.tuple_id,
                attempt=flow_tuple.attempt,
                partition=flow_tuple.cut.partition,
                first=flow_tuple.first,
                last=flow_tuple.last,
                reason=reason,
                retry_at_s=retry_at_s,
            )
        )

    def reject(self, flow_tuple: FlowTuple, reason: str, now_s: float) -> None:
        """``process`` rejected the one record of ``flow_tuple``: it waits for the dead letter."""
        flow_tuple.give_up()
        self.dying += 1
        self._dead.append((flow_tuple, _gave_up(flow_tuple, f"rejected: {reason}", now_s)))

    def _give_up(self, flow_tuple: FlowTuple, reason: str, now_s: float) -> None:
        if self._is_caller_keeper:
            counters = self._book.counters
            counters.tuples_acked += 1  # nothing more is to be done about it here
            counters.records_acked += len(flow_tuple.cut.records)
            self._hand_out(flow_tuple, ", ".join(sorted(flow_tuple.avoided or ())), reason)
            return
        flow_tuple.give_up()
        keeps = self.has_dead_letter
        is_letter = redrive_number(flow_tuple.cut.partition) is not None
        if keeps and not (self.target.has_succeeded or is_letter):
            self._given_up += 1
            keeps = self._given_up <= given_up_first_max(self.done_before)
            if not keeps:
                reason = f"{reason} ({NOTHING_SUCCEEDED})"
        event = _gave_up(flow_tuple, reason, now_s)
        if keeps:
            self.dying += 1
            self._dead.append((flow_tuple, event))
        else:
            self.gave_up = self.gave_up or event
        self._book.events.append(event)

    def end_for(self, flow_tuple: FlowTuple, reason: str, now_s: float) -> None:
        """A tuple was given up that no dead letter may keep: the run has to fail."""
        self.gave_up = self.gave_up or _gave_up(flow_tuple, reason, now_s)

    def _hand_out(self, flow_tuple: FlowTuple, bolt: str, reason: str) -> None:
        self._book.let_go(flow_tuple)
        self._book.lost.append(Lost(flow_tuple.cut.records, bolt, reason))

    def poll_dead_letter(self) -> DeadTuple | None:
        """Return the next one on its way to the dead letter.

        Before anything has succeeded none goes there that failed, while something else is left: if
        the run ends over it, those were good records, and the next run begins with them.
        """
        while self._dead and not self._is_doubtful(self._dead[0][0]):
            flow_tuple, gave_up = self._dead.popleft()
            if flow_tuple.tuple_id in self._book.pending:  # not acked late, not taken away
                return DeadTuple(gave_up, flow_tuple.cut.records)
        return None

    def _is_doubtful(self, dead: FlowTuple) -> bool:
        """Whether ``process`` may be at fault, not ``dead``; what is left will show it."""
        if self.target.has_succeeded or not dead.faults:  # or it was rejected
            return False
        if redrive_number(dead.cut.partition) is not None:
            return False  # it was a letter before
        book = self._book
        is_left = book.supply.buffer.records > 0 or len(book.pending) > self.dying
        return is_left or self.gave_up is not None

    def note_dead_lettered(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """Count and report a tuple that is safe in the dead letter."""
        self._book.supply.note_lost(flow_tuple.cut, is_kept=True)
        counters = self._book.counters
        if not flow_tuple.faults:  # rejected, which was counted and reported before
            counters.records_rejected_kept += 1
            counters.tuples_acked -= 1  # it was never sent
            return
        counters.tuples_dead_lettered += 1
        counters.records_dead_lettered += len(flow_tuple.cut.records)
        self._book.events.append(
            TupleDeadLettered(
                at_s=now_s,
                tuple_id=flow_tuple.tuple_id,
                partition=flow_tuple.cut.partition,
                first=flow_tuple.first,
                last=flow_tuple.last,
                records=len(flow_tuple.cut.records),
            )
        )

    def drop(self, flow_tuple: FlowTuple, bolt: str, reason: str, now_s: float) -> None:
        """Nothing is sent again in this mode: count it, report it, forget it (S88)."""
        records = len(flow_tuple.cut.records)
        self._book.counters.tuples_dropped += 1
        self._book.counters.records_dropped += records
        if self._is_caller_keeper:
            self._hand_out(flow_tuple, bolt, reason)
            return
        self._book.let_go(flow_tuple)
        self._book.events.append(
            TupleDropped(
                at_s=now_s,
                bolt=bolt,
                tuple_id=flow_tuple.tuple_id,
                partition=flow_tuple.cut.partition,
                first=flow_tuple.first,
                last=flow_tuple.last,
                records=records,
                reason=reason,
            )
        )

    def send_elsewhere(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float
    ) -> None:
        """Schedule what ``consumer`` lost or did not ack for another bolt, without a fault."""
        flow_tuple.avoid(consumer.bolt)
        self.move(flow_tuple, consumer, now_s)

    def doubt(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, until_s: float, now_s: float
    ) -> None:
        """``consumer`` may be at work on it: another bolt gets it then, or once it is idle."""
        flow_tuple.avoid(consumer.bolt)
        consumer.on_moved()
        self.retries.doubt(flow_tuple, until_s=until_s, now_s=now_s)

    def stop_doubting(self, bolt: str, now_s: float) -> None:
        """``bolt`` went: what it may have been at work on is ready."""
        for flow_tuple in [t for t in self.retries.doubted if t.held_by == bolt]:
            self.retries.add(flow_tuple, not_before_s=now_s, now_s=now_s)

    def move(self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """Schedule what ``consumer`` gave back unbegun for any bolt: nothing went wrong there."""
        consumer.on_moved()
        self.retries.add(flow_tuple, not_before_s=now_s, now_s=now_s)

    def take_late(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float
    ) -> None:
        """An expired sending was processed after all: drop the replay, wherever it is."""
        self._book.counters.acks_late += 1
        consumer.on_late_ack(flow_tuple, now_s)
        if not self.retries.discard(flow_tuple):
            self._book.take_back(flow_tuple, now_s)

    def reclaim(self, flow_tuple: FlowTuple, now_s: float) -> bool:
        """An expired sending failed after all: take the tuple from wherever it is, to count that.

        False: it has ended already, or another's outcome decides about it.
        """
        if flow_tuple.is_given_up or self.retries.is_parked(flow_tuple):
            return False
        if not self.retries.discard(flow_tuple):
            self._book.take_back(flow_tuple, now_s)
        return True

    # -- time passes ---------------------------------------------------------------------

    def next_s(self) -> float | None:
        """When :meth:`on_deadline` wants to be called, or None."""
        due_s = self.retries.next_due_s()
        if self.target.is_troubled:
            target_s = self.target.breaker.next_s()
            if target_s < inf:
                return target_s if due_s is None else min(target_s, due_s)
        return due_s

    def on_deadline(self, now_s: float) -> None:
        """Make retries ready; give up on a target that was down for too long."""
        self.retries.ripen(now_s)
        if self.target.is_troubled:
            self.target.on_deadline(now_s)


def _gave_up(flow_tuple: FlowTuple, reason: str, now_s: float) -> TupleGaveUp:
    return TupleGaveUp(
        at_s=now_s,
        tuple_id=flow_tuple.tuple_id,
        partition=flow_tuple.cut.partition,
        first=flow_tuple.first,
        last=flow_tuple.last,
        attempts=max(1, flow_tuple.faults),
        bolts=tuple(sorted(flow_tuple.avoided or ())),
        reason=reason,
    )
