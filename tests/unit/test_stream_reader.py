"""``readStream.format("flowctl")`` without a session: what Spark asks for, and what it is told."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need Spark 4.2")

from pyspark.sql.streaming.datasource import ReadMaxRows
from structlog.testing import capture_logs

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.delivery.offset_reader import Offset
from flowctl.errors import (
    CheckpointUnavailableError,
    ConfigError,
    TooManyLostError,
    UnrunnableError,
)
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter
from pyspark_flowctl.stream_options import StreamOptions
from pyspark_flowctl.stream_reader import FlowctlStreamReader, StreamProgress, reader_of

LIMIT = ReadMaxRows(1_000_000)
TWO = json.dumps({
    "type": "struct",
    "fields": [
        {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("n", "twice")
    ],
})  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Query:
    """What Spark does with a reader, its checkpoint included; ``batch_s``: what a batch takes."""

    def __init__(self, batch_s: Any, offsets: list[Any] | None = None, **options: Any) -> None:
        self.clock = Clock()
        given = {
            "producer": "tests.stream_parts:Numbers",
            **{k: str(v) for k, v in options.items()},
        }
        given = {name.replace("__", "."): text for name, text in given.items()}
        self.reader = FlowctlStreamReader(
            StreamOptions.of(given), TWO, clock=self.clock, wall_clock=self.clock
        )
        self.batch_s = batch_s
        self.rows: list[list[int]] = []
        self.times: list[float] = []
        self.offsets = offsets or [_json(self.reader.initialOffset())]

    def batch(self) -> bool:
        """Run one; False: there is nothing new."""
        start = self.offsets[-1]
        end = _json(self.reader.latestOffset(start, LIMIT))
        if len(self.offsets) > 1:
            self.reader.commit(start)
        if end == start:
            return False
        self.run(start, end)
        self.offsets.append(end)
        return True

    def run(self, start: Any, end: Any) -> None:
        chunks = [pickle.loads(pickle.dumps(c)) for c in self.reader.partitions(start, end)]
        rows = [r.value for c in chunks for piece in c.records() for r in piece.records]
        self.rows.append(rows)
        self.times.append(self.batch_s(len(rows)))
        self.clock.now_s += self.times[-1]


def _json(offset: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(offset))
    return made


def test_batches_begin_small_and_find_the_time_wanted() -> None:
    query = Query(lambda rows: 0.3 + rows / 1_000, producer__count=60_000, target_batch_s=5)
    while query.batch():
        pass
    sizes = [len(rows) for rows in query.rows]
    assert [row for rows in query.rows for row in rows] == list(range(60_000))
    assert sizes[:2] == [200, 200], "the first pays for the start of workers: no sample"
    assert all(4 <= step <= 6 for step in query.times[8:-1])


class Sink:
    """Takes .4 ms a row, .3 s a batch, 10 % more or less; five times as long while ``is_slow``."""

    def __init__(self) -> None:
        self.is_slow = False
        self.chance = random.Random(7)

    def __call__(self, rows: int) -> float:
        row_s = 0.002 if self.is_slow else 0.0004
        return 0.3 + row_s * rows * self.chance.uniform(0.9, 1.1)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_sink_that_becomes_five_times_slower_and_recovers(is_fixed: bool) -> None:
    """Three batches after each change they take as long as wanted; with a fixed cap they don't."""
    sink = Sink()
    # The cap that fits the quick sink, and no time wanted that would lower it.
    fixed = {"start_rows": 4_200, "batch_rows_max": 4_200, "target_batch_s": 3_600}
    query = Query(sink, producer__count=300_000, **(fixed if is_fixed else {"target_batch_s": 2}))
    late = []
    for sink.is_slow in (False, True, False):
        begun = len(query.times)
        for _ in range(12):
            assert query.batch()
        late += query.times[begun + 3 if begun else 8 :]
    inside = [1.4 <= step <= 2.6 for step in late]
    assert all(inside) is not is_fixed, late


def test_a_large_backlog_begins_small_and_stays_near_the_time_wanted() -> None:
    sink = Sink()
    query = Query(sink, producer__count=400_000, target_batch_s=2)
    while query.batch():
        pass
    assert len(query.rows[0]) == 200, "as configured"
    times = sorted(query.times[5:])
    assert times[int(0.95 * len(times))] <= 1.5 * 2
    assert sum(map(len, query.rows)) == 400_000


def test_the_first_batch_is_no_sample() -> None:
    query = Query(lambda rows: 9.0 if len(query.rows) == 1 else 0.1, producer__count=2_000)
    query.batch()
    query.batch()
    query.batch()
    assert [len(rows) for rows in query.rows] == [200, 200, 800]


def test_a_restart_goes_on_with_the_size_and_repeats_the_batch_that_was_planned() -> None:
    query = Query(lambda rows: rows / 1_000, producer__count=50_000, target_batch_s=2)
    for _ in range(8):
        query.batch()
    start, end = query.offsets[-2:]
    again = Query(
        lambda rows: rows / 1_000, query.offsets, producer__count=50_000, target_batch_s=2
    )
    again.run(start, end)
    assert again.rows[0] == query.rows[-1]
    again.batch()
    assert len(again.rows[1]) == pytest.approx(2_000, rel=0.3), "not from the beginning"
    assert again.rows[1][0] == query.rows[-1][-1] + 1


def test_an_empty_source_leaves_the_offset_alone() -> None:
    query = Query(lambda rows: 1.0, producer__count=100, producer__follow="true")
    assert query.batch() and not query.batch() and not query.batch()
    query.reader.source().producer.count = 150  # type: ignore[union-attr]
    assert query.batch()
    assert query.rows == [list(range(100)), list(range(100, 150))]


def test_available_now_ends_when_nothing_is_there() -> None:
    query = Query(lambda rows: 1.0, producer__count=300, producer__follow="true")
    query.reader.prepareForTriggerAvailableNow()
    while query.batch():
        pass
    query.reader.source().producer.count = 400  # type: ignore[union-attr]
    assert not query.batch(), "what comes later is for the next query"


def test_a_tick_of_the_trigger_is_no_end_of_a_batch() -> None:
    """Batches of 1 s and ticks of 10 s: the sizes must grow although 10 s pass each time."""
    query = Query(lambda rows: 10.0, producer__count=9_000, target_batch_s=10, trigger_s=10)
    for _ in range(5):
        query.batch()
    assert [len(rows) for rows in query.rows] == [200, 200, 400, 800, 1_600]


def test_a_repeated_batch_has_the_same_chunks_though_tasks_changed() -> None:
    query = Query(lambda rows: 1.0, producer__count=1_000, tasks=3, start_rows=120)
    query.batch()
    start, end = query.offsets
    again = Query(lambda rows: 1.0, query.offsets, producer__count=1_000, tasks=7)
    pairs = zip(
        query.reader.partitions(start, end), again.reader.partitions(start, end), strict=True
    )
    assert all(one.pieces == other.pieces for one, other in pairs)  # type: ignore[attr-defined]


def test_chunks_are_shared_among_tasks_and_travel() -> None:
    for process, sizes in (("tests.stream_parts:double", [10] * 12), ("", [40] * 3)):
        how = {"process": process} if process else {}
        query = Query(lambda rows: 1.0, producer__count=1_000, tasks=3, start_rows=120, **how)
        query.batch()
        end = query.offsets[1]
        chunks = query.reader.partitions(query.offsets[0], end)
        assert [sum(len(p.records) for p in c.records()) for c in chunks] == sizes  # type: ignore


def read(process: str, **options: str) -> list[dict[str, Any]]:
    source: dict[str, Any] = {} if "producer" in options else {"producer.count": 200}
    query = Query(lambda rows: 1.0, process=f"tests.stream_parts:{process}", **source, **options)
    start = query.offsets[0]
    end = _json(query.reader.latestOffset(start, LIMIT))
    worker = pickle.loads(pickle.dumps(query.reader))
    chunks = query.reader.partitions(start, end)
    return [row for c in chunks for batch in worker.read(c) for row in batch.to_pylist()]


def test_rows_are_what_process_returns() -> None:
    assert read("double") == [{"n": n, "twice": 2 * n} for n in range(200)]
    assert read("nothing") == []


def test_rejected_records_are_kept_or_fail_the_task(tmp_path: Any) -> None:
    found = read("odd_only", dead_letter=str(tmp_path), name="odd")
    assert [row["n"] for row in found] == list(range(1, 200, 2))
    with pytest.raises(TooManyLostError):
        read("odd_only")


def test_what_is_no_rows_is_told() -> None:
    with pytest.raises(UnrunnableError, match="process: it returned int 7, not rows"):
        read("wrong")


def letters_of(name: str, place: Path) -> list[Any]:
    return list(FileDeadLetter(place).file_of(name).read().of(name))


def test_letters_that_are_marked_are_told_of_and_left_alone(tmp_path: Path) -> None:
    read("odd_only", dead_letter=str(tmp_path), name="odd")
    with capture_logs() as quiet:
        read("odd_only", dead_letter=str(tmp_path), name="odd")
    file = FileDeadLetter(tmp_path).file_of("odd")
    file.redrive("odd", {letter.id for letter in letters_of("odd", tmp_path)})
    with capture_logs() as told:
        found = read("odd_only", dead_letter=str(tmp_path), name="odd")
    assert len(found) == 100, "no more than the source has"
    assert not quiet and [(line["event"], line["letters"]) for line in told] == [
        ("letters_wait", 2)
    ]
    assert "MarkedLetters" in told[0]["remedy"]
    assert len(letters_of("odd", tmp_path)) == 2


def test_letters_are_the_source_of_a_query_of_their_own(tmp_path: Path) -> None:
    read("odd_only", dead_letter=str(tmp_path), name="odd")
    file = FileDeadLetter(tmp_path).file_of("odd")
    file.redrive("odd", {letter.id for letter in letters_of("odd", tmp_path)})
    again = {
        "producer": "flowctl_files:MarkedLetters",
        "producer.job": "odd",
        "producer.directory": str(tmp_path),
        "dead_letter": str(tmp_path),
        "name": "odd-letters",
    }
    assert read("double", **again) == [{"n": n, "twice": 2 * n} for n in (0, 100)]
    assert read("double", **again) == [{"n": n, "twice": 2 * n} for n in (0, 100)], "repeated"
    assert read("odd_only", **again) == []
    assert [one.value for one in letters_of("odd-letters", tmp_path)] == [0, 100], "failed again"
    assert file.drop("odd", lambda letter: letter.redrive is not None) == 2


# -- the two checkpoints -------------------------------------------------------------------------


def at(position: int) -> Offset:
    return Offset(1, {"n": PartitionCheckpoint(position=position, records=position + 1)})


def stored(store: MemoryCheckpointStore) -> Any:
    return store.load("s").partitions.get("n", PartitionCheckpoint()).position


def store_at(position: int) -> MemoryCheckpointStore:
    store = MemoryCheckpointStore()
    epoch = store.acquire("s")
    store.save("s", Checkpoint(at(position).partitions), epoch=epoch)
    return store


def test_without_a_checkpoint_of_sparks_redis_says_where_to_begin() -> None:
    assert StreamProgress("s", store_at(41)).start()["n"].position == 41


def test_an_empty_redis_is_filled_by_the_next_batch() -> None:
    store = MemoryCheckpointStore()
    StreamProgress("s", store).done(at(10))
    assert stored(store) == 10


def test_a_redis_that_is_behind_follows() -> None:
    store = store_at(5)
    StreamProgress("s", store).done(at(10))
    assert stored(store) == 10


def test_a_redis_that_is_ahead_stays_until_spark_passes_it() -> None:
    store = store_at(50)
    progress = StreamProgress("s", store)
    progress.done(at(10))
    assert stored(store) == 50
    progress.done(at(60))
    assert stored(store) == 60


def test_a_redis_that_is_away_holds_nothing_up() -> None:
    store = MemoryCheckpointStore()
    progress = StreamProgress("s", store)
    acquire = store.acquire

    def away(job: str) -> int:
        raise CheckpointUnavailableError("no connection")

    store.acquire = away  # type: ignore[method-assign]
    progress.done(at(10))
    store.acquire = acquire  # type: ignore[method-assign]
    progress.done(at(20))
    assert stored(store) == 20


def test_where_to_begin_can_not_be_guessed_while_redis_is_away() -> None:
    store = store_at(41)

    def away(job: str) -> Checkpoint:
        raise CheckpointUnavailableError("no connection")

    store.load = away  # type: ignore[method-assign]
    with pytest.raises(CheckpointUnavailableError):
        StreamProgress("s", store).start()


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "producer"),
        ({"producer": "numbers"}, "producer"),
        ({"producer": "no.such:thing"}, "producer"),
        ({"batch_rows_max": "0"}, "batch_rows_max"),
        ({"batch_rows_max": "many"}, "batch_rows_max"),
        ({"target_batch_s": "-1"}, "target_batch_s"),
        ({"redis": "redis://x"}, "name"),
        ({"targetbatch": "1"}, "targetbatch"),
        ({"process": "tests.stream_parts:no_such"}, "process"),
    ],
)
def test_what_can_not_work_is_refused_by_name(options: dict[str, str], field: str) -> None:
    given = {"producer": "tests.stream_parts:Numbers", **options} if options else {}
    if "producer" in options:
        given = options
    with pytest.raises(ConfigError) as caught:
        reader_of(given, TWO)
    assert caught.value.field == field and caught.value.remedy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"producer": "tests.stream_parts:no_producer"}, "which is not a producer"),
        ({"producer.cuont": "1"}, "can't be called with"),
    ],
)
def test_a_producer_that_can_not_be_made_is_told(options: dict[str, str], words: str) -> None:
    reader = reader_of({"producer": "tests.stream_parts:Numbers", **options}, TWO)
    with pytest.raises(ConfigError, match=words):
        reader.latestOffset(reader.initialOffset(), LIMIT)
