"""The checkpoint's server is absent, refuses, dies in mid-run, or holds nonsense."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fault_parts import Job, Valkey, count_rows, until

from flowctl.errors import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_INTERRUPTED,
    CheckpointUnavailableError,
)
from flowctl_redis import RedisCheckpointStore

KEY = "flowctl:{lines}"
SECRET = "s3kret-w0rd"


@pytest.fixture
def valkey(tmp_path: Path, free_port: int) -> Iterator[Valkey]:
    server = Valkey(tmp_path, free_port)
    server.start()
    yield server
    server.kill()


def saved_records(url: str) -> int:
    store = RedisCheckpointStore(url)
    try:
        return store.load("lines").records
    finally:
        store.close()


@pytest.mark.req("S44", "S117")
@pytest.mark.parametrize(
    "away_s",
    [4.0, pytest.param(20.0, marks=[pytest.mark.slow, pytest.mark.on_change("redis")])],
    ids=["some_seconds", "20_s"],
)
def test_killed_in_mid_run_and_back_later(tmp_path: Path, valkey: Valkey, away_s: float) -> None:
    job = Job(tmp_path, 6_000, TUPLE_S=0.2, FLOWCTL_REDIS_URL=valkey.url)
    driver = job.start("--plain", "--set", "tuple.records_max=10")
    job.until_rows(100, driver)
    valkey.kill()
    written = until(lambda: count(job))
    time.sleep(away_s)  # nothing to poll for: this is the fault's length
    assert count(job) > written, "work must go on"
    valkey.start()
    driver.until_said("checkpoint store back")
    (tmp_path / "hurry").touch()
    driver.wait()
    assert driver.code == EXIT_FINISHED, driver.said
    job.assert_exact()
    assert saved_records(valkey.url) == 6_000
    assert driver.said.count("checkpoint_store_away") == 1, driver.said
    assert driver.said.count("checkpoint_store_back") == 1, driver.said


def test_a_database_that_the_server_does_not_have_is_named(valkey: Valkey) -> None:
    with pytest.raises(CheckpointUnavailableError, match="no database of the number") as caught:
        saved_records(f"{valkey.url.removesuffix('/0')}/99")
    assert "smaller number" in caught.value.remedy


def count(job: Job) -> int:
    return count_rows(job.database)


def test_back_without_its_data_all_is_saved_again(tmp_path: Path, valkey: Valkey) -> None:
    job = Job(tmp_path, 3_000, TUPLE_S=0.1, FLOWCTL_REDIS_URL=valkey.url)
    driver = job.start("--set", "tuple.records_max=10")
    job.until_rows(200, driver)
    client = valkey.client()
    until(lambda: client.exists(KEY), "the first save")
    client.flushall()
    until(lambda: client.exists(KEY), "the next save")
    client.close()
    (tmp_path / "hurry").touch()
    driver.wait()
    assert driver.code == EXIT_FINISHED, driver.said
    job.assert_exact()
    assert saved_records(valkey.url) == 3_000
    again = job.finish()
    assert again.report["records_acked"] == 0


def test_absent_at_the_start(tmp_path: Path, free_port: int) -> None:
    job = Job(tmp_path, 100, FLOWCTL_REDIS_URL=f"redis://me:{SECRET}@127.0.0.1:{free_port}/0")
    driver = job.run()
    driver.assert_failed(EXIT_FAILED, "can't be reached", "Start it, or check the address")
    assert SECRET not in driver.said
    assert driver.report["outcome"] == "failed"
    assert "can't be reached" in driver.report["error"]
    assert not job.database.exists()


def test_a_wrong_password(tmp_path: Path, free_port: int) -> None:
    server = Valkey(tmp_path, free_port)
    server.start("--requirepass", "another")
    try:
        url = f"redis://:{SECRET}@127.0.0.1:{free_port}/0"
        driver = Job(tmp_path, 100).run("--redis", url)
    finally:
        server.kill()
    driver.assert_failed(EXIT_FAILED, "refuses", "Check the user and password in the Redis URL")
    assert SECRET not in driver.said
    assert SECRET not in (tmp_path / "report.json").read_text()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("schema", b"99", "schema version 99"),
        ("schema", b"ours?", "no schema version"),
        ("p:in.log", b"not a position", "p:in.log does not decode"),
        ("p:in.log", b"00|" + msgspec.msgpack.encode([7, 7, []]), "p:in.log does not decode"),
    ],
)
def test_a_checkpoint_of_another_version_or_corrupt(
    tmp_path: Path, valkey: Valkey, field: str, value: bytes, said: str
) -> None:
    job = Job(tmp_path, 100, FLOWCTL_REDIS_URL=valkey.url)
    client = valkey.client()
    client.hset(KEY, mapping={"schema": b"1", "epoch": b"3"})
    client.hset(KEY, field, value)
    before = client.hgetall(KEY)
    driver = job.run()
    driver.assert_failed(EXIT_FAILED, KEY, said, "flowctl checkpoint clear lines")
    after = client.hgetall(KEY)
    epochs = (b"epoch", b"epoch_copy")  # taken by the driver before it reads
    assert {k: v for k, v in after.items() if k not in epochs} == {
        k: v for k, v in before.items() if k not in epochs
    }, "what can't be read must not be touched"
    client.close()
    assert not job.database.exists()


def test_a_key_of_another_kind(tmp_path: Path, valkey: Valkey) -> None:
    client = valkey.client()
    client.set(KEY, "somebody else's")
    driver = Job(tmp_path, 100, FLOWCTL_REDIS_URL=valkey.url).run()
    driver.assert_failed(EXIT_FAILED, "is not a hash", "prefix")
    assert client.get(KEY) == b"somebody else's"
    client.close()


def test_ctrl_c_while_it_is_away_does_not_claim_a_save(tmp_path: Path, valkey: Valkey) -> None:
    job = Job(tmp_path, 6_000, TUPLE_S=0.1, FLOWCTL_REDIS_URL=valkey.url)
    driver = job.start("--set", "tuple.records_max=10")
    job.until_rows(100, driver)
    valkey.kill()
    driver.until_said("checkpoint_store_away")
    driver.press_ctrl_c()
    driver.until_said("waiting up to 60 s for the checkpoint store")
    driver.press_ctrl_c()  # no, not even that
    driver.wait()
    driver.assert_failed(
        EXIT_INTERRUPTED, "NOT all saved in Redis at ", "; resume with:", "can't be reached"
    )
    assert "interrupted and saved" not in driver.said
    assert "can't be reached" in driver.report["error"]
    valkey.start()
    job.finish(TUPLE_S=0)


def test_ctrl_c_while_it_is_away_waits_for_it(tmp_path: Path, valkey: Valkey) -> None:
    job = Job(tmp_path, 6_000, TUPLE_S=0.1, FLOWCTL_REDIS_URL=valkey.url)
    driver = job.start("--set", "tuple.records_max=10")
    job.until_rows(100, driver)
    valkey.kill()
    driver.until_said("checkpoint_store_away")
    driver.press_ctrl_c()
    driver.until_said("waiting up to 60 s for the checkpoint store")
    valkey.start()
    driver.wait()
    driver.assert_failed(EXIT_INTERRUPTED, "\nsaved in Redis at ", "; resume with:")
    assert "NOT all saved" not in driver.said
    assert saved_records(valkey.url) == count(job)
    job.finish(TUPLE_S=0)


def test_taken_away_for_good_intake_is_bounded(tmp_path: Path, valkey: Valkey) -> None:
    """Unsaved work stays within ``buffer.uncommitted_max``; it goes on when the server is back."""
    job = Job(tmp_path, 6_000, TUPLE_S=0.05, FLOWCTL_REDIS_URL=valkey.url)
    bound = ("--set", "buffer.uncommitted_max=1000", "--set", "lab.buffer.records_max=100")
    driver = job.start("--set", "tuple.records_max=10", *bound)
    job.until_rows(100, driver)
    valkey.kill()
    driver.until_said("checkpoint_store_away")
    (tmp_path / "hurry").touch()
    saved = 0

    def stands_still() -> bool:
        nonlocal saved
        before, saved = saved, count(job)
        time.sleep(0.5)
        return before == saved > 0

    until(stands_still, "the bound")
    assert saved < 6_000
    valkey.start()
    driver.wait()
    assert driver.code == EXIT_FINISHED, driver.said
    job.assert_exact()
