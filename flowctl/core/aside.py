"""Records that can't be sent to any bolt: they go to the dead letter and hold nothing up."""

from __future__ import annotations

from flowctl.core.book import Book
from flowctl.core.events import RecordsRejected
from flowctl.core.failures import Failures
from flowctl.core.intake import Intake
from flowctl.core.records import Record
from flowctl.core.tuples import FlowTuple


class Aside:
    """Part of ``SpoutCore``, not thread-safe."""

    def __init__(self, book: Book, intake: Intake, failures: Failures) -> None:
        self._book = book
        self._intake = intake
        self._failures = failures

    def take(self, partition: str, record: Record, reason: str, now_s: float) -> bool:
        """Number ``record`` in its place and reject it, as ``process`` could have.

        False: there is no room for it now.
        """
        book, buffer = self._book, self._intake.buffer
        before = buffer.records
        if not self._intake.offer(partition, [record], now_s, [0]):
            return False
        if buffer.records == before:
            return True  # an earlier run was done with it
        flow_tuple = FlowTuple(book.ids.next(), buffer.take_last())
        book.pending[flow_tuple.tuple_id] = flow_tuple
        book.counters.pieces += 1
        book.counters.records_pending_now += 1
        book.counters.records_rejected += 1
        book.events.append(
            RecordsRejected(
                at_s=now_s,
                tuple_id=flow_tuple.tuple_id,
                bolt="",
                partition=partition,
                positions=(record.position,),
                reasons=(reason,),
            )
        )
        self._failures.reject(flow_tuple, reason, now_s)
        return True
