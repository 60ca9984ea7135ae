"""Twelve processes, one SQLite file, overlapping tuples, SIGKILL: exact at the end."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import time
import zlib
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl_sql import SqlSink

_FORK = multiprocessing.get_context("fork")
_RECORDS = 2000  # in each of two partitions
_PROCESSES = 12
_KILLS = 30


def _line(partition: str, number: int) -> str:
    return f"{partition} {number} " + "x" * 50


def _batch(partition: str, first: int, last: int, acked_through: int | None) -> Batch:
    records = [Record(number, _line(partition, number)) for number in range(first, last)]
    span = Span("job", partition, first, last - 1, 1, acked_through)
    return Batch(records, span, bolt="b", attempt=1)


def _write(sink: SqlSink, batch: Batch) -> None:
    sink.write([(batch.span.partition, r.position, r.value) for r in batch], batch=batch)


def _work(sink: SqlSink, seed: int) -> None:
    """Send tuples cut at random until killed."""
    rng = random.Random(seed)
    while True:
        first = rng.randrange(_RECORDS)
        last = min(first + rng.randrange(1, 60), _RECORDS)
        _write(sink, _batch(rng.choice("pq"), first, last, None))


def _finish(sink: SqlSink, which: int) -> None:
    """A twelfth of everything, cut regularly, each tuple also sent by a neighbour."""
    for tuple_number in range(_RECORDS // 20 + 1):
        if tuple_number % _PROCESSES in (which, (which + 1) % _PROCESSES):
            first = tuple_number * 20
            for partition in "pq":
                if first < _RECORDS:
                    _write(sink, _batch(partition, first, min(first + 20, _RECORDS), None))


def _start(target: object, *arguments: object) -> BaseProcess:
    process = _FORK.Process(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
    process.start()
    return process


@pytest.mark.req("S70")
def test_killed_writers_leave_each_record_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    sink = SqlSink(
        f"sqlite:///{path}",
        table="rows",
        schema="CREATE TABLE rows (part TEXT, number INTEGER, line TEXT)",
    )
    _write(sink, _batch("p", 0, 10, None))  # the children inherit an open connection
    rng = random.Random(7)
    processes = [_start(_work, sink, seed) for seed in range(_PROCESSES)]
    for kill in range(_KILLS):
        time.sleep(rng.uniform(0, 0.05))
        at = rng.randrange(_PROCESSES)
        os.kill(processes[at].pid or 0, signal.SIGKILL)
        processes[at].join()
        processes[at] = _start(_work, sink, 1000 + kill)
    for process in processes:
        process.kill()
        process.join()
    halfway = _count(path)
    assert halfway > 0
    finishers = [_start(_finish, sink, which) for which in range(_PROCESSES)]
    for process in finishers:
        process.join()
    assert [process.exitcode for process in finishers] == [0] * _PROCESSES
    _assert_exact(path)


def _count(path: Path) -> int:
    connection = sqlite3.connect(path)
    count = connection.execute("SELECT count(*) FROM rows").fetchone()[0]
    connection.close()
    return int(count)


def _assert_exact(path: Path) -> None:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT part, number, line FROM rows").fetchall()
    check = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    expected = [(part, n, _line(part, n)) for part in "pq" for n in range(_RECORDS)]
    assert check == "ok"
    assert len(rows) == len(expected)
    assert _checksum(rows) == _checksum(expected)


def _checksum(rows: list[tuple[str, int, str]]) -> int:
    return sum(zlib.crc32(repr(row).encode()) for row in rows)  # order plays no part
