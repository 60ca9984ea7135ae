"""Partitions that are taken away and given while a run goes on (S99, S108, S113)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, PartitionGiven, PartitionTakenAway
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.intake import Intake
from flowctl.core.records import PartitionCheckpoint
from flowctl.core.recovery import Recovery
from flowctl.core.tuples import FlowTuple


class Handover:
    """Part of ``SpoutCore``, not thread-safe; ``pending`` and ``bolts`` are the core's own.

    The order that loses nothing: :meth:`hold_back`, wait a while for what is in flight, save,
    :meth:`take_away`; only then may another driver begin.
    """

    def __init__(
        self,
        intake: Intake,
        recovery: Recovery,
        *,
        pending: Mapping[int, FlowTuple],
        bolts: Mapping[str, AdaptiveFlowConsumer],
        counters: Counters,
        events: deque[FlowEvent],
        guarantee: ProcessingGuarantee,
        revoke: Callable[[AdaptiveFlowConsumer, list[int]], None],
        note_changed: Callable[[AdaptiveFlowConsumer], None],
        let_go: Callable[[FlowTuple], None],
    ) -> None:
        self._intake = intake
        self._recovery = recovery
        self._pending = pending
        self._bolts = bolts
        self._counters = counters
        self._events = events
        self._guarantee = guarantee
        self._revoke = revoke
        self._note_changed = note_changed
        self._let_go = let_go

    def give(self, partition: str, state: PartitionCheckpoint, *, now_s: float) -> None:
        """``partition`` is read by this driver from now on, from just after ``state``."""
        self._intake.give(partition, state)
        self._events.append(
            PartitionGiven(at_s=now_s, partition=partition, position=state.position)
        )

    def hold_back(self, partition: str) -> int:
        """Send no more of ``partition``; return its tuples that are not done.  O(pending).

        What was committed before it was sent is nobody else's: it still goes out, and 0 is
        returned.
        """
        if not self._guarantee.commits_acked:
            return 0
        self._intake.buffer.drop(partition)
        for flow_tuple in self._recovery.retries.take_partition(partition):
            self._counters.handed_over += 1
            self._let_go(flow_tuple)
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
        self._events.append(
            PartitionTakenAway(
                at_s=now_s,
                partition=partition,
                position=state.position if state is not None else None,
                handed_over=handed_over,
            )
        )

    def _of(self, partition: str) -> list[FlowTuple]:
        return [t for t in self._pending.values() if t.cut.partition == partition]

    def _hand_over(self, flow_tuple: FlowTuple, now_s: float) -> None:
        holder = self._bolts.get(flow_tuple.held_by or "")
        if holder is not None and holder.take_out(flow_tuple.tuple_id) is not None:
            holder.strays[flow_tuple.tuple_id] = now_s
            self._revoke(holder, [flow_tuple.tuple_id])
            self._recovery.watch(holder)
            self._note_changed(holder)
        self._counters.handed_over += 1
        self._let_go(flow_tuple)
