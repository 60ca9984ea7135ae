"""A flowctl job in Airflow 3: exit codes become states, the report becomes the XCom.

If Airflow kills the worker, the run goes on, and the retry attaches to it; if the run itself dies,
the retry resumes.  ``pip install flowctl-spark`` beside Airflow; see docs/schedulers.md.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from flowctl_airflow import FlowctlOperator

with DAG(
    "flowctl_visits",
    start_date=datetime(2026, 1, 1),
    schedule="@daily",
    catchup=False,
    max_active_runs=1,  # else a day waits in a worker for the day before
) as dag:
    FlowctlOperator(
        task_id="visits",
        name="visits",  # the job's own
        job="/opt/jobs/visits.py",
        options=["--master", "spark://master:7077", "--redis", "redis://redis:6379/0"],
        program="flowctl",  # or its path in an environment of its own: /opt/venv/bin/flowctl
        retries=5,
        retry_delay=timedelta(seconds=30),
    )
