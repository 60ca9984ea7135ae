"""Spark's workers and executors die, freeze or are too few: the job ends exact all the same."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault_parts import (
    OUR_DAEMON,
    QUICK_JVM,
    Driver,
    Job,
    assert_exact,
    count_rows,
    rows,
    until,
    write_lines,
)

from flowctl.bolts.batch import Batch
from flowctl.config import Settings
from flowctl.core.events import BoltRemoved, TupleExpired
from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_USAGE
from flowctl.instrumentation.snapshot import Report
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl_files import TextLines
from flowctl_sql import SqlSink
from tests.runtime_parts import FailingStore, Witness

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

BOLTS = 12
LINES = 30_000
TUPLE_S = 0.1  # what a tuple of 10 lines costs until the faults are over: 30 s for all bolts


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    settings = {
        "spark.master": f"local[{BOLTS + 1},8]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        **dict([OUR_DAEMON]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = SparkSession.builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class SparkRun:
    """A run on the module's session, in a thread, while the test does harm."""

    def __init__(self, spark: Any, place: Path) -> None:
        from pyspark_flowctl.bolts import SparkBolts

        self.input = write_lines(place / "in.log", LINES)
        self.database = place / "out.db"
        self.place = place
        self.witness = Witness()
        self.result: Report | BaseException | None = None
        self._spout = FlowControlSpout(
            name="lines",
            producer=TextLines(str(self.input)),
            bolts=SparkBolts(self._process(), count=BOLTS, spark=spark),
            checkpoint=FailingStore(),
            settings=Settings().with_overrides({"tuple.records_max": 10}),
        )
        self._thread = threading.Thread(target=self._run)

    def _process(self) -> Callable[[Batch], None]:
        place = self.place
        sink = SqlSink(
            f"sqlite:///{self.database}",
            table="lines",
            schema="CREATE TABLE lines (file TEXT, line INTEGER, text TEXT)",
        )

        def load(batch: Batch) -> None:
            (place / f"{batch.bolt}.new").write_text(str(os.getpid()))
            (place / f"{batch.bolt}.new").rename(place / f"{batch.bolt}.pid")
            if not (place / "hurry").exists():
                time.sleep(TUPLE_S)
            sink.write(
                [
                    {"file": batch.span.partition, "line": r.position[1], "text": r.value}
                    for r in batch
                ],
                batch=batch,
            )

        return load

    def _run(self) -> None:
        try:
            self.result = self._spout.run(view=self.witness)
        except BaseException as error:
            self.result = error

    def __enter__(self) -> SparkRun:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        (self.place / "hurry").touch()
        self._thread.join()

    def pid_of(self, bolt: str, *, other_than: set[int] = frozenset()) -> int:
        """The process in which ``bolt`` works now."""
        path = self.place / f"{bolt}.pid"

        def look() -> int:
            assert self._thread.is_alive(), self.result
            pid = int(path.read_text()) if path.exists() else 0
            return 0 if pid in other_than else pid

        return until(look, f"{bolt} at work")

    def finish(self) -> Report:
        (self.place / "hurry").touch()
        self._thread.join(300)
        assert isinstance(self.result, Report), self.result
        assert self.result.outcome == "finished"
        assert_exact(self.database, self.input)
        return self.result


@pytest.mark.on_change("spark")
def test_one_bolts_worker_killed_six_times_in_a_row(spark: Any, tmp_path: Path) -> None:
    with SparkRun(spark, tmp_path) as run:
        killed: set[int] = set()
        for _ in range(6):
            pid = run.pid_of("b3", other_than=killed)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        run.pid_of("b3", other_than=killed)
        assert count_rows(run.database) < LINES, "the job was over before the last kill"
        report = run.finish()
    assert len(killed) == 6
    assert report.bolts_lost == 6
    assert report.tuples_moved >= 6
    assert report.records_acked == LINES
    others = [bolt for bolt in report.bolts if bolt.name != "b3"]
    assert len(others) == BOLTS - 1


@pytest.mark.on_change("spark")
def test_a_frozen_workers_tuples_move_on(spark: Any, tmp_path: Path) -> None:
    with SparkRun(spark, tmp_path) as run:
        frozen = psutil.Process(run.pid_of("b5"))
        until(lambda: count_rows(run.database) > 500)
        frozen.suspend()
        report = run.finish()  # ends although the bolt is frozen still
    until(lambda: _is_gone(frozen), "the frozen worker's end")  # Spark kills it after some 4 s
    assert report.tuples_expired >= 1
    assert report.tuples_moved >= 1
    removed = [event for event in run.witness.events if isinstance(event, BoltRemoved)]
    # Ended, if the rest took longer than timeout.end_after_s, and nobody else.
    assert {event.bolt for event in removed} <= {"b5"}, removed
    assert report.tuples_failed == 0


def _is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.on_change("spark")
def test_a_worker_that_wakes_up_again_works_on(spark: Any, tmp_path: Path) -> None:
    with SparkRun(spark, tmp_path) as run:
        frozen = psutil.Process(run.pid_of("b5"))
        frozen.suspend()
        until(lambda: any(isinstance(e, TupleExpired) for e in list(run.witness.events)))
        frozen.resume()
        report = run.finish()
    assert report.tuples_expired >= 1
    assert report.bolts_lost == 0


def test_all_workers_killed_at_once(spark: Any, tmp_path: Path) -> None:
    with SparkRun(spark, tmp_path) as run:
        pids = {run.pid_of(f"b{n}") for n in range(1, BOLTS + 1)}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        report = run.finish()
    assert report.bolts_lost == BOLTS


# -- drivers of their own --------------------------------------------------------------------


def spark_job(place: Path, lines: int, **environment: object) -> Job:
    return Job(place, lines, BOLTS="spark", **environment)


def descendants(driver: Driver, word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(driver.process.pid).children(recursive=True):
        try:
            if word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.on_change("spark")
def test_an_executor_killed(tmp_path: Path) -> None:
    job = spark_job(tmp_path, 20_000, TUPLE_S=0.2, COUNT=BOLTS)
    driver = job.start(
        "--master", "local-cluster[3,4,1024]", "--plain", "--set", "tuple.records_max=10"
    )
    job.until_rows(1_000, driver)
    executors = descendants(driver, "CoarseGrainedExecutorBackend")
    assert len(executors) == 3, executors
    executors[0].kill()
    driver.until_said("lost:")
    written = count_rows(job.database)
    until(lambda: count_rows(job.database) > written + 1_000)
    (tmp_path / "hurry").touch()
    driver.wait()
    assert driver.code == EXIT_FINISHED, driver.said
    job.assert_exact()
    assert driver.report["bolts_lost"] >= 1
    assert "Traceback" not in driver.said


@pytest.mark.on_change("spark")
def test_more_bolts_than_slots(tmp_path: Path) -> None:
    job = spark_job(tmp_path, 10_000, TUPLE_S=0.2, COUNT=BOLTS)
    driver = job.start("--master", "local[4,8]", "--plain", "--set", "tuple.records_max=10")
    driver.until_said("no free Spark slot on local[4,8]: 4 of 12 bolts run")
    job.until_rows(100, driver)
    (tmp_path / "hurry").touch()
    driver.wait()
    assert driver.code == EXIT_FINISHED, driver.said
    job.assert_exact()
    assert len([bolt for bolt in driver.report["bolts"] if bolt["acked"]]) == 4
    assert driver.report["bolts_lost"] == 0


@pytest.mark.on_change("spark")
def test_a_record_that_kills_its_worker(tmp_path: Path) -> None:
    job = spark_job(tmp_path, 2_000, poison=1_234, FAULT="die", COUNT=4)
    driver = job.run("--set", "retry.attempts_max=3", "--set", "tuple.records_max=50")
    driver.assert_failed(EXIT_FAILED, "in.log", "failed 3 times", "died", "Fix process")
    first, last = job_span(driver.report["error"])
    assert first <= 1_234 <= last, "the tuple that is named does not hold the record"
    assert 1_234 not in {line for _, line, _ in rows(job.database)}
    assert driver.report["outcome"] == "failed"
    # As threads: the same checkpoint, the same sink, and a Spark start less.
    assert job.finish(FAULT="", BOLTS="threads").report["resumed"]


def job_span(error: str) -> tuple[int, int]:
    """The lines of "in.log, records 123:4 to 567:8: …"."""
    found = re.search(r"records? \d+:(\d+)(?: to \d+:(\d+))?: ", error)
    assert found is not None, error
    return int(found[1]), int(found[2] or found[1])


def test_a_process_that_can_not_be_shipped(tmp_path: Path) -> None:
    driver = spark_job(tmp_path, 100, FAULT="unshippable").run()
    driver.assert_failed(EXIT_USAGE, "process", "'lock'", "Create it inside the function")
    assert not (tmp_path / "out.db").exists()


@pytest.mark.on_change("spark")
def test_ctrl_c_at_the_terminal_reaches_spark_too_and_still_saves(tmp_path: Path) -> None:
    job = spark_job(tmp_path, 10_000, TUPLE_S=0.2, COUNT=4)
    driver = job.start("--set", "tuple.records_max=10")
    job.until_rows(500, driver)
    family = psutil.Process(driver.process.pid).children(recursive=True)
    driver.press_ctrl_c()
    driver.wait()
    driver.assert_failed(EXIT_INTERRUPTED, "saved in ", "; resume with: ")
    done = driver.report["records_acked"]
    assert 0 < done <= count_rows(job.database)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, f"left behind: {alive}"
    again = job.finish(TUPLE_S=0, BOLTS="threads")
    assert again.report["resumed_records"] == done


def test_nothing_to_do_does_not_start_spark(tmp_path: Path) -> None:
    job = spark_job(tmp_path, 100)
    job.finish(BOLTS="threads")
    driver = job.start()
    seen: list[psutil.Process] = []
    while driver.process.poll() is None:
        seen += descendants(driver, "java")
        time.sleep(0.02)
    assert driver.code == EXIT_FINISHED, driver.said
    assert "nothing to do" in driver.said
    assert seen == []
