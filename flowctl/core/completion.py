"""Completion of tuples: done records leave the books, and rejected records go to the dead
letter.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.core.book import Book
from flowctl.core.buffer import Cut
from flowctl.core.events import RecordsRejected
from flowctl.core.failures import Failures
from flowctl.core.messages import DetailedAck, Rejected
from flowctl.core.tuples import FlowTuple


class Completion:
    """Settles tuples.  Part of ``TupleCore``, not thread-safe."""

    def __init__(self, book: Book, failures: Failures) -> None:
        self._book = book
        self._supply = book.supply
        self._pending = book.pending
        self._counters = book.counters
        self._failures = failures

    def settle(self, flow_tuple: FlowTuple, bolt: str, ack: DetailedAck, now_s: float) -> None:
        """Mark ``flow_tuple`` done, except for the records that ``process`` rejected.

        Those wait for the dead letter as separate tuples; without a dead letter they are counted,
        and done as well.
        """
        self._counters.records_left_out += ack.left_out
        if not ack.rejected:
            self.complete(flow_tuple, now_s)
            return
        self._tell(flow_tuple, bolt, ack, now_s)
        if self._failures.has_dead_letter:
            self._complete_parts(flow_tuple, self._without(flow_tuple, ack.rejected, now_s), now_s)
        else:
            for one in ack.rejected:
                cut = flow_tuple.cut.part(one.index, one.index + 1)
                self._supply.note_lost(cut, is_kept=False)
            self.complete(flow_tuple, now_s)

    def complete(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """Mark all of ``flow_tuple`` done."""
        # Called for each tuple: no loop, and no call that can be avoided.
        cut, counters = flow_tuple.cut, self._counters
        del self._pending[flow_tuple.tuple_id]
        counters.tuples_acked += 1
        self._supply.ack(cut)
        records = len(cut.records)
        counters.records_acked += records
        counters.records_pending_now -= records
        if flow_tuple.search is not None or flow_tuple.is_aside or flow_tuple.is_given_up:
            self._note_done(flow_tuple, now_s)

    def _complete_parts(self, flow_tuple: FlowTuple, done: Sequence[Cut], now_s: float) -> None:
        """Mark the parts ``done`` of ``flow_tuple`` done; the rest of it goes on as separate
        tuples.
        """
        counters = self._counters
        del self._pending[flow_tuple.tuple_id]
        counters.tuples_acked += 1
        for cut in done:
            self._supply.ack(cut)
            counters.records_acked += len(cut.records)
            counters.records_pending_now -= len(cut.records)
        self._note_done(flow_tuple, now_s)

    def _note_done(self, flow_tuple: FlowTuple, now_s: float) -> None:
        if flow_tuple.search is not None or flow_tuple.is_aside:
            self._failures.isolation.on_done(flow_tuple, now_s)
        if flow_tuple.is_given_up:
            self._failures.dying -= 1

    def _without(
        self, flow_tuple: FlowTuple, rejected: Sequence[Rejected], now_s: float
    ) -> list[Cut]:
        """Send the rejected records to the dead letter; return the parts between them."""
        book, cut = self._book, flow_tuple.cut
        between: list[Cut] = []
        start = 0
        for one in rejected:
            piece = FlowTuple(book.ids.next(), cut.part(one.index, one.index + 1))
            book.pending[piece.tuple_id] = piece
            book.counters.pieces += 1
            self._failures.reject(piece, one.reason, now_s)
            if one.index > start:
                between.append(cut.part(start, one.index))
            start = one.index + 1
        if start < len(cut.records):
            between.append(cut.part(start, len(cut.records)))
        return between

    def _tell(self, flow_tuple: FlowTuple, bolt: str, ack: DetailedAck, now_s: float) -> None:
        records = flow_tuple.cut.records
        self._book.counters.records_rejected += len(ack.rejected)
        self._book.events.append(
            RecordsRejected(
                at_s=now_s,
                tuple_id=flow_tuple.tuple_id,
                bolt=bolt,
                partition=flow_tuple.cut.partition,
                positions=tuple(records[one.index].position for one in ack.rejected),
                reasons=tuple(one.reason for one in ack.rejected),
            )
        )
