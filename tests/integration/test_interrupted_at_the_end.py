"""Ctrl-C that comes when everything is done: nothing was interrupted, so the run has finished."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from fault_parts import until

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.cli.run import run_spout
from flowctl.config import Settings
from flowctl.errors import (
    EXIT_FINISHED,
    EXIT_FINISHED_WITH_LOSSES,
    EXIT_INTERRUPTED,
    CheckpointUnavailableError,
)
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.runtime.flow_control_spout import FlowControlSpout
from tests.runtime_parts import FailingStore, ListProducer, Witness

COUNT = 40


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def spout_of(process: Any = lambda batch: None, **parts: Any) -> FlowControlSpout:
    parts.setdefault("bolts", LocalBolts(process, count=2))
    parts.setdefault("producer", ListProducer(COUNT))
    parts.setdefault("checkpoint", FailingStore())
    return FlowControlSpout(name="j", **parts)


def assert_finished(spout: FlowControlSpout, view: Any, code: int = EXIT_FINISHED) -> None:
    assert run_spout(spout, view=view, report_path=None) == code
    assert view.report.outcome == "finished"
    assert view.report.records_saved == COUNT
    assert not [said for said in view.messages if "interrupted" in said or "resume" in said]


class InterruptsWhenAllIsAcked(Witness):
    def __init__(self, *, at_end: bool = True) -> None:
        super().__init__()
        self.at_end = at_end  # once the producer has said that there is no more
        self.has_sent = False

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        is_due = snapshot.phase == "draining" or not self.at_end
        if snapshot.records_acked == COUNT and is_due and not self.has_sent:
            self.has_sent = True
            interrupt()


def test_when_all_is_acked() -> None:
    view = InterruptsWhenAllIsAcked()
    assert_finished(spout_of(), view)
    assert view.has_sent


def test_while_the_bolts_are_stopped() -> None:
    class SlowToStop(LocalBolts):
        def stop(self, *, timeout_s: float) -> None:
            super().stop(timeout_s=timeout_s)
            interrupt()

    assert_finished(spout_of(bolts=SlowToStop(lambda batch: None, count=2)), Witness())


def test_what_is_in_flight_and_comes_in_is_all_there_was() -> None:
    def last(batch: Batch) -> None:
        if batch[-1].position == COUNT:
            # Everything is read, and this is the only tuple that is left.
            until(lambda: not any(t.name == "flowctl-reader" for t in threading.enumerate()), "eof")
            until(lambda: len(others) == COUNT - len(batch), "the other records")
            interrupt()
        else:
            others.extend(batch)

    others: list[Any] = []
    settings = Settings().with_overrides({"hedge.enabled": False})
    view = Witness()
    assert (
        run_spout(spout_of(last, settings=settings), view=view, report_path=None) == EXIT_FINISHED
    )
    assert view.report is not None and view.report.outcome == "finished"


def test_losses_are_told_as_without_it() -> None:
    def reject(batch: Batch) -> None:
        batch.reject(0, "bad")

    view = InterruptsWhenAllIsAcked()
    assert_finished(spout_of(reject), view, EXIT_FINISHED_WITH_LOSSES)


class InterruptsAsItIsShown(Witness):
    def start(self, job: str, headline: str) -> None:
        super().start(job, headline)
        interrupt()


def test_as_the_view_appears() -> None:
    """Kind: whoever sees that a run has begun stops it, and is told nothing."""
    view = InterruptsAsItIsShown()
    assert run_spout(spout_of(), view=view, report_path=None) == EXIT_INTERRUPTED
    assert view.report.outcome == "interrupted"
    assert any("saved" in said for said in view.messages), view.messages


def test_a_run_with_more_to_read_was_interrupted() -> None:
    class More(ListProducer):
        """Has given all there is, and does not know that nothing will follow."""

        def poll(self, max_records: int) -> Any:
            from flowctl.ports import SourceChunk

            return super().poll(max_records) or SourceChunk("p", [])

    view = InterruptsWhenAllIsAcked(at_end=False)
    code = run_spout(spout_of(producer=More(COUNT)), view=view, report_path=None)
    assert code == EXIT_INTERRUPTED
    assert view.report is not None and view.report.outcome == "interrupted"


def test_a_run_with_records_left_was_interrupted() -> None:
    def held(batch: Batch) -> None:
        if not interrupted.is_set():
            interrupted.set()
            interrupt()
        # On a busy machine the main thread may notice late: nothing is done before it has.
        until(lambda: any(said.startswith("interrupted") for said in view.messages), "the notice")

    interrupted = threading.Event()
    view = Witness()
    spout = spout_of(held, producer=ListProducer(20_000))
    assert run_spout(spout, view=view, report_path=None) == EXIT_INTERRUPTED
    assert any(said.startswith("interrupted: finishing") for said in view.messages)


def test_what_could_not_be_saved_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowctl.runtime.run.FINAL_SAVE_TIMEOUT_S", 0.01)
    store = FailingStore()
    store.error = CheckpointUnavailableError("the disk is gone")
    view = InterruptsWhenAllIsAcked()
    with pytest.raises(CheckpointUnavailableError, match="the disk is gone"):
        run_spout(spout_of(checkpoint=store), view=view, report_path=None)
    assert view.report is not None and view.report.outcome == "failed"
