"""``flowctl doctor --spark`` where bolts connect through Redis: ``listen.via=redis``."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_doctor_spark import GOOD, changed, examined, probed

from flowctl.cli.doctor_spark import matrix, problems_of
from flowctl.cli.main import main
from flowctl.config import ListenSettings
from flowctl.errors import InfrastructureError, MissingExtraError
from pyspark_flowctl import checkup
from pyspark_flowctl.checkup import Examined, Seen
from pyspark_flowctl.probe import Target, relayed_greeter
from pyspark_flowctl.session import SessionHolder

RELAYED = "through Redis at r:6379/0"


class OddDoor:
    """A relay's door in which something is the matter."""

    def __init__(self, kind: Any, *arguments: Any, **options: Any) -> None:
        self.error = kind, arguments, options

    def connect(self, *, timeout_s: float) -> socket.socket:
        kind, arguments, options = self.error
        raise kind(*arguments, **options)


class LoopbackRelay:
    """A relay, its door and its store in one: it connects directly."""

    address = "Redis at r:6379/0"

    def __init__(self) -> None:
        self.spout = ("", 0)
        self.is_closed = False

    @property
    def door(self) -> Any:
        return self

    def open_relay(self, spout: tuple[str, int]) -> Any:
        self.spout = spout
        return self

    def connect(self, *, timeout_s: float) -> socket.socket:
        return socket.create_connection(self.spout, timeout=timeout_s)

    def close(self) -> None:
        self.is_closed = True


def test_a_task_reaches_the_listener_through_a_relay_alone() -> None:
    relay = LoopbackRelay()
    greeter = relayed_greeter(relay)
    try:
        assert greeter.place == "through Redis at r:6379/0"
        assert greeter.targets == (), "no port of the driver is asked for"
        assert probed(door=relay, token=greeter.token)["targets"] == {"listener": ""}
        assert probed(door=relay, token=b"another")["targets"] == {"listener": "no answer"}
    finally:
        greeter.close()
    assert relay.is_closed
    assert probed(door=relay, token=greeter.token)["targets"]["listener"]


@pytest.mark.parametrize(
    ("door", "said"),
    [
        (OddDoor(MissingExtraError, "redis", "redis-py", "redis"), "redis: redis-py is not inst"),
        (OddDoor(ConnectionRefusedError, None, "the driver of this run is gone"), "the driver of"),
        (OddDoor(TimeoutError), "no answer"),
        (OddDoor(ModuleNotFoundError, name="flowctl_redis"), "flowctl_redis is not installed"),
    ],
)
def test_what_is_the_matter_with_a_relay_is_told(door: OddDoor, said: str) -> None:
    assert probed(door=door, token=b"x")["targets"]["listener"].startswith(said)


def test_a_relay_that_can_t_be_opened_ends_the_doctor_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(spout: tuple[str, int]) -> Any:
        raise InfrastructureError("Redis at r:6379/0 can't be reached.")

    monkeypatch.setattr(SessionHolder, "open", lambda _: pytest.fail("Spark was started"))
    store: Any = SimpleNamespace(open_relay=refuse)
    with pytest.raises(InfrastructureError, match="can't be reached"):
        checkup.examine("local", ListenSettings(), (), relaying=store, timeout_s=1)


@pytest.mark.parametrize(
    ("seen", "problem", "remedy"),
    [
        # Why the listener can't be reached then is clear.
        ({"redis": "no answer", "listener": "Redis can't be reached"}, "Redis: no answer", "open"),
        ({"redis": "unknown host", "listener": "odd"}, "Redis: unknown host", "not localhost"),
        (
            {"redis": "", "listener": "redis: redis-py is not installed."},
            f"listener {RELAYED}: redis: redis-py is not installed.",
            "flowctl-spark[redis]",
        ),
        ({"redis": "", "listener": "no permissions"}, "no permissions", "docs/security.md"),
        ({"redis": "", "listener": "", "sink 1": "no answer"}, "sink 1", "Open the way"),
    ],
)
def test_behind_a_relay_each_problem_is_told_once_and_none_of_the_drivers_port(
    seen: dict[str, str], problem: str, remedy: str
) -> None:
    found = Examined(
        master="m",
        listener=RELAYED,
        executors=[
            changed(targets={"redis": "", "listener": ""}, host="w2"),
            changed(targets=seen),
        ],
        driver=Seen(host="driver"),
        is_relayed=True,
    )
    [(said, advice)] = problems_of(found)
    assert said.startswith("w1: ") and problem in said
    assert remedy in advice and "listen.port" not in advice
    assert f"listener {RELAYED}" in next(matrix(found, ["redis"]))


def test_a_worker_without_flowctl_is_not_told_of_the_relay_as_well() -> None:
    seen = changed(
        flowctl="ModuleNotFoundError: No module named 'flowctl'",
        targets={"listener": "flowctl_redis is not installed"},
    )
    found = examined(seen)
    relayed = Examined(
        master="m", listener=RELAYED, executors=[seen], driver=found.driver, is_relayed=True
    )
    [(said, _)] = problems_of(relayed)
    assert "flowctl can't be imported" in said


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The stores and targets that the command examines with."""
    found: list[Any] = []

    def examine(_: Any, __: Any, targets: list[Target], *, relaying: Any, **___: Any) -> Examined:
        found.append((relaying and relaying.address, [target.host for target in targets]))
        return examined(GOOD)

    monkeypatch.setattr(checkup, "examine", examine)
    monkeypatch.delenv("FLOWCTL_REDIS_URL", raising=False)
    return found


VIA_REDIS = ["doctor", "--spark", "--master", "spark://m:7077", "--set", "listen.via=redis"]


def test_the_relay_is_the_redis_that_is_named(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*VIA_REDIS, "--redis", "redis://r1"]) == 0
    assert main(VIA_REDIS) == 2
    assert "Give --redis URL" in capsys.readouterr().err
    monkeypatch.setenv("FLOWCTL_REDIS_URL", "redis://r2")
    assert main(VIA_REDIS) == 0
    assert main([*VIA_REDIS[:-2], "--redis", "redis://r3"]) == 0
    assert asked == [("r1:6379", ["r1"]), ("r2:6379", ["r2"]), (None, ["r3"])]


JOB = """
from flowctl import FlowControlSpout, Settings
from flowctl_files import {source}
from pyspark_flowctl import SparkBolts
spout = FlowControlSpout(
    name="far", producer={source}("*.log"), bolts=SparkBolts(print, count=1),
    checkpoint="redis://r0", settings=Settings().with_overrides({{"listen.via": "redis"}}),
)
"""


def test_the_jobs_own_settings_count_and_a_job_by_value_is_refused(
    tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "far.py"
    job.write_text(JOB.format(source="TextRanges"))
    command = ["doctor", "--spark", "--redis", "redis://r1", str(job)]
    assert main(command) == 0
    assert asked == [("r1:6379", ["r1"])]
    by_value = tmp_path / "near.py"
    by_value.write_text(JOB.format(source="TextLines"))
    command[-1] = str(by_value)
    assert main(command) == 2
    assert "redis is for jobs whose bolts read the source" in capsys.readouterr().err
    assert main([*command, "--set", "listen.via=tcp"]) == 0
