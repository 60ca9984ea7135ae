"""Ranges of which all that is left fails, in ways nobody recognises: as by value, see
test_core_short_outage.py, though a range is counted in positions."""

from __future__ import annotations

from collections import deque

import pytest

from flowctl.core.messages import RangeEmission, Split, SplitAnswer
from tests.range_driver import Ranges

pytestmark = pytest.mark.on_change()

LINE = 100  # positions of a record
BATCH = 10 * LINE
BATCH_S = 0.01
BOLTS = ("a", "b")


class Bolt:
    """Works through its ranges, a batch at a time; what is not claimed is given back if asked."""

    def __init__(self, ranges: Ranges, bad_from: int) -> None:
        self._ranges = ranges
        self._bad_from = bad_from * LINE
        self.work: deque[list[int]] = deque()
        self._emissions: dict[int, RangeEmission] = {}

    def add(self, emission: RangeEmission) -> None:
        self._emissions[emission.tuple_id] = emission
        self.work.append([emission.tuple_id, emission.start, emission.stop])

    def give_back(self, order: Split) -> None:
        stop = 0
        for held in self.work:
            if held[0] == order.tuple_id:
                held[2] = stop = held[1]
        self.work = deque(held for held in self.work if held[1] < held[2])
        answer = SplitAnswer(order.tuple_id, order.request, stop)
        self._ranges.core.on_split(order.bolt, 1, answer, now_s=self._ranges.clock())

    def step(self) -> None:
        if not self.work:
            return
        held = self.work[0]
        tuple_id, start, stop = held[0], held[1], min(held[2], held[1] + BATCH)
        held[1] = stop
        if stop == held[2]:
            self.work.popleft()
        emission, records = self._emissions[tuple_id], max(1, (stop - start) // LINE)
        if stop <= self._bad_from:
            self._ranges.did(emission, start, stop, records=records, service_s=BATCH_S)
            return
        at = max(start, self._bad_from)
        self._ranges.failed(emission, start, stop, records=records, record_at=at)


def ends(bad: int, *, attempts: int, limit_s: float, records: int = 1_000) -> Ranges:
    """Run until something is given up, or for ``limit_s``; the last ``bad`` records fail."""
    settings = {"retry_attempts_max": attempts}
    ranges = Ranges(*BOLTS, stop=records * LINE, settings=settings)
    ranges.end()
    bolts = {name: Bolt(ranges, records - bad) for name in BOLTS}
    while ranges.clock() < limit_s and ranges.core.gave_up is None:
        for emission in ranges.emit():
            bolts[emission.bolt].add(emission)
        for order in ranges.questions():
            bolts[order.bolt].give_back(order)
        ranges.wait(BATCH_S, *BOLTS)
        for bolt in bolts.values():
            bolt.step()
    return ranges


@pytest.mark.req("S109")
@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("bad", [1, 20, 50, 80])
def test_a_bad_end_of_the_input_ends_the_run_soon(bad: int, attempts: int) -> None:
    """A hundred records at most, whatever positions they take: after ten seconds they are bad."""
    ranges = ends(bad, attempts=attempts, limit_s=15.0)
    assert ranges.core.gave_up is not None


def test_where_more_is_left_that_fails_the_target_counts_as_down() -> None:
    ranges = ends(500, attempts=3, limit_s=15.0)
    assert ranges.core.gave_up is None
    assert ranges.core.target_down is not None
