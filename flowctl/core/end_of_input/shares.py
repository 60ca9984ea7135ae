"""How much of what is left belongs to one bolt now, so that all bolts finish together.

What is left is known once the input has ended; before that, where all that there was has been read,
it is at least what was read and is not acked.  Each slot gets half of its bolt's share at a time
(guided self-scheduling, Polychronopoulos & Kuck 1987), weighted by measured speed (Banicescu's
adaptive weighted factoring), down to a piece whose halves would cost more for one more call than
they could even out (Kruskal & Weiss 1985): of less than that a bolt gets all that is its own.
"""

from __future__ import annotations

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.dispatch import is_by_completion
from flowctl.core.sizing import FIRST, fixed_s
from flowctl.core.state import Liveness

# Half of a bolt's share at a time, so that the last tuples are small.
_SHARE_PART = 0.5
# While nothing is known of any bolt they get these parts of an equal share, in turn: different, so
# that they tell a call's cost from a record's, and an eighth is not too much for a bolt that is
# eight times slower than the others.
_FIRST_PARTS = (1 / 32, 1 / 8)
# Splitting what is left once more costs a call, and evens out what the times are off by: half of
# them, as speeds are known by a few tuples only and records differ.
_SCATTER = 0.5
# What a call costs is learned in the first acks; speeds are worked out from it.
_FIXED_CHANGE = 0.25
# A bolt that would be done later than this many times what the rest needs must not begin: others
# would wait for it.  2 % is about what hedging may cost, and above the noise of the estimate.
_LATE_RATIO = 1.02
# Bolts that count: one that is stalled is at work, one that rests works on when its rest is over.
_WORKING = (Liveness.ALIVE, Liveness.STALLED, Liveness.RESTING)
# With so many tuples left for each slot shares bound nothing: half of a share is eight tuples, one
# of a bolt that is eight times slower than the others.  Many more while little is known.
_TUPLES_PLENTY = 16
_FIRST_PLENTY = 320
# A tuple of fewer counts as this many: so many a bolt gets before anything is known of it.
_RECORDS_FEW = 25
# While it is not known whether the call or the records cost, a tuple may have so many times the
# records of the bolt's largest, if that took no longer than this: a call of a second is a dear one,
# and a bolt may be half as fast as others.  The share bounds it too.
_GROWTH = 8
_CALL_MAX_S = 2.0


class Shares:
    """Shares and lateness of bolts.  Not thread-safe.

    The speeds are added up anew after as many questions as there are bolts: O(1) amortised.
    """

    __slots__ = (
        "_bolts",
        "_book",
        "_fastest_s",
        "_fixed",
        "_is_adaptive",
        "_mean_speed",
        "_questions_left",
        "_speed",
    )

    def __init__(self, book: Book) -> None:
        self._book = book
        self._bolts = book.bolts
        self._is_adaptive = is_by_completion(book.settings)
        self._questions_left = 0
        self._fixed = 0.0  # what a call costs, in records, when the speeds were added up
        self._speed = 0.0  # records a second of all bolts that are heard of, calls aside
        self._mean_speed = 0.0  # of one
        self._fastest_s = 0.0  # the shortest time that any of them needs for a tuple

    def is_plenty(self, consumer: AdaptiveFlowConsumer, records: int, left: int) -> bool:
        """Whether so much is left that no bolt's share bounds a tuple of ``records``."""
        book = self._book
        if consumer.service.samples and book.pool.is_split:
            return left > _TUPLES_PLENTY * records * book.slots and not book.to_come
        return left > _FIRST_PLENTY * max(records, _RECORDS_FEW) * book.slots_expected

    def records_for(
        self, consumer: AdaptiveFlowConsumer, records: int, left: int, pending: int
    ) -> int:
        """Cut ``records`` down to a part of what the bolt should still do until the end.

        ``left`` records are not sent, ``pending`` are sent and not acked.
        """
        slots = self._book.slots_expected
        if slots == 1:
            return records  # there is nobody to share with
        self._refresh()
        if self._speed:
            # One that has not answered yet, or is to come, is as fast as the mean.
            own_speed = self._speed_of(consumer) or self._mean_speed
            share = own_speed / (self._speed + self._mean_speed * self._book.to_come)
        elif self._is_adaptive:
            return self._first(consumer, (left + pending) / slots)
        else:
            share = consumer.slots / slots
        own = (share * (left + pending) - consumer.records_held) / consumer.slots
        if own <= 0 and pending:
            return 0
        service = consumer.service
        if service.samples and not self._book.pool.is_split and service.mean_s <= _CALL_MAX_S:
            most = self._book.settings.tuple.records_max
            records = max(records, min(most, _GROWTH * service.records_most))
        per_record_s = service.record_s
        fewest = fixed_s(consumer, len(self._bolts)) / per_record_s if per_record_s else 1
        return max(1, min(records, int(max(_SHARE_PART * own, min(own, fewest / _SCATTER)))))

    def awaits_first(self, consumer: AdaptiveFlowConsumer, left: int) -> bool:
        """Whether ``consumer`` should answer before it gets more than a tuple for each slot.

        Where so little is left that first tuples are cut, what waits behind them would have been
        cut before it is known what they take.
        """
        if consumer.service.samples or len(consumer.flight) < consumer.slots:
            return False
        slots = self._book.slots_expected
        most = min(FIRST[0], self._book.settings.tuple.records_max)
        return slots > 1 and _FIRST_PARTS[0] * left < most * slots and most > 1

    def _first(self, consumer: AdaptiveFlowConsumer, own: float) -> int:
        number = (self._book.counters.emitted + consumer.sent) % len(_FIRST_PARTS)
        most = min(FIRST[number], self._book.settings.tuple.records_max)
        return max(1, min(most, int(_FIRST_PARTS[number] * own)))

    def is_late(self, consumer: AdaptiveFlowConsumer, left: int, pending: int) -> bool:
        """Whether the others would have to wait for ``consumer``, were it given a tuple.

        ``left`` and ``pending`` as above.
        """
        service = consumer.service
        if not service.samples:
            return False
        self._refresh()
        if not self._speed:
            return False
        rest_s = (left + pending) / self._speed + self._fastest_s
        records = self.records_for(consumer, round(service.mean_records), left, pending)
        at_s = consumer.work_s() / consumer.slots + service.of(records) + service.path_s
        if at_s <= _LATE_RATIO * rest_s:
            return False
        # Nobody waits for a bolt that is sooner than any other would be with one more tuple.
        others = (c.completion_s for c in self._bolts.values() if c is not consumer)
        return at_s > _LATE_RATIO * min(others, default=at_s)

    def _refresh(self) -> None:
        self._questions_left -= 1
        fixed = self._book.pool.fixed_records
        is_as_known = abs(fixed - self._fixed) <= _FIXED_CHANGE * self._fixed
        if self._questions_left > 0 and is_as_known:
            return
        self._fixed = fixed
        there = [c for c in self._bolts.values() if c.liveness in _WORKING]
        known = [c for c in there if c.service.samples]
        # Soon again while nothing is known.
        self._questions_left = len(there) if known else 0
        self._speed = 0.0
        if known:
            self._mean_speed = sum(map(self._speed_of, known)) / len(known)
            self._speed = self._mean_speed * len(there)
            self._fastest_s = min(c.service.mean_s + c.service.path_s for c in known)

    def _speed_of(self, consumer: AdaptiveFlowConsumer) -> float:
        """Records that it does in a second, all slots together, calls aside; 0 while unknown."""
        service = consumer.service
        if not service.mean_s:
            return 0.0
        return consumer.slots * (self._fixed + service.mean_records) / service.mean_s


def speed(consumer: AdaptiveFlowConsumer) -> float:
    """Records that the bolt does in a second, all slots and calls counted; 0 while unknown."""
    service = consumer.service
    return consumer.slots * service.mean_records / service.mean_s if service.mean_s else 0.0
