"""If a bolt is idle and nothing is left to send, a busy bolt gives back the end of its range.

After dynamic work rebalancing of Dataflow ("liquid sharding"): the bolt with the latest expected
end is asked for the share after which both end together.  That bolt decides where its range ends,
never below what it has claimed, and only after its answer may another bolt have the rest.  An
answer that does not come is asked for again, under the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from flowctl.core.book import Book
from flowctl.core.consumer import NEVER
from flowctl.core.events import RangeSplit
from flowctl.core.messages import Split
from flowctl.core.ranges.consumer import PositionPace, RangeConsumer
from flowctl.core.ranges.pieces import RangeCut
from flowctl.core.tuples import FlowTuple

# An answer must be worth at least this many reports: a bolt's next batches are claimed before the
# request arrives, and less would not be worth a message.
_REPORTS_MIN = 2
# How long to wait for an answer [s]: a round trip, and a moment for a worker that is busy.  Then
# the request is repeated, later each time, which does no harm.
_ASK_AGAIN_S = 0.1
_ASK_AGAIN_MAX_S = 10.0
# A bolt that gave nothing is asked again after this time [s], if it has reported nothing since.
_REFUSED_S = 0.5
# A range that was given back whole stays with its new bolt for this long [s] before it may move
# whole again, doubled at each move: a bolt that is slow to open the source must get to its first
# batch.
_SETTLE_S = 0.5
_SETTLE_MOVES_MAX = 10  # after this many moves it stays for minutes
# Looking at all bolts costs about 1 us each: at most a twentieth of the time goes into it.
_LOOK_S_PER_BOLT = 20e-6
_LOOK_EVERY_S = 0.01  # and with few bolts, more often than a report comes
# Without news a bolt that is late only becomes later: as often as reports come is enough.
_LOOK_AGAIN_S = 0.1

# If no bolt has reported for this long [s] (three reports' time), bolts count as equally fast: an
# idle one gets half of what another has, and that half will show how fast they are.
_TELLS_S = 0.5
_UNKNOWN = PositionPace(1.0, 0.0)


class Ask(msgspec.Struct):
    """A request to split a range that has no answer yet."""

    order: Split
    again_s: float
    wait_s: float


class Donor(msgspec.Struct, frozen=True):
    """A range at work: how many positions are left, and how long until they are done.

    ``late_s``: until it goes on with them; a bolt that is overdue with its report is expected to
    take as long again.
    """

    positions: float
    position_s: float
    late_s: float
    consumer: RangeConsumer
    flow_tuple: FlowTuple

    @property
    def left_s(self) -> float:
        """How long it would still take by itself [s]."""
        return self.late_s + self.positions * self.position_s


def share_kept(donor: Donor, position_s: float, lag_s: float) -> float:
    """Return the share that the donor should keep so that it ends together with the bolt that gets
    the rest.

    That bolt needs ``position_s`` for a position and begins after ``lag_s``; 1: the donor would be
    done sooner by itself.
    """
    # late + kept * own = lag + (positions - kept) * other
    other_s = donor.positions * position_s + lag_s - donor.late_s
    kept = other_s / (donor.position_s + position_s)
    # Keep only the claimed records if it would not even get to the next position.
    return min(1.0, kept / donor.positions) if kept >= 1 else 0.0


class Splits:
    """Which bolt was asked for a part of which range.  Part of ``RangeCore``, not thread-safe."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._asks: dict[int, Ask] = {}  # by tuple id
        self._requests = 0
        # Positions that were left when the bolt refused, and until when it is not asked again
        # unless that changes.
        self._refused: dict[int, tuple[int, float]] = {}
        # How often in a row the range was given back whole, with no part of it done.
        self._moves: dict[int, int] = {}
        self._look_at_s = -NEVER  # no look before this
        self._look_again_s = NEVER  # next look even if nothing happens

    # -- when nothing is left to send ----------------------------------------------------

    def look(self, idle: Sequence[str], now_s: float, *, questions: int) -> None:
        """Ask busy bolts on behalf of the ``idle`` ones, as far as the open ``questions`` are not
        enough.
        """
        missing = len(idle) - questions - len(self._asks)
        if missing <= 0:
            self._look_again_s = now_s + _LOOK_AGAIN_S  # answers are awaited first
        if missing <= 0 or now_s < self._look_at_s:
            return
        bolts = self._book.bolts
        pause_s = _LOOK_S_PER_BOLT * len(bolts)
        self._look_at_s = now_s + max(_LOOK_EVERY_S, pause_s)
        self._look_again_s = now_s + max(_LOOK_AGAIN_S, pause_s)
        donors = sorted(self._donors(now_s), key=lambda d: -d.left_s)
        for bolt in islice(idle, missing):
            donor = next((d for d in donors if not self._avoids(d.flow_tuple, bolt)), None)
            if donor is None:
                continue
            donors.remove(donor)
            taker = bolts[bolt]
            assert isinstance(taker, RangeConsumer)
            self._ask_for(taker, donor, now_s)

    def _avoids(self, flow_tuple: FlowTuple, bolt: str) -> bool:
        """Whether ``bolt`` could not get the end of ``flow_tuple``, because it did not manage that
        tuple before.
        """
        avoid = flow_tuple.avoided
        return avoid is not None and bolt in avoid and self._book.has_other(avoid, flow_tuple)

    def next_s(self, *, is_idle: bool) -> float | None:
        """Return when to look or to ask again; None: no time is set."""
        due_s = min((ask.again_s for ask in self._asks.values()), default=NEVER)
        if is_idle:
            due_s = min(due_s, self._look_again_s)
        return None if due_s == NEVER else due_s

    def _donors(self, now_s: float) -> Iterator[Donor]:
        others = self._mean()
        for consumer in self._book.bolts.values():
            assert isinstance(consumer, RangeConsumer)
            for flow_tuple in islice(consumer.flight.values(), consumer.slots):
                cut = flow_tuple.cut
                assert isinstance(cut, RangeCut)
                if not self._may_ask(consumer, flow_tuple.tuple_id, cut, now_s):
                    continue
                if self._must_settle(consumer, flow_tuple, now_s):
                    continue
                positions = len(cut.records)
                pace = consumer.pace(others)
                silent_s = consumer.silent_s(flow_tuple, now_s)
                if pace is _UNKNOWN and silent_s < _TELLS_S:
                    continue
                late_s = silent_s - pace.positions * pace.position_s
                # Positions that it has done since its last report, if it is not late.
                done = min(pace.positions, silent_s / pace.position_s) if late_s <= 0 else 0.0
                if positions > done:
                    yield Donor(
                        positions - done,
                        pace.position_s,
                        silent_s if late_s > 0 else 0.0,
                        consumer,
                        flow_tuple,
                    )

    def _may_ask(self, consumer: RangeConsumer, tuple_id: int, cut: RangeCut, now_s: float) -> bool:
        if not cut.is_splittable or consumer.is_suspect:
            return False
        ask = self._asks.get(tuple_id)
        if ask is not None and ask.order.bolt != consumer.bolt:
            del self._asks[tuple_id]  # the bolt that was asked has it no more
            ask = None
        positions, until_s = self._refused.get(tuple_id, (-1, 0.0))
        return ask is None and (positions != len(cut.records) or now_s >= until_s)

    def _must_settle(self, consumer: RangeConsumer, flow_tuple: FlowTuple, now_s: float) -> bool:
        moves = min(self._moves.get(flow_tuple.tuple_id, 0), _SETTLE_MOVES_MAX)
        if not moves or consumer.moved_at_s > flow_tuple.sent_at_s:
            return False
        return now_s < flow_tuple.sent_at_s + _SETTLE_S * (1 << (moves - 1))

    def _mean(self) -> PositionPace:
        """Return the pace of the mean bolt, of those that have reported."""
        known = [c.service for c in self._book.bolts.values() if c.service.samples]
        if not any(service.record_s for service in known):
            return _UNKNOWN
        count = len(known)
        return PositionPace(
            sum(service.record_s for service in known) / count,
            sum(service.mean_records for service in known) / count,
        )

    def _ask_for(self, taker: RangeConsumer, donor: Donor, now_s: float) -> None:
        path_s = donor.consumer.service.path_s
        position_s = taker.service.record_s or donor.position_s
        keep = share_kept(donor, position_s, path_s + taker.service.path_s)
        # Even if it has reported nothing yet, a single position is too little.
        reported = max(1.0, donor.consumer.service.mean_records)
        if (1 - keep) * donor.positions >= _REPORTS_MIN * reported:
            self._ask(donor.consumer, donor.flow_tuple, keep, now_s)

    # -- asking --------------------------------------------------------------------------

    def take_back(self, consumer: RangeConsumer, now_s: float) -> None:
        """Ask ``consumer`` for the unclaimed part of the ranges that it works on."""
        for flow_tuple in islice(consumer.flight.values(), consumer.slots):
            if flow_tuple.tuple_id not in self._asks:
                self._ask(consumer, flow_tuple, 0.0, now_s)

    def call_off(self, bolt: str, tuple_id: int) -> None:
        """Tell ``bolt`` to stop working on a range that another bolt has by now; no answer is
        awaited.
        """
        self._book.orders.append(self._order(bolt, tuple_id, 0.0))

    def _ask(
        self, consumer: RangeConsumer, flow_tuple: FlowTuple, keep: float, now_s: float
    ) -> None:
        wait_s = max(_ASK_AGAIN_S, 4 * consumer.service.path_peak_s)
        order = self._order(consumer.bolt, flow_tuple.tuple_id, keep)
        self._asks[flow_tuple.tuple_id] = Ask(order, now_s + wait_s, wait_s)
        self._book.orders.append(order)

    def _order(self, bolt: str, tuple_id: int, keep: float) -> Split:
        self._requests += 1
        return Split(bolt, tuple_id, self._requests, keep)

    def on_deadline(self, now_s: float) -> None:
        """Repeat requests without an answer; forget requests for ranges that went elsewhere."""
        due = [ask for ask in self._asks.values() if ask.again_s <= now_s]
        for ask in due:
            consumer = self._book.bolts.get(ask.order.bolt)
            if consumer is None or ask.order.tuple_id not in consumer.flight:
                del self._asks[ask.order.tuple_id]
                continue
            ask.wait_s = min(_ASK_AGAIN_MAX_S, 2 * ask.wait_s)
            ask.again_s = now_s + ask.wait_s
            self._book.orders.append(ask.order)

    # -- answers -------------------------------------------------------------------------

    def answered(self, bolt: str, tuple_id: int, request: int) -> bool:
        """Note that an answer came; return whether one was waited for."""
        ask = self._asks.get(tuple_id)
        if ask is None or (ask.order.bolt, ask.order.request) != (bolt, request):
            return False
        del self._asks[tuple_id]
        return True

    def refused(self, flow_tuple: FlowTuple, consumer: RangeConsumer, now_s: float) -> None:
        """Note that a bolt gave nothing: it is not asked again until it has done something, or is
        twice as late.
        """
        self._refused = {i: n for i, n in self._refused.items() if i in self._book.pending}
        wait_s = max(_REFUSED_S, consumer.silent_s(flow_tuple, now_s))
        self._refused[flow_tuple.tuple_id] = (len(flow_tuple.cut.records), now_s + wait_s)

    def parted(
        self, whole: FlowTuple, piece: FlowTuple, holder: RangeConsumer, now_s: float
    ) -> None:
        """Note that ``holder`` gave back ``piece`` of ``whole``, which is a separate range now."""
        cut = piece.cut
        if holder.moved_at_s <= whole.sent_at_s:
            self._moves[piece.tuple_id] = self._moves.get(whole.tuple_id, 0)
            self._moves[piece.tuple_id] += not whole.cut.records
        assert isinstance(cut, RangeCut)
        self._book.counters.ranges_split += 1
        self._book.events.append(
            RangeSplit(
                at_s=now_s,
                tuple_id=whole.tuple_id,
                bolt=holder.bolt,
                partition=cut.partition,
                at=cut.pieces[0][0],
                rest_id=piece.tuple_id,
                positions=len(cut.records),
            )
        )

    def forget(self, tuple_id: int) -> None:
        """Forget a range that is done, or that no bolt holds."""
        self._asks.pop(tuple_id, None)
        self._moves.pop(tuple_id, None)
