"""What the spout knows of the target: what ``process`` writes to, as its failures show it.

One face for :mod:`flowctl.core.blame` (is it to blame? does it take anything at all?) and
:mod:`flowctl.core.limit` (how much at once?).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from flowctl.core.blame import BAD_END_MAX, FEW_LEFT, Place, fails_alone
from flowctl.core.book import Book
from flowctl.core.events import SinkCapChanged
from flowctl.core.letters import redrive_number
from flowctl.core.limit import RefusedLimit
from flowctl.core.retry import RetryQueue
from flowctl.core.tuples import NEVER_JUDGED, FlowTuple

# A step up at most this often: a refusal has to have the time to come back.  It comes at once, when
# a call is made, however long calls take that are accepted.
_STEP_S: Final = 0.25
# A limit that nothing reaches for so long is not needed any more.
_UNUSED_S: Final = 2.0
# A refused tuple is sent again and holds up nobody, so a higher limit is tried sooner than for
# paced calls: with calls of a second and three at once, every three seconds.
_HOLD_CALLS: Final = 8
# A tuple that is refused at its tenth record (a limit of calls a second) has to begin again: its
# first nine calls are made twice, and count against the target's limit twice.  So the next ones
# have nine, and more from second to second; without a bound once as many as the largest by default.
_SIZE_HOLD_S: Final = 1.0
_NO_BOUND_ABOVE: Final = 10_000  # records


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
    else here.  ``in_place``: without bolts, one call is made after the other.  So it is not known
    how much is left, and nothing succeeds while a record is looked for; but others call it too.
    """

    __slots__ = (
        "_before", "_book", "_cut_at_s", "_in_flight", "_in_place", "_reason", "_records",
        "_retries", "_used_at_s", "is_troubled",
    )  # fmt: skip

    def __init__(
        self, book: Book, retries: RetryQueue[FlowTuple], *, in_place: bool = False
    ) -> None:
        give_up_after_s = book.settings.retry.give_up_after_s
        super().__init__(give_up_after_s, book.counters, book.events, is_known=in_place)
        self._in_place = in_place
        self.is_troubled: bool = False
        self._in_flight = RefusedLimit(hold_calls=_HOLD_CALLS)  # at all bolts together
        self._records = RefusedLimit(down_most=0.0, hold_s=_SIZE_HOLD_S, hold_calls=0)
        self._cut_at_s = -inf  # what was sent before can't show what the last fall did
        self._used_at_s = -inf  # when the limit was reached last
        self._before: float | None = None  # the limit before the failures without a success
        self._reason = ""  # of the first of these
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

    def asks_with_part(self, failed: FlowTuple) -> bool:
        """Whether a part of ``failed``, which was sent to ask, should ask next.

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
        waits = not self._in_place and self._has_news(failed)
        return waits or self.breaker.is_about_to_open

    def has_worked_since(self, failed: FlowTuple) -> bool:
        """Whether ``failed`` has failed before, and is known to be to blame for it."""
        return failed.judged_at_s > NEVER_JUDGED and not self._is_unproven(failed)

    def _is_unproven(self, failed: FlowTuple) -> bool:
        is_bad = fails_alone(failed.cut.partition, failed.refusals)
        return not is_bad and self.lacks_proof(failed.judged_at_s)

    def may_wait(self, failed: FlowTuple, now_s: float) -> bool:
        """Whether it is too early to give ``failed`` up, should its attempts run out now.

        Only tuples that failed are left, so no other can show whether the target is down.
        ``failed`` is sent again for as long as an outage may last before so few failing records
        count as bad.
        """
        if self.fails_for_long(now_s) or not self._is_unproven(failed):
            return False
        others = self._book.pending.values()
        left = (one for one in others if not one.is_given_up)
        return self._in_place or self._are_left(FEW_LEFT, left)

    def _are_left(self, more_than: int, tuples: Iterable[FlowTuple]) -> bool:
        """Whether ``tuples`` hold more records than that, as far as is known."""
        share, left = self._book.records_share(), 0.0
        for flow_tuple in tuples:
            left += max(1.0, share * flow_tuple.cut.divisible)
            if left > more_than:
                return True
        return False

    def _has_news(self, failed: FlowTuple) -> bool:
        """Whether something else is left that has not failed since the last success.

        A record that is known to fail shows nothing.
        """
        if self._in_place or self._book.supply.buffer.records > 0:
            return True
        return any(
            other.judged_at_s <= self.proven_at_s
            and other is not failed
            and not (other.is_culprit and other.cut.divisible == 1)
            and not other.is_given_up
            and not self._retries.is_parked(other)
            for other in self._book.pending.values()
        )

    # -- how much does it take? ----------------------------------------------------------

    @property
    def records_max(self) -> float:
        """The most records that a new tuple should have."""
        return self._records.most

    def room(self, in_flight: int, now_s: float) -> float:
        """Return how many more tuples may be sent; less than 1: none."""
        if self.breaker.is_down:
            return float(self.breaker.may_ask(now_s))
        room = self._in_flight.most - in_flight
        if room < 1:
            self._used_at_s = now_s
        return room

    def note_sent(self, now_s: float) -> None:
        """A tuple was sent while it is troubled."""
        if self.breaker.is_down:
            self.breaker.note_asked(now_s)

    def on_refused(self, flow_tuple: FlowTuple, refusal: Refused, now_s: float) -> None:
        """It had no room, or is away."""
        self.is_troubled = True
        if refusal.done:  # it took some: it is full, not down
            self._take_fewer_records(refusal.done, now_s)
            self.close("", now_s)
        if not self.breaker.is_down:
            self._send_less(flow_tuple.sent_at_s, refusal, now_s)
        if not refusal.done:
            self.note_failure(
                flow_tuple.tuple_id,
                slots=self._book.slots,
                reason=refusal.reason,
                is_refusal=True,
                after_s=refusal.after_s,
                now_s=now_s,
            )

    def _take_fewer_records(self, done: int, now_s: float) -> None:
        if done < self._records.most:
            self._records.fall(now_s, done + 1, 1)

    def _send_less(self, sent_at_s: float, refusal: Refused, now_s: float) -> None:
        limit = self._in_flight
        if self._before is None:
            self._before, self._reason = limit.most, refusal.reason
        if sent_at_s < self._cut_at_s:
            limit.fall_on(now_s, 1)
        else:
            # Of those at bolts the target can have seen as many as there are slots: others queue.
            limit.fall(now_s, float(min(refusal.in_flight, self._book.slots)), 1)
            self._cut_at_s = now_s
        self._used_at_s = now_s

    def _go_down(self, now_s: float) -> None:
        """Undo what the refusals just before did: they came from an outage, not a full target."""
        if self._before is not None:
            self._in_flight.most, self._before = self._before, None
        super()._go_down(now_s)

    def _open(self, now_s: float) -> None:
        super()._open(now_s)
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
        if self._before is not None:  # it takes some: what a round of refusals has shown holds
            self._tell_limit(self._before, self._reason, now_s)
            self._before = None
        limit, before = self._in_flight, self._in_flight.most
        limit.took(1)
        if before < inf and now_s - self._used_at_s > _UNUSED_S:
            self._in_flight = RefusedLimit(hold_calls=_HOLD_CALLS)
            self._tell_limit(before, "nothing is refused any more", now_s)
        elif before < inf and now_s - limit.moved_at_s >= _STEP_S:
            limit.rise(now_s)
        records = self._records
        if records.most < inf and now_s - records.moved_at_s >= _SIZE_HOLD_S:
            records.rise(now_s)
            if records.most > _NO_BOUND_ABOVE:
                records.most = inf
        is_full = self._in_flight.most < inf or records.most < inf
        self.is_troubled = is_full or bool(self.breaker.failing)

    def _tell_limit(self, before: float, reason: str, now_s: float) -> None:
        shown = [None if c == inf else int(c) for c in (before, self._in_flight.most)]
        if shown[0] == shown[1]:
            return
        self._events.append(
            SinkCapChanged(at_s=now_s, before=shown[0], after=shown[1], reason=reason)
        )
