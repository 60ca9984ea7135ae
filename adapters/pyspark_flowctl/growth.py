"""``count="auto"``: bolts are started in waves, for as long as half of them find a slot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from flowctl.ports import BoltNotice, all_fatal
from flowctl.threads import guarded
from pyspark_flowctl.jobs import SparkJobs
from pyspark_flowctl.supervisor import BoltSupervisor, Notify, look_until, move_away

#: Each bolt is a thread and a Spark job of the driver's; for more somebody should choose a number.
BOLTS_MAX: Final = 200
# A task starts within a second of its submission where there is a slot (24 of them took 0.8 s).
_LOOK_EVERY_S = 0.5
# So many wait at first: dynamic allocation asks for as many executors as they need.
_FIRST = 4


class Growth:
    """One thread: starts bolts so that as many wait for a slot as are at work, and a few at first.

    Those that wait make dynamic allocation ask for executors, and take slots that come later.
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
        """A bolt said something; from any thread."""
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
