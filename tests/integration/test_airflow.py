"""deploy/'s DAG, imported and run by Airflow itself: ``make test-airflow``.

First as ``airflow dags test`` does it, then by a scheduler, workers and a triggerer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
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
        while (HERE / "hold").exists():
            time.sleep(0.01)
        time.sleep(0.005)  # so that much is saved before it dies
        with open(HERE / "seen", "a") as seen:
            seen.write(f"{number}\\n")
        if number == 300 and (HERE / "die").exists():
            (HERE / "die").unlink()
            os.kill(os.getpid(), 9)

with open(HERE / "begun", "a") as begun:
    begun.write(f"{os.getpid()}\\n")

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
    """An Airflow of its own, with deploy/'s DAG on a job of ours, and with one that defers."""

    def __init__(self, place: Path, redis_url: str) -> None:
        self.place = place
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.environment = os.environ | {
            "AIRFLOW_HOME": str(place),
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",  # workers
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "PATH": f"{place / 'bin'}:{Path(AIRFLOW).absolute().parent}:{os.environ['PATH']}",
            # Airflow has all that the base install of flowctl asks for.
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "adapters")]),
        }
        self.environment.pop("PYSPARK_PYTHON", None)
        text = DAG.read_text(encoding="utf-8")
        for theirs, ours in (
            ('"/opt/jobs/visits.py"', repr(str(place / "visits.py"))),
            ('"--master", "spark://master:7077", ', ""),  # no Spark here
            ('"redis://redis:6379/0"', repr(redis_url)),
            ("timedelta(seconds=30)", "timedelta(seconds=1)"),
            ('schedule="@daily"', "schedule=None"),  # else there is a run at once
        ):
            assert theirs in text
            text = text.replace(theirs, ours)
        for name in ("dags", "bin"):
            (place / name).mkdir()
        (place / "dags" / "flowctl_dag.py").write_text(text)
        for theirs, ours in (
            ('"flowctl_visits"', '"flowctl_deferred"'),
            ('name="visits",', 'name="visits", deferrable=True,'),
        ):
            assert theirs in text
            text = text.replace(theirs, ours)
        (place / "dags" / "deferred_dag.py").write_text(text)
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
        done = subprocess.run(
            [str(Path(AIRFLOW).absolute()), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return done.stdout + done.stderr

    def run(self, dag: str = "flowctl_visits") -> tuple[Ran, str]:
        """Run the DAG once, as of now; return what became of it, and what was said."""
        (self.place / "seen").write_text("")
        said = self.airflow("dags", "test", dag)
        return self.ran(), said

    def ran(self) -> Ran:
        """What Airflow's database says of the newest run."""
        with sqlite3.connect(self.place / "airflow.db", timeout=60) as database:
            newest = "run_id = (SELECT run_id FROM dag_run ORDER BY id DESC LIMIT 1)"
            task = f"SELECT state, try_number FROM task_instance WHERE {newest}"
            [(state, tries)] = database.execute(task).fetchall()
            value = f"SELECT value FROM xcom WHERE key = 'return_value' AND {newest}"
            reports = [json.loads(text) for (text,) in database.execute(value)]
        return Ran(state, tries, reports[0] if reports else None, self.seen())

    def seen(self) -> list[int]:
        """What the job has processed."""
        return [int(line) for line in (self.place / "seen").read_text().split()]

    def trigger(self, dag: str) -> None:
        """Begin a run of the DAG; return once its job is at work."""
        until(lambda: "DagNotFound" not in self.airflow("dags", "trigger", dag))
        until(lambda: self.begun() == 1)

    def begun(self) -> int:
        """How many runs of the job there have been."""
        return len((self.place / "begun").read_text().split())


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
    (airflow.place / "begun").write_text("")
    (airflow.place / "seen").write_text("")
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


def test_a_task_that_defers_hands_over_the_same_report(home: Home) -> None:
    ran, said = home.run("flowctl_deferred")
    assert ran.state == "success", said
    assert "running trigger in line" in said
    assert ran.report is not None and ran.report["records_acked"] == LINES
    assert sorted(ran.seen) == list(range(LINES))


# -- a scheduler, workers and a triggerer -----------------------------------------------------


@pytest.fixture
def at_work(home: Home) -> Iterator[Home]:
    """All of Airflow."""
    with open(home.place / "standalone.log", "wb") as log:
        airflow = subprocess.Popen(
            [str(Path(AIRFLOW).absolute()), "standalone"], env=home.environment,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield home
    finally:
        (home.place / "hold").unlink(missing_ok=True)
        whole = [child.pid for child in psutil.Process(airflow.pid).children(recursive=True)]
        for pid in [airflow.pid, *whole]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        airflow.wait()


def until(holds: Callable[[], bool], *, within_s: float = 240) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, "it does not come to that"
        time.sleep(0.5)


def test_airflow_kills_a_worker_in_mid_run_and_the_retry_attaches(at_work: Home) -> None:
    home = at_work
    (home.place / "hold").touch()
    home.trigger("flowctl_visits")
    run = int((home.place / "begun").read_text())
    keeper = psutil.Process(run).parent()
    assert keeper is not None
    worker = keeper.parent()
    assert worker is not None and "airflow" in " ".join(worker.cmdline())
    worker.kill()
    until(lambda: home.ran().tries == 2 and home.ran().state == "running")
    assert home.begun() == 1, "the retry found the run"
    (home.place / "hold").unlink()
    until(lambda: home.ran().state not in ("running", "queued"))
    ran = home.ran()
    assert (ran.state, ran.tries) == ("success", 2)
    assert ran.report is not None
    assert (ran.report["records_acked"], ran.report["resumed"]) == (LINES, False)
    assert ran.seen == list(range(LINES)), "nothing ran twice"
    assert home.begun() == 1


def test_a_task_that_defers_needs_no_worker_while_its_run_is_at_work(at_work: Home) -> None:
    home = at_work
    (home.place / "hold").touch()
    home.trigger("flowctl_deferred")
    until(lambda: home.ran().state == "deferred")
    (home.place / "hold").unlink()
    until(lambda: home.ran().state in ("success", "failed"))
    ran = home.ran()
    assert ran.state == "success"
    assert ran.report is not None and ran.report["records_acked"] == LINES
    assert ran.seen == list(range(LINES))
