"""``flowctl doctor --spark``: can executors reach what bolts need, and is all installed there?"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from pyspark import cloudpickle

from flowctl.config import ListenSettings
from flowctl.errors import InfrastructureError
from flowctl.relay_ports import RelayingStore
from pyspark_flowctl import probe as probe_module
from pyspark_flowctl.jobs import ClassicJobs, SparkJobs
from pyspark_flowctl.probe import (
    Greeter,
    ProbeTask,
    Target,
    greeter_of,
    probe_arrow,
    probe_partition,
    relayed_greeter,
    run_probe,
)
from pyspark_flowctl.session import SessionHolder

_SOMEWHERE: Final = "an executor"
_GROUP: Final = "flowctl-doctor"  # group of the check's jobs
_CONNECT_S: Final = 5.0  # much longer than a handshake, yet short for a person who waits
_LASTS_S: Final = 1.0  # Spark starts all tasks that have a slot within a second
_STEADY_S: Final = 3.0  # executors requested together arrive at shorter intervals
_ROUNDS: Final = 5  # each takes some four seconds
_TASKS_MAX: Final = 200  # an executor needs only one
_TASKS_OF_CONNECT: Final = 8  # Connect doesn't say how many slots there are
# Spark's message about the last failure of a task, with its place.
_FAILED_AT: Final = re.compile(r"\(TID \d+\) \((\S+) executor \S+\): (.*)")
_SAID: Final = re.compile(r"^\S*(?:Error|Exception): (.+)$", re.MULTILINE)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a task on its executor; ``failed``: why no task runs there, or "".

    ``targets`` has for each name "" if the target can be reached, else the reason.  ``load`` tells
    why ``process`` can't be loaded there.  ``paths`` has "=" and a digest of the beginning of each
    path, else why it can't be read.
    """

    host: str
    address: str = ""
    executor: int = 0
    python: str = ""
    flowctl: str = ""
    targets: dict[str, str] = {}
    load: str = ""
    paths: dict[str, str] = {}
    failed: str = ""


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The executors of ``master``, each once, and the address that they had to reach.

    ``listener`` is HOST:PORT, or the relay in front of it (``is_relayed``).  ``driver`` has the
    driver's own findings about the targets, except its listener.
    """

    master: str
    listener: str
    executors: list[Seen]
    driver: Seen
    is_relayed: bool = False


def examine(
    master: str | None,
    listen: ListenSettings,
    targets: Sequence[Target],
    *,
    process: bytes = b"",
    paths: Sequence[str] = (),
    relaying: RelayingStore | None = None,
    timeout_s: float,
) -> Examined:
    """Run tasks on all executors of ``master``; return the findings of each.

    With ``relaying`` executors reach the listener through its server, as with ``listen.via=redis``,
    and ``listen`` is not used.

    Starts a session unless one is active.  Raises :class:`InfrastructureError` if Spark or the
    relay does not start, or gives no executor within ``timeout_s``.
    """
    registry: Any = cloudpickle
    registry.register_pickle_by_value(probe_module)
    holder = SessionHolder(spark=None, master=master, slots_wanted=4)
    with contextlib.ExitStack() as ends:
        # Before Spark: the relay is quicker to start and doesn't need Spark's address.
        greeter = relayed_greeter(relaying) if relaying is not None else None
        if greeter is not None:
            ends.callback(greeter.close)
        ends.callback(holder.close)
        jobs = holder.open()
        if greeter is None:
            greeter = greeter_of(listen, jobs)
            ends.callback(greeter.close)
        task = _task(greeter, targets, process, paths)
        seen = _within(timeout_s, functools.partial(ask, jobs, task), jobs)
    return Examined(
        master=jobs.master,
        listener=greeter.place,
        executors=_each_once(seen),
        driver=msgspec.structs.replace(_here(targets, paths), host="driver"),
        is_relayed=relaying is not None,
    )


def _task(
    greeter: Greeter, targets: Sequence[Target], process: bytes, paths: Sequence[str]
) -> ProbeTask:
    every = tuple(map(tuple, (*greeter.targets, *targets)))
    return ProbeTask(
        every, _CONNECT_S, _LASTS_S, process, tuple(paths), greeter.door, greeter.token
    )


def _here(targets: Sequence[Target], paths: Sequence[str]) -> Seen:
    task = ProbeTask(tuple(map(tuple, targets)), _CONNECT_S, 0.0, paths=tuple(paths))
    return msgspec.json.decode(run_probe(*task), type=Seen)


def ask(jobs: SparkJobs, task: ProbeTask) -> list[Seen]:
    """Ask until each executor has answered: some come late, and Spark may leave one out."""
    found: list[Seen] = []
    for _ in range(_ROUNDS):
        found += _ask_once(jobs, task)
        silent = silent_hosts(found, _hosts(jobs))
        ended = _ended_on(jobs, silent)
        if told := [Seen(host=host, failed=why) for host, why in ended.items() if why]:
            # The results have their places, so none has to be guessed.
            found = [seen for seen in found if seen.host != _SOMEWHERE] + told
        silent = [host for host in silent if host not in ended]
        if not silent or any(seen.failed for seen in found):
            return placed(found, silent)
    return found + [Seen(host=host, failed="it got no task") for host in silent]


def _ask_once(jobs: SparkJobs, task: ProbeTask) -> list[Seen]:
    tasks = _slots(jobs)
    try:
        return _collect(jobs, task, tasks)
    except Exception as error:  # a failed task ends the job of all
        found = [failure(str(error))]
    # The other executors, each in a separate job.
    for _ in range(min(tasks, _TASKS_OF_CONNECT)):
        try:
            found += _collect(jobs, task._replace(lasts_s=0.0), 1)
        except Exception as error:
            found.append(failure(str(error)))
    return found


def _hosts(jobs: SparkJobs) -> list[str]:
    """Return the hosts of the executors by Spark's names; none if Spark does not tell.

    Spark counts the driver among them.
    """
    if not isinstance(jobs, ClassicJobs):
        return []
    context: Any = jobs.context
    known = context._jsc.sc().statusTracker().getExecutorInfos()
    return sorted({str(info.host()) for info in known} - {jobs.setting("spark.driver.host")})


def _ended_on(jobs: SparkJobs, hosts: Sequence[str]) -> dict[str, str]:
    """Return those of ``hosts`` where a task has ended, with the failure, or "".

    Spark runs a failed task again elsewhere, and then no job fails.  A host where a task succeeded
    may have another name for itself than Spark has.
    """
    if not hosts or not isinstance(jobs, ClassicJobs):
        return {}
    context: Any = jobs.context
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(_GROUP)]
    ended: dict[str, str] = {}
    for stage in (stage for info in infos if info is not None for stage in info.stageIds):
        tasks = store.taskList(stage, 0, _TASKS_MAX)
        for task in (tasks.apply(n) for n in range(tasks.size())):
            error = task.errorMessage()
            if task.status() == "SUCCESS" and task.host() in hosts:
                ended[task.host()] = ""
            elif error.isDefined() and task.host() in hosts:
                ended.setdefault(task.host(), failure(error.get()).failed)
    return ended


def silent_hosts(found: Sequence[Seen], hosts: Sequence[str]) -> list[str]:
    """Return the hosts from which no answer came."""
    heard = {name for seen in found for name in (seen.host, seen.address)}
    return [host for host in hosts if heard.isdisjoint((host, _resolved(host)))]


def placed(found: Sequence[Seen], silent: Sequence[str]) -> list[Seen]:
    """Add the ``silent`` hosts to failures whose error has no place.

    Spark 4 drops the place from an error in Python.
    """
    placed: list[Seen] = []
    for seen in found:
        is_somewhere = seen.failed and seen.host == _SOMEWHERE and silent
        places = silent if is_somewhere else [seen.host]
        placed += [msgspec.structs.replace(seen, host=host) for host in places]
    return placed


def _resolved(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


def failure(text: str) -> Seen:
    """Return the place and the reason of a task's failure, from Spark's message."""
    place = _FAILED_AT.search(text)
    said = _SAID.findall(text.partition("Driver stacktrace")[0])
    why = said[-1] if said else (place[2] if place else text.partition("\n")[0])
    return Seen(host=place[1] if place else _SOMEWHERE, failed=why.strip())


def _collect(jobs: SparkJobs, task: ProbeTask, tasks: int) -> list[Seen]:
    spark: Any = jobs.spark  # type: ignore[attr-defined]
    if isinstance(jobs, ClassicJobs):
        spark.sparkContext.setJobGroup(_GROUP, "flowctl doctor")
        rows = spark.sparkContext.parallelize(range(tasks), tasks)
        told = rows.mapPartitions(functools.partial(probe_partition, tuple(task))).collect()
    else:
        rows = spark.range(0, tasks, 1, tasks)
        done = rows.mapInArrow(functools.partial(probe_arrow, tuple(task)), "seen string")
        told = [row[0] for row in done.collect()]
    return [msgspec.json.decode(each, type=Seen) for each in told]


def _slots(jobs: SparkJobs) -> int:
    """Return the number of tasks that run at once, after executors have come."""
    if not isinstance(jobs, ClassicJobs):
        return _TASKS_OF_CONNECT
    context: Any = jobs.context
    count, since_s = 0, time.monotonic()
    while not jobs.local:
        now = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # one is the driver
        if now != count:
            count, since_s = now, time.monotonic()
        if count and time.monotonic() - since_s > _STEADY_S:
            break
        time.sleep(0.2)
    return min(_TASKS_MAX, max(1, int(context.defaultParallelism)))


def _within(timeout_s: float, ask: Any, jobs: SparkJobs) -> list[Seen]:
    found: list[list[Seen] | BaseException] = []

    def work() -> None:
        try:
            found.append(ask())
        except BaseException as error:
            found.append(error)

    thread = jobs.thread(work, "flowctl-checkup")
    thread.start()
    thread.join(timeout_s)
    if not found:
        raise InfrastructureError(
            f"No executor of {jobs.master} ran a task within {timeout_s:.0f} s.",
            remedy="It needs a free core and memory there, and executors must reach the driver's"
            f" own ports: spark.driver.host is {jobs.setting('spark.driver.host')!r}; fix"
            " spark.driver.port and spark.blockManager.port and open them. See the executors' log.",
        )
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _each_once(seen: Sequence[Seen]) -> list[Seen]:
    first = {(each.host, each.executor, each.failed): each for each in seen}
    return sorted(first.values(), key=lambda each: (each.host, each.executor))
