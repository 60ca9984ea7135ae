"""Spark settings that do bolts harm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from pyspark_flowctl.jobs import SparkJobs


class Danger(NamedTuple):
    """A setting, and what it does to bolts."""

    setting: str
    problem: str


# Of classic workers, and of those that mapInArrow uses on Connect.
_IDLE = (
    ("spark.python.worker.idleTimeoutSeconds", "spark.python.worker.killOnIdleTimeout"),
    (
        "spark.sql.execution.pyspark.udf.idleTimeoutSeconds",
        "spark.sql.execution.pyspark.udf.killOnIdleTimeout",
    ),
)
_SPECULATION = "spark.speculation"
_THRESHOLD = "spark.speculation.task.duration.threshold"


def dangers(jobs: SparkJobs) -> Iterator[Danger]:
    """Yield what should be changed; nothing of it makes results wrong."""
    for timeout, kill in _IDLE:
        if _is_set(jobs, timeout) and _setting(jobs, kill) == "true":
            yield Danger(timeout, "Spark will kill bolts that wait for work: set it to 0.")
    # Spark never speculates on a stage of one task, unless a threshold is set; then a second copy
    # takes over the bolt's name, and what the first one held is sent again.
    if _setting(jobs, _SPECULATION) == "true" and _setting(jobs, _THRESHOLD):
        yield Danger(_THRESHOLD, "Spark will start bolts a second time: leave it unset.")


def _is_set(jobs: SparkJobs, name: str) -> bool:
    return _setting(jobs, name).rstrip("s") not in ("", "0")


def _setting(jobs: SparkJobs, name: str) -> str:
    with contextlib.suppress(Exception):  # Connect refuses names that it doesn't show
        return jobs.setting(name)
    return ""
