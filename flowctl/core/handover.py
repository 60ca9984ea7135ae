"""Partitions that are taken away and given while a run goes on (S99, S108, S113)."""

from __future__ import annotations

from flowctl.core.book import Book
from flowctl.core.events import PartitionGiven, PartitionTakenAway
from flowctl.core.failures import Failures
from flowctl.core.intake import Intake
from flowctl.core.records import PartitionCheckpoint
from flowctl.core.tuples import FlowTuple


class Handover:
    """Part of ``SpoutCore``, not thread-safe.

    The order that loses nothing: :meth:`hold_back`, wait a while for what is in flight, save,
    :meth:`take_away`; only then may another driver begin.
    """

    def __init__(self, book: Book, intake: Intake, failures: Failures) -> None:
        self._book = book
        self._intake = intake
        self._failures = failures

    def give(self, partition: str, state: PartitionCheckpoint, *, now_s: float) -> None:
        """``partition`` is read by this driver from now on, from just after ``state``."""
        self._intake.give(partition, state)
        self._book.events.append(
            PartitionGiven(at_s=now_s, partition=partition, position=state.position)
        )

    def hold_back(self, partition: str) -> int:
        """Send no more of ``partition``; return its tuples that are not done.  O(pending).

        What was committed before it was sent is nobody else's: it still goes out, and 0 is
        returned.
        """
        if not self._book.guarantee.commits_acked:
            return 0
        self._intake.buffer.drop(partition)
        for flow_tuple in self._failures.retries.take_partition(partition):
            self._book.counters.handed_over += 1
            self._book.let_go(flow_tuple)
        return len(self._of(partition))

    def take_away(self, partition: str, *, now_s: float) -> None:
        """``partition`` is read by another driver from now on.  O(pending).

        Acks that still come for it are counted as doubled and change nothing (S108).
        """
        handed_over = self.hold_back(partition)
        if handed_over:
            for flow_tuple in self._of(partition):
                self._hand_over(flow_tuple, now_s)
        state = self._intake.forget(partition)
        self._book.events.append(
            PartitionTakenAway(
                at_s=now_s,
                partition=partition,
                position=state.position if state is not None else None,
                handed_over=handed_over,
            )
        )

    def _of(self, partition: str) -> list[FlowTuple]:
        return [t for t in self._book.pending.values() if t.cut.partition == partition]

    def _hand_over(self, flow_tuple: FlowTuple, now_s: float) -> None:
        self._book.take_back(flow_tuple, now_s)
        self._book.counters.handed_over += 1
        self._book.let_go(flow_tuple)
