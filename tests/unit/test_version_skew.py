"""Bolts of another flowctl than the driver's: one clear line.  Checkpoints of an older one: read.

Another protocol: ``test_wire_strangers.py``; a newer checkpoint: ``test_redis_store.py``.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import fakeredis
import msgspec
import pytest

import flowctl
from flowctl.core.records import AckedRange, Checkpoint, LostRange, PartitionCheckpoint
from flowctl.errors import ConfigError
from flowctl.ports import Endpoint
from flowctl.runtime.file_store import FileCheckpointStore
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.schema import decode_partition
from pyspark_flowctl.outcome import GiveUp, Outcome, RestartPolicy
from pyspark_flowctl.task import BoltTask, run_task

ENDPOINT = Endpoint(host="127.0.0.1", port=1, key=b"k" * 32, job="job")
OTHER = "0.0.9"


def fails(error: Exception) -> Any:
    raise error


class Raising:
    """Pickled, it raises where it is loaded."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return fails, (self.error,)


def told(error: Exception, *, version: str) -> tuple[str, str]:
    """What the driver says of a bolt that can't be loaded, and what it advises."""
    task = BoltTask("b1", 1, pickle.dumps(Raising(error)), b"", (), version=version)
    outcome = msgspec.json.decode(run_task(*task), type=Outcome)
    decide = RestartPolicy(ENDPOINT).after
    decide(outcome)
    step = decide(outcome)
    assert isinstance(step, GiveUp), "one host may be unlike, the second try says so"
    return step.detail, step.remedy


FIELD = TypeError("Unexpected keyword argument 'relay'")  # what an older Endpoint would say


@pytest.mark.parametrize(
    "error", [FIELD, ModuleNotFoundError("No module", name="flowctl_redis.relay")]
)
def test_what_an_older_worker_does_not_know_is_told_as_that(error: Exception) -> None:
    detail, remedy = told(error, version=OTHER)
    assert detail.startswith(f"the worker has flowctl {flowctl.__version__}, the driver {OTHER} (")
    assert str(error) in detail and "\n" not in detail
    assert remedy == f"Run on every Spark worker: pip install flowctl-spark=={OTHER}"


def test_with_the_same_version_the_error_is_told_as_it_is() -> None:
    for version in (flowctl.__version__, ""):
        detail, _ = told(FIELD, version=version)
        assert "the worker has" not in detail and "relay" in detail


def test_what_has_another_reason_is_told_as_it_is() -> None:
    _, remedy = told(ModuleNotFoundError("No module", name="numpy"), version=OTHER)
    assert remedy.startswith("Install 'numpy'")
    task = BoltTask("b1", 1, pickle.dumps(ENDPOINT), pickle.dumps(print), (), version=OTHER)
    bad_name = task._replace(bolt="")  # flowctl's own error
    assert json.loads(run_task(*bad_name))["error"] == ConfigError.__name__


def test_a_checkpoint_as_the_first_version_wrote_it_is_resumed_and_kept_up() -> None:
    """Such bytes are in users' servers: if this test fails, change the code, not the bytes."""
    client = fakeredis.FakeRedis()
    store = RedisCheckpointStore(client=client)
    client.hset(
        "flowctl:{job}",
        mapping={
            b"schema": b"1",
            b"epoch": b"7",
            b"revision": b"41",
            b"saved_at_unix_ms": b"1763720000000",
            b"windows": b"\x81\xa2b1\x08",
            b"p:a": b"0502800000000000000a02800000000000000100"
            b"|\x93\x92\x0a\x01\x03\x91\x93\x92\x14\x03\x92\x28\x05\x03",
        },
    )
    epoch = store.acquire("job")
    wanted = PartitionCheckpoint((10, 1), 3, (AckedRange((20, 3), (40, 5), 3),))
    assert epoch > 7
    assert store.load("job").partitions == {"a": wanted}
    store.save("job", Checkpoint({"a": PartitionCheckpoint((40, 5), 6)}), epoch=epoch)
    assert store.load("job").partitions == {"a": PartitionCheckpoint((40, 5), 6)}


# As the version before wrote it: of what was given up it knew the last place only.
_BEFORE_LOST = (
    b"flowctl checkpoint 1 6512758a 1\n\x92\x93\xc4\x03job\x01\xcf\x00\x00\x01\xa2\x1em\x8f\x8a\xdd"
    b"\x00\x00\x00\x03\x97\xc4\x01a\x05\x05\x91\x93\x08\t\x02\xc0\xc0\x04\x97\xc4\x01b\x92\x07\xa1x"
    b"\x01\x90\xc0\xc0\x92\x06\xa1y\x97\xc4\x01c\x01\x01\x90\xc0\xc0\xc0"
)
_BEFORE_LOST_IN_REDIS = b"028000000000000005|\x96\x05\x05\x92\x93\x04\x04\xff\x93\x08\t\x02\xc0\xc0"
_A = PartitionCheckpoint(5, 5, (AckedRange(8, 9, 2),), lost=(LostRange(4, 4, 0),))


def test_a_checkpoint_that_knows_only_the_last_record_given_up_is_read(tmp_path: Path) -> None:
    """It says nothing of how many are kept nowhere: none are made up."""
    (tmp_path / "job.checkpoint").write_bytes(_BEFORE_LOST)
    in_files = FileCheckpointStore(tmp_path).load("job")
    b = PartitionCheckpoint((7, "x"), 1, lost=(LostRange((6, "y"), (6, "y"), 0),))
    assert in_files.partitions == {"a": _A, "b": b, "c": PartitionCheckpoint(1, 1)}
    assert in_files.records_kept_nowhere == 0
    value = _BEFORE_LOST_IN_REDIS + b"\xce:\xc6\x018"
    assert decode_partition(b"flowctl:{job}", b"p:a", value) == _A
