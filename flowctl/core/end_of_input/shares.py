"""How much of what is left belongs to one bolt now, so that all bolts finish together.

What is left is known once the input has ended; before that, where all that there was has been read,
it is at least what was read and is not acked.  What a bolt can do until all could be done
(:mod:`flowctl.core.end_of_input.shares`) is its own.  It gets half of that at a time (factoring,
Hummel, Schonberg & Flynn 1992, weighted by measured speed as in Banicescu's adaptive weighted
factoring), more where times hardly vary, or all of it where another call would cost more than it
could even out (Kruskal & Weiss 1985).  What takes less than an eighth of a call's time is not kept
for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import log, sqrt

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.cost import BOLTS_MIN, SPEEDS_VARY, ServicePool
from flowctl.core.dispatch import EXACT_MAX, done_in_s, is_by_completion
from flowctl.core.sizing import DRIVER_S, FIRST, TRIED_TIMES, first_size
from flowctl.core.state import Liveness

# -- The first bolts to answer wait a little for the next ones, which tell what a call costs ---


# So much of the time that first tuples took so far.  Where calls are what costs, bolts of one speed
# answer within a quarter of it, whatever they hold: all of them then share what is left in one more
# round.  Where records are what costs, a quarter of a first tuple is 1/32 of a share at most.
_FIRST_PART = 0.25


class FirstLook:
    """One wait, from when the first bolt answers.  Not thread-safe."""

    __slots__ = ("_is_on", "_until_s")

    def __init__(self) -> None:
        self._until_s: float | None = None  # None: nobody has answered
        self._is_on = False

    def holds(self, pool: ServicePool, now_s: float, *, is_useful: bool) -> bool:
        """Whether a bolt that has answered gets nothing yet.

        ``is_useful``: what the next ones will say may tell what a call costs.  Asked at the first
        answer; later it changes nothing.
        """
        if self._until_s is None:
            wait_s = _FIRST_PART * pool.mean_s if is_useful and not pool.is_split else 0.0
            self._until_s = now_s + wait_s
        self._is_on = now_s < self._until_s and pool.first_calls > 0
        return self._is_on

    def next_s(self) -> float | None:
        """When to ask again on behalf of bolts that got nothing for this reason; None: for none."""
        return self._until_s if self._is_on else None

    def on_deadline(self, now_s: float) -> None:
        """Time has passed."""
        if self._until_s is not None and now_s >= self._until_s:
            self._is_on = False


# -- When all that is left could be done at the earliest, and what each bolt can do until then -
#
# What each bolt holds, its speed and its path tell it, the cost of each bolt's next call
# included. Each slot of a bolt is free at a time of its own.


# What a call costs is learned in the first acks; speeds are worked out from it.
_FIXED_CHANGE = 0.25
# After questions of a quarter of the bolts the end is worked out again: O(log N) each, amortised.
_QUESTIONS_PART = 0.25
# Bolts that count: one that is stalled is at work, one that rests works on when its rest is over.
_WORKING = (Liveness.ALIVE, Liveness.STALLED, Liveness.RESTING)
# Bolts that are still to come work for half of the time that is left.
_COMING_PART = 0.5
# The times of so many tuples tell a bolt's speed: its service times remember no more.
_TUPLES_TELL = 20


class Finish:
    """When all could be done, as of when that was last worked out.  Read the attributes.

    ``at_s``: when it was worked out; ``end_s``: when all could be done.  ``mean_speed``: records a
    second of a bolt, calls aside; 0: nothing is known, and the rest means nothing then.
    ``fastest_s``: the shortest time that any bolt needs for a tuple.  Not thread-safe.
    """

    __slots__ = (
        "_began_s",
        "_bolts",
        "_book",
        "_fixed",
        "_path_s",
        "_pool_record_s",
        "_prior",
        "_questions_left",
        "_record_s",
        "at_s",
        "end_s",
        "fastest_s",
        "mean_speed",
    )

    def __init__(self, book: Book) -> None:
        self._book = book
        self._bolts = book.bolts
        self._questions_left = 0
        self._began_s: float | None = None  # when it was asked first
        self.at_s: float = 0.0
        self.end_s: float = 0.0
        self._fixed = 0.0  # cost of a call, in records, for which the sum of speeds was computed
        self.mean_speed: float = 0.0
        self._record_s = self._path_s = 0.0  # the mean record's time, and path
        self._pool_record_s = 0.0  # the same by all acks
        self._prior = 0.0  # how many tuples of a bolt tell its speed as well as that does
        self.fastest_s: float = 0.0

    def refresh(self, rest: int, now_s: float) -> None:
        """Work it out again after so many questions, or once a call costs something else."""
        self._questions_left -= 1
        fixed = self._book.pool.fixed_records
        is_as_known = abs(fixed - self._fixed) <= _FIXED_CHANGE * self._fixed
        if self._questions_left <= 0 or not is_as_known:
            self.work_out(rest, now_s)

    def work_out(self, rest: float, now_s: float) -> None:
        """When ``rest`` records, those that bolts hold included, could be done."""
        if self._began_s is None:
            self._began_s = now_s
        self.at_s = now_s
        pool = self._book.pool
        self._fixed, self._pool_record_s = pool.fixed_records, pool.record_s
        self._prior = pool.scatter**2 / SPEEDS_VARY
        if not pool.mean_s:  # no bolt has acked anything: nobody has to be asked
            self._questions_left, self.mean_speed = 0, 0.0
            return
        there = [c for c in self._bolts.values() if c.liveness in _WORKING]
        known = [c for c in there if c.service.mean_s]
        # Soon again while nothing is known.
        self._questions_left = int(_QUESTIONS_PART * len(there)) if known else 0
        self.mean_speed = 0.0
        if not known:
            return
        self.mean_speed = sum(map(self._speed_of, known)) / len(known)
        self.fastest_s = min(c.service.mean_s for c in known)
        self._record_s = sum(c.service.record_s for c in known) / len(known)
        self._path_s = sum(c.service.path_s for c in known) / len(known)
        free = [part for c in there for part in self._free(c, now_s)]
        rest -= sum(c.records_held for c in there)
        end_s = _level(free, rest)
        to_come = float(self._book.to_come)
        if to_come and now_s > self._began_s:
            # They come as often as they came so far, and work for half of the time that is left.
            came = len(self._bolts) / (now_s - self._began_s)
            to_come = min(to_come, _COMING_PART * came * (end_s - now_s))
        if to_come:
            free.append((min(free)[0], to_come * self.mean_speed))
            end_s = _level(free, rest)
        self.end_s = end_s

    def _free(self, consumer: AdaptiveFlowConsumer, now_s: float) -> Sequence[tuple[float, float]]:
        """When its slots begin the records of their next tuples, and their speed together."""
        free_s, speed = self.free_s(consumer, now_s), self._speed_of(consumer) or self.mean_speed
        slots = consumer.slots
        busy = consumer.held % slots
        if not busy:
            return ((free_s, speed),)
        # These are a tuple ahead of, or behind, the others.
        later_s = free_s + self._held_s(consumer) / consumer.held
        return ((free_s, speed * (slots - busy) / slots), (later_s, speed * busy / slots))

    def free_s(self, consumer: AdaptiveFlowConsumer, now_s: float) -> float:
        """When the records of its next tuple begin to be done, as far as acks tell."""
        service, slots = consumer.service, consumer.slots
        path_s = service.path_s if service.samples else self._path_s
        free_s = now_s + path_s
        rounds = consumer.held // slots
        if rounds:
            free_s = max(free_s, self._through_s(consumer, rounds, path_s))
        return free_s + self.costs(consumer)[1] + DRIVER_S * len(self._bolts)

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
        record_s, call_s = self.costs(consumer)
        strays_s = consumer.service.mean_s * len(consumer.strays)
        return strays_s + call_s * len(consumer.flight) + record_s * consumer.records_held

    def _speed_of(self, consumer: AdaptiveFlowConsumer) -> float:
        """Records that it does in a second, all slots together, calls aside; 0 while unknown."""
        record_s = self._record_s_at(consumer)
        return consumer.slots / record_s if record_s else 0.0

    def _record_s_at(self, consumer: AdaptiveFlowConsumer) -> float:
        """What a record costs there; 0 while unknown.

        By its own times and, as long as they are few for how much they scatter, by all bolts': a
        record that is cheap by chance makes no bolt fast (Stein's shrinkage, weighted by the
        variance of times over that of speeds).
        """
        service = consumer.service
        if not service.mean_s:
            return 0.0
        record_s = service.mean_s / (self._fixed + service.mean_records)
        prior, told = self._prior, min(service.samples, _TUPLES_TELL)
        return record_s + (self._pool_record_s - record_s) * prior / (prior + told)

    def own(self, consumer: AdaptiveFlowConsumer, now_s: float) -> float:
        """How many records one of its slots can do until the end."""
        speed = (self._speed_of(consumer) or self.mean_speed) / consumer.slots
        return (self.end_s - self.free_s(consumer, now_s)) * speed

    def costs(self, consumer: AdaptiveFlowConsumer) -> tuple[float, float]:
        """What a record and a call cost there; one that has not answered yet is as the mean."""
        record_s = self._record_s_at(consumer) or self._record_s
        return record_s, record_s * consumer.service.pool.fixed_records


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


# -- How much of what is left belongs to one bolt now, so that all bolts finish together -------


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
