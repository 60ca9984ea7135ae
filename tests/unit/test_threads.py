"""Threads that can't die in silence; those that look after Spark's bolts end the run."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from flowctl.errors import FencedError, FlowctlError, InternalError
from flowctl.ports import BoltNotice
from flowctl.threads import GuardedThread, death_of, guarded
from pyspark_flowctl.supervisor import BoltSupervisor, SlotWatch


class Worker(GuardedThread):
    def __init__(self, error: BaseException | None) -> None:
        self.deaths: list[FlowctlError] = []
        super().__init__("flowctl-worker", on_death=self.deaths.append)
        self._error = error

    def work(self) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_ends_a_thread_is_told_with_its_name_and_place(error: BaseException) -> None:
    worker = Worker(error)
    worker.start()
    worker.join()
    (death,) = worker.deaths
    assert isinstance(death, InternalError) and death.__cause__ is error
    assert f"the thread flowctl-worker died of {type(error).__name__}" in death.problem
    assert "test_threads.py:" in death.problem


def test_an_error_of_ours_says_itself_who_must_act() -> None:
    fenced = FencedError("a newer driver")
    worker = Worker(fenced)
    worker.run()
    assert worker.deaths == [fenced]
    assert death_of("x", fenced) is fenced


def test_a_thread_that_ends_well_says_nothing() -> None:
    worker = Worker(None)
    worker.run()
    assert worker.deaths == []
    told: list[Any] = []
    guarded(told.extend, name="x", on_death=told.append)([1, 2])
    assert told == [1, 2]


@pytest.mark.parametrize("which", ["supervisor", "slots"])
def test_what_looks_after_bolts_on_spark_ends_the_run(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("injected")

    def thread(run: Any, name: str) -> threading.Thread:
        return threading.Thread(target=run, name=name)

    notices: list[BoltNotice] = []
    monkeypatch.setattr(BoltSupervisor, "_run_once", fails)
    monkeypatch.setattr(SlotWatch, "_watch", fails)
    jobs: Any = SimpleNamespace(thread=thread)
    stopping = threading.Event()
    if which == "supervisor":
        task, endpoint = SimpleNamespace(bolt="b7"), SimpleNamespace(heartbeat_s=1.0)
        looking: Any = BoltSupervisor(
            jobs, task, endpoint, tag="t", notify=notices.append, stopping=stopping  # type: ignore[arg-type]
        )  # fmt: skip
    else:
        looking = SlotWatch(jobs, [], notify=notices.append, stopping=stopping)
    looking.thread.start()
    looking.thread.join()
    (notice,) = notices
    assert (notice.bolt, notice.kind) == ("", "fatal")  # of all bolts: the run ends
    assert "died of ZeroDivisionError: injected" in notice.detail
