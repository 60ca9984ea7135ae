"""deploy/smoke.py says of each door whether it works here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_parts import until

ROOT = Path(__file__).resolve().parents[2]
DOORS = 6

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.on_change("pages", "spark", "delivery", "apply"),
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a shell has in which Spark and this Python are at hand."""
    from pyspark_flowctl import ensure_java

    with monkeypatch.context() as patch:
        patch.setenv(
            "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        )
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        ensure_java()
        return dict(os.environ)


@pytest.mark.parametrize(
    "remote",
    [
        pytest.param("", id="classic"),
        pytest.param("local[2]", id="connect", marks=pytest.mark.long),  # a minute
    ],
)
def test_each_door_works(tmp_path: Path, environment: dict[str, str], remote: str) -> None:
    """The same program on a classic session and on a Connect server."""
    check_each_door(tmp_path, environment | {"FLOWCTL_SMOKE_REMOTE": remote})


@pytest.mark.long  # two minutes
@pytest.mark.timeout(600)
def test_each_door_works_on_a_standalone_cluster(
    tmp_path: Path, environment: dict[str, str], free_port: int
) -> None:
    """A master and a worker, each a process of its own, as executors are."""
    environment["PYSPARK_PYTHON"] = sys.executable
    with standalone(tmp_path, environment, free_port) as master:
        submit = f"--master {master} --conf spark.executor.memory=512m pyspark-shell"
        check_each_door(tmp_path, environment | {"PYSPARK_SUBMIT_ARGS": submit})


@contextmanager
def standalone(place: Path, environment: dict[str, str], port: int) -> Iterator[str]:
    """Start them on loopback; gives the master's URL."""
    import pyspark

    program = f"{Path(pyspark.__file__).parent}/bin/spark-class"
    master = f"spark://127.0.0.1:{port}"
    worker = ["--cores", "4", "--memory", "2g", "--work-dir", str(place / "work"), master]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for role, said, arguments in (
            ("master.Master", "I have been elected leader", ["--port", str(port)]),
            ("worker.Worker", "Successfully registered with master", worker),
        ):
            told = place / f"{role}.log"
            command = [program, f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1"]
            with open(told, "wb") as log:
                started.append(
                    subprocess.Popen(
                        [*command, "--webui-port", "0", *arguments],
                        env=environment, stdout=log, stderr=log,
                    )
                )  # fmt: skip
            until(lambda told=told, said=said: said in told.read_text(), role)  # type: ignore[misc]
        yield master
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def check_each_door(place: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "smoke.py", place / "files"],
        cwd=place, env=environment, text=True, check=False, capture_output=True,
    )  # fmt: skip
    assert len(re.findall("works  ", done.stdout)) == DOORS, done.stdout + done.stderr
    assert done.returncode == 0
