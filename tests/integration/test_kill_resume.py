"""The driver is killed or interrupted and started again: exact, and little runs twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_parts import Driver, Job, count_rows, until

from flowctl import CheckpointStore, FileCheckpointStore
from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED
from flowctl_lab.demo import journal
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import EmbeddedServer

LINES = 12_000


class Kept:
    """Where the checkpoint is: ``env`` tells the driver, ``records`` how many are saved there."""

    def __init__(self, make: Callable[[], CheckpointStore], **env: str) -> None:
        self._make = make
        self.env = env

    def records(self) -> int:
        store = self._make()
        try:
            return store.load("lines").records
        finally:
            store.close()


@pytest.fixture
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """In files, unless the test asks for Redis too."""
    if getattr(request, "param", "files") == "files":
        place = tmp_path / "checkpoints"
        yield Kept(lambda: FileCheckpointStore(place), FLOWCTL_CHECKPOINTS=str(place))
        return
    server = EmbeddedServer(tmp_path / "redis")
    url = server.start()
    yield Kept(lambda: RedisCheckpointStore(url), FLOWCTL_REDIS_URL=url)
    server.stop()


in_both = pytest.mark.parametrize("kept", ["files", "redis"], indirect=True)


@pytest.mark.req("S117")
@pytest.mark.parametrize("seed", [1, 2])
@in_both
def test_killed_at_a_random_moment_and_resumed(tmp_path: Path, kept: Kept, seed: int) -> None:
    job = Job(tmp_path, LINES, TUPLE_S=0.05, **kept.env)
    driver = job.start("--set", "tuple.records_max=50", "--set", "checkpoint.interval_s=0.1")
    kill_at = int(LINES * random.Random(seed).uniform(0.05, 0.7))
    until(lambda: kept.records() >= kill_at or driver.process.poll() is not None)
    driver.process.kill()
    driver.process.wait()
    assert driver.code == -signal.SIGKILL, driver.said
    saved = kept.records()

    job.finish(TUPLE_S=0)
    first, second = journal.epochs(tmp_path)
    before, after = journal.begun(tmp_path, first), journal.begun(tmp_path, second)
    assert len(before & after) <= len(before) - saved
    assert len(before | after) == LINES
    assert second > first


@pytest.mark.req("S117")
def test_killed_in_the_middle_of_async_calls_and_resumed(tmp_path: Path, kept: Kept) -> None:
    job = Job(tmp_path, LINES, BOLTS="async", COUNT=2, SLOTS=16, **kept.env)
    driver = job.start(
        "--set", "tuple.records_max=20", "--set", "checkpoint.interval_s=0.1", TUPLE_S=0.1
    )
    until(lambda: kept.records() >= LINES // 4 or driver.process.poll() is not None)
    driver.process.kill()
    driver.process.wait()
    assert driver.code == -signal.SIGKILL, driver.said
    saved, written = kept.records(), count_rows(job.database)
    assert saved < LINES and written < LINES

    again = job.finish(TUPLE_S=0)  # exact, or it fails
    assert again.report["resumed_records"] == saved
    first, second = journal.epochs(tmp_path)
    before, after = journal.begun(tmp_path, first), journal.begun(tmp_path, second)
    assert before & after, "nothing was under way at the kill: it showed nothing"
    assert len(before & after) <= len(before) - saved
    assert len(before | after) == LINES


def test_run_again_after_the_end_does_nothing_and_says_so(tmp_path: Path, kept: Kept) -> None:
    job = Job(tmp_path, 2_000, **kept.env)
    job.finish()
    again = job.finish()
    assert "nothing to do: all 2 000 records were done before" in again.said
    assert again.report["records_acked"] == 0
    assert again.report["tuples_emitted"] == 0
    assert len(journal.epochs(tmp_path)) == 1, "a bolt got something to do"


def test_lines_that_were_appended_since_are_all_that_runs(tmp_path: Path, kept: Kept) -> None:
    job = Job(tmp_path, 2_000, **kept.env)
    job.finish()
    with job.input.open("a") as file:
        file.write("one more\nand another\n")
    assert job.finish().report["records_acked"] == 2


@in_both
@pytest.mark.parametrize("interrupt", ["ctrl_c", "sigterm"])
def test_an_interruption_saves_says_how_to_resume_and_ends_exact(
    tmp_path: Path, kept: Kept, interrupt: str
) -> None:
    job = Job(tmp_path, LINES, TUPLE_S=0.05, **kept.env)
    driver = job.start()
    job.until_rows(500, driver)
    if interrupt == "ctrl_c":
        driver.press_ctrl_c()
    else:
        driver.process.terminate()
    driver.wait()
    driver.assert_failed(EXIT_INTERRUPTED, "; resume with: python -m flowctl run")
    written = count_rows(job.database)
    assert kept.records() == written < LINES, "something acked was not saved"
    assert driver.report["outcome"] == "interrupted"

    again = job.finish(TUPLE_S=0)
    assert again.report["resumed_records"] == written
    assert again.report["records_acked"] == LINES - written, "something ran twice"


def test_a_second_ctrl_c_ends_the_waiting_not_the_save(tmp_path: Path, kept: Kept) -> None:
    job = Job(tmp_path, 2_000, poison=1_000, FAULT="hang", TUPLE_S=0.01, **kept.env)
    # One hour between saves: what is saved below is what the end saved.
    driver = job.start("--set", "checkpoint.interval_s=3600")
    until((tmp_path / "hangs").exists, "the tuple that hangs")
    job.until_rows(1_500, driver)
    driver.press_ctrl_c()
    driver.until_said("interrupted: finishing")
    driver.press_ctrl_c()
    interrupted_at_s = time.monotonic()
    driver.wait()
    assert time.monotonic() - interrupted_at_s < 8, "the second Ctrl-C did not hurry it"
    driver.assert_failed(EXIT_INTERRUPTED, "interrupted", "saved in ", "; resume with: ")
    # What was in flight may have been written too: it is not waited for any more.
    assert 0 < kept.records() <= count_rows(job.database)
    assert driver.report["checkpoint_saves"] == 1
    job.finish(FAULT="")


@in_both
def test_of_two_drivers_with_one_name_the_older_stops(tmp_path: Path, kept: Kept) -> None:
    job = Job(tmp_path, LINES, TUPLE_S=0.05, **kept.env)
    # Tuples don't grow: else the older is done before the newer has begun.
    small = ("--set", "tuple.records_max=25")
    older = job.start("--report", str(tmp_path / "older.json"), *small)
    job.until_rows(500, older)
    newer = job.start(*small)
    older.wait()
    older.assert_failed(EXIT_FAILED)
    # Either the store or the sink is the first to refuse the older one.
    told = (
        "another driver has begun",
        "another driver has started",
        "A newer driver of this job is running",
    )
    assert any(words in older.said for words in told), older.said
    assert '"failed"' in (tmp_path / "older.json").read_text()
    (tmp_path / "hurry").touch()
    newer.wait()
    assert newer.code == EXIT_FINISHED, newer.said
    job.assert_exact()
    assert "fenced" not in newer.said


def test_drivers_of_two_names_do_not_mind_each_other(tmp_path: Path, kept: Kept) -> None:
    jobs = [place_of(tmp_path, name, kept) for name in ("one", "two")]
    drivers = [job.start() for job in jobs]
    for job, driver in zip(jobs, drivers, strict=True):
        driver.wait()
        assert driver.code == EXIT_FINISHED, driver.said
        job.assert_exact()


def place_of(tmp_path: Path, name: str, kept: Kept) -> Job:
    place = tmp_path / name
    place.mkdir()
    return Job(place, 2_000, JOB=name, **kept.env)


def test_an_interruption_before_any_bolt_is_there_loses_nothing(tmp_path: Path, kept: Kept) -> None:
    job = Job(tmp_path, 2_000, **kept.env, TUPLE_S=0.2)
    driver: Driver = job.start()
    driver.until_said("4 bolts")
    driver.press_ctrl_c()
    driver.wait()
    driver.assert_failed(EXIT_INTERRUPTED, "resume with: ")
    job.finish(TUPLE_S=0)
