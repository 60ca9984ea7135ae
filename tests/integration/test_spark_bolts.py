"""SparkBolts on a session that the user made, with four slots."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fault_parts import QUICK_JVM
from pyspark import InheritableThread
from spark_bolts_peer import Peer

from flowctl import FlowControlSpout
from flowctl.bolts.batch import Batch
from flowctl.core.messages import Ack, Fail
from flowctl.errors import ConfigError
from flowctl_files import TextRanges
from pyspark_flowctl import apply
from pyspark_flowctl.bolts import SparkBolts
from pyspark_flowctl.jobs import ClassicJobs

pytestmark = pytest.mark.spark

SLOTS = 4


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    settings = {
        "spark.master": f"local[{SLOTS}]",  # as users have it: no failure is forgiven
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = SparkSession.builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def accept(batch: Batch) -> None:
    for record in batch:
        if record.value == "bad":
            raise ValueError("a bad record")


def assert_no_jobs(spark: Any) -> None:
    """Spark's tracker lags behind its jobs a little."""
    tracker = spark.sparkContext.statusTracker()
    deadline_s = time.monotonic() + 10
    while (left := list(tracker.getActiveJobsIds())) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert left == []


def bolt_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("flowctl-b")]


@pytest.mark.req("S118")
def test_bolts_join_work_and_leave_at_the_end(spark: Any) -> None:
    with Peer(SparkBolts(accept, count=3)) as peer:
        peer.until_there(3)
        assert sorted(peer.there) == ["b1", "b2", "b3"]
        assert len({joined.pid for joined in peer.joins}) == 3
        assert isinstance(peer.process("b2", 1, ["good", "fine"]), Ack)
        failed = peer.process("b3", 2, ["good", "bad"])
        assert isinstance(failed, Fail)
        assert failed.error == "ValueError: a bad record"
        assert failed.record_index == 1
        peer.end()
        peer.until_there(0)
    assert_no_jobs(spark)
    assert bolt_threads() == []
    assert spark.range(5).count() == 5, "the user's session must live on"
    assert peer.notices.get().kind == "starting"
    assert peer.notices.empty(), peer.notices.get()


async def call_slowly(batch: Batch) -> None:
    await asyncio.sleep(batch[0].value)
    if batch[0].value < 0.1:
        raise LookupError("the queue is full")


def is_full(error: BaseException) -> bool:
    return "full" in str(error)


def test_an_async_process_runs_in_a_loop_and_its_refusals_are_told(spark: Any) -> None:
    with Peer(SparkBolts(call_slowly, count=1, slots=3, refusal=is_full)) as peer:
        peer.until_there(1)
        peer.send("b1", 1, [0.8])
        peer.send("b1", 2, [0.4])
        peer.send("b1", 3, [0.01])
        peer.until(lambda: len(peer.acks) == 3)
        assert list(peer.acks) == [3, 2, 1], "they did not run at once"
        refused = peer.acks[3]
        assert isinstance(refused, Fail)
        assert refused.is_refused and not refused.is_fatal
        assert isinstance(peer.acks[1], Ack) and isinstance(peer.acks[2], Ack)
        peer.send("b1", 4, [3600.0])
        peer.end()  # cancels what runs
        peer.until_there(0)
    assert_no_jobs(spark)


def test_a_coroutine_that_is_handed_back_is_fatal_on_a_worker_too(spark: Any) -> None:
    with Peer(SparkBolts(lambda batch: call_slowly(batch) or None, count=1)) as peer:
        peer.until_there(1)
        failed = peer.process("b1", 1, [1.0])
        assert isinstance(failed, Fail) and failed.is_fatal
        assert "returned a coroutine (call_slowly)" in failed.error
        peer.end()
        peer.until_there(0)


def test_a_generator_is_refused_before_spark_is_started() -> None:
    def lazy(batch: Batch) -> Iterator[int]:
        yield len(batch)

    with pytest.raises(ConfigError, match="lazy is a generator function"):
        SparkBolts(lazy)


def test_a_killed_worker_comes_back_where_spark_forgives_no_failure(spark: Any) -> None:
    with Peer(SparkBolts(accept, count=2)) as peer:
        peer.until_there(2)
        for _ in range(4):
            peer.kill("b1")
        assert peer.there["b1"].epoch == 5
        assert peer.there["b2"].epoch == 1, "the other bolt must not be touched"
        assert isinstance(peer.process("b1", 1, ["good"]), Ack)
        assert peer.until_notice("restarting").bolt == "b1"
        peer.end()
        peer.until_there(0)
    assert_no_jobs(spark)


@pytest.mark.on_change("spark")
def test_more_bolts_than_slots_run_with_the_slots_there_are(spark: Any) -> None:
    with Peer(SparkBolts(accept, count=SLOTS + 2)) as peer:
        waiting = {peer.until_notice("waiting").bolt, peer.until_notice("waiting").bolt}
        assert len(waiting) == 2
        peer.until_there(SLOTS)
        assert not waiting & set(peer.there)
        peer.end()
        peer.until(lambda: len(peer.joins) == SLOTS + 2)  # they get the slots that came free
        peer.end()
        peer.until_there(0)
    assert_no_jobs(spark)


def test_auto_is_a_bolt_for_each_slot_and_leaves_none_behind(spark: Any) -> None:
    with Peer(SparkBolts(accept, count="auto")) as peer:
        peer.until_there(SLOTS)
        tracker = spark.sparkContext.statusTracker()
        peer.until(lambda: len(tracker.getActiveJobsIds()) == 2 * SLOTS)  # as many wait
        assert len(peer.there) == SLOTS
    assert_no_jobs(spark)


@pytest.mark.on_change("spark")
def test_stop_does_not_wait_for_bolts_that_have_no_slot(spark: Any, tmp_path: Path) -> None:
    context = spark.sparkContext
    flag = tmp_path / "busy"
    flag.touch()
    name = str(flag)

    def nap(_: int) -> None:
        import os
        import time

        while os.path.exists(name):
            time.sleep(0.05)

    naps = context.range(SLOTS, numSlices=SLOTS)
    busy = InheritableThread(target=lambda: naps.foreach(nap))
    busy.start()
    bolts = SparkBolts(accept, count=2)
    peer = Peer(bolts)
    try:
        peer.until(lambda: ClassicJobs(spark).busy_slots() == SLOTS)
        bolts.start(peer.server.endpoint, peer.notices.put)
        assert "no free Spark slot" in peer.until_notice("waiting").detail
        began_s = time.monotonic()
        bolts.stop(timeout_s=40.0)
        assert time.monotonic() - began_s < 30, "the stop waited for slots"
    finally:
        flag.unlink()
        bolts.stop(timeout_s=1.0)
        peer.server.close()
        busy.join()
    assert bolt_threads() == []
    assert_no_jobs(spark)


def test_a_frozen_bolt_cannot_hold_up_the_stop(spark: Any) -> None:
    bolts = SparkBolts(accept, count=2)
    peer = Peer(bolts)
    bolts.start(peer.server.endpoint, peer.notices.put)
    peer.until_there(2)
    frozen = peer.there["b1"].pid
    os.kill(frozen, signal.SIGSTOP)
    peer.end()
    bolts.stop(timeout_s=0.5)
    peer.server.close()
    assert_no_jobs(spark)
    assert bolt_threads() == []
    deadline_s = time.monotonic() + 30
    while _exists(frozen) and time.monotonic() < deadline_s:  # Spark kills it after some 4 s
        time.sleep(0.1)
    assert not _exists(frozen)


def test_a_module_that_workers_lack_is_fatal_and_named(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("only_in_the_driver")
    module.parse = type("parse", (), {"__module__": module.__name__, "__qualname__": "parse"})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    parse = module.parse

    with Peer(SparkBolts(lambda batch: parse(), count=2)) as peer:
        notice = peer.until_notice("fatal")
    assert "No module named 'only_in_the_driver'" in notice.detail
    assert "\n" not in notice.detail
    assert "'only_in_the_driver'" in notice.remedy
    assert peer.joins == []
    assert_no_jobs(spark)


def test_a_spout_that_is_not_ours_is_fatal(spark: Any) -> None:
    bolts = SparkBolts(accept, count=1)
    with Peer(bolts) as peer:
        peer.until_there(1)
        stranger = SparkBolts(accept, count=1)
        endpoint = type(peer.server.endpoint)(
            host="127.0.0.1", port=peer.server.endpoint.port, key=b"x" * 32, job="test"
        )
        stranger.start(endpoint, peer.notices.put)
        notice = peer.until_notice("fatal")
        stranger.stop(timeout_s=2.0)
        peer.end()
        peer.until_there(0)
    assert "Java" not in notice.detail
    assert "AuthenticationError" in notice.detail
    assert notice.remedy


def test_what_cannot_be_shipped_is_refused_before_anything_starts(spark: Any) -> None:
    lock = threading.Lock()

    def locked(batch: Batch) -> None:
        with lock:
            pass

    bolts = SparkBolts(locked, count=2)
    peer = Peer(bolts)
    with pytest.raises(ConfigError, match=r"variable 'lock' \(lock\)") as caught:
        bolts.start(peer.server.endpoint, peer.notices.put)
    assert caught.value.field == "process"
    bolts.stop(timeout_s=1.0)
    peer.server.close()
    assert peer.notices.empty(), peer.notices.get()
    assert_no_jobs(spark)


def test_a_master_that_contradicts_the_active_session_is_refused(spark: Any) -> None:
    with pytest.raises(ConfigError, match="local\\[9\\]") as caught:
        SparkBolts(accept, master="local[9]").listen_host()
    assert caught.value.field == "master"


def twice_or_not(batch: Batch) -> Iterator[tuple[int, str]]:
    for record in batch:
        for _ in range(record.value["id"] % 3):
            yield record.value["id"], record.value["text"]


def none_at_all(batch: Batch) -> None: ...


def test_a_dataframe_in_and_a_dataframe_out(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(300).selectExpr("id", "concat('#', id) AS text")
    how: dict[str, Any] = {
        "schema": "id long, label string",
        "name": "scores",
        "out": str(tmp_path / "a b"),
        "bolts": 2,
        "view": "off",
    }
    made = apply(rows, twice_or_not, **how, files=1)
    assert made.dtypes == [("id", "bigint"), ("label", "string")]
    found = [tuple(row) for row in made.collect()]
    assert sorted(found) == [(n, f"#{n}") for n in range(300) for _ in range(n % 3)]
    assert len(made.inputFiles()) == 1
    again = apply(rows, twice_or_not, **how)  # nothing is run: the same files
    assert again.inputFiles() == made.inputFiles()
    with pytest.raises(ConfigError, match=r"df: .*another DataFrame"):
        apply(rows.filter("id > 5"), twice_or_not, **how)
    with pytest.raises(ConfigError, match=r"schema: .*'id lang'"):
        apply(rows, twice_or_not, **{**how, "schema": "id lang"})
    # A plain read of Parquet files is not copied.
    empty = apply(made, none_at_all, **{**how, "name": "none", "columns": ["id"]})
    assert empty.collect() == []
    assert empty.columns == ["id", "label"]
    assert not list((tmp_path / "a b/_flowctl/none").rglob("*.parquet"))


@pytest.mark.on_change("spark")
def test_other_rows_of_local_data_are_another_data_frame(spark: Any, tmp_path: Path) -> None:
    """Its plan names only the columns: the results of other rows would have been returned."""
    rows = [(n, f"#{n}", {"k": n}) for n in range(20)]
    make = partial(spark.createDataFrame, schema="id long, text string, tags map<string,long>")
    run = partial(
        apply, fn=twice_or_not, schema="id long, label string", name="local", out=str(tmp_path),
        columns=["id", "text"], bolts=2, view="off",
    )  # fmt: skip
    assert run(make(rows)).count() == 19
    assert run(make(rows[::-1])).count() == 19
    for others in (rows[1:], [(n + 1, text, tags) for n, text, tags in rows]):
        with pytest.raises(ConfigError, match=r"df: .*another DataFrame"):
            run(make(others))


def as_it_is(batch: Batch) -> Iterator[dict[str, Any]]:
    for record in batch:
        assert record.value["at"].tzinfo is not None
        yield record.value


def test_values_of_all_kinds_come_out_as_they_went_in(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(200).selectExpr(
        "id",
        "date_add(date'2020-01-01', int(id)) AS day",
        "timestamp'2020-01-01 00:00:00.000001' + make_interval(id * 10) AS at",
        "cast(id / 7 AS decimal(12,3)) AS price",
        "if(id % 5 = 0, null, concat('t', id)) AS text",
        "struct(id AS a, array(struct(id AS b)) AS c) AS nested",
        "if(id % 11 = 0, null, array(id, null)) AS several",
    )
    how: dict[str, Any] = {"name": "all kinds/%41", "bolts": 2, "view": "off"}
    made = apply(rows, as_it_is, schema=rows.schema, out=str(tmp_path / "out"), **how)
    assert sorted(made.collect()) == sorted(rows.collect())


def test_workers_read_ranges_with_the_reader_of_the_driver(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"line {n}\n" for n in range(5_000)))
    source = TextRanges(tmp_path / "a.log")
    bolts = SparkBolts(accept, count=2, spark=spark)
    report = FlowControlSpout(name="by-reference", producer=source, bolts=bolts).run()
    assert (report.outcome, report.records_acked) == ("finished", 5_000)


def test_a_session_stopped_by_others_is_said_and_not_retried(spark: Any) -> None:
    """Kept last: it stops the module's session."""
    with Peer(SparkBolts(accept, count=2)) as peer:
        peer.until_there(2)
        spark.stop()
        notice = peer.until_notice("fatal")
        assert "session was stopped" in notice.detail
    assert bolt_threads() == []


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
