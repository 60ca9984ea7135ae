"""deploy/'s DAG, imported and run by Airflow itself: ``make test-airflow``."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fault_parts import ROOT, Valkey

AIRFLOW = os.environ.get("FLOWCTL_AIRFLOW", "")
# Airflow takes ten seconds of CPU for its tables and as long for each run.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not Path(AIRFLOW).is_file(),
        reason="needs Airflow, which brings 150 packages: make test-airflow, if it installs",
    ),
]
DAG = ROOT / "deploy" / "airflow" / "flowctl_dag.py"
LINES = 500
JOB = """
import os, pathlib, time
from flowctl import FlowControlSpout, LocalBolts, Settings
from flowctl_files import TextLines

HERE = pathlib.Path(__file__).parent

def work(batch):
    for record in batch:
        number = int(record.value)
        if number == 7 and (HERE / "reject").exists():
            batch.reject(record, "it is seven")
            continue
        time.sleep(0.005)  # so that much is saved before it dies
        with open(HERE / "seen", "a") as seen:
            seen.write(f"{number}\\n")
        if number == 300 and (HERE / "die").exists():
            (HERE / "die").unlink()
            os.kill(os.getpid(), 9)

spout = FlowControlSpout(
    name="visits", producer=TextLines(str(HERE / "in.log")), bolts=LocalBolts(work, count=1),
    settings=Settings().with_overrides(
        {"tuple.records_max": 20, "checkpoint.interval_s": 0.05}
    ),
)
"""


class Ran(NamedTuple):
    """What Airflow has noted of the DAG's newest run."""

    state: str
    tries: int
    report: dict[str, Any] | None
    seen: list[int]


class Home:
    """An Airflow of its own, with deploy/'s DAG on a job of ours."""

    def __init__(self, place: Path, redis_url: str) -> None:
        self.place = place
        text = DAG.read_text(encoding="utf-8")
        for theirs, ours in (
            ('"/opt/jobs/visits.py"', repr(str(place / "visits.py"))),
            ('"--master", "spark://master:7077", ', ""),  # no Spark here
            ('"redis://redis:6379/0"', repr(redis_url)),
            ("timedelta(seconds=30)", "timedelta(seconds=1)"),
        ):
            assert theirs in text
            text = text.replace(theirs, ours)
        for name in ("dags", "bin"):
            (place / name).mkdir()
        (place / "dags" / "flowctl_dag.py").write_text(text)
        (place / "visits.py").write_text(JOB)
        (place / "in.log").write_text("".join(f"{n}\n" for n in range(LINES)))
        path = os.pathsep.join(filter(None, sys.path))
        program = place / "bin" / "flowctl"  # of this Python, which Airflow does not share
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH="{path}" exec {sys.executable} -m flowctl "$@"\n'
        )
        program.chmod(0o755)
        self.airflow("db", "migrate")

    def airflow(self, *arguments: str) -> str:
        """Run a command of Airflow; return what it said, whatever its exit code."""
        environment = os.environ | {
            "AIRFLOW_HOME": str(self.place),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}",
        }
        for name in ("PYTHONPATH", "PYSPARK_PYTHON"):
            environment.pop(name, None)
        done = subprocess.run(
            [str(Path(AIRFLOW).absolute()), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return done.stdout + done.stderr

    def run(self) -> tuple[Ran, str]:
        """Run the DAG once, as of now; return what became of it, and what was said."""
        (self.place / "seen").write_text("")
        said = self.airflow("dags", "test", "flowctl_visits")
        with sqlite3.connect(self.place / "airflow.db") as database:
            newest = "run_id = (SELECT run_id FROM dag_run ORDER BY id DESC LIMIT 1)"
            task = f"SELECT state, try_number FROM task_instance WHERE {newest}"
            [(state, tries)] = database.execute(task).fetchall()
            value = f"SELECT value FROM xcom WHERE key = 'return_value' AND {newest}"
            reports = [json.loads(text) for (text,) in database.execute(value)]
        seen = [int(line) for line in (self.place / "seen").read_text().split()]
        return Ran(state, tries, reports[0] if reports else None, seen), said


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    valkey = Valkey(tmp_path_factory.mktemp("valkey"), port)
    valkey.start()
    yield valkey
    valkey.kill()


@pytest.fixture(scope="module")
def airflow(server: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("airflow"), server.url)


@pytest.fixture
def home(airflow: Home, server: Valkey) -> Home:
    """Airflow, and no checkpoint of an earlier test."""
    with server.client() as client:
        client.flushall()
    return airflow


def test_airflow_imports_the_dag_without_a_complaint(home: Home) -> None:
    said = home.airflow("dags", "list-import-errors")
    assert "No data found" in said, said
    assert "deprecated" not in said, said


def test_a_run_ends_well_and_its_report_is_the_xcom(home: Home) -> None:
    ran, said = home.run()
    assert ran.state == "success", said
    assert ran.report is not None and ran.report["records_acked"] == LINES
    assert sorted(ran.seen) == list(range(LINES))


def test_a_driver_that_dies_is_tried_again_and_resumes(home: Home) -> None:
    (home.place / "die").touch()
    ran, said = home.run()
    assert (ran.state, ran.tries) == ("success", 2), said
    assert ran.report is not None and ran.report["resumed_records"] > 0
    assert set(ran.seen) == set(range(LINES))
    assert len(ran.seen) < LINES + 300, "what was saved did not run again"


def test_rejected_records_fail_the_task_for_good(home: Home) -> None:
    """A retry would not help: exit code 3."""
    (home.place / "reject").touch()
    try:
        ran, said = home.run()
    finally:
        (home.place / "reject").unlink()
    assert (ran.state, ran.tries) == ("failed", 1), said
    assert "exit code 3" in said
    assert len(ran.seen) == LINES - 1
