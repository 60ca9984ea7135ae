"""RangeConsumer: a bolt that works on ranges, each of which is acked part by part."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from flowctl.core.consumer import NEVER, AdaptiveFlowConsumer, NewBolt
from flowctl.core.cost import ServicePool
from flowctl.core.events import FlowEvent
from flowctl.core.messages import Progress
from flowctl.core.ranges.pieces import RangeCut
from flowctl.core.settings import CoreSettings
from flowctl.core.tuples import FlowTuple
from flowctl.core.window import AckSample


class PositionPace(NamedTuple):
    """How long a position takes [s], and how many positions a report covers; 0: unknown."""

    position_s: float
    positions: float


class RangeConsumer(AdaptiveFlowConsumer):
    """As :class:`AdaptiveFlowConsumer`; work is counted in positions.  Not thread-safe.

    Each report of progress is measured like the ack of a tuple: how long its positions took.  So
    the window is counted in the work of one report, and a bolt gets its next range shortly before
    it has finished its current one.  ``positions_done``: since it came; ``moved_at_s``: when it
    last reported progress; ``call_s``: as its last :class:`Progress` said.
    """

    __slots__ = ("call_s", "empty_positions", "moved_at_s", "positions_done")

    def __init__(
        self,
        new: NewBolt,
        settings: CoreSettings,
        events: deque[FlowEvent],
        *,
        pool: ServicePool | None = None,
        learned: float | None = None,
    ) -> None:
        super().__init__(new, settings, events, pool=pool, learned=learned)
        self.positions_done: int = 0
        self.empty_positions: int = 0  # recent positions without a record
        self.moved_at_s: float = -NEVER  # when it last reported progress
        self.call_s: float = 0.0

    def pace(self, others: PositionPace) -> PositionPace:
        """Return how fast it is; ``others`` if nothing is known of it."""
        service = self.service
        return PositionPace(service.record_s, service.mean_records) if service.samples else others

    def silent_s(self, flow_tuple: FlowTuple, now_s: float) -> float:
        """Return how long it has reported nothing, although it could have reported on
        ``flow_tuple`` [s].
        """
        since_s = max(self.moved_at_s, flow_tuple.sent_at_s)
        return max(0.0, now_s - since_s - self.service.path_s)

    def recut(self, flow_tuple: FlowTuple, cut: RangeCut) -> None:
        """Let a tuple in flight hold ``cut`` from now on; if that is empty, the tuple has left."""
        self.records_held += len(cut.records) - len(flow_tuple.cut.records)
        flow_tuple.recut(cut)
        if not cut.pieces:
            del self.flight[flow_tuple.tuple_id]
            self.acked += 1

    def on_progress(
        self, flow_tuple: FlowTuple, cut: RangeCut, told: Progress, now_s: float
    ) -> None:
        """Note that a part of a tuple in flight is done, and ``cut`` is left of it."""
        positions = len(flow_tuple.cut.records) - len(cut.records)
        since_s = max(self.armed_at_s, flow_tuple.sent_at_s)
        # If it had nothing else to do, the first report shows how long the path is.
        is_alone = self.armed_at_s <= flow_tuple.sent_at_s
        limited = flow_tuple.window_limited and self._full_at_s >= flow_tuple.sent_at_s
        self.recut(flow_tuple, cut)
        did = told.did
        self.records_acked += did.records
        self.positions_done += positions
        self.refused_in_a_row = 0
        self.armed_at_s = self.moved_at_s = now_s
        self._wait_on(flow_tuple, now_s)
        if not did.records or not positions:
            self.empty_positions += positions
            return  # nothing here shows how long a record takes
        self.empty_positions = 0
        self.call_s = did.call_s
        # Differences of sums of clocks may end up slightly below 0.
        wait_s = max(0.0, did.wait_s)
        work_s = max(0.0, did.service_s) + max(0.0, did.read_s)
        unqueued_s = now_s - since_s - wait_s if is_alone else work_s + self.service.path_s
        rtt_s = wait_s + max(work_s, unqueued_s)
        self._learn(now_s, rtt_s, wait_s, work_s, positions, sink_s=did.sink_s)
        self.policy.on_ack(
            AckSample(
                now_s, since_s, rtt_s, wait_s, work_s,
                positions, limited, self.service, told.idle_total_s, self.slots,
            )
        )  # fmt: skip

    def _wait_on(self, moved: FlowTuple, now_s: float) -> None:
        """Restart the timers: ``moved`` makes progress, so neither it nor what waits behind it is
        overdue.
        """
        timeout = self._settings.timeout
        is_behind = False
        for flow_tuple in self.flight.values():
            flow_tuple.wait_until(now_s + self.rtt.rto_s)
            is_behind = is_behind or flow_tuple is moved
            # Not at each report: whether windows were full was decided when the range was sent.
            if is_behind and now_s - flow_tuple.sent_at_s > timeout.rto_max_s / 2:
                flow_tuple.wait_anew(now_s)

    def on_part_failed(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """Note that a part of ``flow_tuple`` failed: the bolt continues behind it, so the wait
        restarts.
        """
        self.armed_at_s = self.moved_at_s = now_s
        self._wait_on(flow_tuple, now_s)

    def on_late_progress(self, told: Progress, now_s: float) -> None:
        """Note progress on a tuple that was not waited for any more."""
        self.refused_in_a_row = 0
        self.moved_at_s = now_s
        self.records_acked += told.did.records
        self.rtt.on_spurious(now_s)
