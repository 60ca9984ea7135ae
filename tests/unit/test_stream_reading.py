"""Batches of a stream: how many rows, from where to where, and the same again after a restart."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from flowctl.core.records import Checkpoint, Record
from flowctl.delivery import offset_reader
from flowctl.delivery.batch_rows import BatchRows
from flowctl.delivery.offset_reader import Offset, OffsetReader
from flowctl.errors import SourceError
from flowctl.ports import SourceChunk

EMPTY = Offset(0)


class Parts:
    """Partitions a … with records 1 … n, in polls of random sizes and in random turn."""

    def __init__(self, sizes: dict[str, int], chance: random.Random) -> None:
        self.sizes = sizes
        self.chance = chance
        self.at: dict[str, int] = {}
        self.opened = 0

    def partitions(self) -> Sequence[str]:
        return list(self.sizes)

    def open(self, checkpoint: Checkpoint) -> None:
        self.opened += 1
        known = checkpoint.partitions
        self.at = {
            name: known[name].position[0] if name in known and known[name].position else 0
            for name in self.sizes
        }

    def poll(self, max_records: int) -> SourceChunk | None:
        open_ = [name for name, size in self.sizes.items() if self.at[name] < size]
        if not open_:
            return None
        name = self.chance.choice(open_)
        first = self.at[name] + 1
        last = min(self.sizes[name], self.at[name] + self.chance.randint(1, max_records))
        self.at[name] = last
        records = [Record((number, 0), f"{name}{number}") for number in range(first, last + 1)]
        return SourceChunk(name, records, end=last if last == self.sizes[name] else None)

    def close(self) -> None:
        pass


def values(pieces: list) -> list[str]:
    return [record.value for piece in pieces for record in piece.records]


def through_json(offset: Offset) -> Offset:
    return Offset.unpacked(json.loads(json.dumps(offset.packed())))


def test_a_batch_of_large_records_ends_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_reader, "_BATCH_BYTES_MAX", 100)
    reading = OffsetReader(lambda: Parts({"a": 100_000}, random.Random(1)))
    start, read = EMPTY, 0
    for _ in range(3):
        pieces, ends = reading.take(start, 100_000)
        read += len(values(pieces))
        assert 0 < read == ends["a"].records < 100_000, "it ended with the poll that filled it"
        start = Offset(9, ends)


@pytest.mark.parametrize("seed", range(20))
def test_batches_cover_all_records_once_and_repeat_exactly(seed: int) -> None:
    chance = random.Random(seed)
    sizes = {"a": 40, "b": 7, "c": 23}
    reading = OffsetReader(lambda: Parts(sizes, chance))
    offsets, batches = [EMPTY], []
    while True:
        pieces, ends = reading.take(offsets[-1], chance.randint(1, 12))
        if not pieces:
            break
        batches.append(values(pieces))
        offsets.append(through_json(Offset(9, ends)))
    everything = sorted(f"{name}{number + 1}" for name in sizes for number in range(sizes[name]))
    assert sorted(value for batch in batches for value in batch) == everything
    # A new process repeats any of them, and goes on behind it.
    at = chance.randrange(len(batches))
    again = OffsetReader(lambda: Parts(sizes, random.Random(seed + 1)))
    assert values(again.replay(offsets[at], offsets[at + 1])) == batches[at], "in the same order"
    rest, _ = again.take(offsets[at + 1], 1_000)
    assert sorted(values(rest)) == sorted(v for batch in batches[at + 1 :] for v in batch)


def test_a_batch_has_no_more_rows_than_asked_for() -> None:
    reading = OffsetReader(lambda: Parts({"a": 100}, random.Random(1)))
    pieces, ends = reading.take(EMPTY, 30)
    assert len(values(pieces)) == 30
    assert (ends["a"].position, ends["a"].records) == ((30, 0), 30)


def test_the_end_of_a_partition_is_kept_with_its_last_record() -> None:
    reading = OffsetReader(lambda: Parts({"a": 5}, random.Random(1)))
    _, ends = reading.take(EMPTY, 100)
    assert ends["a"].end == 5


def test_one_producer_serves_batches_that_follow_each_other() -> None:
    made: list[Parts] = []

    def make() -> Parts:
        made.append(Parts({"a": 100}, random.Random(3)))
        return made[-1]

    reading = OffsetReader(make)
    _, ends = reading.take(EMPTY, 10)
    _, ends = reading.take(Offset(1, ends), 10)
    assert len(made) == 1
    reading.take(EMPTY, 10)
    assert len(made) == 2, "elsewhere: another producer"


def test_a_source_that_lost_records_is_told() -> None:
    end = Offset(1, OffsetReader(lambda: Parts({"a": 50}, random.Random(1))).take(EMPTY, 40)[1])
    with pytest.raises(SourceError, match="ends 10 records before"):
        OffsetReader(lambda: Parts({"a": 30}, random.Random(1))).replay(EMPTY, end)


@pytest.mark.parametrize("given", [{}, {"version": 2, "rows": 1, "partitions": {}}, {"n": 3}])
def test_another_sources_offset_is_refused(given: dict) -> None:
    with pytest.raises(SourceError, match="can't be read"):
        Offset.unpacked(given)


# -- rows per batch ------------------------------------------------------------------------------


def run(sizes: BatchRows, batches: int, row_s: float, fixed_s: float = 0.3) -> list[float]:
    times = []
    for _ in range(batches):
        rows = sizes.rows
        times.append(fixed_s + row_s * rows)
        sizes.took(rows, times[-1])
    return times


def test_batches_grow_to_the_time_wanted() -> None:
    times = run(BatchRows(target_s=2.0, rows=200, rows_max=10**6), 12, 0.0001)
    assert all(step <= 2.01 for step in times)
    assert times[-1] > 1.7


def test_a_target_that_becomes_slower_and_recovers_is_met_in_three_batches() -> None:
    sizes = BatchRows(target_s=2.0, rows=200, rows_max=10**6)
    run(sizes, 15, 0.0002)
    slower = run(sizes, 6, 0.001)
    assert slower[0] > 6, "the first comes before anything is known"
    assert all(1.4 <= step <= 2.6 for step in slower[3:]), slower
    faster = run(sizes, 6, 0.0002)
    assert all(1.4 <= step <= 2.6 for step in faster[3:]), faster


def test_a_batch_that_waited_for_its_tick_is_only_a_bound() -> None:
    sizes = BatchRows(target_s=10.0, rows=100, rows_max=10**6)
    for _ in range(6):
        sizes.took(sizes.rows, 10.0, is_bound=True)
    assert sizes.rows == 6_400, "doubled while it fits"
    sizes.took(sizes.rows, 20.0)
    assert sizes.rows == 3_117, "half a second is Spark's"
    sizes.took(sizes.rows, 10.0, is_bound=True)
    assert sizes.rows == 3_273, "near what was too much it goes slowly"


def test_where_a_batch_costs_more_than_its_rows_it_does_not_shrink_to_nothing() -> None:
    """Spark on a machine that is overloaded: no number of rows would meet the time wanted."""
    sizes = BatchRows(target_s=2.0, rows=200, rows_max=10**6)
    rows = []
    for _ in range(40):
        rows.append(sizes.rows)
        sizes.took(sizes.rows, 20.0 + 0.001 * sizes.rows)
    assert min(rows) >= 20
    assert min(rows[15:]) > 5_000, "the rows get half as much time as the batch itself"
    assert max(rows) < 40_000


def test_batches_that_shrink_step_by_step_for_nothing_are_tried_larger() -> None:
    """A batch costs a little more than the time wanted: each step is small, and wins nothing."""
    sizes = BatchRows(target_s=2.0, rows=200, rows_max=10**6)
    rows = []
    for _ in range(60):
        rows.append(sizes.rows)
        sizes.took(sizes.rows, 2.3 + 0.0001 * sizes.rows)
    assert min(rows) >= 90


def test_a_target_that_becomes_slower_and_slower_costs_one_long_batch_for_each_half() -> None:
    sizes = BatchRows(target_s=2.0, rows=2_000, rows_max=10**6)
    times = [run(sizes, 1, 0.001 * 1.03**step, fixed_s=0.1)[0] for step in range(80)]
    assert sum(step > 2.6 for step in times) <= 4, "it became 10 times slower"


def test_rows_have_bounds() -> None:
    sizes = BatchRows(target_s=2.0, rows=200, rows_max=500)
    run(sizes, 10, 1e-6)
    assert sizes.rows == 500
    run(sizes, 20, 60.0)
    assert sizes.rows == 1
