"""What must hold for a ``SpoutCore`` between any two calls (after dask's ``validate_state``).

For tests of adapters and policies: call :func:`check` after every step; it raises
:class:`flowctl.errors.InternalError` naming what is broken.  O(everything the core holds).
"""

from __future__ import annotations

from itertools import pairwise

from flowctl.core.consumer import NOT_QUEUED, AdaptiveFlowConsumer
from flowctl.core.ledger import PartitionLedger
from flowctl.core.spout import SpoutCore
from flowctl.core.state import Liveness
from flowctl.core.tuple_core import KeepingCore
from flowctl.errors import InternalError


def check(core: SpoutCore) -> None:
    """Raise :class:`InternalError` if the core contradicts itself."""
    check_tuples(core)
    _require(core.counters.acks_late <= core.counters.tuples_acked, "more late acks than acks")
    _check_intake(core)


def check_tuples(core: KeepingCore) -> None:
    """Like :func:`check`, for tuples and bolts alone."""
    _check_places(core)
    _check_counters(core)
    for consumer in core.bolts.values():
        _check_consumer(core, consumer)
    _check_deadline(core)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise InternalError(problem, remedy="Please report it with the steps that led here.")


def _check_places(core: KeepingCore) -> None:
    """Check that every pending tuple is in exactly one place: with a bolt, waiting for a retry, or
    given up.
    """
    seen: dict[int, str] = {}
    for name, consumer in core.bolts.items():
        for tuple_id, flow_tuple in consumer.flight.items():
            _require(tuple_id not in seen, f"tuple {tuple_id} is waited for twice")
            _require(flow_tuple.held_by == name, f"tuple {tuple_id} is not held by {name}")
            seen[tuple_id] = name
    for flow_tuple in core.to_go_again:
        tuple_id = flow_tuple.tuple_id
        _require(tuple_id not in seen, f"tuple {tuple_id} is in flight and to be sent again")
        seen[tuple_id] = "retry"
    attempts_max = core.settings.retry.attempts_max
    for tuple_id, flow_tuple in core.book.pending.items():
        gave_up = flow_tuple.is_given_up
        _require(gave_up or flow_tuple.faults < attempts_max, f"tuple {tuple_id} had its chances")
        _require((tuple_id in seen) is not gave_up, f"tuple {tuple_id} is nowhere")
        is_told = core.gave_up is not None or core.has_dead_letter
        _require(not gave_up or is_told, f"tuple {tuple_id} vanished silently")
    _require(seen.keys() <= core.book.pending.keys(), "a tuple that is done is still waited for")


def _check_counters(core: KeepingCore) -> None:
    counters, pending = core.counters, core.book.pending.values()
    records = sum(len(flow_tuple.cut.records) for flow_tuple in pending)
    _require(counters.records_pending_now == records, "records_pending_now is off")
    _require(counters.max_in_flight_records >= records, "max_in_flight_records is off")
    _require(
        counters.tuples_acked
        + counters.records_rejected_kept
        + counters.tuples_dropped
        + counters.tuples_handed_over
        + counters.tuples_cut
        + len(pending)
        == core.book.ids.last,
        "a tuple is neither acked nor pending",
    )
    _require(
        counters.tuples_emitted
        == core.book.ids.last - counters.pieces + counters.tuples_moved + counters.tuples_hedged,
        "emitted is off",
    )


def _check_intake(core: SpoutCore) -> None:
    intake, settings = core.intake, core.settings.buffer
    buffer = intake.buffer
    runs = [(run, run.sizes[run.taken :]) for run in buffer.runs]
    _require(buffer.records == sum(len(sizes) for _, sizes in runs), "buffered records are off")
    _require(buffer.size_bytes == sum(sum(sizes) for _, sizes in runs), "buffered bytes are off")
    _require(buffer.records <= settings.records_max, "too many records are buffered")
    _require(
        buffer.size_bytes <= settings.bytes_max or buffer.records == 1,
        "too many bytes are buffered",
    )
    uncommitted = sum(ledger.uncommitted for ledger in intake.ledgers.values())
    _require(intake.uncommitted == uncommitted, "uncommitted is off")
    undone = sum(ledger.undone for ledger in intake.ledgers.values())
    _require(intake.undone == undone, "undone is off")
    for ledger in intake.ledgers.values():
        _check_ledger(ledger)


def _check_ledger(ledger: PartitionLedger) -> None:
    ranges = list(ledger.acked)
    _require(0 <= ledger.cumulative_seq <= ledger.next_seq, "the cumulative ack passed the reading")
    above = sum(stop - start for start, stop in ranges)
    open_records = ledger.next_seq - ledger.cumulative_seq - above
    _require(ledger.undone == open_records, "a ledger miscounts what is done above a hole")
    edges = [ledger.cumulative_seq, *(edge for pair in ranges for edge in pair)]
    _require(all(a < b for a, b in pairwise(edges)), "ranges overlap, touch or are empty")
    _require(edges[-1] <= ledger.next_seq, "something unread is acked")
    _require(ledger.first_at.keys() == {a for a, _ in ranges}, "a range lost its first position")
    _require(ledger.last_at.keys() == {b for _, b in ranges}, "a range lost its last position")


def _check_consumer(core: KeepingCore, consumer: AdaptiveFlowConsumer) -> None:
    name = consumer.bolt
    _require(1 <= consumer.window <= core.settings.window.max, f"{name}: window out of bounds")
    _require(consumer.liveness is not Liveness.GONE, f"{name} is gone and still listed")
    _require(
        not consumer.has_room or consumer.queued_s != NOT_QUEUED,
        f"{name} has room and is never asked",
    )
    had_room = consumer.has_room
    consumer.refresh()
    _require(had_room is consumer.has_room, f"{name}: a change was not taken into account")
    records = sum(len(flow_tuple.cut.records) for flow_tuple in consumer.flight.values())
    _require(consumer.records_held == records, f"{name}: records_held is off")
    size_bytes = sum(flow_tuple.cut.size_bytes for flow_tuple in consumer.flight.values())
    _require(consumer.bytes_held == size_bytes, f"{name}: bytes_held is off")
    _require((name in core.book.out) is consumer.is_out, f"{name}: out or not?")


def _check_deadline(core: KeepingCore) -> None:
    """Check that everything that waits for a time has an alarm: nothing waits without end."""
    deadline_s = core.next_deadline_s()
    for consumer in core.bolts.values():
        # A bolt that was suspect and spoke again is checked when it would have been down.
        spoke_s = consumer.heard_at_s + core.settings.timeout.suspect_s
        due_s = max(core.due_s(consumer.bolt), spoke_s)
        if consumer.watches_signs:
            # The patience with a bolt shrinks as other bolts show what a tuple takes.  No alarm is
            # set for that: the existing one rings when the newest tuple is overdue.
            due_s = max(due_s, consumer.armed_at_s + consumer.rtt.rto_s)
        _require(consumer.alarm_s <= due_s, f"{consumer.bolt}: nothing will check it in time")
        _require(
            not consumer.flight or (deadline_s is not None and deadline_s <= due_s),
            f"{consumer.bolt} holds tuples and there is no deadline",
        )
    retry_s = core.next_retry_s()
    _require(
        retry_s is None or (deadline_s is not None and deadline_s <= retry_s),
        "a tuple that backs off has no deadline",
    )
