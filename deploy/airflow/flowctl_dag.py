"""An Airflow DAG that runs a flowctl job: exit codes become states, the report becomes the XCom.

A retry resumes: the checkpoint is the job's, not the task's.  ``on_kill`` sends SIGTERM, which
saves; allow it 90 s (``[core] killed_task_cleanup_time``).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator

try:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
except ImportError:  # Airflow 3.0
    from airflow.exceptions import AirflowException, AirflowFailException

# Exit codes of `flowctl run` after which a retry does not help.
WRONG_USAGE, RECORDS_LEFT_OUT = 2, 3
STOP_TIMEOUT_S = 90  # the last save waits 60 s for an absent Redis


class FlowctlOperator(BaseOperator):
    """Run ``flowctl run JOB OPTIONS…``; return the report."""

    template_fields: Sequence[str] = ("job", "options")

    def __init__(self, *, job: str, options: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.options = list(options)
        self._process: subprocess.Popen[bytes] | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            command = ["flowctl", "run", self.job, "--plain", "--report", str(report)]
            self._process = subprocess.Popen([*command, *self.options])
            code = self._process.wait()
            told = _read(report)
        if code in (WRONG_USAGE, RECORDS_LEFT_OUT):
            raise AirflowFailException(f"exit code {code}: {told.get('error') or told}")
        if code:
            raise AirflowException(f"exit code {code}: {told.get('error')}; a retry resumes")
        return told

    def on_kill(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)


def _read(report: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(report.read_text()))
    except (OSError, ValueError):  # none, or cut off: wrong usage, a kill, a full disk
        return {}


with DAG(
    "flowctl_visits",
    start_date=datetime(2026, 1, 1),
    schedule="@daily",
    catchup=False,
    max_active_runs=1,  # a second run of the same name would take the job over
) as dag:
    FlowctlOperator(
        task_id="visits",
        job="/opt/jobs/visits.py",
        options=["--master", "spark://master:7077", "--redis", "redis://redis:6379/0"],
        retries=5,
        retry_delay=timedelta(seconds=30),
    )
