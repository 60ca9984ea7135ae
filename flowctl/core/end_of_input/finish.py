"""When all that is left could be done at the earliest, and what each bolt can do until then.

What each bolt holds, its speed and its path tell it, the cost of each bolt's next call included.
Each slot of a bolt is free at a time of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.first_tuples import SPEEDS_VARY
from flowctl.core.sizing import DRIVER_S
from flowctl.core.state import Liveness

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
        self._fixed = 0.0  # what a call costs, in records, when the speeds were added up
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
