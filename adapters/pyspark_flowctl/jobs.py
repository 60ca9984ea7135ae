"""Single-task Spark jobs, one per bolt, on a classic or a Connect session."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from pyspark import cloudpickle

from flowctl.instrumentation.text import printable, shown_command
from flowctl.wire.listener import is_unspecified
from pyspark_flowctl import task as task_module
from pyspark_flowctl.task import BoltTask, run_arrow, run_partition

LOOPBACK = "127.0.0.1"
_TASKS_MAX = 100  # most tasks listed of a bolt's job: its only task, and its restarts
_LOCAL_SLOTS = re.compile(r"^local\[(\d+)")
_LOCAL_CLUSTER = re.compile(r"^local-cluster\[\s*(\d+)\s*,\s*(\d+)")


class SparkJobs(Protocol):
    """The part of a Spark session that supervisors need.  Thread-safe."""

    master: str
    local: bool  # whether executors are on this machine and share its files

    def host(self) -> str:
        """Return the driver's address that executors can reach."""

    def bind_host(self) -> str:
        """Return the address to listen on, if Spark announces a different one."""

    def slots(self) -> int | None:
        """Return the number of tasks that can run at once, None if unknown."""

    def busy_slots(self) -> int | None:
        """Return the number of running tasks, including the user's own; None if unknown."""

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Return a daemon thread in which jobs may be run."""

    def run(self, task: BoltTask, tag: str) -> str:
        """Run the bolt's job to its end in this thread; return the task's outcome (JSON)."""

    def is_waiting(self, tag: str) -> bool | None:
        """Whether the job waits for a slot; None if unknown."""

    def executors(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return the executors of those jobs with these tags that are running."""

    def going(self) -> Collection[str]:
        """Return the executors that are being decommissioned."""

    def cancel(self, tag: str) -> None:
        """Cancel the job with this tag, if any; its Python worker may go on for 4 s."""

    def is_gone(self) -> bool:
        """Return True if the session was stopped or its JVM is dead."""

    def setting(self, name: str, default: str = "") -> str:
        """Return one of the session's settings."""


def is_local(master: str) -> bool:
    """Return True for masters whose executors run on the driver's machine."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def slots_of(master: str) -> int | None:
    """Return the number of slots of a local master, None for others."""
    if found := _LOCAL_SLOTS.match(master):
        return int(found[1])
    if found := _LOCAL_CLUSTER.match(master):
        return int(found[1]) * int(found[2])
    return 1 if master == "local" else None


def kill_worker(pid: int) -> None:
    """Kill a Python worker of Spark on this machine, even a stopped (frozen) one."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # the process is gone, or there is no /proc
        command = b"" if Path("/proc/self").exists() else b"pyspark"
    if b"pyspark" in command:  # otherwise the pid belongs to another process by now
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def ship_task_by_value() -> None:
    """Make Spark pickle the task's code by value: it must run even where flowctl is missing."""
    registry: Any = cloudpickle  # untyped
    registry.register_pickle_by_value(task_module)


def description_of(task: BoltTask) -> str:
    """Return what Spark's UI calls the job of a bolt, with the command that shows the run."""
    watch = shown_command(["flowctl", "top", task.job, "--page"])
    return f"flowctl bolt {task.bolt} of {printable(task.job)} · {watch}"


class ClassicJobs:
    """Bolts as RDD tasks: half the memory of Arrow ones (59 against 136 MB)."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.context = spark.sparkContext
        self.master: str = self.context.master
        self.local: bool = is_local(self.master)

    def host(self) -> str:
        if self.local:
            return LOOPBACK
        host = self.setting("spark.driver.host").strip("[]")  # brackets of an IPv6 address
        # Spark 4.3.0 on Kubernetes may report 0.0.0.0 (SPARK-58748), to which no connection is
        # possible.
        if not host or is_unspecified(host):
            return _address_towards(urlsplit(self.master).hostname or socket.gethostname())
        return host

    def bind_host(self) -> str:
        return self.setting("spark.driver.bindAddress").strip("[]")

    def slots(self) -> int | None:
        return slots_of(self.master)

    def busy_slots(self) -> int | None:
        # Uses the same events as is_waiting: on a busy machine executors' own counts are ahead of
        # these, and bolts whose task runs would be reported as waiting for a slot.
        tracker = self.context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        active: int = sum(stage.numActiveTasks for stage in stages if stage is not None)
        return active

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        from pyspark import InheritableThread

        # Spark's tags and properties (a scheduler pool) belong to the thread that runs a job.
        return InheritableThread(target=run, name=name, daemon=True)

    def run(self, task: BoltTask, tag: str) -> str:
        self.context.setJobGroup(tag, description_of(task))
        self.context.addJobTag(tag)
        rows = self.context.parallelize([task.bolt], 1)
        outcome: str = rows.mapPartitions(functools.partial(run_partition, tuple(task))).collect()[
            0
        ]
        return outcome

    def is_waiting(self, tag: str) -> bool | None:
        tracker = self.context.statusTracker()
        newest = max(tracker.getJobIdsForGroup(tag), default=None)
        job = None if newest is None else tracker.getJobInfo(newest)
        if job is None or job.status != "RUNNING":
            return False  # submission in progress: a session's first job takes seconds
        stages = [tracker.getStageInfo(stage) for stage in job.stageIds]
        return all(stage is not None and stage.numActiveTasks == 0 for stage in stages)

    def executors(self, tags: Sequence[str]) -> Mapping[str, str]:
        store = self.context._jsc.sc().statusStore()
        found = ((tag, self._executor_of(tag, store)) for tag in tags)
        return {tag: executor for tag, executor in found if executor is not None}

    def going(self) -> Collection[str]:
        if self.master == "local" or self.master.startswith("local["):
            return ()  # in local mode the driver is the executor
        context = self.context._jsc.sc()
        backend, found = context.schedulerBackend(), context.statusStore().executorList(True)
        executors = {found.apply(n).id() for n in range(found.size())} - {"driver"}
        return {each for each in executors if not backend.isExecutorActive(each)}

    def _executor_of(self, tag: str, store: Any) -> str | None:
        tracker = self.context.statusTracker()
        newest = max(tracker.getJobIdsForGroup(tag), default=None)
        job = None if newest is None else tracker.getJobInfo(newest)
        for stage in job.stageIds if job is not None and job.status == "RUNNING" else ():
            attempt = tracker.getStageInfo(stage)
            if attempt is None:
                continue
            tasks = store.taskList(stage, attempt.currentAttemptId, _TASKS_MAX)
            found = [tasks.apply(n) for n in range(tasks.size())]
            for task in found:
                if task.status() == "RUNNING":
                    return str(task.executorId())
        return None

    def cancel(self, tag: str) -> None:
        self.context.cancelJobsWithTag(tag)

    def is_gone(self) -> bool:
        if self.context._jsc is None:
            return True
        try:
            return bool(self.context._jsc.sc().isStopped())
        except Exception:  # py4j reports the death of the JVM in many ways
            return True

    def setting(self, name: str, default: str = "") -> str:
        # Asks the JVM: PySpark's getConf copies all settings, with several calls for each, which
        # took half of the driver's CPU time until bolts were connected.
        return str(self.context._jsc.getConf().get(name, default))


class ConnectJobs:
    """Bolts as one-row ``mapInArrow`` tasks: Spark Connect has no RDD."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self._server: str = spark.client.host.strip("[]")
        self.master: str = self.setting("spark.master", "unknown")
        # A server on this machine with executors elsewhere belongs to a cluster, so it isn't local.
        self.local: bool = is_local(self.master) and self._server in ("localhost", LOOPBACK, "::1")

    def host(self) -> str:
        return LOOPBACK if self.local else _address_towards(self._server)

    def bind_host(self) -> str:
        return ""  # the server's setting tells nothing about the client's machine

    def slots(self) -> int | None:
        return slots_of(self.master)

    def busy_slots(self) -> int | None:
        return None

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def run(self, task: BoltTask, tag: str) -> str:
        self.spark.addTag(tag)  # the client keeps tags per thread
        rows = self.spark.range(0, 1, 1, 1)
        done = rows.mapInArrow(functools.partial(run_arrow, tuple(task)), "outcome string")
        outcome: str = done.collect()[0][0]
        return outcome

    def is_waiting(self, tag: str) -> bool | None:
        return None  # Connect has no status tracker

    def executors(self, tags: Sequence[str]) -> Mapping[str, str]:
        return {}  # Connect doesn't say

    def going(self) -> Collection[str]:
        return ()

    def cancel(self, tag: str) -> None:
        self.spark.interruptTag(tag)

    def is_gone(self) -> bool:
        try:
            return bool(self.spark.is_stopped) or not self.spark.version  # asks the server
        except Exception:
            return True

    def setting(self, name: str, default: str = "") -> str:
        return str(self.spark.conf.get(name, default))


def _address_towards(server: str) -> str:
    """Return this machine's address on the route to ``server``; nothing is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(server, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # any port: UDP connect only looks up the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
