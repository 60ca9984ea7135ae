"""Whose fault it is that ``process`` failed: the records' or the target's.

Nobody can tell from one failure of a kind that is not known.  But a record that fails does so while
others succeed, and a target that is down fails everything.  So a run of failures of different
tuples opens the breaker, and a tuple's next failure counts against its records only if something
that was sent after the one before has succeeded since.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowctl.core.book import Book
from flowctl.core.letters import redrive_number
from flowctl.core.retry import RetryQueue
from flowctl.core.target import Target
from flowctl.core.tuples import NEVER_JUDGED, FlowTuple

#: A target that is full refuses at most every other call for long: twenty refusals in a row of one
#: tuple, while others succeed, are one in a million then.
REFUSALS_MAX = 20
#: So many records (of a topology: roots) may be given up, and kept elsewhere, before anything has
#: succeeded: a process that never works must not empty the source into the dead letter.
GIVEN_UP_FIRST_MAX = 8
#: Where all that is left of a job fails, the target may be down, or all of that bad.  If so few
#: are left, they count as bad after so long: most restarts of a service behind a balancer are over
#: then, and nobody minds that a job with a bad end takes that much longer.  Of more it is likelier
#: that the target is down.
BAD_END_MAX = 100
BAD_END_S = 10.0
#: So few that are left are not worth waiting for, as so few may be given up anyway.
FEW_LEFT = GIVEN_UP_FIRST_MAX


class Blame:
    """Part of ``TupleCore``, not thread-safe.

    ``proven_at_s``: when that was sent which succeeded last in this run, so the target was well
    then or later.  Whoever sees a success writes it.
    """

    __slots__ = (
        "_book",
        "_dismissed_at_s",
        "_failing_since_s",
        "_proven_then_s",
        "_retries",
        "_target",
        "proven_at_s",
    )

    def __init__(self, book: Book, retries: RetryQueue, target: Target) -> None:
        self.proven_at_s: float = NEVER_JUDGED
        self._dismissed_at_s: float = NEVER_JUDGED
        self._proven_then_s: float = NEVER_JUDGED  # at the first failure since a success
        self._failing_since_s: float = NEVER_JUDGED
        self._book = book
        self._retries = retries
        self._target = target

    @property
    def has_succeeded(self) -> bool:
        """Whether ``process`` returned for a tuple, in this run."""
        return self.proven_at_s > NEVER_JUDGED

    def is_targets(self, flow_tuple: FlowTuple, reason: str, now_s: float) -> bool:
        """Whether nothing else succeeds either, so that this says nothing about the records.

        Only tuples that never failed before count, and only while there are more to ask with: the
        last ones of a job may be bad.  And only once something has succeeded: a
        ``process`` that never worked is wrong.  Letters that are processed again failed before: a
        run of them says nothing of the target.
        """
        if self._dismissed_at_s >= self.proven_at_s and not self._target.breaker.has_refused:
            return False
        has_news = self._has_news(flow_tuple)
        if self._target.is_down and not has_news and self._has_bad_end(now_s):
            self._dismissed_at_s = now_s
            self._target.dismiss(
                "nothing else is left to ask with, so the records count as bad", now_s
            )
        failed_before = flow_tuple.faults or flow_tuple.is_culprit or flow_tuple.search is not None
        is_news = not failed_before and self.has_succeeded
        is_news = is_news and redrive_number(flow_tuple.cut.partition) is None
        if (self._target.is_down or (is_news and has_news)) and self._target.on_failure(
            flow_tuple.tuple_id, slots=self._book.slots, reason=reason, now_s=now_s
        ):
            self.excuse()
        return self._target.is_down

    def asks_with_less(self, failed: FlowTuple) -> bool:
        """Whether ``failed``, which was sent to ask, should be halved before it asks again.

        All that is left may hold a bad record, and then no whole tuple shows that the target is
        well.
        """
        breaker = self._target.breaker
        is_whole = failed.search is None and failed.cut.divisible > 1
        return is_whole and breaker.asked > 0 and not breaker.has_refused

    def _has_bad_end(self, now_s: float) -> bool:
        """Whether what is left, all of which fails, counts as bad, not the target as down."""
        breaker = self._target.breaker
        if breaker.has_refused or now_s - breaker.down_since_s < BAD_END_S:
            return False
        return not self._are_left(BAD_END_MAX, self._book.pending.values())

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
            and not self._retries.is_parked(other.tuple_id)
            for other in self._book.pending.values()
        )

    def is_unclear(self, failed: FlowTuple) -> bool:
        """Whether this may be the target's fault, like its last one: nothing succeeded since.

        Records that fail are found while others succeed; so nothing is lost by waiting for that.
        A letter that is processed again is what fails alone, or it would be none.
        """
        if not self._lacks_proof(failed):
            return False
        return self._target.breaker.is_about_to_open or self._has_news(failed)

    def _lacks_proof(self, failed: FlowTuple) -> bool:
        """Whether nothing that was sent since its last failure has succeeded, which matters."""
        if failed.judged_at_s <= self.proven_at_s or not self.has_succeeded:
            return False
        if redrive_number(failed.cut.partition) is not None or failed.refusals >= REFUSALS_MAX:
            return False
        return self._dismissed_at_s < self.proven_at_s

    def may_wait(self, failed: FlowTuple, now_s: float) -> bool:
        """Whether it is too early to give ``failed`` up, should its attempts run out now.

        All that is left has failed, so nothing is left to ask with but that.  It goes again
        for as long as few records that all fail do before they count as bad.
        """
        if self._proven_then_s != self.proven_at_s:
            self._proven_then_s, self._failing_since_s = self.proven_at_s, now_s
        if now_s - self._failing_since_s >= BAD_END_S or not self._lacks_proof(failed):
            return False
        others = self._book.pending.values()
        return self._are_left(FEW_LEFT, (one for one in others if not one.is_given_up))

    def excuse(self) -> None:
        """The target went down: the faults just before were its own; take unbegun work back."""
        for tuple_id in self._target.breaker.failing:
            flow_tuple = self._book.pending.get(tuple_id)
            if flow_tuple is not None and flow_tuple.faults:
                flow_tuple.faults -= 1
        for consumer in self._book.bolts.values():
            if consumer.flight:
                self._book.revoke(consumer, list(consumer.flight))
