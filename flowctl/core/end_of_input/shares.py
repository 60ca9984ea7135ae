"""How much of what is left belongs to one bolt now, so that all bolts finish together.

What is left is known once the input has ended; before that, where all that there was has been read,
it is at least what was read and is not acked.  What each bolt holds, its speed and its path tell
when all could be done at the earliest, the cost of each bolt's next call included.  What a bolt can
do until then is its own.  It gets half of that at a time (factoring, Hummel, Schonberg & Flynn
1992, weighted by measured speed as in Banicescu's adaptive weighted factoring), more where calls
are expensive and times hardly vary, or all of it where another call would cost more than it could
even out (Kruskal & Weiss 1985).  Each slot of a bolt is
free at a time of its own, and what takes less than an eighth of a call's time is not kept for
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import log, sqrt

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.dispatch import EXACT_MAX, is_by_completion
from flowctl.core.first_tuples import BOLTS_MIN
from flowctl.core.sizing import DRIVER_S, FIRST, first_size, is_dear
from flowctl.core.state import Liveness

# Half of what is a bolt's own at a time, so that the last tuples are small.
_PART = 0.5
# While nothing is known of any bolt they get these parts of an equal share, in turn: different, so
# that they tell a call's cost from a record's, and an eighth is not too much for a bolt that is
# eight times slower than the others.
_FIRST_PARTS = (1 / 32, 1 / 8)
# Where a share is of so few records the odd ones are still of two: that is a quarter of it, and no
# more than all of it for a bolt that is four times slower than the others.
_PARTS_TO_DIFFER = 8
# Splitting what is left once more costs a call, and evens out what the times are off by: half of
# them at most, as speeds are known by a few tuples only and records differ.
_SCATTER = 0.5
# Records that take less than an eighth of a call's time are not worth another call: to keep them
# for a bolt that is free later saves less than service times vary by (a tenth on a quiet machine).
_WORTH_A_CALL = 1 / 8
# What a call costs is learned in the first acks; speeds are worked out from it.
_FIXED_CHANGE = 0.25
# After questions of a quarter of the bolts the end is worked out again: O(log N) each, amortised.
_QUESTIONS_PART = 0.25
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


class Shares:
    """What is each bolt's own.  Not thread-safe.

    ``least_s``: less work is not worth a tuple, whatever that costs by itself.
    """

    __slots__ = (
        "_at_s",
        "_began_s",
        "_bolts",
        "_book",
        "_end_s",
        "_fastest_s",
        "_fixed",
        "_is_adaptive",
        "_is_of_one_size",
        "_mean_speed",
        "_path_s",
        "_questions_left",
        "_record_s",
        "least_s",
    )

    def __init__(self, book: Book) -> None:
        self._book = book
        self._bolts = book.bolts
        self._is_adaptive = is_by_completion(book.settings)
        self.least_s: float = 0.0
        self._is_of_one_size = False  # the first tuples, so that they tell nothing of a call
        self._questions_left = 0
        self._began_s: float | None = None  # when it was asked first
        self._at_s = 0.0  # when the end was worked out
        self._end_s = 0.0  # when all could be done
        self._fixed = 0.0  # what a call costs, in records, when the speeds were added up
        self._mean_speed = 0.0  # records a second of a bolt, calls aside; 0: nothing is known
        self._record_s = self._path_s = 0.0  # the mean record's time, and path
        self._fastest_s = 0.0  # the shortest time that any of them needs for a tuple

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
            return self._without_rest(records, left, _WORTH_A_CALL * self._fewest(consumer))
        self._refresh(left + pending, now_s)
        if not self._mean_speed:
            return self._first(consumer, records, left, (left + pending) / slots)
        is_new = not consumer.service.samples and self._is_adaptive
        if is_new and self._awaits(consumer, left, slots):
            return 0
        own = self._own(consumer, now_s)
        if own <= 0 and self._at_s < now_s:
            self._work_out(left + pending, now_s)
            own = self._own(consumer, now_s)
        may_refuse = pending and self._is_adaptive and len(self._bolts) <= EXACT_MAX
        if own < 1 and may_refuse and self._is_late(consumer, own, now_s):
            return 0
        fewest = self._fewest(consumer)
        part = self._part(consumer, own, fewest)
        book = self._book
        is_alike = self._is_of_one_size and not book.pool.is_split
        # Perhaps it is the call that costs; only different sizes can tell.  But while bolts are to
        # come, a share is what the few that are there would do without most of them.
        if is_alike and not book.to_come and book.counters.emitted % 2:
            part = own
        return self._without_rest(min(records, int(part)), left, _WORTH_A_CALL * fewest)

    def _part(self, consumer: AdaptiveFlowConsumer, own: float, fewest: float) -> float:
        """How much of its own it gets now, where ``fewest`` records cost as much as a call.

        Of all slots the worst is late by ``off``, as a share of a tuple's time.  Where a call is
        expensive, what is kept back only has to make up for that.  And another call is worth it
        only where the worst would be late by as much as a call takes.
        """
        book = self._book
        worst = sqrt(2 * log(max(2.0, book.slots_expected)))
        off = min(_SCATTER, worst * book.pool.scatter)
        share = 1 / (1 + off) if is_dear(self._costs(consumer)[1], book.settings.tuple) else _PART
        return max(share * own, min(own, fewest / off), _WORTH_A_CALL * fewest)

    def _decides_nothing(self, consumer: AdaptiveFlowConsumer) -> bool:
        """Whether the bolt gets a tuple of one record, whatever its share is.

        Nothing can be cut smaller than single records, and only a few bolts that are adapted to are
        ever refused one.  With 1,000 bolts the shares cost as much as the tuples.
        """
        if self._book.settings.tuple.records_max > 1:
            return False
        may_refuse = self._is_adaptive and len(self._bolts) <= EXACT_MAX
        return not may_refuse and bool(consumer.service.mean_s or self._mean_speed)

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
        self._work_out(pending, now_s)
        if not (consumer.service.samples and self._mean_speed):
            return records
        own = records + self._own(consumer, now_s)  # they count as held already
        return max(1, min(records, int(max(self._fewest(consumer), own))))

    def _fewest(self, consumer: AdaptiveFlowConsumer) -> float:
        """As many as cost as much as the tuple does."""
        record_s, call_s = self._costs(consumer)
        least_s = max(call_s + DRIVER_S * len(self._bolts), self.least_s)
        return least_s / record_s if record_s else 1

    def _costs(self, consumer: AdaptiveFlowConsumer) -> tuple[float, float]:
        """What a record and a call cost there; one that has not answered yet is as the mean."""
        service = consumer.service
        record_s = service.record_s if service.samples else self._record_s
        return record_s, record_s * service.pool.fixed_records

    def _own(self, consumer: AdaptiveFlowConsumer, now_s: float) -> float:
        """How many records one of its slots can do until the end."""
        speed = (self._speed_of(consumer) or self._mean_speed) / consumer.slots
        return (self._end_s - self._free_s(consumer, now_s)) * speed

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
            return large if self._book.counters.emitted % 2 else small
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
        needs_s = self._free_s(consumer, now_s) - now_s + self._costs(consumer)[0]
        if needs_s <= _LATE_RATIO * (self._end_s - now_s + self._fastest_s):
            return False
        # Nobody waits for a bolt that is sooner than any other would be with one more tuple.
        others = (c.completion_s for c in self._bolts.values() if c is not consumer)
        return needs_s > _LATE_RATIO * min(others, default=needs_s)

    def _refresh(self, rest: int, now_s: float) -> None:
        self._questions_left -= 1
        fixed = self._book.pool.fixed_records
        is_as_known = abs(fixed - self._fixed) <= _FIXED_CHANGE * self._fixed
        if self._questions_left <= 0 or not is_as_known:
            self._work_out(rest, now_s)

    def _work_out(self, rest: float, now_s: float) -> None:
        """When ``rest`` records, those that bolts hold included, could be done."""
        if self._began_s is None:
            self._began_s = now_s
        self._at_s = now_s
        self._fixed = self._book.pool.fixed_records
        if not self._book.pool.mean_s:  # no bolt has acked anything: nobody has to be asked
            self._questions_left, self._mean_speed = 0, 0.0
            return
        there = [c for c in self._bolts.values() if c.liveness in _WORKING]
        known = [c for c in there if c.service.mean_s]
        # Soon again while nothing is known.
        self._questions_left = int(_QUESTIONS_PART * len(there)) if known else 0
        self._mean_speed = 0.0
        if not known:
            return
        self._mean_speed = sum(map(self._speed_of, known)) / len(known)
        self._fastest_s = min(c.service.mean_s for c in known)
        self._record_s = sum(c.service.record_s for c in known) / len(known)
        self._path_s = sum(c.service.path_s for c in known) / len(known)
        free = [part for c in there for part in self._free(c, now_s)]
        rest -= sum(c.records_held for c in there)
        end_s = _level(free, rest)
        to_come = float(self._book.to_come)
        if to_come and now_s > self._began_s:
            # They come as often as they came so far, and work for half of the time that is left.
            came = len(self._bolts) / (now_s - self._began_s)
            to_come = min(to_come, _PART * came * (end_s - now_s))
        if to_come:
            free.append((min(free)[0], to_come * self._mean_speed))
            end_s = _level(free, rest)
        self._end_s = end_s

    def _free(self, consumer: AdaptiveFlowConsumer, now_s: float) -> Sequence[tuple[float, float]]:
        """When its slots begin the records of their next tuples, and their speed together."""
        free_s, speed = self._free_s(consumer, now_s), self._speed_of(consumer) or self._mean_speed
        slots = consumer.slots
        busy = consumer.held % slots
        if not busy:
            return ((free_s, speed),)
        # These are a tuple ahead of, or behind, the others.
        later_s = free_s + self._held_s(consumer) / consumer.held
        return ((free_s, speed * (slots - busy) / slots), (later_s, speed * busy / slots))

    def _free_s(self, consumer: AdaptiveFlowConsumer, now_s: float) -> float:
        """When the records of its next tuple begin to be done, as far as acks tell."""
        service, slots = consumer.service, consumer.slots
        path_s = service.path_s if service.samples else self._path_s
        free_s = now_s + path_s
        rounds = consumer.held // slots
        if rounds:
            free_s = max(free_s, self._through_s(consumer, rounds, path_s))
        return free_s + self._costs(consumer)[1] + DRIVER_S * len(self._bolts)

    def _through_s(self, consumer: AdaptiveFlowConsumer, rounds: int, path_s: float) -> float:
        """When so many tuples of each slot are acked; none before its own way there and back."""
        each_s, at_s = self._held_s(consumer) / consumer.held, consumer.armed_at_s
        newest = next(reversed(consumer.flight.values()), None)
        # Ranges tell how far they are, so what they hold has been there for long.
        if newest is None or newest.sent_at_s + path_s <= at_s or self._book.size_for:
            return at_s + each_s * rounds
        first = islice(consumer.flight.values(), rounds * consumer.slots)
        for flow_tuple in first:
            at_s = max(at_s, flow_tuple.sent_at_s + path_s) + each_s / consumer.slots
        return at_s

    def _held_s(self, consumer: AdaptiveFlowConsumer) -> float:
        """The work that it holds."""
        record_s, call_s = self._costs(consumer)
        return consumer.work_s() or call_s * consumer.held + record_s * consumer.records_held

    def _speed_of(self, consumer: AdaptiveFlowConsumer) -> float:
        """Records that it does in a second, all slots together, calls aside; 0 while unknown."""
        service = consumer.service
        if not service.mean_s:
            return 0.0
        return consumer.slots * (self._fixed + service.mean_records) / service.mean_s


def _level(free: list[tuple[float, float]], rest: float) -> float:
    """When ``rest`` is done by workers that are free from a time on, and of some speed each.

    As water fills a vessel: the first to be free begin, the others join when they are free.
    """
    free.sort()
    speed = done = end_s = 0.0
    for free_s, own_speed in free:
        if speed and free_s >= end_s:
            break
        speed += own_speed
        done += own_speed * free_s
        end_s = (rest + done) / speed
    return end_s


def speed(consumer: AdaptiveFlowConsumer) -> float:
    """Records that the bolt does in a second, all slots and calls counted; 0 while unknown."""
    service = consumer.service
    return consumer.slots * service.mean_records / service.mean_s if service.mean_s else 0.0
