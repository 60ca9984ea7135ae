"""How positions move between tuples, the backlog and the done part.  Each is in one place only."""

from __future__ import annotations

from typing import cast

from flowctl.core.book import Book
from flowctl.core.completion import Completion
from flowctl.core.end_of_input.shares import Shares
from flowctl.core.events import RecordsRejected
from flowctl.core.failures import Failures
from flowctl.core.letters import as_sent
from flowctl.core.messages import Progress, RejectedRecord
from flowctl.core.ranges.consumer import RangeConsumer
from flowctl.core.ranges.intake import RangeIntake
from flowctl.core.ranges.pieces import Pieces, RangeCut, cut_of, joined, measure, minus, within
from flowctl.core.records import Record
from flowctl.core.tuples import FlowTuple

# A range that would have to be cut by less than a fifth stays whole: the cut is not worth another
# range.
_FITS_SHARE = 0.8


class Settling:
    """Part of ``RangeCore``, not thread-safe."""

    def __init__(
        self, book: Book, intake: RangeIntake, failures: Failures, completion: Completion
    ) -> None:
        self._book = book
        self._intake = intake
        self._failures = failures
        self._completion = completion

    # -- a tuple gives something away ----------------------------------------------------

    def recut(self, flow_tuple: FlowTuple, cut: RangeCut) -> None:
        """Let ``flow_tuple`` hold ``cut`` from now on, wherever it is."""
        before = len(flow_tuple.cut.records)
        self._book.counters.records_pending_now += len(cut.records) - before
        holder = self._book.bolts.get(flow_tuple.held_by or "")
        if holder is not None and flow_tuple.tuple_id in holder.flight:
            assert isinstance(holder, RangeConsumer)
            holder.recut(flow_tuple, cut)
        else:
            flow_tuple.recut(cut)

    def part_with(self, flow_tuple: FlowTuple, part: RangeCut) -> FlowTuple:
        """Split ``part`` off ``flow_tuple`` for another bolt at once; return its tuple."""
        piece = self._new(flow_tuple, part)
        if not flow_tuple.cut.records:  # all of it: a search goes on there
            piece.begin_search(flow_tuple.end_search())
        now_s = flow_tuple.sent_at_s
        self._failures.retries.add(piece, not_before_s=now_s, now_s=now_s)
        return piece

    def keep_fitting(self, flow_tuple: FlowTuple, shares: Shares, now_s: float) -> None:
        """Let a slow bolt that was idle keep as much of another's range as it can do in time."""
        cut = cast("RangeCut", flow_tuple.cut)
        consumer = self._book.bolts[flow_tuple.held_by or ""]
        start, stop = cut.pieces[0]
        kept = shares.fitting(
            consumer, stop - start, self._book.counters.records_pending_now, now_s
        )
        is_cut = cut.is_splittable and flow_tuple.search is None
        is_cut = is_cut and self._book.has_other({consumer.bolt}, flow_tuple)
        if is_cut and kept < _FITS_SHARE * (stop - start):
            rest = self.part_with(flow_tuple, cut.between(start + kept, stop))
            rest.avoid(consumer.bolt)  # or it would get the rest too, bit by bit
            self._book.changed(consumer)

    def leave_batch(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """Keep from other bolts, for now, the batch that a silent bolt was working on; they get the
        rest of its range.

        A bolt that stopped for a second reports that batch when it goes on, and if another had got
        it meanwhile, it would be done twice: 1.1 % of all, with a stop every 10 s (a model).  The
        batch is sent again once the bolt has been silent for that long again.
        """
        book, cut = self._book, cast("RangeCut", flow_tuple.cut)
        number = flow_tuple.tuple_id
        holders = [book.bolts.get(bolt) for bolt in flow_tuple.avoided or ()]
        silent = [c for c in holders if c is not None and number in c.strays]
        if not silent or not cut.is_splittable or flow_tuple.search is not None:
            return
        service = max(silent, key=lambda c: c.strays[number]).service  # the last bolt that had it
        start, stop = cut.pieces[0]
        batch = int(service.mean_records)  # positions of one report, about a batch
        if not 0 < batch < stop - start:
            return
        piece = self._new(flow_tuple, cut.between(start, start + batch))
        # No bolt should have to wait for it at the end.
        left_s = self._intake.buffer.records * service.record_s / book.slots
        wait_s = min(book.settings.timeout.silence_s, left_s / 2)
        self._failures.retries.add(piece, not_before_s=now_s + wait_s, now_s=now_s)
        book.changed(book.bolts[flow_tuple.held_by or ""])  # it holds less, and may have room

    def put_back(self, flow_tuple: FlowTuple, part: RangeCut) -> None:
        """Put ``part`` of ``flow_tuple`` back to the backlog, as if no bolt had been given it."""
        cut = cast("RangeCut", flow_tuple.cut)
        self.recut(flow_tuple, cut.of(minus(cut.pieces, part.pieces)))
        self._intake.buffer.put_back(cut.partition, part.pieces)

    def take_apart(self, flow_tuple: FlowTuple, part: RangeCut) -> FlowTuple:
        """Split the failed ``part`` off ``flow_tuple``; return its tuple, which is not scheduled
        yet.

        A search for the record that fails goes on in it.
        """
        piece = self._new(flow_tuple, part)
        piece.begin_search(flow_tuple.end_search())
        piece.sent_with(flow_tuple)
        return piece

    def _new(self, whole: FlowTuple, part: RangeCut) -> FlowTuple:
        book = self._book
        cut = cast("RangeCut", whole.cut)
        self.recut(whole, cut.of(minus(cut.pieces, part.pieces)))
        piece = whole.piece(book.ids.next(), part)
        piece.take_blame(whole)
        book.pending[piece.tuple_id] = piece
        book.counters.pieces += 1
        book.counters.records_pending_now += len(part.records)
        return piece

    # -- something is done ---------------------------------------------------------------

    def records_share(self) -> float:
        """Return how many records a position stands for, as far as is known."""
        positions = self._intake.positions_done
        return self._book.counters.records_acked / positions if positions else 0.0

    def take_everywhere(self, partition: str, start: int, stop: int, now_s: float) -> Pieces:
        """Take the done ``[start, stop)`` out of all tuples and the backlog; return the pieces that
        were not done before.

        What waits for the dead letter stays there.
        """
        taken: Pieces = ()
        for flow_tuple in list(self._book.pending.values()):
            cut = cast("RangeCut", flow_tuple.cut)
            if cut.partition != partition or flow_tuple.is_given_up:
                continue
            pieces = within(cut.pieces, start, stop)
            if pieces:
                taken = joined(taken, pieces)
                self._take_from(flow_tuple, cut.of(minus(cut.pieces, pieces)), now_s)
        waiting = within(self._intake.buffer.of(partition), start, stop)
        if waiting:
            taken = joined(taken, waiting)
            self._intake.buffer.take_out(partition, waiting)
        return taken

    def _take_from(self, flow_tuple: FlowTuple, left: RangeCut, now_s: float) -> None:
        book = self._book
        holder = book.bolts.get(flow_tuple.held_by or "")
        is_held = holder is not None and flow_tuple.tuple_id in holder.flight
        if left.pieces:
            self.recut(flow_tuple, left)
        else:
            if not self._failures.retries.discard(flow_tuple):
                book.take_back(flow_tuple, now_s)
            self.recut(flow_tuple, left)
            self._completion.complete(flow_tuple, now_s)
        if holder is not None and is_held:
            book.changed(holder)

    def note_done(
        self, bolt: str, told: Progress, partition: str, done: Pieces, now_s: float
    ) -> None:
        """Mark ``done``, all or a part of what ``told`` reports on, as done; no tuple holds it any
        more.

        Rejected records wait for the dead letter, if there is one, as tuples of one record each.
        """
        counters, did = self._book.counters, told.did
        whole, new = told.done_through - told.start, measure(done)
        # If a part was done before, only the sum of its records is known.
        records = did.records if new == whole else round(did.records * new / whole)
        rejected = [one for one in did.rejected if within(done, one.position, one.position + 1)]
        counters.records_left_out += did.left_out
        if rejected:
            self._tell(bolt, told.tuple_id, partition, rejected, now_s)
            if self._failures.has_dead_letter:
                done = self._put_aside(partition, done, rejected, now_s)
                records -= min(records, len(rejected))
            else:
                for one in rejected:
                    self._intake.note_lost(_place_of(partition, one), is_kept=False)
        counters.records_acked += records
        self._intake.note_done(partition, done, records)

    def _put_aside(
        self, partition: str, done: Pieces, rejected: list[RejectedRecord], now_s: float
    ) -> Pieces:
        book = self._book
        for one in rejected:
            cut = _place_of(partition, one)
            cut.hold(Record(one.position, as_sent(one.value)))
            piece = FlowTuple(book.ids.next(), cut)
            book.pending[piece.tuple_id] = piece
            book.counters.pieces += 1
            book.counters.records_pending_now += 1
            self._failures.reject(piece, one.reason, now_s)
            done = minus(done, cut.pieces)
        return done

    def _tell(
        self,
        bolt: str,
        tuple_id: int,
        partition: str,
        rejected: list[RejectedRecord],
        now_s: float,
    ) -> None:
        self._book.counters.records_rejected += len(rejected)
        self._book.events.append(
            RecordsRejected(
                at_s=now_s,
                tuple_id=tuple_id,
                bolt=bolt,
                partition=partition,
                positions=tuple(one.position for one in rejected),
                reasons=tuple(one.reason for one in rejected),
            )
        )


def _place_of(partition: str, one: RejectedRecord) -> RangeCut:
    place = ((one.position, one.position + 1),)
    return cut_of(partition, place, "", is_splittable=False)
