"""Jobs whose bolts reach Redis but not the driver: `listen.via=redis`."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet
import pytest
import redis
from fault_parts import Valkey, until
from s3_parts import Journal
from sink_parts import ProcessBolts
from test_range_runs import write_lines

from flowctl import (
    BoltNotice,
    ConfigError,
    FlowControlSpout,
    LocalBolts,
    Settings,
)
from flowctl.bolts import worker
from flowctl.errors import InfrastructureError
from flowctl.ports import Endpoint
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl_apply import apply_parquet
from flowctl_files import TextLines, TextRanges
from flowctl_redis import RedisCheckpointStore, relay
from flowctl_redis.relay import Keys, RedisDoor
from pyspark_flowctl.probe import ProbeTask, relayed_greeter, run_probe

pytestmark = pytest.mark.timeout(150)
VIA_REDIS = Settings().with_overrides({"listen.via": "redis"})
FILES, LINES = 4, 4_000
OUTAGE_S = 1.5


@pytest.fixture
def valkey(tmp_path: Path, free_port: int) -> Iterator[Valkey]:
    server = Valkey(tmp_path, free_port)
    server.start()
    yield server
    for pump in list(relay.PUMPS):  # bolts in this process: they would wait a minute for Redis
        pump.close()
    server.kill()


class FarBolts(ProcessBolts):
    """Bolts that have no way to the driver but the relay: its address leads nowhere."""

    endpoint: Endpoint

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        self.endpoint = endpoint
        super().start(msgspec.structs.replace(endpoint, host="192.0.2.1", port=1), notify)


def job(place: Path, valkey: Valkey, journal: Any, **parts: Any) -> FlowControlSpout:
    return FlowControlSpout(
        name="far",
        producer=TextRanges(f"{place}/*.log"),
        bolts=FarBolts(journal, count=2),
        checkpoint=RedisCheckpointStore(valkey.url),
        settings=VIA_REDIS,
        **parts,
    )


def pids(place: Path, bolt: str) -> set[int]:
    """Of the processes that have noted something as ``bolt``."""
    return {int(path.name.split("-")[1]) for path in place.glob(f"{bolt}-*.seen")}


@pytest.mark.req("S20")
def test_a_worker_dies_and_every_line_is_done(tmp_path: Path, valkey: Valkey) -> None:
    """The one that comes back is a new connection."""
    wanted = write_lines(tmp_path, FILES, LINES)
    journal = Journal(tmp_path, hold="go")

    def fail() -> None:
        first = until(lambda: pids(tmp_path, "b1"))
        os.kill(first.pop(), signal.SIGKILL)
        until(lambda: len(pids(tmp_path, "b1")) == 2, "b1 to work again")
        (tmp_path / "go").touch()

    failing = threading.Thread(target=fail)
    failing.start()
    report = job(tmp_path, valkey, journal).run(view="off")
    failing.join()
    assert set(journal.lines()) == set(wanted)
    assert report.records_acked == report.records_saved == len(wanted)
    with valkey.client() as client:
        left = client.keys("flowctl:relay:*")
        assert all(client.ttl(key) > 0 for key in left), "the rest expires"


@pytest.mark.req("S20")
def test_redis_dies_and_comes_back_and_every_line_is_done(tmp_path: Path, valkey: Valkey) -> None:
    wanted = write_lines(tmp_path, FILES, LINES)
    journal = Journal(tmp_path, hold="go")
    spout = job(tmp_path, valkey, journal)

    def fail() -> None:
        until(lambda: pids(tmp_path, "b1") and pids(tmp_path, "b2"))
        valkey.kill()
        (tmp_path / "go").touch()
        threading.Event().wait(OUTAGE_S)
        valkey.start()

    failing = threading.Thread(target=fail)
    failing.start()
    report = spout.run(view="off")
    failing.join()
    assert set(journal.lines()) == set(wanted)
    assert report.records_acked == report.records_saved
    # The records of a report that was under way may be counted twice, or not: docs/guarantees.md.
    assert abs(report.records_saved - len(wanted)) <= len(wanted) // 100
    assert len(pids(tmp_path, "b1")) == len(pids(tmp_path, "b2")) == 1, "they went on"


@pytest.mark.req("S20")
def test_redis_stands_still_and_no_bolt_is_taken_for_silent(tmp_path: Path, valkey: Valkey) -> None:
    """As a disk that takes long to sync does it: twice as long as a bolt may be silent."""
    wanted = write_lines(tmp_path, FILES, LINES)
    journal = Journal(tmp_path, hold="go")

    def freeze() -> None:
        until(lambda: pids(tmp_path, "b1") and pids(tmp_path, "b2"))
        (tmp_path / "go").touch()  # they have work, and what they say does not arrive
        with valkey.frozen():
            threading.Event().wait(OUTAGE_S)

    freezing = threading.Thread(target=freeze)
    freezing.start()
    report = job(tmp_path, valkey, journal).run(view="off")
    freezing.join()
    assert journal.lines() == sorted(wanted), "no line is done twice"
    # Not tuples_moved: the rest of a range may go to a bolt that has nothing left.
    assert report.tuples_expired == 0


def test_redis_sees_neither_names_of_files_nor_the_key(tmp_path: Path, valkey: Valkey) -> None:
    write_lines(tmp_path, 1, 100)
    journal, seen = Journal(tmp_path, hold="go"), []
    spout = job(tmp_path, valkey, journal)

    def listen() -> None:
        with valkey.client() as client, client.monitor() as monitor:
            (tmp_path / "go").touch()
            for command in monitor.listen():
                seen.append(command["command"])

    watcher = threading.Thread(target=_until_cut, args=(listen,), daemon=True)
    watcher.start()
    until((tmp_path / "go").exists, "the monitor")
    spout.run(view="off")
    carried = [text for text in seen if "XADD" in text and ":door" not in text]
    assert len(carried) > 10
    assert not [text for text in carried if "0.log" in text or "range" in text.lower()]
    bolts = spout.bolts
    assert isinstance(bolts, FarBolts)
    assert bolts.endpoint.key.hex() not in "".join(seen)
    assert bolts.endpoint.certificate_pem is not None
    assert valkey.url not in repr(bolts.endpoint)


def _until_cut(work: Callable[[], None]) -> None:
    try:
        work()
    except redis.RedisError:
        return


def test_records_by_value_and_a_checkpoint_elsewhere_are_refused(
    tmp_path: Path, valkey: Valkey
) -> None:
    write_lines(tmp_path, 1, 10)
    spout = job(tmp_path, valkey, Journal(tmp_path))
    spout.producer = TextLines(f"{tmp_path}/*.log")
    with pytest.raises(ConfigError, match=r"^listen\.via: redis is for jobs whose bolts read"):
        spout.run(view="off")
    spout.producer = TextRanges(f"{tmp_path}/*.log")
    spout.checkpoint = MemoryCheckpointStore()
    with pytest.raises(ConfigError, match=r"^listen\.via: redis needs a checkpoint in Redis"):
        spout.run(view="off")
    assert not pids(tmp_path, "b1")


def test_bolts_that_have_no_redis_say_where_they_looked(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "CONNECT_TRIES", 1)
    door = RedisDoor(valkey.url.replace("//", "//:s3kret@"), Keys("flowctl:relay:none"))
    endpoint = Endpoint("192.0.2.1", 1, b"k" * 32, "job", relay=door)
    with pytest.raises(InfrastructureError, match=r"through Redis at 127\.0\.0\.1:\d+/0: ") as told:
        worker.run_bolt(endpoint, "b1", lambda batch: None)
    assert "s3kret" not in f"{told.value}{told.value.remedy}{endpoint!r}{door!r}"


def test_the_doctors_task_reaches_the_driver_through_redis_alone(valkey: Valkey) -> None:
    """As an executor would try it: with the door and nothing else."""
    greeter = relayed_greeter(RedisCheckpointStore(valkey.url))

    def reached(door: bytes) -> str:
        found = json.loads(run_probe(*ProbeTask((), 5.0, 0.0, b"", (), door, greeter.token)))
        return str(found["targets"]["listener"])

    try:
        assert reached(greeter.door) == ""
        door = pickle.loads(greeter.door)
        elsewhere = msgspec.structs.replace(door, keys=Keys("flowctl:relay:none"))
        assert reached(pickle.dumps(elsewhere)) == "the driver of this run is gone"
        stranger = msgspec.structs.replace(door, url=valkey.url.replace("//", "//:s3kret@"))
        assert "s3kret" not in reached(pickle.dumps(stranger)) != ""
    finally:
        greeter.close()


def test_local_bolts_take_the_same_way(tmp_path: Path, valkey: Valkey) -> None:
    wanted, journal = write_lines(tmp_path, 2, 1_000), Journal(tmp_path)
    spout = job(tmp_path, valkey, journal)
    spout.bolts = LocalBolts(journal, count=3)
    assert spout.run(view="off").records_acked == len(wanted)
    assert journal.lines() == sorted(wanted), "each once: there was no fault"


def test_apply_takes_it_too(tmp_path: Path, valkey: Valkey) -> None:
    """Its store keeps receipts besides, over the one in Redis."""
    source = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": list(range(100))}), source)
    options = {"bolts": 2, "settings": VIA_REDIS, "view": "off", "name": "scores"}
    schema = pyarrow.schema([("id", pyarrow.int64())])

    def same(rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        return rows

    def apply(**more: Any) -> Any:
        return apply_parquet(source, same, schema=schema, out=tmp_path / "out", **options, **more)

    with pytest.raises(ConfigError, match=r"^listen\.via: redis needs a checkpoint in Redis"):
        apply()
    files = apply(checkpoint=valkey.url).files
    rows = [pyarrow.parquet.read_table(name.removeprefix("file://")).to_pylist() for name in files]
    assert sorted(row["id"] for part in rows for row in part) == list(range(100))
