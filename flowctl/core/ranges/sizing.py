"""How long a range is: seconds of work for the bolt that gets it, little while nothing is known."""

from __future__ import annotations

from flowctl.core.ranges.consumer import RangeConsumer

# Long enough that a range costs the driver and the source next to nothing (one message, one open),
# short enough that an unknown cost in it is seen soon: what was begun can be split, so nobody has
# to wait for its end (shared/ranges.md: 1 to 4 s make no difference to the makespan).
RANGE_S = 2.0
# A range is at least so long [s]: to open a file on a disk and to send a range takes some 2 ms.
LEAST_S = 0.02
# Where a call costs so much that a batch takes ten calls' time, a range holds such a batch.
_DEAR_CALLS = 10
# A range is at most so many times all that the bolt has done: a wrong guess from the first records
# must not cost a minute.
_GROWTH = 4
# Python's len() counts no further than 2**63, and keys of 64 bits may be further apart than that.
_MOST = 1 << 62


def positions_for(consumer: RangeConsumer, first: int, work_s: float = RANGE_S) -> int:
    """Return how many positions the next range for ``consumer`` should have at most.

    ``first``: how many where nothing is known; ``work_s``: how long it should take there, or longer
    where calls are dear.
    """
    work_s = max(work_s, _DEAR_CALLS * consumer.call_s)
    position_s = consumer.service.record_s
    known = max(first, consumer.positions_done)
    size = max(1, int(min(work_s / position_s, _GROWTH * known))) if position_s > 0 else first
    # Where there is nothing, as between the keys of a table, steps get longer until there is.
    return min(max(size, _GROWTH * consumer.empty_positions), _MOST)
