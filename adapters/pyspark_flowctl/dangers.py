"""Spark settings that harm bolts, and bolts that harm others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from flowctl.ports import BoltNotice
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
    """Yield what should be changed; none of it makes results wrong."""
    for timeout, kill in _IDLE:
        if _is_set(jobs, timeout) and _setting(jobs, kill) == "true":
            yield Danger(timeout, "Spark will kill bolts that wait for work: set it to 0.")
    # Spark never speculates on a stage of one task, unless a threshold is set; then a second copy
    # takes over the bolt's name, and what the first one held is sent again.
    if _setting(jobs, _SPECULATION) == "true" and _setting(jobs, _THRESHOLD):
        yield Danger(_THRESHOLD, "Spark will start bolts a second time: leave it unset.")


def crowding(jobs: SparkJobs, count: int) -> BoltNotice | None:
    """Return a warning if ``count`` bolts leave the user's session no slot for anything else."""
    slots = jobs.slots()
    if slots is None or count < slots:
        return None
    busy = jobs.busy_slots() or 0
    others = f", {busy} of which are at work for others now" if busy else ""
    return BoltNotice(
        "",
        "warning",
        f"{count} bolts take all {slots} slots of the Spark session on {jobs.master}{others}: "
        "its other jobs wait until this run ends.",
        f"Set count to {slots - 1} or less (for apply: bolts={slots - 1}), or give the session"
        " more cores."
        if slots > 1
        else "Give the session more cores.",
    )


def _is_set(jobs: SparkJobs, name: str) -> bool:
    return _setting(jobs, name).rstrip("s") not in ("", "0")


def _setting(jobs: SparkJobs, name: str) -> str:
    with contextlib.suppress(Exception):  # Connect refuses names that it doesn't show
        return jobs.setting(name)
    return ""
