"""How much of the rest of the input one bolt gets now, so that all bolts finish together.

The rest is known once the input has ended.  Before that, if the source has nothing more for now, it
is at least what was read and is not acked.  A bolt's *share* is what it can do until the moment at
which all bolts together could be done (:class:`Finish`).  It gets half of its share at a time
(factoring: Hummel, Schonberg & Flynn 1992; weighted by measured speed as in Banicescu's adaptive
weighted factoring).  It gets more where times hardly vary, and all of it where another call would
cost more than it could even out (Kruskal & Weiss 1985).  Records that take less than an eighth of a
call are not kept for another call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import log, sqrt

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.cost import ServicePool
from flowctl.core.dispatch import EXACT_MAX, done_in_s, is_by_completion
from flowctl.core.first_guess import BOLTS_MIN, SPEEDS_VARY
from flowctl.core.sizing import DRIVER_S, FIRST, TRIED_TIMES, first_size
from flowctl.core.state import Liveness

# -- The first bolts to answer wait a little for the next ones, which tell what a call costs ---


# They wait for this share of the time that first tuples took so far.  If calls are what costs,
# bolts of one speed answer within it, whatever they hold, and all of them can share the rest in one
# more round.  If records are what costs, this wait is 1/32 of a share at most.
_FIRST_PART = 0.25


class FirstLook:
    """The one wait of the bolts that answer first.  Not thread-safe."""

    __slots__ = ("_is_on", "_until_s")

    def __init__(self) -> None:
        self._until_s: float | None = None  # None: nobody has answered
        self._is_on = False

    def holds(self, pool: ServicePool, now_s: float, *, is_useful: bool) -> bool:
        """Whether bolts that have answered have to wait still.

        ``is_useful``: the next answers may tell what a call costs.  Only its value at the first
        answer counts.
        """
        if self._until_s is None:
            wait_s = _FIRST_PART * pool.mean_s if is_useful and not pool.is_split else 0.0
            self._until_s = now_s + wait_s
        self._is_on = now_s < self._until_s and pool.first_calls > 0
        return self._is_on

    def next_s(self) -> float | None:
        """When the wait ends; None if nobody waits."""
        return self._until_s if self._is_on else None

    def on_deadline(self, now_s: float) -> None:
        """Time has passed."""
        if self._until_s is not None and now_s >= self._until_s:
            self._is_on = False


# -- When all that is left could be done at the earliest, and what each bolt can do until then -
#
# This follows from what each bolt holds, its speed, its path and the cost of its next call. Each
# slot of a bolt becomes free at a time of its own.


# Worked out again if the cost of a call changed by this share since: speeds depend on it, and it is
# learned in the first acks.
_FIXED_CHANGE = 0.25
# And whenever this share of the bolts has asked: O(log N) a question, amortised.
_QUESTIONS_PART = 0.25
# Bolts that count: a stalled one is at work, a resting one goes on when its rest is over.
_WORKING = (Liveness.ALIVE, Liveness.STALLED, Liveness.RESTING)
# Bolts that have not connected yet count as working for this share of the time that is left.
_COMING_PART = 0.5
# A bolt's service times remember about so many tuples, so more of them don't make its speed surer.
_TUPLES_TELL = 20


class Finish:
    """The earliest time at which all could be done.  Read the attributes.  Not thread-safe.

    ``end_s``: that time, as worked out at ``at_s``.  ``mean_speed``: records a second of the mean
    bolt, without what calls cost; 0: nothing is known, and the other attributes mean nothing.
    ``fastest_s``: the mean service time of a tuple at the fastest bolt.
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
        self._began_s: float | None = None  # when it was first worked out
        self.at_s: float = 0.0
        self.end_s: float = 0.0
        self._fixed = 0.0  # the cost of a call that speeds are based on, in records
        self.mean_speed: float = 0.0
        self._record_s = self._path_s = 0.0  # means over bolts: time of a record, path
        self._pool_record_s = 0.0  # mean time of a record over all acks
        self._prior = 0.0  # how many tuples of a bolt weigh as much as that mean
        self.fastest_s: float = 0.0

    def refresh(self, rest: int, now_s: float) -> None:
        """Work it out again if enough questions were asked, or if the cost of a call changed."""
        self._questions_left -= 1
        fixed = self._book.pool.fixed_records
        is_as_known = abs(fixed - self._fixed) <= _FIXED_CHANGE * self._fixed
        if self._questions_left <= 0 or not is_as_known:
            self.work_out(rest, now_s)

    def work_out(self, rest: float, now_s: float) -> None:
        """Work out when ``rest`` records, with those that bolts hold, could be done."""
        if self._began_s is None:
            self._began_s = now_s
        self.at_s = now_s
        pool = self._book.pool
        self._fixed, self._pool_record_s = pool.fixed_records, pool.record_s
        self._prior = pool.scatter**2 / SPEEDS_VARY
        if not pool.mean_s:  # no bolt has acked anything
            self._questions_left, self.mean_speed = 0, 0.0
            return
        there = [c for c in self._bolts.values() if c.liveness in _WORKING]
        known = [c for c in there if c.service.mean_s]
        # At the next question if nothing is known.
        self._questions_left = int(_QUESTIONS_PART * len(there)) if known else 0
        self.mean_speed = 0.0
        if known:
            self.mean_speed = sum(map(self._speed_of, known)) / len(known)
            self.fastest_s = min(c.service.mean_s for c in known)
            self._record_s = sum(c.service.record_s for c in known) / len(known)
            self._path_s = sum(c.service.path_s for c in known) / len(known)
        elif there and pool.learned is not None:
            slots = sum(c.slots for c in there) / len(there)
            self.mean_speed, self.fastest_s = slots / pool.record_s, pool.mean_s
            self._record_s, self._path_s = pool.record_s, pool.path_s
        else:
            return
        free = [part for c in there for part in self._free(c, now_s)]
        rest -= sum(c.records_held for c in there)
        end_s = _level(free, rest)
        to_come = float(self._book.to_come)
        if to_come and now_s > self._began_s:
            # Assume that they connect at the rate so far, and each works for half of the rest.
            came = len(self._bolts) / (now_s - self._began_s)
            to_come = min(to_come, _COMING_PART * came * (end_s - now_s))
        if to_come:
            free.append((min(free)[0], to_come * self.mean_speed))
            end_s = _level(free, rest)
        self.end_s = end_s

    def _free(self, consumer: AdaptiveFlowConsumer, now_s: float) -> Sequence[tuple[float, float]]:
        """Return when groups of its slots could begin their next tuples, and each group's speed."""
        free_s, speed = self.free_s(consumer, now_s), self._speed_of(consumer) or self.mean_speed
        slots = consumer.slots
        busy = consumer.held % slots
        if not busy:
            return ((free_s, speed),)
        # The slots of the last, incomplete round are a tuple behind the others.
        later_s = free_s + self._held_s(consumer) / consumer.held
        return ((free_s, speed * (slots - busy) / slots), (later_s, speed * busy / slots))

    def free_s(self, consumer: AdaptiveFlowConsumer, now_s: float) -> float:
        """Return when it could begin with the records of its next tuple, by what acks tell."""
        service, slots = consumer.service, consumer.slots
        path_s = service.path_s if service.samples else self._path_s
        free_s = now_s + path_s
        rounds = consumer.held // slots
        if rounds:
            free_s = max(free_s, self._through_s(consumer, rounds, path_s))
        return free_s + self.costs(consumer)[1] + DRIVER_S * len(self._bolts)

    def _through_s(self, consumer: AdaptiveFlowConsumer, rounds: int, path_s: float) -> float:
        """Return when so many tuples of each slot are done, none before it has arrived."""
        each_s, at_s = self._held_s(consumer) / consumer.held, consumer.armed_at_s
        newest = next(reversed(consumer.flight.values()), None)
        # A range reports how far it is, so it has long arrived.
        if newest is None or newest.sent_at_s + path_s <= at_s or self._book.size_for:
            return at_s + each_s * rounds
        step_s = each_s / consumer.slots
        for flow_tuple in islice(consumer.flight.values(), rounds * consumer.slots):
            arrived_s = flow_tuple.sent_at_s + path_s
            if arrived_s > at_s:  # not max(): this runs for all that is in flight, each time
                at_s = arrived_s
            at_s += step_s
        return at_s

    def _held_s(self, consumer: AdaptiveFlowConsumer) -> float:
        """Return how long it needs for all that it holds [s]."""
        record_s, call_s = self.costs(consumer)
        strays_s = consumer.service.mean_s * len(consumer.strays)
        return strays_s + call_s * len(consumer.flight) + record_s * consumer.records_held

    def _speed_of(self, consumer: AdaptiveFlowConsumer) -> float:
        """Return its records a second, over all slots, without what calls cost; 0: unknown."""
        record_s = self._record_s_at(consumer)
        return consumer.slots / record_s if record_s else 0.0

    def _record_s_at(self, consumer: AdaptiveFlowConsumer) -> float:
        """Return the time of a record there [s]; 0 while unknown.

        As long as its own times are few for their scatter, the mean of all bolts counts as well: a
        few records that are cheap by chance must not make a bolt look fast (Stein's shrinkage,
        weighted by the variance of times over that of speeds).
        """
        service = consumer.service
        if not service.mean_s:
            return 0.0
        record_s = service.mean_s / (self._fixed + service.mean_records)
        prior, told = self._prior, min(service.samples, _TUPLES_TELL)
        return record_s + (self._pool_record_s - record_s) * prior / (prior + told)

    def own(self, consumer: AdaptiveFlowConsumer, now_s: float) -> float:
        """Return the share of one of its slots: how many records it can do until the end."""
        speed = (self._speed_of(consumer) or self.mean_speed) / consumer.slots
        return (self.end_s - self.free_s(consumer, now_s)) * speed

    def costs(self, consumer: AdaptiveFlowConsumer) -> tuple[float, float]:
        """Return the time of a record and of a call there [s]; those of the mean if unknown."""
        record_s = self._record_s_at(consumer) or self._record_s
        return record_s, record_s * consumer.service.pool.fixed_records


def _level(free: list[tuple[float, float]], rest: float) -> float:
    """Return when ``rest`` is done by workers, given as (free from then on, records a second).

    As water fills a vessel: the first that are free begin, the others join when they are free.
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


# -- How much of its share a bolt gets ---------------------------------------------------------


# A bolt gets half of its share at a time, so that the last tuples are small.
_PART = 0.5
# While nothing is known of any bolt, first tuples are alternately these parts of an equal share.
# They differ, so that a call's cost can be told from a record's; and an eighth is not too much for
# a bolt that is eight times slower than the others.
_FIRST_PARTS = (1 / 32, 1 / 8)
# With at least so many records in an equal share, the larger of the two still has two records: a
# quarter of the share, which is not too much for a bolt that is four times slower.
_PARTS_TO_DIFFER = 8
# Records that take less than this share of a call's time are not worth another call.  Keeping them
# for a bolt that is free later saves less than service times vary by (a tenth on a quiet machine).
_WORTH_A_CALL = 1 / 8
# A bolt that would be done later than this many times what the rest needs must not begin: others
# would wait for it.  2 % is about what hedging may cost, and above the noise of the estimate.
_LATE_RATIO = 1.02
# If only the last run tells what records cost, a bolt's first tuple is at most this part of its
# share, which is not too much for a bolt that is four times slower.
_UNKNOWN_PART = 1 / 4
# With at least so many tuples left for each slot, shares don't limit a tuple: half of a share is
# eight tuples, which is one for a bolt that is eight times slower.  More while little is known.
_TUPLES_PLENTY = 16
_FIRST_PLENTY = 320
# For that, a smaller tuple counts as this many records, which is what a bolt gets first.
_RECORDS_FEW = 25
# With fewer than three bolts, a second size at one of them tells what a call costs.  That tuple is
# at most this part of its share, so a wrong guess makes the job no longer than that.
_TRIED_PART = 1 / 16


class Shares:
    """Each bolt's share of the rest.  Not thread-safe.

    ``least_s``: a tuple should hold at least this much work [s], whatever a call costs.
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
        self._is_of_one_size = False  # all first tuples are, so they can't tell a call's cost
        self.first_look: FirstLook = FirstLook()
        self._finish = Finish(book)

    def is_plenty(self, consumer: AdaptiveFlowConsumer, records: int, left: int) -> bool:
        """Whether so much is left that shares don't limit a tuple of ``records``."""
        book = self._book
        # With single records a call's cost can't be told from theirs, and doesn't matter.
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
        if book.pool.learned is not None and not service.samples:
            return False  # that is known from the last run
        if book.settings.tuple.records_max == 1:  # no sizes to tell it by
            return False
        if not service.samples:
            return self._tell_together
        is_long = service.mean_s > book.settings.tuple.service_max_s
        return service.samples == 1 and is_long and not book.pool.is_split

    @property
    def _tell_together(self) -> bool:
        """Whether there are enough bolts for their first tuples to tell what a call costs."""
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
        """Return how many of ``records`` the bolt gets: at most a part of its share, perhaps 0.

        ``left`` records are not sent yet.  It gets none if the others would have to wait for it,
        or if it has to answer first.
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
        if book.pool.learned is not None and not consumer.service.samples:
            part = min(part, max(1.0, _UNKNOWN_PART * own))
        records = self._to_differ(consumer, records, own)
        is_alike = self._is_of_one_size and not book.pool.is_split
        # Perhaps calls are what costs, which only different sizes can tell.  Not while bolts are to
        # come: until then shares are too large.
        if is_alike and not book.to_come:
            part = own if book.counters.tuples_emitted % 2 else min(part, _PART * own)
        return self._without_rest(min(records, int(part)), left, _WORTH_A_CALL * fewest)

    def _looks_round(self, now_s: float) -> bool:
        """Whether the bolts that answered first wait for the next ones.

        That is useless if first tuples are of one size, or of one or two bolts.
        """
        pool, tells = self._book.pool, self._tell_together and self._is_adaptive
        is_useful = tells and not (self._is_of_one_size or self._book.size_for)
        return self.first_look.holds(pool, now_s, is_useful=is_useful)

    def _to_differ(self, consumer: AdaptiveFlowConsumer, records: int, own: float) -> int:
        """Return ``records``, or more if only another size at this bolt can tell a call's cost."""
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
        """Return how much of its share ``own`` it gets now; ``fewest`` records cost a call's time.

        The worst of all slots will be late by ``off``, as a share of a tuple's time.  What is kept
        back has to make up for that, and is half of the share at most.  Another call is worth it
        only if the worst would be late by as much as a call takes.
        """
        book = self._book
        worst = sqrt(2 * log(max(2.0, book.slots_expected)))
        off = min(1.0, worst * book.pool.scatter)
        return max(own / (1 + off), min(own, fewest / off), _WORTH_A_CALL * fewest)

    def _decides_nothing(self, consumer: AdaptiveFlowConsumer) -> bool:
        """Whether the bolt gets one record whatever its share is, so that it need not be computed.

        Tuples are single records, and there are too many bolts for any of them to be refused one.
        With 1,000 bolts computing shares takes as long as sending the tuples.
        """
        if self._book.settings.tuple.records_max > 1:
            return False
        may_refuse = self._is_adaptive and len(self._bolts) <= EXACT_MAX
        return not may_refuse and bool(consumer.service.mean_s or self._finish.mean_speed)

    def _without_rest(self, records: int, left: int, worth: float) -> int:
        """Return ``records``, or all that is ``left`` if the rest would not be worth a call."""
        if left - records < worth and left <= self._book.settings.tuple.records_max:
            return left
        return max(1, records)

    def fitting(
        self, consumer: AdaptiveFlowConsumer, records: int, pending: int, now_s: float
    ) -> int:
        """Return how many of the ``records`` that it was just given the bolt should do.

        Others would wait for it if it did more.  ``pending`` records are sent and not acked.
        """
        self._finish.work_out(pending, now_s)
        if not (consumer.service.samples and self._finish.mean_speed):
            return records
        own = records + self._finish.own(consumer, now_s)  # they count as held already
        return max(1, min(records, int(max(self._fewest(consumer), own))))

    def _fewest(self, consumer: AdaptiveFlowConsumer) -> float:
        """Return how many records take as long as a call and the driver's work for it."""
        record_s, call_s = self._finish.costs(consumer)
        least_s = max(call_s + DRIVER_S * len(self._bolts), self.least_s)
        return least_s / record_s if record_s else 1

    def _first(self, consumer: AdaptiveFlowConsumer, records: int, left: int, own: float) -> int:
        """Return the size of a first tuple, while nothing is known of any bolt."""
        if not self._is_adaptive or self._book.size_for is not None:
            # Sizes don't matter: dispatch is blind, or a range can be split while it is read.
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
        """Return the smaller (0) or larger (1) size of first tuples; ``own``: an equal share."""
        least = number + 1 if own >= _PARTS_TO_DIFFER else 1
        most = min(FIRST[number], self._book.settings.tuple.records_max)
        return min(most, max(least, int(_FIRST_PARTS[number] * own)))

    def _awaits(self, consumer: AdaptiveFlowConsumer, left: int, slots: float) -> bool:
        """Whether ``consumer`` should answer before it gets more than a tuple for each slot.

        If so little is left that first tuples are small, second ones would have to be cut before
        anything is known.
        """
        if len(consumer.flight) < consumer.slots:
            return False
        most = min(FIRST[0], self._book.settings.tuple.records_max)
        return _FIRST_PARTS[0] * left < most * slots and most > 1

    def _is_late(self, consumer: AdaptiveFlowConsumer, own: float, now_s: float) -> bool:
        """Whether the others would have to wait for ``consumer`` if it got one more record."""
        if consumer.held >= consumer.slots:
            return own <= 0.5
        needs_s = self._finish.free_s(consumer, now_s) - now_s + self._finish.costs(consumer)[0]
        if needs_s <= _LATE_RATIO * (self._finish.end_s - now_s + self._finish.fastest_s):
            return False
        # But it is not late if every other bolt would need longer for one more tuple.
        others = (done_in_s(c) for c in self._bolts.values() if c is not consumer)
        return needs_s > _LATE_RATIO * min(others, default=needs_s)


def speed(consumer: AdaptiveFlowConsumer) -> float:
    """Return the bolt's records a second, over all slots and with calls; 0 while unknown."""
    service = consumer.service
    return consumer.slots * service.mean_records / service.mean_s if service.mean_s else 0.0
