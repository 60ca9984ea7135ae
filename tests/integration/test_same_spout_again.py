"""One spout object, run several times: after the end of its input, a failure, an interruption."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from fault_parts import until

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.errors import ConfigError, ProcessError
from flowctl.ports import Endpoint
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.launch import Interrupted
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import ListProducer, Witness

COUNT = 500


class Job:
    """A spout of LocalBolts over 500 records; ``done`` holds the positions that came through."""

    def __init__(self, before: Callable[[Batch], None] = lambda batch: None) -> None:
        self.done: list[object] = []
        self.before = before
        # Bolts that do not come up would be waited for for 120 s: a second is plenty for threads.
        # No copies at the end of the input: what came through is counted.
        settings = {
            "start.bolts_timeout_s": 1.0, "retry.attempts_max": 1, "hedge.enabled": False,
        }  # fmt: skip
        self.producer = ListProducer(COUNT)
        self.spout = FlowControlSpout(
            name="again",
            producer=self.producer,
            bolts=LocalBolts(self._process, count=3),
            checkpoint=MemoryCheckpointStore(),
            settings=Settings().with_overrides(settings),
        )

    def _process(self, batch: Batch) -> None:
        self.before(batch)
        self.done += [record.position for record in batch]


def test_a_run_with_nothing_left_and_one_with_more_input() -> None:
    job = Job()
    assert job.spout.run(view="off").records_acked == COUNT
    assert job.spout.run(view="off").records_acked == 0
    job.producer.count += 100
    assert job.spout.run(view="off").records_acked == 100
    assert sorted(job.done) == list(range(1, COUNT + 101))


def test_a_run_of_all_records_again() -> None:
    job = Job()
    job.spout.run(view="off")
    job.spout.checkpoint.clear("again")
    assert job.spout.run(view="off").records_acked == COUNT
    assert len(job.done) == 2 * COUNT


def test_a_run_after_one_that_failed() -> None:
    def fail(batch: Batch) -> None:
        raise ValueError("not today")

    job = Job(fail)
    with pytest.raises(ProcessError, match="not today"):
        job.spout.run(view="off")
    job.before = lambda batch: None
    job.spout.run(view="off")
    assert sorted(job.done) == list(range(1, COUNT + 1))


def test_a_run_after_one_that_was_interrupted() -> None:
    sent = threading.Event()

    def interrupt(batch: Batch) -> None:
        if not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)
        # On a busy machine the main thread may notice late: nothing is done before it has.
        until(lambda: any(said.startswith("interrupted") for said in view.messages), "the notice")

    view = Witness()
    job = Job(interrupt)
    job.producer = job.spout.producer = ListProducer(COUNT, poll_max=1)
    with pytest.raises(Interrupted):
        job.spout.run(view=view)
    job.spout.run(view="off")
    assert sorted(job.done) == list(range(1, COUNT + 1))


def test_the_number_of_bolts_may_change_between_runs() -> None:
    job = Job()
    job.spout.run(view="off")
    job.spout.checkpoint.clear("again")
    job.spout.bolts.count = 7
    view = Witness()

    def seven_are_up() -> bool:
        return bool(view.snapshots) and len(view.snapshots[-1].bolts) == 7

    # 500 records may be done before the seventh thread is up: nothing is done before it is.
    job.before = lambda batch: until(seven_are_up, "seven bolts")
    assert len(job.spout.run(view=view).bolts) == 7


def test_bolts_of_two_runs_at_once_are_refused() -> None:
    bolts = LocalBolts(print, count=1)
    nowhere = Endpoint(host="127.0.0.1", port=9, key=b"k" * 32, job="j")
    bolts.start(nowhere, lambda notice: None)
    try:
        with pytest.raises(ConfigError, match="in use by another run"):
            bolts.start(nowhere, lambda notice: None)
    finally:
        bolts.stop(timeout_s=10)
