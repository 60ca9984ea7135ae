"""Keep each bolt's Spark job alive, and report the bolts that wait for a slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from flowctl.logs import ModuleLogger
from flowctl.ports import BoltNotice, Endpoint, all_fatal
from flowctl.threads import guarded
from pyspark_flowctl.jobs import SparkJobs
from pyspark_flowctl.outcome import GiveUp, Outcome, RestartPolicy, from_spark
from pyspark_flowctl.task import BoltTask

# Seconds between cancels.  A cancelled job returns within 0.1 s (classic) or 1 s (Connect); the
# next try catches a job that was just being submitted.
_END_TRIES = 5
_END_EVERY_S = 2.0

_log = ModuleLogger("pyspark_flowctl")

Notify = Callable[[BoltNotice], None]


class BoltSupervisor:
    """A thread that runs one bolt's job again and again, until END or ``stopping``.

    ``is_done`` is thread-safe, as are ``cancel`` and ``is_waiting``.
    """

    def __init__(
        self,
        jobs: SparkJobs,
        task: BoltTask,
        endpoint: Endpoint,
        *,
        tag: str,
        notify: Notify,
        stopping: threading.Event,
    ) -> None:
        self.bolt: str = task.bolt
        self._jobs = jobs
        self._task = task
        self._tag = tag
        self._notify = notify
        self._stopping = stopping
        self._policy = RestartPolicy(endpoint)
        self._submitted = False
        self._run_over = threading.Event()
        self._ended_why = ""
        #: Whether the bolt should leave its executor.
        self.is_moving: bool = False
        name = f"flowctl-{task.bolt}"
        supervise = guarded(self._supervise, name=name, on_death=all_fatal(notify))
        self.thread: threading.Thread = jobs.thread(supervise, name)

    @property
    def is_done(self) -> bool:
        """True when the thread has ended."""
        return not self.thread.is_alive()

    @property
    def tag(self) -> str:
        """Of its jobs."""
        return self._tag

    def is_waiting(self) -> bool | None:
        """Whether Spark has no slot for the bolt; None if unknown."""
        if self.is_done or not self._submitted:
            return False
        return self._jobs.is_waiting(self._tag)

    def cancel(self) -> None:
        """Cancel the running job, if any."""
        if self._submitted and not self.is_done:
            self._jobs.cancel(self._tag)

    def move(self) -> None:
        """Run the bolt again after its spout ends this run, as its executor is about to go."""
        self.is_moving = self._submitted

    def end(self, why: str, kill: Callable[[], None]) -> None:
        """End the run of a bolt that does not answer, and let it run again.

        ``kill`` kills its process, if possible; otherwise Spark does, 2 to 4 s after the cancel,
        even if the process is stopped.  Waits until the run is over.
        """
        run_over = self._run_over
        self._ended_why = why
        for _ in range(_END_TRIES):
            try:
                self.cancel()
            except Exception as error:  # the session is gone, and the bolt with it
                _log.debug("bolt_not_cancelled", bolt=self.bolt, error=type(error).__name__)
            kill()
            if run_over.wait(_END_EVERY_S) or self._stopping.is_set():
                return
        _log.warning("bolt_not_ended", bolt=self.bolt)

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            outcome = self._run_once()
            if self._stopping.is_set():
                return
            if self.is_moving and outcome.kind == "ended":
                continue
            step = self._policy.after(outcome)
            if isinstance(step, GiveUp):
                self._give_up(step, outcome)
                return
            self._notify(BoltNotice(self.bolt, "restarting", step.detail))
            self._stopping.wait(step.after_s)

    def _run_once(self) -> Outcome:
        began_s = time.monotonic()
        self.is_moving = False
        self._run_over, self._ended_why = threading.Event(), ""
        self._submitted = True
        try:
            return msgspec.json.decode(self._jobs.run(self._task, self._tag), type=Outcome)
        except Exception as error:  # errors of py4j, gRPC or Spark
            if self._stopping.is_set():  # cancelled: the reason is known
                return Outcome(kind="ended")
            gone = self._jobs.is_gone()
            lived_s = time.monotonic() - began_s
            if self._ended_why and not gone:  # cancelled here: not a failure of Spark
                detail = f"it was ended ({self._ended_why})"
                return Outcome(kind="crashed", detail=detail, lived_s=lived_s)
            return from_spark(error, gone=gone, lived_s=lived_s)
        finally:
            self._submitted = False
            self._run_over.set()

    def _give_up(self, step: GiveUp, outcome: Outcome) -> None:
        if not step.detail:
            return
        if outcome.traceback:
            _log.debug("bolt_failed", bolt=self.bolt, traceback=outcome.traceback)
        self._notify(BoltNotice(self.bolt, "fatal", step.detail, step.remedy))


def move_away(jobs: SparkJobs, bolts: Sequence[BoltSupervisor]) -> None:
    """Tell the bolts on executors that are being decommissioned to move."""
    going = jobs.going()
    if going:
        executors = jobs.executors([bolt.tag for bolt in bolts])
        for bolt in bolts:
            if executors.get(bolt.tag) in going:
                bolt.move()


# A task starts within a second of its submission if a slot is free (24 tasks took 0.8 s).  So if
# all slots are taken in three looks in a row, the bolt really waits.
_LOOK_EVERY_S = 1.0
# A look takes a few calls of the JVM, a millisecond of CPU: while no bolt waits, looks are rarer.
_LOOK_AGAIN_MAX_S = 8.0
_LOOKS = 3
_LOOKS_IN_CLUSTER = 10  # a cluster's slots can't be counted, and executors come later


def look_until(stopping: threading.Event, look: Callable[[], None], *, every_s: float) -> None:
    """Call ``look`` every ``every_s`` [s] until ``stopping`` is set; its errors are only logged."""
    while not stopping.wait(every_s):
        try:
            look()
        except Exception as error:  # a lost session is reported by the supervisors
            _log.debug("slots_unknown", error=type(error).__name__)


class SlotWatch:
    """A thread that watches slots and executors.

    It notifies once for each period in which a bolt waits for a slot, and tells bolts on
    decommissioned executors to move.
    """

    def __init__(
        self,
        jobs: SparkJobs,
        bolts: Sequence[BoltSupervisor],
        *,
        notify: Notify,
        stopping: threading.Event,
    ) -> None:
        self._jobs = jobs
        self._bolts = bolts
        self._notify = notify
        self._stopping = stopping
        self._looks: dict[str, int] = {}  # looks in a row in which a bolt waited
        self._pause_s = self._next_s = _LOOK_EVERY_S  # between looks, and until the next one
        name = "flowctl-slots"
        self.thread: threading.Thread = jobs.thread(
            guarded(self._watch, name=name, on_death=all_fatal(notify)), name
        )

    def _watch(self) -> None:
        look_until(self._stopping, self._look, every_s=_LOOK_EVERY_S)

    def _look(self) -> None:
        move_away(self._jobs, self._bolts)
        self._next_s -= _LOOK_EVERY_S
        if self._next_s > 0:
            return
        waiting = self._waiting()
        self._pause_s = _LOOK_EVERY_S if waiting else min(_LOOK_AGAIN_MAX_S, 2 * self._pause_s)
        self._next_s = self._pause_s
        patience = _LOOKS if self._jobs.slots() is not None else _LOOKS_IN_CLUSTER
        for bolt in self._bolts:
            looks = self._looks.get(bolt.bolt, 0) + 1 if bolt.bolt in waiting else 0
            self._looks[bolt.bolt] = looks
            if looks == patience:
                self._notify(self._notice(bolt.bolt))

    def _waiting(self) -> set[str]:
        """Return the bolts without a slot; if Spark can't tell, the last ones beyond the slots."""
        slots, busy = self._jobs.slots(), self._jobs.busy_slots()
        if slots is not None and busy is not None and busy < slots:
            return set()  # Spark is only slow
        states = {bolt.bolt: bolt.is_waiting() for bolt in self._bolts}
        if None not in states.values():
            return {bolt for bolt, is_waiting in states.items() if is_waiting}
        active = [bolt.bolt for bolt in self._bolts if not bolt.is_done]
        return set() if slots is None else set(active[slots:])

    def _notice(self, bolt: str) -> BoltNotice:
        # The driver knows how many bolts run.  Connect doesn't tell which bolts have a slot, and
        # tasks of other jobs may hold all slots.
        return BoltNotice(
            bolt,
            "waiting",
            f"no free Spark slot on {self._jobs.master}",
            f"Give Spark {len(self._bolts)} free cores, or lower count; the others do the work.",
        )
