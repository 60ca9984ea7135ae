"""Input that can't be read or processed: a clear message, the right exit code, nothing lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_parts import Job, assert_exact, rows, write_lines

from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_USAGE
from flowctl_redis.embedded import EmbeddedServer

_NOBODY = 65534
_LONG_LINE_BYTES = 50_000_000


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedServer(tmp_path_factory.mktemp("redis"))
    yield server.start()
    server.stop()


@pytest.fixture
def job(tmp_path: Path, redis_url: str) -> Job:
    # Jobs of several tests share the server, so each has a name of its own.
    return Job(tmp_path, 2_000, FLOWCTL_REDIS_URL=redis_url, JOB=str(tmp_path))


def test_no_such_file(job: Job) -> None:
    driver = job.run(LOGS=job.place / "typo.log")
    driver.assert_failed(EXIT_FAILED, "no such file", "typo.log", "Check the path")
    assert driver.report["outcome"] == "failed"
    assert "typo.log" in driver.report["error"]
    assert rows(job.database) == []


def test_a_pattern_that_matches_nothing(job: Job) -> None:
    job.run(LOGS=job.place / "*.txt.gone").assert_failed(EXIT_FAILED, "no file matches", "*.txt")


def test_an_unreadable_file(job: Job) -> None:
    job.input.chmod(0)
    as_nobody = {} if os.geteuid() else {"READ_AS": _NOBODY}  # root may read everything
    job.run(**as_nobody).assert_failed(EXIT_FAILED, "in.log", "permission denied")
    job.input.chmod(0o600)
    job.finish()


def test_a_file_whose_disk_fails_in_mid_read(job: Job) -> None:
    """The kernel answers EIO for this file, for root too; the lines before it are processed."""
    (job.place / "z.log").symlink_to("/proc/self/mem")
    driver = job.run(LOGS=job.place / "*.log")
    driver.assert_failed(EXIT_FAILED, "z.log")
    (job.place / "z.log").unlink()
    job.finish(LOGS=job.place / "*.log")


def test_invalid_utf_8_after_good_lines(job: Job) -> None:
    good = job.input.read_bytes()
    job.input.write_bytes(good + b"caf\xe9\n" + b"more\n")
    driver = job.run()
    driver.assert_failed(
        EXIT_FAILED, "in.log, line 2001", f"byte {len(good) + 3}", "0xe9", "errors='replace'"
    )
    assert len(rows(job.database)) == 2_000, "the lines before the bad one are good"
    assert driver.report["records_acked"] == 2_000

    job.input.write_bytes(good + b"cafe\n" + b"more\n")
    assert job.finish().report["records_acked"] == 2


def test_an_empty_file(job: Job) -> None:
    job.input.write_bytes(b"")
    driver = job.finish()
    assert "0 records" in driver.said
    again = job.finish()
    assert again.report["records_acked"] == 0


def test_an_empty_file_among_others(job: Job) -> None:
    (job.place / "empty.log").touch()
    last = write_lines(job.place / "last.log", 10)
    assert job.run(LOGS=job.place / "*.log").code == EXIT_FINISHED
    assert_exact(job.database, job.input, last)


@pytest.mark.on_change("files")
def test_a_line_of_50_mb(job: Job) -> None:
    with job.input.open("ab") as file:
        file.write(b"x" * _LONG_LINE_BYTES + b"\nlast\n")
    driver = job.run()
    driver.assert_failed(
        EXIT_FAILED, "in.log, line 2001", "longer than 8388608 bytes", "Raise max_line_bytes"
    )
    assert len(rows(job.database)) == 2_000
    resumed = job.finish(MAX_LINE_BYTES=64 << 20)
    assert resumed.report["records_acked"] == 2


def test_a_file_that_became_shorter_since(job: Job) -> None:
    job.finish()
    job.input.write_bytes(job.input.read_bytes()[:1_000])
    driver = job.run()
    driver.assert_failed(EXIT_FAILED, "in.log")
    assert len(rows(job.database)) == 2_000


@pytest.mark.req("S109")
def test_process_raises_always(job: Job) -> None:
    write_lines(job.input, 2_000, poison=1_234)
    driver = job.run("--set", "retry.attempts_max=3", FAULT="raise")
    driver.assert_failed(
        EXIT_FAILED, "in.log", "failed 3 times", "can't take '1234", ":1234", "Fix process"
    )
    report = driver.report
    assert report["outcome"] == "failed"
    assert report["tuples_failed"] == 3
    done = {line for _, line, _ in rows(job.database)}
    assert 1_234 not in done
    assert len(done) == report["records_acked"], "what was acked is what is written"

    mended = job.finish(FAULT="")
    assert mended.report["records_acked"] == 2_000 - len(done), "something ran twice"


def test_process_raises_once_a_record(job: Job) -> None:
    text = "".join(f"{n} poison\n" if n % 100 == 0 else f"{n}\n" for n in range(1, 2_001))
    job.input.write_text(text)
    # A tuple may hold several, and each fails it once; a copy that fails counts for nothing.
    settings = ("--set", "tuple.records_max=50", "--set", "hedge.enabled=false")
    driver = job.finish(*settings, FAULT="once")
    assert driver.report["tuples_failed"] == 20


def test_a_name_that_is_no_setting(job: Job) -> None:
    driver = job.run("--set", "window.polcy=fixed")
    driver.assert_failed(EXIT_USAGE, "window.polcy", "no such setting", "lab.window.policy")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lab.window.initial=0", "lab.window.initial"),
        ("lab.window.initial=many", "lab.window.initial"),
        ("lab.window.policy=magic", "lab.window.policy"),
        ("checkpoint.interval_s=-1", "checkpoint.interval_s"),
        ("retry.attempts_max", "is not NAME=VALUE"),
        ("listen.host=no.such.host.invalid", "listen.host"),
    ],
)
def test_a_setting_that_can_not_be(job: Job, given: str, said: str) -> None:
    job.run("--set", given).assert_failed(EXIT_USAGE, said)
    assert rows(job.database) == []


def test_two_sources_with_one_name(job: Job) -> None:
    job.finish()
    other = write_lines(job.place / "other.log", 10)
    driver = job.run(LOGS=other)
    assert driver.code == EXIT_FINISHED, driver.said
    assert_exact(job.database, job.input, other)
