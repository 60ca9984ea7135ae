"""What must hold for a ``RangeCore`` between any two calls, beside what holds for any core."""

from __future__ import annotations

from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.pieces import Pieces, RangeCut, joined, measure
from flowctl.errors import InternalError
from flowctl.testing.invariants import check_tuples


def check_ranges(core: RangeCore) -> None:
    """Raise :class:`InternalError` if the core contradicts itself.

    Above all: every position of a partition is in exactly one place: waiting, in a tuple, or done.
    """
    check_tuples(core)
    buffer = core.intake.buffer
    waiting = 0
    for partition, ledger in core.intake.ledgers.items():
        extent = ledger.extent
        left = buffer.of(partition)
        waiting += measure(left)
        held = [
            _pieces(flow_tuple.cut)
            for flow_tuple in core.book.pending.values()
            if flow_tuple.cut.partition == partition
        ]
        everything: Pieces = ledger.missing(extent.start, extent.stop)
        claimed = sum(measure(pieces) for pieces in (left, *held))
        whole = joined((), left)  # merged, where they touch
        for pieces in held:
            whole = joined(whole, pieces)
        if whole != everything or claimed != measure(everything):
            raise InternalError(
                f"{partition!r}: waiting {left} and under way {held} are not what is not done,"
                f" {everything}.",
                remedy="Please report it with the steps that led here.",
            )
    if buffer.records != waiting:
        raise InternalError("the backlog's count of positions is off.")


def _pieces(cut: object) -> Pieces:
    assert isinstance(cut, RangeCut)
    return cut.pieces
