"""``flowctl doctor --spark``: what a task tries, and what is made of what it saw."""

from __future__ import annotations

import json
import pickle
import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flowctl
from flowctl.cli import doctor_spark
from flowctl.cli.doctor_spark import matrix, place_of, problems_of
from flowctl.cli.main import main
from flowctl.config import ListenSettings
from flowctl.errors import ConfigError
from pyspark_flowctl import checkup
from pyspark_flowctl.checkup import Examined, Seen, failure, placed, silent_hosts
from pyspark_flowctl.jobs import ClassicJobs
from pyspark_flowctl.probe import Greeter, ProbeTask, Target, greeter_of, run_probe
from pyspark_flowctl.session import SessionHolder, unsupported

PYTHON, VERSION = platform.python_version(), flowctl.__version__
GOOD = Seen(host="w1", executor=7, python=PYTHON, flowctl=VERSION, targets={"listener": ""})


def examined(*seen: Seen) -> Examined:
    driver = Seen(host="driver", targets={"redis": ""})
    return Examined(
        master="spark://m:7077", listener="driver:4242", executors=[*seen], driver=driver
    )


def changed(**changes: Any) -> Seen:
    return Seen(**({name: getattr(GOOD, name) for name in GOOD.__struct_fields__} | changes))


# -- the task --------------------------------------------------------------------------------


@pytest.fixture
def greeter() -> Iterator[Greeter]:
    jobs: Any = SimpleNamespace(host=lambda: "127.0.0.1", bind_host=lambda: "")
    made = greeter_of(ListenSettings(), jobs)
    yield made
    made.close()


def probed(
    *targets: Target,
    process: bytes = b"",
    paths: tuple[str, ...] = (),
    door: Any = None,
    token: bytes = b"",
) -> dict[str, Any]:
    pickled = b"" if door is None else pickle.dumps(door)
    task = ProbeTask(tuple(map(tuple, targets)), 5.0, 0.0, process, paths, pickled, token)
    found: dict[str, Any] = json.loads(run_probe(*task))
    return found


def test_a_task_tells_what_it_is_and_reaches_the_listener(greeter: Greeter) -> None:
    seen = probed(*greeter.targets)
    assert (seen["python"], seen["flowctl"]) == (PYTHON, VERSION)
    assert seen["targets"] == {"listener": ""}


def test_several_tasks_are_greeted(greeter: Greeter) -> None:
    assert [probed(*greeter.targets)["targets"]["listener"] for _ in range(3)] == [""] * 3


def test_what_can_t_be_reached_is_told_apart(greeter: Greeter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
    [target] = greeter.targets
    other = target._replace(name="other", token=b"somebody else's")
    seen = probed(Target("closed", "127.0.0.1", taken), Target("name", "no such host", 1), other)
    assert seen["targets"] == {
        "closed": "refused",
        "name": "unknown host",
        "other": "something else answers",
    }


def test_a_process_that_can_t_be_loaded_is_told() -> None:
    assert probed(process=pickle.dumps(print))["load"] == ""
    missing = b"cno_such_module\nload\n."
    assert "no_such_module" in probed(process=missing)["load"]


def test_the_first_block_of_a_path_tells_files_apart(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one")
    (tmp_path / "b.log").write_text("two")
    names = ("a.log", "*.log", "", "b.log", "c.log", "c*.log")
    paths = tuple(f"{tmp_path}/{name}".rstrip("/") for name in names)
    urls = tuple(f"file://{path}" for path in paths)
    for given in (paths, urls):
        found = list(probed(paths=given)["paths"].values())
        assert found[0] == found[1] == found[2] != found[3]
        assert found[3].startswith("=")
        assert not found[4].startswith("=") and not found[5].startswith("=")
    assert "nosuch" in probed(paths=("nosuch://x/y",))["paths"]["nosuch://x/y"]


# -- verdicts --------------------------------------------------------------------------------


def test_a_good_cluster_has_no_problem() -> None:
    assert list(problems_of(examined(GOOD, changed(host="w2")))) == []


@pytest.mark.parametrize(
    ("seen", "problem", "remedy"),
    [
        (changed(targets={"listener": "no answer"}), "driver:4242: no answer", "listen.port_range"),
        (changed(targets={"listener": "unknown host"}), "unknown host", "listen.advertise"),
        (changed(targets={"listener": "refused"}), "refused", "listen.advertise"),
        (changed(targets={"sink 1": "no answer"}), "can't reach the sink 1", "Open the way"),
        (changed(targets={"redis": "refused"}), "can't reach Redis", "only the driver"),
        (changed(flowctl="ModuleNotFoundError: No module named 'flowctl'"), "No module", "pip"),
        (changed(flowctl="0.0.1"), "flowctl 0.0.1", f"flowctl-spark=={VERSION}"),
        (changed(load="ModuleNotFoundError: No module named 'x'"), "named 'x'", "Install what"),
        (changed(python="3.9.1"), "Python 3.9.1", "PYSPARK_PYTHON"),
        (Seen(host="w1", failed="[PYTHON_VERSION_MISMATCH] Python …"), "w1", "PYSPARK_PYTHON"),
        (Seen(host="w1", failed="it is odd"), "no task runs there", "log of that executor"),
    ],
)
def test_each_problem_names_the_host_and_the_setting(seen: Seen, problem: str, remedy: str) -> None:
    [(said, advice)] = problems_of(examined(GOOD, seen))
    assert said.startswith("w1: ") and problem in said
    assert remedy in advice


def test_the_driver_has_to_reach_redis_and_says_if_it_does_not() -> None:
    driver = Seen(host="driver", targets={"redis": "refused"})
    found = Examined(master="m", listener="d:1", executors=[GOOD], driver=driver)
    [(said, _)] = problems_of(found)
    assert said == "driver: can't reach Redis: refused."
    assert "refused" in list(matrix(found, ["redis"]))[1]


@pytest.mark.parametrize(
    ("found", "problem", "remedy"),
    [
        ("=other", "/data/a.log is not the same file there", "Mount the same disk"),
        ("no such file", "can't read /data/a.log: no such file", "same path"),
        ("pyarrow is not installed", "pyarrow is not installed", "flowctl-spark[parquet]"),
    ],
)
def test_a_path_must_be_the_same_file_everywhere(found: str, problem: str, remedy: str) -> None:
    driver = Seen(host="driver", paths={"/data/a.log": "=same"})
    good = changed(host="w2", paths={"/data/a.log": "=same"})
    seen = [changed(paths={"/data/a.log": found}), good]
    told = problems_of(Examined(master="m", listener="d:1", executors=seen, driver=driver))
    [(said, advice)] = told
    assert said.startswith("w1: ") and problem in said
    assert remedy in advice


def test_a_patch_version_of_python_may_differ() -> None:
    other = ".".join([*PYTHON.split(".")[:2], "99"])
    assert list(problems_of(examined(changed(python=other)))) == []


def test_the_matrix_has_a_row_for_each_executor() -> None:
    rows = list(matrix(examined(GOOD, Seen(host="w2", failed="x")), ["redis"]))
    assert [row.split()[0] for row in rows] == ["where", "driver", "w1", "w2"]
    assert "driver:4242" in rows[0]
    assert "no task runs" in rows[3]


def test_where_a_task_failed_is_read_from_sparks_message() -> None:
    seen = failure(
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 0.0"
        " failed 4 times, most recent failure: Lost task 3.3 in stage 0.0 (TID 7) (10.7.0.4"
        " executor 1): org.apache.spark.api.python.PythonException: Traceback\n"
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in"
        " worker has different version: 3.13 than that in driver: 3.11.\n\n"
        "Driver stacktrace:\n"
    )
    assert seen.host == "10.7.0.4"
    assert seen.failed.startswith("[PYTHON_VERSION_MISMATCH]")
    assert failure("it is odd\nand long").failed == "it is odd"


def test_a_failure_without_a_place_is_where_nothing_was_heard_of() -> None:
    """A host may be known by its address."""
    lost = failure("Job aborted: PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.99")
    good = changed(address="127.0.0.1")
    silent = silent_hosts([lost, good], ["127.0.0.1", "w1", "w2"])
    found = placed([lost, good], silent)
    assert [(seen.host, bool(seen.failed)) for seen in found] == [("w2", True), ("w1", False)]
    assert placed([lost], [])[0].host == "an executor"


def test_a_task_that_failed_and_ran_elsewhere_is_told_with_its_host() -> None:
    """Spark runs it again, on another host if that has room: then the job does not fail."""
    error = (
        "org.apache.spark.api.python.PythonException: Traceback\nPySparkRuntimeError: [ODD] 3.13"
    )
    tasks = [spark_task("w1", error), spark_task("w2", None), spark_task("w3", error)]
    context: Any = SimpleNamespace(
        master="spark://m:7077",
        statusTracker=lambda: SimpleNamespace(
            getJobIdsForGroup=lambda group: [0, 1] if group == "flowctl-doctor" else [],
            getJobInfo=lambda job: SimpleNamespace(stageIds=[7]) if job else None,
        ),
        _jsc=SimpleNamespace(
            sc=lambda: SimpleNamespace(
                statusStore=lambda: SimpleNamespace(
                    taskList=lambda stage, attempt, most: SimpleNamespace(
                        size=lambda: len(tasks), apply=tasks.__getitem__
                    )
                )
            )
        ),
    )
    jobs = ClassicJobs(SimpleNamespace(sparkContext=context))
    assert checkup._ended_on(jobs, ["w1", "w2", "w4"]) == {"w1": "[ODD] 3.13", "w2": ""}
    assert checkup._ended_on(jobs, []) == {}


def spark_task(host: str, error: str | None) -> Any:
    message = SimpleNamespace(isDefined=lambda: error is not None, get=lambda: error)
    status = "FAILED" if error else "SUCCESS"
    return SimpleNamespace(host=lambda: host, errorMessage=lambda: message, status=lambda: status)


def test_a_host_that_calls_itself_something_else_is_no_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkup, "_ask_once", lambda *_: [GOOD])
    monkeypatch.setattr(checkup, "_hosts", lambda _: ["w1", "alias", "odd"])
    monkeypatch.setattr(checkup, "_ended_on", lambda *_: {"alias": "", "odd": "[ODD] 3.13"})
    nothing: Any = None
    assert checkup.ask(nothing, nothing) == [GOOD, Seen(host="odd", failed="[ODD] 3.13")]


def test_an_executor_that_comes_late_is_asked_too_and_one_that_gets_no_task_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [[GOOD], [GOOD, changed(host="w2")]]
    monkeypatch.setattr(checkup, "_ask_once", lambda *_: answers.pop(0))
    monkeypatch.setattr(checkup, "_hosts", lambda _: ["w1", "w2"])
    nothing: Any = None
    assert {seen.host for seen in checkup.ask(nothing, nothing)} == {"w1", "w2"}
    answers = [[GOOD]] * 9
    assert checkup.ask(nothing, nothing)[-1] == Seen(host="w2", failed="it got no task")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("redis://:secret@r:6380/0", ("r", 6380)),
        ("redis://r", ("r", 6379)),
        ("postgresql+psycopg://u@[fd00::1]/db", ("fd00::1", 5432)),
        ("db:5433", ("db", 5433)),
    ],
)
def test_places(text: str, wanted: tuple[str, int]) -> None:
    assert place_of("sink", text) == wanted


@pytest.mark.parametrize("text", ["db", "sqlite:///visits.db", "db:x"])
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--sink"):
        place_of("sink 1", text)


# -- services where bolts can't work ---------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "environment", "wanted"),
    [
        (None, {}, ""),
        ("spark://m:7077", {"DATABRICKS_RUNTIME_VERSION": "17.3"}, ""),
        ("sc://connect.example:15002", {}, ""),
        (None, {"DATABRICKS_RUNTIME_VERSION": "client.4.1"}, "Databricks serverless"),
        (None, {"IS_SERVERLESS": "TRUE"}, "Databricks serverless"),
        (None, {"DATABRICKS_SERVERLESS_COMPUTE_ID": "auto"}, "Databricks serverless"),
        ("sc://adb-1.2.azuredatabricks.net:443/;token=x", {}, "Databricks"),
        ("sc://x.snowflakecomputing.com", {}, "Snowpark Connect"),
    ],
)
def test_services_that_are_not_supported(
    master: str | None, environment: dict[str, str], wanted: str
) -> None:
    assert unsupported(master, environment).startswith(wanted)
    assert bool(unsupported(master, environment)) == bool(wanted)


def test_they_are_refused_before_a_session_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "client.4.1")
    with pytest.raises(ConfigError, match="Databricks serverless is not supported"):
        SessionHolder(spark=None, master=None, slots_wanted=1).open()


def test_the_command_refuses_them_and_tells_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkup, "examine", lambda *a, **k: pytest.fail("it began"))
    assert main(["doctor", "--spark", "--master", "sc://x.databricks.com:443"]) == 2
    assert "classic cluster" in capsys.readouterr().err


# -- the command -----------------------------------------------------------------------------


def test_the_command_prints_the_matrix_and_each_problem_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def examine(master: str, listen: ListenSettings, targets: list[Target], **_: Any) -> Examined:
        asked.append((master, listen.port, [target.name for target in targets]))
        return examined(changed(targets={"listener": "no answer", "redis": ""}))

    monkeypatch.setattr(checkup, "examine", examine)
    command = ["doctor", "--spark", "--master", "spark://m:7077", "--redis", "redis://r"]
    assert main([*command, "--sink", "db:5432", "--set", "listen.port=7077"]) == 1
    assert asked == [("spark://m:7077", 7077, ["redis", "sink 1"])]
    out = capsys.readouterr().out
    assert "no answer" in out
    assert out.count("firewall") == 1


def test_options_of_spark_without_spark_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--master", "local[2]"]) == 2
    assert "--spark" in capsys.readouterr().err
    assert doctor_spark.__doc__
