"""What the spout knows of the target: what ``process`` writes to, as its failures show it.

One face for :mod:`flowctl.core.blame` (is it to blame?), :mod:`flowctl.core.blame` (does it take
anything at all?) and :mod:`flowctl.core.target` (how much at once?).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from flowctl.core.blame import BAD_END_MAX, FEW_LEFT, Place, fails_alone
from flowctl.core.book import Book
from flowctl.core.events import SinkCapChanged
from flowctl.core.letters import redrive_number
from flowctl.core.retry import RetryQueue
from flowctl.core.tuples import FlowTuple

# --
#
# A cap on what is in flight at all bolts, learned from refusals (429, "too many connections").
#
# A refusal says exactly what latency only hints at: the target had more than it takes. Additive
# increase, multiplicative decrease (Chiu & Jain 1989), with two changes: what was sent before a
# decrease can't show its effect and does not count, and the way back up is quick until it comes
# near the level that was refused last.


# A fifth less per refused round: from 16 to a limit of 10 in three rounds, and never far below it.
_DOWN: Final = 0.8
# A level that was refused is tried again after a second. With calls of 50 ms and a limit of 10 that
# is one refusal in some 200 calls.
_HOLD_S: Final = 1.0
# A step up at most this often: a refusal has to have the time to come back.  It comes at once, when
# a call is made, however long calls take that are accepted.
_STEP_S: Final = 0.25
# A cap that nothing reaches for so long is not needed any more.
_UNUSED_S: Final = 2.0


class RefusalCap:
    """The most tuples in flight at all bolts together; infinite without refusals.

    Pure; not thread-safe.  O(1) per call.
    """

    __slots__ = (
        "_before",
        "_cut_at_s",
        "_refused",
        "_refused_at_s",
        "_step",
        "_step_at_s",
        "_used_at_s",
        "cap",
    )

    def __init__(self) -> None:
        self.cap: float = inf
        self._refused = inf  # the level that was refused last
        self._refused_at_s = -inf
        self._cut_at_s = -inf
        self._step = 1
        self._step_at_s = -inf
        self._used_at_s = -inf  # when the cap was reached last
        self._before: float | None = None  # the cap before the failures without a success

    def has_room(self, in_flight: int, now_s: float) -> bool:
        """Whether one more tuple may be sent."""
        if self.cap == inf or in_flight < int(self.cap):
            return True
        self._used_at_s = now_s
        return False

    def on_refused(self, *, sent_at_s: float, in_flight: int, slots: int, now_s: float) -> bool:
        """A tuple was refused; return whether the cap fell.

        ``in_flight`` counts it still; ``slots``, of all bolts, bounds how many the target can have
        seen at once: the rest was queued.
        """
        if sent_at_s < self._cut_at_s:
            return False
        if self._before is None:
            self._before = self.cap
        level = min(self.cap, float(in_flight), float(slots))
        self._refused, self._refused_at_s = level, now_s
        self.cap = max(1.0, _DOWN * level)
        self._cut_at_s = self._step_at_s = self._used_at_s = now_s
        self._step = 1
        return True

    def on_success(self, now_s: float) -> bool:
        """A tuple was processed; move up if it is time; return whether the cap went away."""
        self._before = None
        if self.cap == inf:
            return False
        if now_s - self._used_at_s > _UNUSED_S:
            self.cap = inf
            return True
        if now_s - self._step_at_s < _STEP_S:
            return False
        self._step_at_s = now_s
        if self.cap + 1 < self._refused:  # halfway back to what was refused
            self.cap = min(self._refused - 1, self.cap + max(1.0, (self._refused - self.cap) / 2))
        elif now_s - self._refused_at_s >= _HOLD_S:
            self.cap += self._step
            self._step *= 2
        return False

    def forgive(self) -> None:
        """The target was down, not full: what its refusals took off is given back."""
        if self._before is not None:
            self.cap = self._before
            self._before = None


# -- Fewer records per tuple if a target refuses in mid-tuple (a limit of calls per second) ----
#
# A tuple that is refused at its tenth record has to begin again, so its first nine calls are made
# twice, and count against the target's limit twice.


# Twice as many a second after the last refusal, so that a limit that is gone costs some seconds.
_GROWTH: Final = 2
_GROW_EVERY_S: Final = 1.0
_NO_BOUND_ABOVE: Final = 10_000  # records: as many as the largest tuple has by default


class RefusalSize:
    """The most records that a new tuple should have; infinite without such refusals.

    Pure; not thread-safe.
    """

    __slots__ = ("_changed_at_s", "records_max")

    def __init__(self) -> None:
        self.records_max: float = inf
        self._changed_at_s = -inf

    def on_refused(self, done: int, now_s: float) -> None:
        """A tuple was refused after ``done`` records of it were worked on."""
        self.records_max = max(1.0, min(self.records_max, float(done)))
        self._changed_at_s = now_s

    def on_success(self, now_s: float) -> None:
        """A tuple was processed."""
        if self.records_max < inf and now_s - self._changed_at_s >= _GROW_EVERY_S:
            self._changed_at_s = now_s
            self.records_max *= _GROWTH
            if self.records_max > _NO_BOUND_ABOVE:
                self.records_max = inf


# -- What the spout knows of the target --------------------------------------------------------


class Refused(NamedTuple):
    """What a refusal says: why, how long the target asked to be left alone, and what it saw.

    ``in_flight`` tuples were at bolts then, the refused one included.  ``done``: so many records of
    it were worked on before; 0: none, or nobody knows.
    """

    reason: str
    after_s: float | None
    in_flight: int
    done: int = 0


class Target(Place):
    """Part of ``TupleCore``; not thread-safe.

    ``is_troubled`` is False as long as nothing fails: then nobody needs to ask or tell anything
    else here.
    """

    __slots__ = ("_book", "_cap", "_retries", "_size", "is_troubled")

    def __init__(self, book: Book, retries: RetryQueue[FlowTuple]) -> None:
        super().__init__(book.settings.retry.give_up_after_s, book.counters, book.events)
        self.is_troubled: bool = False
        self._cap = RefusalCap()
        self._size = RefusalSize()
        self._book = book
        self._retries = retries

    # -- is it to blame? -----------------------------------------------------------------

    def is_at_fault(self, failed: FlowTuple, reason: str, now_s: float) -> bool:
        """Whether nothing else succeeds either, so that this says nothing about the records.

        Only tuples that never failed before count, and only while there are more to ask with: the
        last ones of a job may be bad.  And only once something has succeeded: a
        ``process`` that never worked is wrong.  Letters that are processed again failed before: a
        run of them says nothing of the target.
        """
        if self.is_cleared and not self.breaker.has_refused:
            return False
        has_news = self._has_news(failed)
        if self.is_down and not has_news:
            pending = self._book.pending.values()
            self.clear_at_end(few_left=not self._are_left(BAD_END_MAX, pending), now_s=now_s)
        failed_before = failed.faults or failed.is_culprit or failed.search is not None
        is_letter = redrive_number(failed.cut.partition) is not None
        is_news = not failed_before and self.has_succeeded and not is_letter
        if self.is_down or (is_news and has_news):
            self.is_troubled = True
            slots = self._book.slots
            self.note_failure(failed.tuple_id, slots=slots, reason=reason, now_s=now_s)
        return self.is_down

    def asks_with_less(self, failed: FlowTuple) -> bool:
        """Whether ``failed``, which was sent to ask, should be halved before it asks again.

        All that is left may hold a bad record, and then no whole tuple shows that the target is
        well.
        """
        breaker = self.breaker
        is_whole = failed.search is None and failed.cut.divisible > 1
        return is_whole and breaker.asked > 0 and not breaker.has_refused

    def may_be_at_fault(self, failed: FlowTuple) -> bool:
        """Whether this may be its fault, like the last one: nothing succeeded since."""
        if not self._is_unproven(failed):
            return False
        return self.breaker.is_about_to_open or self._has_news(failed)

    def _is_unproven(self, failed: FlowTuple) -> bool:
        is_bad = fails_alone(failed.cut.partition, failed.refusals)
        return not is_bad and self.lacks_proof(failed.judged_at_s)

    def may_wait(self, failed: FlowTuple, now_s: float) -> bool:
        """Whether it is too early to give ``failed`` up, should its attempts run out now.

        All that is left has failed, so nothing is left to ask with but that.  It goes again
        for as long as few records that all fail do before they count as bad.
        """
        if self.fails_for_long(now_s) or not self._is_unproven(failed):
            return False
        others = self._book.pending.values()
        return self._are_left(FEW_LEFT, (one for one in others if not one.is_given_up))

    def _are_left(self, more_than: int, tuples: Iterable[FlowTuple]) -> bool:
        """Whether ``tuples`` hold more records than that, as far as is known."""
        share, left = self._book.records_share(), 0.0
        for flow_tuple in tuples:
            left += max(1.0, share * flow_tuple.cut.divisible)
            if left > more_than:
                return True
        return False

    def _has_news(self, failed: FlowTuple) -> bool:
        """Whether something else is left that has not failed since the last success."""
        if self._book.supply.buffer.records > 0:
            return True
        return any(
            other.judged_at_s <= self.proven_at_s
            and other is not failed
            and not other.is_given_up
            and not self._retries.is_parked(other)
            for other in self._book.pending.values()
        )

    # -- how much does it take? ----------------------------------------------------------

    @property
    def records_max(self) -> float:
        """The most records that a new tuple should have."""
        return self._size.records_max

    def has_room(self, in_flight: int, now_s: float) -> bool:
        """Whether one more tuple may be sent."""
        if self.breaker.is_down:
            return self.breaker.may_ask(now_s)
        return self._cap.has_room(in_flight, now_s)

    def note_sent(self, now_s: float) -> None:
        """A tuple was sent while it is troubled."""
        if self.breaker.is_down:
            self.breaker.note_asked(now_s)

    def on_refused(self, flow_tuple: FlowTuple, refusal: Refused, now_s: float) -> None:
        """It had no room, or is away."""
        self.is_troubled = True
        slots = self._book.slots
        if refusal.done:  # it took some: it is full, not down
            self._size.on_refused(refusal.done, now_s)
            self.close("", now_s)
        before = self._cap.cap
        if not self.breaker.is_down and self._cap.on_refused(
            sent_at_s=flow_tuple.sent_at_s,
            in_flight=refusal.in_flight,
            slots=slots,
            now_s=now_s,
        ):
            self._tell_cap(before, refusal.reason, now_s)
        if not refusal.done:
            self.note_failure(
                flow_tuple.tuple_id,
                slots=slots,
                reason=refusal.reason,
                is_refusal=True,
                after_s=refusal.after_s,
                now_s=now_s,
            )

    def _go_down(self, now_s: float) -> None:
        """The faults just before were its own, and refusals too: it is not full."""
        self._cap.forgive()
        super()._go_down(now_s)
        for tuple_id in self.breaker.failing:
            flow_tuple = self._book.pending.get(tuple_id)
            if flow_tuple is not None and flow_tuple.faults:
                flow_tuple.forgiven()
        for consumer in self._book.bolts.values():
            if consumer.flight:  # what they have not begun is taken back
                self._book.revoke(consumer, list(consumer.flight))

    def on_success(self, sent_at_s: float, now_s: float) -> None:
        """A tuple, sent at ``sent_at_s``, was processed while it was troubled."""
        super().on_success(sent_at_s, now_s)
        before = self._cap.cap
        if self._cap.on_success(now_s):
            self._tell_cap(before, "nothing is refused any more", now_s)
        self._size.on_success(now_s)
        is_full = self._cap.cap < inf or self._size.records_max < inf
        self.is_troubled = is_full or bool(self.breaker.failing)

    def _tell_cap(self, before: float, reason: str, now_s: float) -> None:
        shown = [None if c == inf else int(c) for c in (before, self._cap.cap)]
        if shown[0] == shown[1]:
            return
        self._events.append(
            SinkCapChanged(at_s=now_s, before=shown[0], after=shown[1], reason=reason)
        )
