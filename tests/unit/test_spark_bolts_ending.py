"""A bolt that is ended from outside: its job is cancelled, its process killed; it is run again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from flowctl.ports import BoltNotice, Endpoint
from pyspark_flowctl.jobs import kill_worker
from pyspark_flowctl.supervisor import BoltSupervisor
from pyspark_flowctl.task import BoltTask

ENDPOINT = Endpoint(host="127.0.0.1", port=1, key=b"", job="test")


class Jobs:
    """Each run lasts until it is cancelled; ``deaf`` cancels are lost first."""

    local = True
    master = "local[1]"

    def __init__(self, deaf: int = 0) -> None:
        self.began = threading.Semaphore(0)
        self.cancels = 0
        self._deaf = deaf
        self._cancelled = threading.Event()

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def run(self, task: BoltTask, tag: str) -> str:
        self._cancelled.clear()
        self.began.release()
        self._cancelled.wait()
        raise RuntimeError("Job 7 cancelled part of cancelled job tags")

    def cancel(self, tag: str) -> None:
        self.cancels += 1
        if self.cancels > self._deaf:
            self._cancelled.set()

    def is_gone(self) -> bool:
        return False


def _supervised(jobs: Jobs, notices: list[BoltNotice]) -> tuple[BoltSupervisor, threading.Event]:
    stopping = threading.Event()
    supervisor = BoltSupervisor(
        jobs,  # type: ignore[arg-type]
        BoltTask("b1", 1, b"", b"", ()),
        ENDPOINT,
        tag="tag",
        notify=notices.append,
        stopping=stopping,
    )
    supervisor.thread.start()
    return supervisor, stopping


def _stop(supervisor: BoltSupervisor, stopping: threading.Event) -> None:
    stopping.set()
    supervisor.cancel()
    supervisor.thread.join(10)
    assert supervisor.is_done


def test_it_is_run_again_however_often_and_this_is_no_failure_of_sparks() -> None:
    jobs, notices, kills = Jobs(), [], []
    supervisor, stopping = _supervised(jobs, notices)
    for _ in range(7):  # more than the failures of Spark that are taken
        assert jobs.began.acquire(timeout=10)
        supervisor.end("silent since 12:00:00", lambda: kills.append(1))
    assert jobs.began.acquire(timeout=10)
    assert len(kills) == 7
    assert {notice.kind for notice in notices} == {"restarting"}
    assert notices[0].detail == "it was ended (silent since 12:00:00)"
    _stop(supervisor, stopping)


def test_a_cancel_that_is_lost_is_repeated(monkeypatch: Any) -> None:
    monkeypatch.setattr("pyspark_flowctl.supervisor._END_EVERY_S", 0.05)
    jobs, notices = Jobs(deaf=2), []
    supervisor, stopping = _supervised(jobs, notices)
    assert jobs.began.acquire(timeout=10)
    supervisor.end("silent", lambda: None)
    assert jobs.began.acquire(timeout=10)
    assert jobs.cancels >= 3  # more, if the job takes long to end
    _stop(supervisor, stopping)


def test_only_a_worker_of_sparks_is_killed() -> None:
    code = "import time; time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code])
    worker = subprocess.Popen([sys.executable, "-c", code, "pyspark.daemon"])
    try:
        time.sleep(0.1)  # it has its name once it runs
        kill_worker(other.pid)
        kill_worker(worker.pid)
        assert worker.wait(10) == -9
        assert other.poll() is None
        kill_worker(worker.pid)  # gone: nothing
    finally:
        other.kill()
        other.wait()


class Leaving(Jobs):
    """Each run lasts until its spout ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.end = threading.Semaphore(0)

    def run(self, task: BoltTask, tag: str) -> str:
        self.began.release()
        self.end.acquire()
        return '{"kind": "ended", "lived_s": 1}'


def test_one_that_is_to_move_is_run_again_once_its_spout_has_ended_it() -> None:
    jobs, notices = Leaving(), []
    supervisor, _ = _supervised(jobs, notices)
    assert jobs.began.acquire(timeout=10)
    supervisor.move()
    assert supervisor.is_moving
    jobs.end.release()
    assert jobs.began.acquire(timeout=10)
    assert not supervisor.is_moving  # it has: the next END is the run's
    jobs.end.release()
    supervisor.thread.join(10)
    assert supervisor.is_done
    assert notices == []
