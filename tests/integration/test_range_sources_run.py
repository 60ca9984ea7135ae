"""Whole runs over sources that the bolts read themselves."""

from __future__ import annotations

import bz2
import functools
import gzip
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from flowctl import FlowControlSpout, LocalBolts, Settings
from flowctl.bolts.batch import Batch
from flowctl.core.settings import RetrySettings
from flowctl.errors import ProcessError, SourceError
from flowctl.instrumentation.snapshot import Report
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import JsonLinesDeadLetter, ParquetRanges, TextRanges
from flowctl_sql import SqlRanges

LINES = 3_000


class Seen:
    """Keeps what bolts processed, by partition."""

    def __init__(self) -> None:
        self.values: list[tuple[str, Any]] = []
        self._lock = threading.Lock()

    def __call__(self, batch: Batch) -> None:
        values = [(batch.span.partition, record.value) for record in batch]
        with self._lock:
            self.values += values


def run(producer: Any, process: Callable[[Batch], Any], **parts: Any) -> Report:
    bolts = LocalBolts(process, count=parts.pop("count", 3))
    return FlowControlSpout(
        name=parts.pop("name", "ranges"), producer=producer, bolts=bolts, **parts
    ).run()


def lines(prefix: str, count: int = LINES) -> bytes:
    return "".join(f"{prefix} line {n} é\n" for n in range(count)).encode()


def test_lines_of_plain_and_compressed_files_are_processed_once_and_not_again(tmp_path: Path):
    (tmp_path / "a.log").write_bytes(lines("a"))
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(lines("b")))
    (tmp_path / "c.log.bz2").write_bytes(bz2.compress(lines("c", 10)))
    (tmp_path / "d.log").write_bytes(b"")
    store, seen = MemoryCheckpointStore(), Seen()
    source = functools.partial(TextRanges, f"{tmp_path}/*.log*")
    report = run(source(), seen, checkpoint=store)
    assert report.outcome == "finished"
    assert report.records_acked == 2 * LINES + 10
    expected = [
        (str(tmp_path / name), line)
        for name, text in (("a.log", lines("a")), ("b.log.gz", lines("b")))
        for line in text.decode().splitlines()
    ] + [(str(tmp_path / "c.log.bz2"), line) for line in lines("c", 10).decode().splitlines()]
    assert sorted(seen.values) == sorted(expected)
    saved = store.load("ranges").partitions
    assert saved[str(tmp_path / "a.log")].position == len(lines("a")) - 1
    again = run(source(), seen, checkpoint=store)
    assert (again.outcome, again.records_acked) == ("finished", 0)
    assert len(seen.values) == len(expected)


def test_a_run_that_failed_goes_on_where_it_was(tmp_path: Path):
    (tmp_path / "a.log").write_bytes(lines("a"))
    store, seen = MemoryCheckpointStore(), Seen()
    mended = False

    def process(batch: Batch) -> None:
        for record in batch:
            if record.value.startswith("a line 2000 ") and not mended:
                raise _Broken
        seen(batch)

    settings = Settings(retry=RetrySettings(attempts_max=1))
    with pytest.raises(ProcessError, match="_Broken"):
        run(TextRanges(tmp_path / "a.log"), process, checkpoint=store, settings=settings)
    done = store.load("ranges").records
    assert 0 < done < LINES
    assert len(seen.values) == len(set(seen.values)) >= done
    mended = True
    report = run(TextRanges(tmp_path / "a.log"), process, checkpoint=store, settings=settings)
    assert (report.outcome, report.resumed_records) == ("finished", done)
    assert {value for _, value in seen.values} == set(lines("a").decode().splitlines())
    assert store.load("ranges").records == LINES


class _Broken(RuntimeError):
    pass


def _write_lines(path: Path, word: str) -> None:
    path.write_bytes(lines(word))


def _write_rows(path: Path, word: str) -> None:
    rows = pyarrow.table({"word": [f"{word} line {n} é" for n in range(LINES)]})
    parquet.write_table(rows, path, compression="none", use_dictionary=False)


@pytest.mark.parametrize(
    ("source", "write"), [(TextRanges, _write_lines), (ParquetRanges, _write_rows)]
)
def test_a_file_that_was_done_in_part_and_is_another_now_is_refused(
    tmp_path: Path, source: Callable[[Path], Any], write: Callable[[Path, str], None]
):
    path, store, seen = tmp_path / "a", MemoryCheckpointStore(), Seen()
    write(path, "a")

    def process(batch: Batch) -> None:
        if any("a line 2000 " in str(record.value) for record in batch):
            raise _Broken
        seen(batch)

    job = functools.partial(
        run,
        process=process,
        checkpoint=store,
        settings=Settings(retry=RetrySettings(attempts_max=1)),
    )
    with pytest.raises(ProcessError, match="_Broken"):
        job(source(path))
    assert 0 < store.load("ranges").records < LINES
    before = path.stat()
    write(path, "b")  # as long, and not within the resolution of the clock
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert path.stat().st_size == before.st_size
    seen.values.clear()
    with pytest.raises(SourceError, match="a: a part of it was done by an earlier run"):
        job(source(path))
    assert not seen.values
    store.rewind("ranges", str(path), None)  # the remedy
    assert job(source(path)).outcome == "finished"
    assert len(seen.values) == len({str(value) for _, value in seen.values}) == LINES


def test_a_line_that_cannot_be_processed_is_kept_as_a_dead_letter(tmp_path: Path):
    (tmp_path / "a.log").write_bytes(lines("a", 300))
    seen = Seen()

    def process(batch: Batch) -> None:
        for record in batch:
            if " 77 " in record.value:
                raise ValueError("seventy-seven")
            if " 200 " in record.value:
                batch.reject(record, "two hundred")
        seen(batch)

    letters = tmp_path / "letters.jsonl"
    report = run(
        TextRanges(tmp_path / "a.log"),
        process,
        dead_letter=JsonLinesDeadLetter(letters),
        settings=Settings(retry=RetrySettings(attempts_max=2)),
    )
    assert report.outcome == "finished"
    kept = letters.read_text()
    assert "a line 77" in kept and "a line 200" in kept
    assert len(kept.splitlines()) == 2
    assert {value for _, value in seen.values} == {
        line for line in lines("a", 300).decode().splitlines() if " 77 " not in line
    }


def test_a_file_that_changes_during_the_run_ends_it_by_name(tmp_path: Path):
    path = tmp_path / "a.log"
    path.write_bytes(lines("a", 300_000))  # several ranges: what was read as a whole is done with

    def process(batch: Batch) -> None:
        os.utime(path, ns=(1, 1))

    with pytest.raises(SourceError, match=r"a\.log: it changed during the run"):
        run(TextRanges(path), process)


def test_columns_of_parquet_files_reach_process(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for year in (2025, 2026):
        (tmp_path / f"year={year}").mkdir()
        table = pyarrow.table({"n": range(1_000)})
        parquet.write_table(table, tmp_path / f"year={year}" / "a.parquet", row_group_size=100)
    sums: list[int] = []

    def process(batch: Batch) -> None:
        frame = batch.to_pandas()
        assert len(frame) == len(batch)
        sums.append(int((frame["n"] * (frame["year"] - 2024)).sum()))

    source = ParquetRanges(tmp_path, columns=["n", "year"], filter=[("n", "<", 500)])
    report = run(source, process)
    assert report.records_acked == 1_000
    assert sum(sums) == 3 * sum(range(500))


def test_messages_of_topics_are_read_by_the_bolts():
    pytest.importorskip("confluent_kafka")
    from flowctl_kafka import KafkaRanges
    from tests.kafka_parts import MockKafka

    kafka = MockKafka()
    values = kafka.fill("numbers", 2_000)
    seen = Seen()
    quick = {"fetch.wait.max.ms": 10}
    source = KafkaRanges("numbers", servers=kafka.servers, until_end=True, config=quick)
    report = run(source, seen)
    assert report.records_acked == 2_000
    assert sorted(value.decode() for _, value in seen.values) == sorted(values)


def test_rows_of_a_table_are_read_by_key(tmp_path: Path):
    connect = functools.partial(sqlite3.connect, tmp_path / "t.db")
    database = connect()
    database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, word TEXT)")
    rows = [(7 * n, f"w{n}") for n in range(2_000)]
    database.executemany("INSERT INTO items VALUES (?, ?)", rows)
    database.commit()
    database.close()
    seen = Seen()
    report = run(SqlRanges(connect, "items", "id", page_rows=100), seen)
    assert report.records_acked == 2_000
    assert sorted(value["id"] for _, value in seen.values) == [n for n, _ in rows]


def test_a_value_that_cannot_be_sent_is_kept_to_be_shown_not_to_be_processed_again(tmp_path: Path):
    pytest.importorskip("pandas")
    nanoseconds = pyarrow.array([1_700_000_000_123_456_789], pyarrow.timestamp("ns"))
    parquet.write_table(pyarrow.table({"at": nanoseconds}), tmp_path / "a.parquet")
    letters = JsonLinesDeadLetter(tmp_path / "dead.jsonl")
    FlowControlSpout(
        name="job",
        producer=ParquetRanges(tmp_path / "a.parquet"),
        bolts=LocalBolts(lambda batch: batch.reject(0, "no"), count=1),
        dead_letter=letters,
    ).run(view="off")
    file = letters.file_of("job")
    [letter] = file.read().of("job")
    assert letter.value == "{'at': Timestamp('2023-11-14 22:13:20.123456789')}"
    assert not letter.is_exact
    assert file.redrive("job")[0] == 0
