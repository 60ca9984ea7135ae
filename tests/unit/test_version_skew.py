"""Bolts of another flowctl than the driver's: one clear line.  Checkpoints of an older one: read.

Another protocol: ``test_wire_strangers.py``; a newer checkpoint: ``test_redis_store.py``.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import fakeredis
import msgspec
import pytest

import flowctl
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.errors import ConfigError
from flowctl.ports import Endpoint
from flowctl_redis import RedisCheckpointStore
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
