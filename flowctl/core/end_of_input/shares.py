"""How much of what is left belongs to one bolt now, so that all bolts finish together.

What is left is known once the input has ended; before that, where all that there was has been read,
it is at least what was read and is not acked.  What a bolt can do until all could be done
(:mod:`flowctl.core.end_of_input.finish`) is its own.  It gets half of that at a time (factoring,
Hummel, Schonberg & Flynn 1992, weighted by measured speed as in Banicescu's adaptive weighted
factoring), more where times hardly vary, or all of it where another call would cost more than it
could even out (Kruskal & Weiss 1985).  What takes less than an eighth of a call's time is not kept
for another.
"""

from __future__ import annotations

from math import log, sqrt

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.dispatch import EXACT_MAX, done_in_s, is_by_completion
from flowctl.core.end_of_input.finish import Finish
from flowctl.core.end_of_input.first_look import FirstLook
from flowctl.core.first_tuples import BOLTS_MIN
from flowctl.core.sizing import DRIVER_S, FIRST, TRIED_TIMES, first_size

# Half of what is a bolt's own at a time, so that the last tuples are small.
_PART = 0.5
# While nothing is known of any bolt they get these parts of an equal share, in turn: different, so
# that they tell a call's cost from a record's, and an eighth is not too much for a bolt that is
# eight times slower than the others.
_FIRST_PARTS = (1 / 32, 1 / 8)
# Where a share is of so few records the odd ones are still of two: that is a quarter of it, and no
# more than all of it for a bolt that is four times slower than the others.
_PARTS_TO_DIFFER = 8
# Records that take less than an eighth of a call's time are not worth another call: to keep them
# for a bolt that is free later saves less than service times vary by (a tenth on a quiet machine).
_WORTH_A_CALL = 1 / 8
# A bolt that would be done later than this many times what the rest needs must not begin: others
# would wait for it.  2 % is about what hedging may cost, and above the noise of the estimate.
_LATE_RATIO = 1.02
# With so many tuples left for each slot shares bound nothing: half of a share is eight tuples, one
# of a bolt that is eight times slower than the others.  Many more while little is known.
_TUPLES_PLENTY = 16
_FIRST_PLENTY = 320
# A tuple of fewer counts as this many: so many a bolt gets before anything is known of it.
_RECORDS_FEW = 25
# Where fewer than three bolts tell what a call costs, a second size at one of them does.  It is so
# much of what is its own at most, were all of its cost its records': a wrong guess makes the job
# no longer than that.
_TRIED_PART = 1 / 16


class Shares:
    """What is each bolt's own.  Not thread-safe.

    ``least_s``: less work is not worth a tuple, whatever that costs by itself.
    """

    __slots__ = (
        "_bolts",
        "_book",
        "_finish",
        "_is_adaptive",
        "_is_of_one_size",
        "first_look",
        "least_s",
    )

    def __init__(self, book: Book) -> None:
        self._book = book
        self._bolts = book.bolts
        self._is_adaptive = is_by_completion(book.settings)
        self.least_s: float = 0.0
        self._is_of_one_size = False  # the first tuples, so that they tell nothing of a call
        self.first_look: FirstLook = FirstLook()
        self._finish = Finish(book)

    def is_plenty(self, consumer: AdaptiveFlowConsumer, records: int, left: int) -> bool:
        """Whether so much is left that no bolt's share bounds a tuple of ``records``."""
        book = self._book
        # Of single records nothing tells a call's cost from theirs, and nothing can be cut smaller.
        is_known = book.pool.is_split or book.settings.tuple.records_max == 1
        if consumer.service.samples and is_known:
            return left > _TUPLES_PLENTY * records * book.slots and not book.to_come
        return left > _FIRST_PLENTY * max(records, _RECORDS_FEW) * book.slots_expected

    def awaits_first(self, consumer: AdaptiveFlowConsumer) -> bool:
        """Whether ``consumer`` should answer before it gets more than a tuple for each slot.

        The first tuples of several bolts tell what a call costs, and the size of the next ones
        depends on that.  With fewer bolts, only a second tuple tells why the first one took long;
        until it is acked, the window would be filled with single records.
        """
        book, service = self._book, consumer.service
        if len(consumer.flight) < consumer.slots or not self._is_adaptive or book.size_for:
            return False
        if book.settings.tuple.records_max == 1:  # no sizes to tell it by
            return False
        if not service.samples:
            return self._tell_together
        is_long = service.mean_s > book.settings.tuple.service_max_s
        return service.samples == 1 and is_long and not book.pool.is_split

    @property
    def _tell_together(self) -> bool:
        """Whether there are so many bolts that their first tuples tell what a call costs."""
        return len(self._bolts) >= BOLTS_MIN

    def first_of_all(self, consumer: AdaptiveFlowConsumer, records: int) -> int:
        """Return ``records``; for every other bolt's first tuple, the size of a second one.

        Only here, where a bolt answers before it gets a second tuple.  Elsewhere each bolt gets
        tuples of both sizes at once, and this would give half of the bolts two of the same size.
        """
        book = self._book
        if consumer.sent or not (self._tell_together and self._is_adaptive) or book.size_for:
            return records
        return first_size(book.pool.first_calls % len(FIRST), book.settings.tuple, book.pool)

    def records_for(
        self, consumer: AdaptiveFlowConsumer, records: int, left: int, now_s: float
    ) -> int:
        """Cut ``records`` down to a part of what the bolt should still do until the end; 0: none.

        ``left`` records are not sent.  None: the others would have to wait for it, or it has to
        answer first.  If nobody is at work there are no others.
        """
        if self._decides_nothing(consumer):
            return 1
        pending = self._book.counters.records_pending_now
        slots = self._book.slots_expected
        if slots == 1:  # there is nobody to share with
            records = self._to_differ(consumer, records, left)
            return self._without_rest(records, left, _WORTH_A_CALL * self._fewest(consumer))
        self._finish.refresh(left + pending, now_s)
        if not self._finish.mean_speed:
            return self._first(consumer, records, left, (left + pending) / slots)
        if self._looks_round(now_s):
            return 0
        is_new = not consumer.service.samples and self._is_adaptive
        if is_new and self._awaits(consumer, left, slots):
            return 0
        own = self._finish.own(consumer, now_s)
        if own <= 0 and self._finish.at_s < now_s:
            self._finish.work_out(left + pending, now_s)
            own = self._finish.own(consumer, now_s)
        may_refuse = pending and self._is_adaptive and len(self._bolts) <= EXACT_MAX
        if own < 1 and may_refuse and self._is_late(consumer, own, now_s):
            return 0
        fewest = self._fewest(consumer)
        part = self._part(consumer, own, fewest)
        book = self._book
        records = self._to_differ(consumer, records, own)
        is_alike = self._is_of_one_size and not book.pool.is_split
        # Perhaps it is the call that costs; only different sizes can tell.  But while bolts are to
        # come, a share is what the few that are there would do without most of them.
        if is_alike and not book.to_come:
            part = own if book.counters.tuples_emitted % 2 else min(part, _PART * own)
        return self._without_rest(min(records, int(part)), left, _WORTH_A_CALL * fewest)

    def _looks_round(self, now_s: float) -> bool:
        """Whether the first to answer wait for the next ones.  First tuples of one size, or of one
        or two bolts, tell nothing together."""
        pool, tells = self._book.pool, self._tell_together and self._is_adaptive
        is_useful = tells and not (self._is_of_one_size or self._book.size_for)
        return self.first_look.holds(pool, now_s, is_useful=is_useful)

    def _to_differ(self, consumer: AdaptiveFlowConsumer, records: int, own: float) -> int:
        """``records``, or more where nothing but another size at this bolt tells a call's cost."""
        book, service = self._book, consumer.service
        if not service.samples or book.pool.is_split or self._tell_together:
            return records
        if not self._is_adaptive or book.size_for:
            return records
        settings = book.settings.tuple
        most_s = TRIED_TIMES * settings.service_max_s
        tried = min(_TRIED_PART * own, most_s / service.record_s if service.record_s else own)
        return max(records, min(settings.records_max, int(tried)))

    def _part(self, consumer: AdaptiveFlowConsumer, own: float, fewest: float) -> float:
        """How much of its own it gets now, where ``fewest`` records cost as much as a call.

        Of all slots the worst is late by ``off``, as a share of a tuple's time: what is kept back
        has to make up for that, and is half at most.  And another call is worth it only where the
        worst would be late by as much as a call takes.
        """
        book = self._book
        worst = sqrt(2 * log(max(2.0, book.slots_expected)))
        off = min(1.0, worst * book.pool.scatter)
        return max(own / (1 + off), min(own, fewest / off), _WORTH_A_CALL * fewest)

    def _decides_nothing(self, consumer: AdaptiveFlowConsumer) -> bool:
        """Whether the bolt gets a tuple of one record, whatever its share is.

        Nothing can be cut smaller than single records, and only a few bolts that are adapted to are
        ever refused one.  With 1,000 bolts the shares cost as much as the tuples.
        """
        if self._book.settings.tuple.records_max > 1:
            return False
        may_refuse = self._is_adaptive and len(self._bolts) <= EXACT_MAX
        return not may_refuse and bool(consumer.service.mean_s or self._finish.mean_speed)

    def _without_rest(self, records: int, left: int, worth: float) -> int:
        """``records`` of the ``left``, or all of them where the rest would not be worth a call."""
        if left - records < worth and left <= self._book.settings.tuple.records_max:
            return left
        return max(1, records)

    def fitting(
        self, consumer: AdaptiveFlowConsumer, records: int, pending: int, now_s: float
    ) -> int:
        """How many of the ``records`` that the bolt was just given it should do.

        More, and others would wait for it.  All ``pending`` records are sent and not acked.
        """
        self._finish.work_out(pending, now_s)
        if not (consumer.service.samples and self._finish.mean_speed):
            return records
        own = records + self._finish.own(consumer, now_s)  # they count as held already
        return max(1, min(records, int(max(self._fewest(consumer), own))))

    def _fewest(self, consumer: AdaptiveFlowConsumer) -> float:
        """As many as cost as much as the tuple does."""
        record_s, call_s = self._finish.costs(consumer)
        least_s = max(call_s + DRIVER_S * len(self._bolts), self.least_s)
        return least_s / record_s if record_s else 1

    def _first(self, consumer: AdaptiveFlowConsumer, records: int, left: int, own: float) -> int:
        """While nothing is known of any bolt."""
        if not self._is_adaptive or self._book.size_for is not None:
            # Blind, or ranges, which can be split while a bolt is at work on them.
            own -= consumer.records_held / consumer.slots
            return max(1, min(records, int(_PART * own))) if own > 0 else 0
        if self._awaits(consumer, left, self._book.slots_expected):
            return 0
        small, large = (self._size_of_first(number, own) for number in range(len(_FIRST_PARTS)))
        self._is_of_one_size = small == large
        last = next(reversed(consumer.flight.values()), None)
        if last is None:
            return large if self._book.counters.tuples_emitted % 2 else small
        return small if 2 * len(last.cut.records) > small + large else large

    def _size_of_first(self, number: int, own: float) -> int:
        """The smaller (0) or the larger (1) of the two, where ``own`` is an equal share."""
        least = number + 1 if own >= _PARTS_TO_DIFFER else 1
        most = min(FIRST[number], self._book.settings.tuple.records_max)
        return min(most, max(least, int(_FIRST_PARTS[number] * own)))

    def _awaits(self, consumer: AdaptiveFlowConsumer, left: int, slots: float) -> bool:
        """Whether ``consumer`` should answer before it gets more than a tuple for each slot.

        Where so little is left that first tuples are cut, what waits behind them would have been
        cut before it is known what they take.
        """
        if len(consumer.flight) < consumer.slots:
            return False
        most = min(FIRST[0], self._book.settings.tuple.records_max)
        return _FIRST_PARTS[0] * left < most * slots and most > 1

    def _is_late(self, consumer: AdaptiveFlowConsumer, own: float, now_s: float) -> bool:
        """Whether the others would have to wait for ``consumer``, were it given a record."""
        if consumer.held >= consumer.slots:
            return own <= 0.5
        needs_s = self._finish.free_s(consumer, now_s) - now_s + self._finish.costs(consumer)[0]
        if needs_s <= _LATE_RATIO * (self._finish.end_s - now_s + self._finish.fastest_s):
            return False
        # Nobody waits for a bolt that is sooner than any other would be with one more tuple.
        others = (done_in_s(c) for c in self._bolts.values() if c is not consumer)
        return needs_s > _LATE_RATIO * min(others, default=needs_s)


def speed(consumer: AdaptiveFlowConsumer) -> float:
    """Records that the bolt does in a second, all slots and calls counted; 0 while unknown."""
    service = consumer.service
    return consumer.slots * service.mean_records / service.mean_s if service.mean_s else 0.0
