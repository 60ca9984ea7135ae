"""A range is read to where it ends by now, and no block further."""

from __future__ import annotations

import pytest

from flowctl.bolts.range_ahead import NOT_YET, OVER, ReadAhead, Sign
from flowctl.bolts.range_pace import BatchPace
from flowctl.core.messages import RangeEmission
from tests.range_parts import NumberBlock, NumberReader


@pytest.mark.parametrize(("end", "blocks"), [(20, 2), (21, 3), (19, 2), (30, 3)])
def test_reading_ends_with_the_block_that_reaches_the_end(end: int, blocks: int) -> None:
    """Another block would be read for nobody: the end of the range was given to another bolt."""
    reader = NumberReader(block=10)
    frame = RangeEmission(1, "b1", 1, "p", (), None, 0, None, 0, 100, "v1")
    ahead = ReadAhead(reader, frame, stop=lambda: end)
    ahead.start()
    taken = []
    while (found := _next(ahead)) is not OVER:
        assert isinstance(found, NumberBlock)
        taken.append(found.start)
    assert taken == reader.begun == [10 * n for n in range(blocks)]


def _next(ahead: ReadAhead) -> object:
    found: object = NOT_YET
    while found is NOT_YET:
        ahead.wait()
        found = ahead.take()
    assert found is OVER or not isinstance(found, Sign)
    return found


def test_a_call_costs_nothing_that_is_known_before_the_first() -> None:
    pace = BatchPace()
    assert (pace.call_s, pace.dear_s) == (0.0, 0.0)
