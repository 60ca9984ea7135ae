"""Partitions that are taken away and given while a run goes on (S99, S108, S113)."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from flowctl.core.book import Book
from flowctl.core.events import FlowEvent, PartitionGiven, PartitionTakenAway
from flowctl.core.failures import Failures
from flowctl.core.intake import Intake
from flowctl.core.records import PartitionCheckpoint
from flowctl.core.tuples import FlowTuple


class UnderWay(Protocol):
    """Tuples, or trees of a topology, that were sent and are not done.

    Where positions are committed before sending, no other driver gets those records: they still go
    out, and both calls return 0.
    """

    def hold_back(self, partition: str) -> int:
        """Send nothing more of ``partition``; return how many of its tuples or trees are not
        done.
        """

    def forget(self, partition: str, now_s: float) -> int:
        """Leave what is in flight of ``partition`` to another driver; return how much that was."""


class Handover:
    """Part of a core, not thread-safe.

    The order that loses nothing: :meth:`hold_back`, wait a while for what is in flight, save,
    :meth:`take_away`; only then may another driver begin.
    """

    def __init__(self, intake: Intake, under_way: UnderWay, events: deque[FlowEvent]) -> None:
        self._intake = intake
        self._under_way = under_way
        self._events = events

    def give(self, partition: str, state: PartitionCheckpoint, *, now_s: float) -> None:
        """Read ``partition`` from now on, from just after ``state``."""
        self._under_way.forget(partition, now_s)
        self._intake.give(partition, state)
        self._events.append(
            PartitionGiven(at_s=now_s, partition=partition, position=state.position)
        )

    def hold_back(self, partition: str) -> int:
        """Send no more of ``partition``; return its tuples, or trees, that are not done."""
        return self._under_way.hold_back(partition)

    def take_away(self, partition: str, *, now_s: float) -> None:
        """Leave ``partition`` to another driver from now on.

        Acks that still come for it change nothing (S108).
        """
        handed_over = self._under_way.forget(partition, now_s)
        state = self._intake.forget(partition)
        self._events.append(
            PartitionTakenAway(
                at_s=now_s,
                partition=partition,
                position=state.position if state is not None else None,
                handed_over=handed_over,
            )
        )


class TuplesUnderWay:
    """The tuples of a ``SpoutCore`` that are not done.  O(pending) each."""

    def __init__(self, book: Book, failures: Failures) -> None:
        self._book = book
        self._failures = failures

    def hold_back(self, partition: str) -> int:
        """See :class:`UnderWay`."""
        if not self._book.guarantee.commits_acked:
            return 0
        self._book.supply.buffer.drop(partition)
        retries = self._failures.retries
        for flow_tuple in retries.discard_where(lambda t: t.cut.partition == partition):
            self._hand_over(flow_tuple)
        return len(self._of(partition))

    def forget(self, partition: str, now_s: float) -> int:
        """See :class:`UnderWay`; bolts are asked to give back what they have not begun."""
        handed_over = self.hold_back(partition)
        if handed_over:
            for flow_tuple in self._of(partition):
                self._book.take_back(flow_tuple, now_s)
                self._hand_over(flow_tuple)
        return handed_over

    def _of(self, partition: str) -> list[FlowTuple]:
        return [t for t in self._book.pending.values() if t.cut.partition == partition]

    def _hand_over(self, flow_tuple: FlowTuple) -> None:
        self._book.counters.tuples_handed_over += 1
        self._book.let_go(flow_tuple)
