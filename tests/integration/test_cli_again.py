"""Doing a job again: ``flowctl checkpoint clear|rewind --sink``, with SqlSink and its ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_parts import JOB_FILE, Job, Valkey, assert_exact, count_rows, rows, write_lines

from tests.cli_parts import flowctl_here

LINES = 2_000
SINK = f"{JOB_FILE}:sink"


@pytest.fixture
def job(tmp_path: Path, free_port: int) -> Iterator[Job]:
    server = Valkey(tmp_path, free_port)
    server.start()
    yield Job(tmp_path, LINES, FLOWCTL_REDIS_URL=server.url)
    server.kill()


def checkpoint(job: Job, *arguments: str, code: int = 0) -> str:
    done = flowctl_here(job.place, "checkpoint", *arguments, environment=job.environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def delete_rows(job: Job, condition: str = "1 = 1") -> None:
    with sqlite3.connect(job.database) as connection:
        connection.execute(f"DELETE FROM lines WHERE {condition}")
    connection.close()


def test_rows_deleted_and_the_job_cleared_with_its_sink_are_all_written_again(job: Job) -> None:
    job.finish()
    delete_rows(job)
    said = checkpoint(job, "clear", "lines", "--sink", SINK, "--yes")
    assert "lines is forgotten." in said and "has forgotten it too" in said
    job.finish()


def test_cleared_without_its_sink_it_says_that_rows_are_left_out_and_the_same_with_it_mends_it(
    job: Job,
) -> None:
    job.finish()
    delete_rows(job)
    said = checkpoint(job, "clear", "lines", "--yes")
    assert "already written" in said and "--sink FILE.py:SINK" in said
    job.run()
    assert count_rows(job.database) == 0  # as was said
    checkpoint(job, "clear", "lines", "--sink", SINK, "--yes")
    job.finish()


def test_rewound_with_its_sink_what_was_deleted_above_is_written_again(job: Job) -> None:
    job.finish()
    shown = checkpoint(job, "show", "lines")
    offset = len(b"".join(job.input.read_bytes().splitlines(keepends=True)[: LINES // 2 - 1]))
    assert f":{LINES}" in shown
    delete_rows(job, f"line > {LINES // 2}")
    where = ["--partition", str(job.input), "--to", f"{offset}:{LINES // 2}"]
    checkpoint(job, "rewind", "lines", *where, "--sink", SINK, "--yes")
    done = job.finish()
    assert done.report["records_acked"] == LINES // 2


def test_a_position_that_is_none_of_this_partition_is_refused_with_an_example(job: Job) -> None:
    job.finish()
    last = job.input.read_bytes().splitlines(keepends=True)[-1]
    example = f"{len(job.input.read_bytes()) - len(last)}:{LINES}"
    for to in ("7", "99999999:1", "a:b", "1:2:3"):  # a refusal changes nothing: one job serves all
        where = ["--partition", str(job.input), "--to", to]
        said = checkpoint(job, "rewind", "lines", *where, "--yes", code=2)
        assert example in said and "--to" in said, to


def test_the_remedy_that_is_printed_for_a_rotated_file_brings_all_of_its_lines(job: Job) -> None:
    job.finish()
    old = rows(job.database)
    write_lines(job.input, 500)
    job.input.write_text(job.input.read_text().replace("and some", "rotated: some"))
    failed = job.run()
    remedy = failed.said.split("flowctl checkpoint ")[1].split(" (without")[0]
    command = remedy.replace("JOB", "lines").replace("FILE.py:SINK", SINK).split()
    checkpoint(job, *command, "--yes")
    again = job.run()
    assert again.code == 0, again.said
    assert again.report["records_acked"] == 500
    found = rows(job.database)
    assert len(found) == len(old) + 500
    delete_rows(job, f"rowid <= {len(old)}")
    assert_exact(job.database, job.input)
