"""``SparkBolts``: long-lived bolts, each a supervised single-task Spark job."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from flowctl import __version__
from flowctl.arguments import check_arguments, check_whole
from flowctl.bolts.limits import check_descriptors
from flowctl.errors import ConfigError, FlowctlError, InternalError
from flowctl.failure.callables import check_process
from flowctl.failure.classify import RefusalRule, check_rule
from flowctl.logs import ModuleLogger
from flowctl.ports import BoltNotice, Endpoint, Process, all_fatal
from flowctl.threads import guarded
from pyspark_flowctl.jobs import LOOPBACK, ConnectJobs, SparkJobs, kill_worker, ship_task_by_value
from pyspark_flowctl.session import SessionHolder
from pyspark_flowctl.shipping import ship
from pyspark_flowctl.supervisor import BoltSupervisor, Notify, SlotWatch, look_until, move_away
from pyspark_flowctl.task import BoltTask

# -- Spark settings that harm bolts, and bolts that harm others --------------------------------


class Danger(NamedTuple):
    """A setting that harms bolts, and its effect."""

    setting: str
    problem: str


# Settings of classic workers, and of those that mapInArrow uses on Connect.
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
    """Yield settings that should be changed; none of them makes results wrong."""
    for timeout, kill in _IDLE:
        if _is_set(jobs, timeout) and _setting(jobs, kill) == "true":
            yield Danger(timeout, "Spark will kill bolts that wait for work: set it to 0.")
    # Spark never speculates on a stage of one task, unless a threshold is set; then a second copy
    # takes over the bolt's name, and the tuples of the first one are sent again.
    if _setting(jobs, _SPECULATION) == "true" and _setting(jobs, _THRESHOLD):
        yield Danger(_THRESHOLD, "Spark will start bolts a second time: leave it unset.")


def crowding(jobs: SparkJobs, count: int) -> BoltNotice | None:
    """Return a warning if ``count`` bolts take all slots of the user's session."""
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
    with contextlib.suppress(Exception):  # Connect refuses to return settings that it doesn't show
        return jobs.setting(name)
    return ""


# -- ``count="auto"``: bolts are started in waves, for as long as half of them find a slot -----


#: Most bolts with "auto". Each one takes a thread and a Spark job in the driver; for more bolts the
#: user should choose the number.
BOLTS_MAX: Final = 200
# Seconds between looks: a task starts within a second of its submission if a slot is free (24 tasks
# took 0.8 s).
_LOOK_EVERY_S = 0.5
# Bolts that are started first: dynamic allocation asks for as many executors as they need.
_FIRST = 4


class Growth:
    """A thread that starts a few bolts at first, then as many more as are at work.

    Bolts that wait for a slot make dynamic allocation ask for executors, and take slots that come
    later.
    """

    def __init__(
        self,
        jobs: SparkJobs,
        started: list[BoltSupervisor],
        more: Iterator[BoltSupervisor],
        *,
        notify: Notify,
        stopping: threading.Event,
    ) -> None:
        self._jobs = jobs
        self._started = started
        self._more = more
        self._notify = notify
        self._stopping = stopping
        self._fatal: BoltNotice | None = None
        name = "flowctl-growth"
        self.thread: threading.Thread = jobs.thread(
            guarded(self._watch, name=name, on_death=all_fatal(notify)), name
        )

    def take(self, notice: BoltNotice) -> None:
        """Take a bolt's notice; callable from any thread."""
        if notice.kind == "fatal":
            self._fatal = notice

    def _watch(self) -> None:
        self._start(_FIRST)
        look_until(self._stopping, self._look, every_s=_LOOK_EVERY_S)

    def _look(self) -> None:
        started = list(self._started)
        move_away(self._jobs, started)
        at_work = len(self._jobs.executors([bolt.tag for bolt in started]))
        if 2 * at_work > len(started):
            self._start(2 * at_work - len(started))
        elif self._fatal is not None and all(bolt.is_done for bolt in started):
            self._notify(BoltNotice("", "fatal", self._fatal.detail, self._fatal.remedy))

    def _start(self, count: int) -> None:
        for _ in range(count):
            bolt = next(self._more, None)
            if bolt is None or self._stopping.is_set():
                return
            self._started.append(bolt)
            bolt.thread.start()


# -- ``SparkBolts`` ----------------------------------------------------------------------------


_log = ModuleLogger("pyspark_flowctl")

# Longest wait for a cancelled job.  Spark returns within 0.1 s (classic) or 1 s (Connect); a JVM
# that takes this long will not answer at all.
_CANCEL_PATIENCE_S = 3.0
_CLOSE_PATIENCE_S = 10.0  # stopping a session takes 1 s; the process can end without it
_CANCEL_AGAIN_S = 0.5  # catches a job that was submitted just after the first cancel


class SparkBolts:
    """Runs ``process`` in ``count`` bolts on Spark workers; implements ``flowctl.ports.Bolts``.

    Uses ``spark``, else the active SparkSession (classic or Connect), else starts one on ``master``
    (default: this machine, with a slot per bolt; also ``sc://…``) and stops it again.  A session
    that it did not start is never stopped.  ``slots`` is how many tuples one bolt processes at
    once: in threads, or as tasks of an event loop if ``process`` is ``async def``.
    ``refusal(error)`` may tell which errors of ``process`` are refusals of the target
    (docs/process.md).

    ``process`` and ``refusal`` are pickled when the bolts start: functions of the job's own file
    are sent along, everything else must be installed on the workers, including flowctl.  ``count``
    and ``master`` may be changed until then.  If Spark has fewer slots than bolts, only the bolts
    that find one run.  ``count="auto"``: a bolt for each slot of the application, at most 200, also
    for slots that come during the run (deploy/README.md); not on Connect.  Call the methods from
    one thread.
    """

    @check_arguments("master")
    def __init__(
        self,
        process: Process,
        count: int | Literal["auto"] = 12,
        *,
        slots: int = 1,
        spark: Any | None = None,
        master: str | None = None,
        refusal: RefusalRule | None = None,
    ) -> None:
        check_process(process)
        check_rule(refusal)
        if spark is not None and master is not None:
            raise ConfigError(
                "master", "a session already has its master.", remedy="Give spark or master."
            )
        if count != "auto":
            check_whole(count=count)
        check_whole(slots=slots)
        self.process = process
        self.refusal = refusal
        self._count = count
        self.slots = slots
        self.master = master
        self._spark = spark
        self._holder: SessionHolder | None = None
        self._run: _Run | None = None

    @property
    def count(self) -> int:
        """The number of bolts, the maximum with "auto"; it can be set until they are started."""
        return BOLTS_MAX if self._count == "auto" else self._count

    @count.setter
    def count(self, count: int | Literal["auto"]) -> None:
        self._count = count

    @property
    def follows_slots(self) -> bool:
        """Whether the number of bolts follows the slots (``count="auto"``)."""
        return self._count == "auto"

    def listen_host(self) -> str:
        """Return the driver's address that executors can reach; may start the session (5–9 s)."""
        holder = self._session()
        if holder.find() is None and holder.will_be_local():
            return LOOPBACK  # known without starting a session
        return holder.open().host()

    def bind_host(self) -> str:
        """Return ``spark.driver.bindAddress`` of an open session that sets it, else ""."""
        jobs = self._session().find()
        return "" if jobs is None or jobs.local else jobs.bind_host()

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        """Ship ``process`` and start the bolts ``b1`` … ``b<count>`` in the background."""
        if self._run is not None:
            raise InternalError("SparkBolts were started twice.", remedy="Call stop first.")
        check_whole(count=self.count)  # process and refusal may have been replaced
        check_whole(slots=self.slots)
        check_descriptors(self.count)
        tasks = self.tasks(endpoint)
        holder = self._session()
        holder.find()  # not in the background, as the active session belongs to this thread
        self._run = _Run(holder, tasks, endpoint, notify, grows=self.follows_slots)
        self._run.start()

    def tasks(self, endpoint: Endpoint) -> list[BoltTask]:
        """Return a task for each bolt."""
        shipped = ship(self.process)
        refusal = ship(self.refusal, field="refusal") if self.refusal is not None else b""
        reader = ship(endpoint.reader, field="producer") if endpoint.reader is not None else b""
        spout = pickle.dumps(msgspec.structs.replace(endpoint, reader=None))
        return [
            BoltTask(
                f"b{n}", self.slots, spout, shipped, (), refusal, reader, __version__, endpoint.job
            )
            for n in range(1, self.count + 1)
        ]

    def end(self, bolt: str, *, reason: str, host: str = "", pid: int = 0) -> None:
        """End a bolt that is frozen or cut off: cancel its job, kill its process, run it again.

        On this machine the process ``pid`` is killed at once; elsewhere Spark kills it, 2 to 4 s
        after the cancel.  Callable from any thread.
        """
        run = self._run
        if run is not None:
            run.end(bolt, reason, host, pid)

    def has_room(self) -> bool | None:
        """Whether a local master has more slots than bolts; None: a cluster's are not known."""
        slots = self._run.slots() if self._run is not None else None
        return None if slots is None else slots > self.count

    def leaving(self) -> Sequence[str]:
        """Return the bolts on executors that Spark is decommissioning; unknown on Connect."""
        return self._run.leaving() if self._run is not None else ()

    def stop(self, *, timeout_s: float) -> None:
        """Wait for bolts that received END, cancel the others, stop a session started here.

        It takes at most ``timeout_s`` and some 3 s, and 10 s more if such a session hangs.  It does
        nothing if the bolts were not started.
        """
        run, self._run = self._run, None
        holder, self._holder = self._holder, None
        if run is not None:
            run.stop(timeout_s)
        elif holder is not None:
            holder.close()

    def _session(self) -> SessionHolder:
        if self._holder is None:
            self._holder = SessionHolder(
                spark=self._spark,
                master=self.master,
                slots_wanted=_cores() if self.follows_slots else self.count,
            )
        return self._holder


class _Run:
    """The state from a start to its stop."""

    def __init__(
        self,
        holder: SessionHolder,
        tasks: Sequence[BoltTask],
        endpoint: Endpoint,
        notify: Notify,
        *,
        grows: bool = False,
    ) -> None:
        self._holder = holder
        self._tasks = tasks
        self._endpoint = endpoint
        self._tell = notify
        self._grows = grows
        self._growth: Growth | None = None
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._bolts: list[BoltSupervisor] = []
        self._jobs: SparkJobs | None = None
        name = "flowctl-spark"
        launch = guarded(self._launch, name=name, on_death=all_fatal(self._notify))
        self._launcher = threading.Thread(target=launch, name=name, daemon=True)

    def start(self) -> None:
        self._launcher.start()

    def slots(self) -> int | None:
        """Return the slots of a local master once Spark has started; else None."""
        return self._jobs.slots() if self._jobs is not None else None

    def stop(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._stopping.set()
        self._launcher.join(max(0.0, deadline_s - time.monotonic()))
        _bounded(self._cancel_waiting, min(timeout_s, _CANCEL_PATIENCE_S))
        self._join(deadline_s)
        if self._alive():
            self._cancel_until(time.monotonic() + _CANCEL_PATIENCE_S)
        self._stopped.set()
        if not self._launcher.is_alive():  # otherwise the background thread closes the session
            _bounded(self._holder.close, _CLOSE_PATIENCE_S)

    def end(self, bolt: str, reason: str, host: str, pid: int) -> None:
        for supervisor in list(self._bolts):
            if supervisor.bolt == bolt:
                supervisor.end(reason, lambda: self._kill(host, pid))

    def leaving(self) -> list[str]:
        return [supervisor.bolt for supervisor in list(self._bolts) if supervisor.is_moving]

    def _kill(self, host: str, pid: int) -> None:
        jobs = self._jobs
        if pid and jobs is not None and jobs.local and host == socket.gethostname():
            kill_worker(pid)

    def _notify(self, notice: BoltNotice) -> None:
        if not self._stopped.is_set():
            if self._growth is not None and notice.bolt:
                self._growth.take(notice)
            self._tell(notice)

    def _launch(self) -> None:
        try:
            self._notify(BoltNotice("", "starting", "Spark"))
            jobs = self._jobs = self._holder.open()
            self._launch_bolts(jobs)
        except FlowctlError as error:
            self._notify(BoltNotice("", "fatal", error.problem, error.remedy))
        except Exception as error:
            detail = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            self._notify(BoltNotice("", "fatal", detail, "Run `flowctl doctor`."))
        if self._stopped.is_set():
            self._holder.close()

    def _launch_bolts(self, jobs: SparkJobs) -> None:
        for danger in dangers(jobs):
            _log.warning("spark_setting", setting=danger.setting, problem=danger.problem)
        if self._grows and isinstance(jobs, ConnectJobs):
            raise ConfigError(
                "count", "Spark Connect doesn't say which slots there are.", remedy="Give a number."
            )
        wanted = 0 if self._grows else len(self._tasks)
        crowded = None if self._holder.is_ours else crowding(jobs, wanted)
        if crowded is not None:
            self._notify(crowded)
        ship_task_by_value()
        paths = _driver_paths() if jobs.local else ()
        run_id = uuid.uuid4().hex[:8]  # two runs may share a session
        made = (self._supervisor(jobs, task, paths, run_id) for task in self._tasks)
        if self._grows:
            options: Any = {"notify": self._notify, "stopping": self._stopping}
            self._growth = Growth(jobs, self._bolts, made, **options)
            self._growth.thread.start()
            return
        bolts = list(made)
        if self._stopping.is_set():
            return
        self._bolts = bolts
        watch = SlotWatch(jobs, bolts, notify=self._notify, stopping=self._stopping)
        for thread in (*(bolt.thread for bolt in bolts), watch.thread):
            thread.start()

    def _supervisor(
        self, jobs: SparkJobs, task: BoltTask, paths: tuple[str, ...], run_id: str
    ) -> BoltSupervisor:
        return BoltSupervisor(
            jobs,
            task._replace(paths=paths),
            self._endpoint,
            tag=f"flowctl-{run_id}-{task.bolt}",
            notify=self._notify,
            stopping=self._stopping,
        )

    def _alive(self) -> list[BoltSupervisor]:
        return [bolt for bolt in list(self._bolts) if not bolt.is_done]

    def _cancel_waiting(self) -> None:
        """Cancel bolts that never got a slot: no END reaches them."""
        for bolt in self._alive():
            with contextlib.suppress(Exception):  # the session is gone, and the bolts with it
                if bolt.is_waiting():
                    bolt.cancel()

    def _cancel_until(self, deadline_s: float) -> None:
        while (alive := self._alive()) and time.monotonic() < deadline_s:
            for bolt in alive:
                with contextlib.suppress(Exception):
                    _bounded(bolt.cancel, deadline_s - time.monotonic())
            self._join(min(deadline_s, time.monotonic() + _CANCEL_AGAIN_S))
        if alive:
            _log.warning("bolts_left", bolts=[bolt.bolt for bolt in alive])

    def _join(self, deadline_s: float) -> None:
        for bolt in self._alive():
            bolt.thread.join(max(0.0, deadline_s - time.monotonic()))


def _bounded(call: Callable[[], None], timeout_s: float) -> None:
    """Run ``call``, but wait at most ``timeout_s``: a dead JVM or server may never answer."""
    thread = threading.Thread(target=call, name="flowctl-spark-call", daemon=True)
    thread.start()
    thread.join(max(0.0, timeout_s))


def _driver_paths() -> tuple[str, ...]:
    return tuple(str(Path(path).absolute()) for path in sys.path)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
