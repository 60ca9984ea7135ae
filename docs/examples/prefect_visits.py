"""A flowctl job as a task of Prefect: ``python prefect_visits.py 2026-11-27``.

The run is a process of its own: if Prefect's is killed, it goes on, and the next run of the flow
for this day attaches to it.
"""

import sys

from prefect import flow, get_run_logger, task

from flowctl import DetachedRun

COMMAND = ["flowctl", "run", "/opt/jobs/visits.py", "--redis", "redis://redis:6379/0"]
DIRECTORY = "/opt/jobs"


class ForGood(Exception):
    """A retry would not help: wrong usage, or records that were left out."""


def may_help(_task, _run, state):
    return not isinstance(state.result(raise_on_failure=False), ForGood)


@task(retries=5, retry_delay_seconds=30, retry_condition_fn=may_help)
def run_visits(day):
    run = DetachedRun("visits", COMMAND, directory=DIRECTORY, occasion=day)
    ended = run.wait()
    get_run_logger().info(run.printed())
    if not ended.is_done:
        raise (RuntimeError if ended.retry_helps else ForGood)(ended.problem)
    return ended.report


@flow
def visits(day):
    return run_visits(day)


if __name__ == "__main__":
    visits(sys.argv[1])
