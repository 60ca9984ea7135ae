"""The end of the input: first small shares, then unbegun tuples are taken back, then copies are
run.

One face for the other modules of this package: shares, stealing and hedging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from typing import Final

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.cost import ServicePool
from flowctl.core.dispatch import EXACT_MAX, is_by_completion
from flowctl.core.end_of_input.shares import Shares
from flowctl.core.settings import HedgeSettings
from flowctl.core.tuples import FlowTuple

# -- Work stealing ----------------------------------------------------------------------------
#
# At the end of the input idle bolts take what slow ones have not begun (revoke before hedge).
#
# A revoked tuple is processed once, wherever that is: taking it back costs a message, no work.


# Idle bolts that are looked at in one go, the longest idle first: looking at all would be O(N) for
# each of N.
IDLE_LOOKED_AT: Final = 64


class WorkStealing:
    """Asks the bolts with most work left to give back their newest tuples, one for each idle bolt.

    Does nothing until :meth:`start`, when there is nothing left to send.  Each question costs O(log
    N) amortised: the heap holds the work that a bolt had before, and is refreshed lazily.  Not
    thread-safe.
    """

    def __init__(
        self,
        bolts: Mapping[str, AdaptiveFlowConsumer],
        revoke: Callable[[AdaptiveFlowConsumer, list[int]], None],
    ) -> None:
        self._bolts = bolts
        self._revoke = revoke
        self._is_started = False
        self._idle: dict[str, None] = {}  # idle bolts, the longest idle first
        self._donors: list[tuple[float, str]] = []  # (-seconds of work left, bolt)
        self._asked: set[str] = set()  # bolts that have not answered yet

    def steal(self) -> None:
        """Ask busy bolts for tuples on behalf of the idle ones: nothing can be sent now."""
        needs_s: list[float] | None = None
        while len(self._asked) < len(self._idle):
            donor = self._next_donor()
            if donor is None:
                return
            if needs_s is None:
                needs_s = sorted(map(_needs_s, self._looked_at()))
            # One idle bolt for each bolt that is asked, the fastest first.
            needed_s = needs_s[min(len(self._asked), len(needs_s) - 1)]
            if donor.service.samples and needed_s > donor.work_s() / donor.slots:
                self._push(donor)  # the donor would finish it before an idle bolt could
                return
            tuple_id = self._newest(donor)
            if tuple_id is None:
                continue  # until it is given more
            self._asked.add(donor.bolt)
            self._revoke(donor, [tuple_id])

    def _newest(self, donor: AdaptiveFlowConsumer) -> int | None:
        """Return the newest tuple that ``donor`` has hardly begun and that an idle bolt may have.

        A tuple that all idle bolts have to avoid would only come back to ``donor``, again and
        again.
        """
        flight = donor.flight
        for tuple_id in islice(reversed(flight), len(flight) - donor.slots):
            avoid = flight[tuple_id].avoided
            if not avoid or any(idle.bolt not in avoid for idle in self._looked_at()):
                return tuple_id
        return None

    def start(self) -> None:
        """Track from now on which bolts are idle; O(N), once."""
        self._is_started = True
        self._donors = [(-c.work_s() / c.slots, c.bolt) for c in self._bolts.values()]
        heapify(self._donors)
        self._idle = {c.bolt: None for c in self._bolts.values() if not c.held and c.has_room}

    def stop(self) -> None:
        """Stop, as there is something to send again."""
        self._is_started = False
        self._donors.clear()
        self._idle.clear()

    def _next_donor(self) -> AdaptiveFlowConsumer | None:
        while self._donors:
            recorded_s, name = self._donors[0]
            donor = self._bolts.get(name)
            if donor is None or name in self._asked or len(donor.flight) <= donor.slots:
                heappop(self._donors)
                continue
            left_s = donor.work_s() / donor.slots
            if left_s < -recorded_s:
                heapreplace(self._donors, (-left_s, name))
                continue
            heappop(self._donors)  # it is asked again once it gave something, or is given more
            return donor
        return None

    @property
    def idle(self) -> dict[str, None]:
        """The bolts that have nothing to do, the longest idle first."""
        return self._idle

    @property
    def questions(self) -> int:
        """How many bolts were asked and have not answered yet."""
        return len(self._asked)

    def note_idle(self, consumer: AdaptiveFlowConsumer) -> None:
        """Note that ``consumer`` has nothing to do."""
        if self._is_started and consumer.has_room:
            self._idle[consumer.bolt] = None

    def note_given(self, consumer: AdaptiveFlowConsumer) -> None:
        """Note that ``consumer`` was sent a tuple."""
        if self._is_started:
            self._idle.pop(consumer.bolt, None)
            self._push(consumer)

    def pick_idle(self, avoid: Set[str]) -> AdaptiveFlowConsumer | None:
        """Return the idle bolt that would be done first and is not in ``avoid``."""
        fits = (c for c in self._looked_at() if c.bolt not in avoid and c.has_room)
        return min(fits, key=_needs_s, default=None)

    def _looked_at(self) -> Iterable[AdaptiveFlowConsumer]:
        return (self._bolts[bolt] for bolt in islice(self._idle, IDLE_LOOKED_AT))

    def on_answer(self, donor: AdaptiveFlowConsumer, *, given: bool) -> None:
        """Take ``donor``'s answer: if it gave nothing back, it is not asked again for now."""
        if donor.bolt in self._asked:
            self._asked.remove(donor.bolt)
            if given:
                self._push(donor)

    def forget(self, bolt: str) -> None:
        """Forget ``bolt``, which went and will not answer."""
        self._idle.pop(bolt, None)
        self._asked.discard(bolt)

    def _push(self, donor: AdaptiveFlowConsumer) -> None:
        if len(donor.flight) > donor.slots:
            heappush(self._donors, (-donor.work_s() / donor.slots, donor.bolt))


def _needs_s(consumer: AdaptiveFlowConsumer) -> float:
    """Return how long an idle bolt should need for a tuple; a new one counts like the others."""
    service = consumer.service
    return (service.mean_s or service.pool.mean_s) + service.path_s


# -- At the end of the input an idle bolt runs what another has begun and would be late with ---
#
# After Dean & Barroso, The Tail at Scale (2013): hedged requests. Unlike taking back what was not
# begun it costs work twice, so it comes last, within budgets, and can be switched off.


# The idle bolt must be done in half of the time that the other still needs: a copy that gains
# little is not worth its work.
_GAIN = 2.0
# Copies may take half of the time that bolts are idle for, beside their share of the work: that
# time is of no other use, and half of it is left for what is still to come.
_IDLE_PART = 0.5
# A copy must save at least this much [s]: the system may hold up a thread, or an interpreter, for
# some slices of 5 ms, and a bolt that is late by less is not slow.
_SAVES_MIN_S = 0.02
# A requested wake-up time counts as reached if it is this close [s]: far above the rounding of
# clocks.
_ROUNDING_S = 1e-6


class _Queue:
    """Tuples by a time, the earliest first: the initial ones are sorted once, later ones go to a
    heap.

    Of 48,000 tuples (3,000 bolts, windows of 16) nearly all are acked before they are looked at:
    pushing each to a heap and popping it took four times as long.
    """

    __slots__ = ("_later", "_sorted")

    def __init__(self) -> None:
        self._sorted: list[tuple[float, int]] = []  # (time, tuple id), the first at the end
        self._later: list[tuple[float, int]] = []

    def begin(self, entries: Iterable[tuple[float, int]]) -> None:
        """Hold ``entries`` and nothing else."""
        self._sorted = sorted(entries, reverse=True)
        self._later.clear()

    def push(self, entry: tuple[float, int]) -> None:
        heappush(self._later, entry)

    def first(self) -> tuple[float, int] | None:
        """Return the earliest entry, or None."""
        if self._sorted and not (self._later and self._later[0] < self._sorted[-1]):
            return self._sorted[-1]
        return self._later[0] if self._later else None

    def drop(self, first: tuple[float, int]) -> None:
        """Take out ``first``, which :meth:`first` just returned."""
        if self._sorted and self._sorted[-1] is first:
            self._sorted.pop()
        else:
            heappop(self._later)


class Hedging:
    """Finds the tuple that will be last, and an idle bolt that would be sooner.

    An overdue tuple is expected to take as long again as it is late already, as nothing else is
    known of it.  O(log n) a question.  Part of ``TupleCore``, not thread-safe.
    """

    def __init__(
        self,
        settings: HedgeSettings,
        bolts: Mapping[str, AdaptiveFlowConsumer],
        pending: Mapping[int, FlowTuple],
    ) -> None:
        self._settings = settings
        self._bolts = bolts
        self._pending = pending
        self._is_started = False
        self._latest = _Queue()  # (-due_s, tuple id)
        self._earliest = _Queue()  # (due_s, tuple id)
        self._left = 0  # tuples that may still be hedged
        self._work_left_s = 0.0  # seconds of work left at the last question
        self._asked_s = 0.0  # time of the last question
        self._were_idle = 0
        self._again_s: float | None = None

    def start(self, now_s: float, *, tuples: int, work_s: float) -> None:
        """Begin: nothing is left to send.  ``tuples`` and ``work_s`` are the totals of the run.

        O(n log n).
        """
        self._is_started = True
        share = self._settings.share_max
        slots = sum(consumer.slots for consumer in self._bolts.values())
        self._left = max(slots, int(share * tuples))  # a bolt that hangs holds one in each slot
        self._work_left_s = share * work_s
        self._asked_s = now_s
        expected: list[tuple[float, int]] = []
        for consumer in self._bolts.values():
            service = consumer.service
            done_s = consumer.armed_at_s + service.path_s
            for flow_tuple in consumer.flight.values():
                done_s += service.of(len(flow_tuple.cut.records)) / consumer.slots
                due_s = flow_tuple.expect_ack(max(now_s, done_s))
                if not flow_tuple.is_hedged:
                    expected.append((due_s, flow_tuple.tuple_id))
        self._latest.begin((-due_s, tuple_id) for due_s, tuple_id in expected)
        self._earliest.begin(expected)

    def note_sent(self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer) -> None:
        """Note that ``consumer`` was just sent ``flow_tuple``."""
        if self._is_started:
            ready_s = consumer.work_s() / consumer.slots + consumer.service.path_s
            due_s = flow_tuple.expect_ack(flow_tuple.sent_at_s + ready_s)
            if not flow_tuple.is_hedged:
                self._latest.push((-due_s, flow_tuple.tuple_id))
                self._earliest.push((due_s, flow_tuple.tuple_id))

    def stop(self) -> None:
        """Stop, as there is something to send again."""
        self._is_started = False
        self._again_s = None
        self._were_idle = 0
        self._latest.begin(())
        self._earliest.begin(())

    def next_s(self) -> float | None:
        """Return when to ask again although nothing has happened, or None."""
        return self._again_s

    def pick(
        self, idle: dict[str, None], now_s: float
    ) -> tuple[FlowTuple, AdaptiveFlowConsumer] | None:
        """Return a tuple and the idle bolt that is to run a copy of it, or None.

        ``idle``: the bolts that have nothing to do, the longest idle first.
        """
        self._again_s = None
        settings = self._settings
        if not (settings.enabled and settings.share_max and self._is_started and self._left > 0):
            return None
        self._work_left_s += _IDLE_PART * self._were_idle * (now_s - self._asked_s)
        self._asked_s, self._were_idle = now_s, len(idle)
        flow_tuple = self._worst(now_s)
        if flow_tuple is None:
            return None
        found = self._soonest(flow_tuple, idle)
        if found is None:
            return None
        consumer, needs_s = found
        sooner_s = self._another_is_sooner_s(flow_tuple, needs_s, now_s)
        if sooner_s is not None:
            self._again_s = sooner_s + _ROUNDING_S
            return None
        worth_s = max(_GAIN * needs_s, needs_s + _SAVES_MIN_S)
        if worth_s > _remaining_s(flow_tuple, now_s) + _ROUNDING_S:
            overdue = self._top(self._earliest, 1.0)
            if overdue is not None:
                self._again_s = overdue.due_s + worth_s
            return None
        if needs_s > self._work_left_s:
            lacks_s = needs_s - self._work_left_s
            self._again_s = now_s + lacks_s / (_IDLE_PART * len(idle)) + _ROUNDING_S
            return None
        self._left -= 1
        self._work_left_s -= needs_s
        flow_tuple.hedged()
        return flow_tuple, consumer

    def _another_is_sooner_s(
        self, flow_tuple: FlowTuple, needs_s: float, now_s: float
    ) -> float | None:
        """Return when a busy bolt, not late, that would be done sooner than ``needs_s`` is free;
        None: none is.
        """
        if len(self._bolts) > EXACT_MAX:
            return None
        records, holder = len(flow_tuple.cut.records), flow_tuple.held_by
        for bolt, consumer in self._bolts.items():
            service = consumer.service
            if bolt == holder or not (consumer.flight and service.samples):
                continue
            free_s = consumer.armed_at_s + consumer.work_s() / consumer.slots - now_s
            if 0 < free_s < needs_s - service.of(records) - service.path_s:
                return now_s + free_s
        return None

    def _worst(self, now_s: float) -> FlowTuple | None:
        latest = self._top(self._latest, -1.0)
        earliest = self._top(self._earliest, 1.0)
        if latest is None or earliest is None:
            return None
        return max(latest, earliest, key=lambda t: _remaining_s(t, now_s))

    def _top(self, queue: _Queue, sign: float) -> FlowTuple | None:
        """Return the first tuple of ``queue`` that is still in flight at the expected bolt."""
        while (first := queue.first()) is not None:
            at_s, tuple_id = first
            flow_tuple = self._pending.get(tuple_id)
            if flow_tuple is not None and not flow_tuple.is_hedged:
                holder = self._bolts.get(flow_tuple.held_by or "")
                held = holder is not None and tuple_id in holder.flight
                if held and flow_tuple.due_s == sign * at_s:
                    return flow_tuple
            queue.drop(first)
        return None

    def _soonest(
        self, flow_tuple: FlowTuple, idle: dict[str, None]
    ) -> tuple[AdaptiveFlowConsumer, float] | None:
        best: tuple[AdaptiveFlowConsumer, float] | None = None
        records = len(flow_tuple.cut.records)
        # The bolt idle for longest may never have had a tuple; of the others, the times of the last
        # are known best.
        looked_at = IDLE_LOOKED_AT // 2
        for bolt in chain(islice(idle, looked_at), islice(reversed(idle), looked_at)):
            consumer = self._bolts[bolt]
            service = consumer.service
            if not (service.samples and consumer.has_room):
                continue
            if flow_tuple.avoided and bolt in flow_tuple.avoided:
                continue
            needs_s = service.of(records) + service.path_s
            if best is None or needs_s < best[1]:
                best = (consumer, needs_s)
        return best


def _remaining_s(flow_tuple: FlowTuple, now_s: float) -> float:
    return abs(flow_tuple.due_s - now_s)


# -- The end of the input ----------------------------------------------------------------------


class EndOfInput:
    """What changes once the input has ended.  Part of ``TupleCore``, not thread-safe."""

    def __init__(self, book: Book) -> None:
        settings = book.settings
        self._book = book
        self._bolts = book.bolts
        # Dispatch in turn without skips is a baseline: dealt tuples stay where they are, however
        # late.
        self._is_blind = settings.dispatch.choice == "in_turn"
        # Single records are not shared out before the input has ended.
        self._is_adaptive = is_by_completion(settings)
        self.cuts_before: bool = self._is_adaptive and settings.tuple.records_max > 1
        self._counters = book.counters
        self._shares = Shares(book)
        self._stealing = WorkStealing(book.bolts, book.revoke)
        hedge = settings.hedge
        if not book.guarantee.sends_again:  # a copy runs a tuple a second time
            hedge = HedgeSettings(enabled=False)
        self._hedging = Hedging(hedge, book.bolts, book.pending)
        book.idle_listener = self

    def size_of_next(
        self, consumer: AdaptiveFlowConsumer, records: int, left: int, now_s: float
    ) -> int:
        """Return how many of the ``left`` records ``consumer`` gets, at most ``records``; 0: none
        now.

        Called once the input has ended; before that only if ``cuts_before``.
        """
        if self._is_blind:
            return records
        if consumer.service.samples < 2:
            if self._shares.awaits_first(consumer):
                return 0
            records = self._shares.first_of_all(consumer, records)
        if self._shares.is_plenty(consumer, records, left):
            return records
        return self._shares.records_for(consumer, records, left, now_s)

    @property
    def shares(self) -> Shares:
        """The rule by which the rest of the input is shared out."""
        return self._shares

    def pick_copy(
        self, pool: ServicePool, now_s: float
    ) -> tuple[FlowTuple, AdaptiveFlowConsumer] | None:
        """Ask for unbegun tuples, as nothing is left to send; return a tuple to run twice."""
        if self._is_blind or not self._is_near:
            return None
        if not self._book.is_all_out:
            self._book.is_all_out = True
            self._stealing.start()
            tuples = self._counters.tuples_emitted
            self._hedging.start(now_s, tuples=tuples, work_s=tuples * pool.mean_s)
        self._stealing.steal()
        return self._hedging.pick(self._stealing.idle, now_s)

    @property
    def _is_near(self) -> bool:
        """Whether, as far as is known, nothing is left but what the bolts hold.

        Most sources report their end only at the next read, which may be much later.
        """
        book = self._book
        if book.input_ended:
            return True
        return self._is_adaptive and bool(book.pending) and book.supply.holds_rest

    def on_more(self) -> None:
        """Note that something is left after all; once the input has ended, that cannot last."""
        if not self._book.input_ended:
            self._book.is_all_out = False
            self._stealing.stop()
            self._hedging.stop()

    def pick_idle(self, avoid: Set[str]) -> AdaptiveFlowConsumer | None:
        """Return an idle bolt that is not in ``avoid``, for a retry."""
        return self._stealing.pick_idle(avoid)

    def next_s(self) -> float | None:
        """Return when :meth:`pick_copy` should be called although nothing has happened, or None."""
        if self._book.supply.buffer.records:
            return self._shares.first_look.next_s()
        if not self._is_near:
            return None  # pick_copy is not called yet
        return self._hedging.next_s()

    def on_deadline(self, now_s: float) -> None:
        """Time has passed."""
        self._shares.first_look.on_deadline(now_s)

    def note_sent(self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer) -> None:
        """Note that ``consumer`` was sent ``flow_tuple`` after the input had ended."""
        self._stealing.note_given(consumer)
        self._hedging.note_sent(flow_tuple, consumer)

    def note_idle(self, consumer: AdaptiveFlowConsumer) -> None:
        """Note that ``consumer`` has nothing to do although the input has ended."""
        self._stealing.note_idle(consumer)

    def on_answer(self, consumer: AdaptiveFlowConsumer, *, given: bool) -> None:
        """Take ``consumer``'s answer: the tuples that it gave back."""
        self._stealing.on_answer(consumer, given=given)

    @property
    def idle_bolts(self) -> Sequence[str]:
        """Bolts that have nothing to do, the longest idle first."""
        return tuple(self._stealing.idle)

    @property
    def questions(self) -> int:
        """How many bolts were asked for what they have not begun, and have not answered yet."""
        return self._stealing.questions

    def forget(self, bolt: str) -> None:
        """Forget ``bolt``, which went."""
        self._stealing.forget(bolt)
