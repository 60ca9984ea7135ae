"""Whole runs inside the test's process: real sockets, threads and SQLite, a store in memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import pytest
from fault_parts import PATIENCE_S, count_rows
from lines_parts import Lines

from flowctl import Limits, paced
from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.errors import BoltsUnavailableError, CheckpointUnavailableError, ProcessError
from flowctl.instrumentation.snapshot import Report, Snapshot
from flowctl.ports import BoltNotice, Endpoint
from tests.runtime_parts import FailingStore, Witness

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize(("count", "slots"), [(1, 1), (64, 1), (3, 4)])
def test_any_number_of_bolts(lines: Lines, count: int, slots: int) -> None:
    report = lines.run(LocalBolts(lines.load, count=count, slots=slots))
    lines.assert_exact()
    assert report.records_acked == 3_000
    assert len(report.bolts) == count
    assert sum(bolt.records_acked for bolt in report.bolts) == 3_000
    assert report.bolts_lost == 0


def test_one_spout_object_runs_again(lines: Lines) -> None:
    bolts_of = lines.spout
    first = bolts_of()
    assert first.run(view="off").records_acked == 3_000
    again = bolts_of().run(view=lines.witness)
    assert (again.records_acked, again.resumed_records) == (0, 3_000)
    lines.assert_exact()


def test_in_another_thread_than_the_main_one(lines: Lines) -> None:
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(lines.run()))
    thread.start()
    thread.join(PATIENCE_S)
    assert reports[0].outcome == "finished"
    lines.assert_exact()


# -- stores and bolts ------------------------------------------------------------------------


def test_a_store_that_is_gone_at_the_end_fails_the_run_but_loses_nothing(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowctl.runtime.run.FINAL_SAVE_TIMEOUT_S", 0.2)
    lines.store = store = FailingStore()
    store.error = CheckpointUnavailableError("Redis can't be reached.")
    with pytest.raises(CheckpointUnavailableError) as caught:
        lines.run()
    assert caught.value.report.outcome == "failed"
    assert any("waiting up to" in m for m in lines.witness.messages) or store.tries == 1
    store.error = None
    assert lines.run().records_acked == 3_000
    lines.assert_exact()  # though all of it ran twice


def test_the_last_save_fails_beside_another_error(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowctl.runtime.run.FINAL_SAVE_TIMEOUT_S", 0.2)
    lines.store = store = FailingStore()
    store.error = CheckpointUnavailableError("Redis can't be reached.")

    def load(batch: Batch) -> None:
        if batch.span.last[1] > 1_000:
            raise ValueError("no more")
        lines.load(batch)

    with pytest.raises(ProcessError):
        lines.run(LocalBolts(load, count=2), **{"retry.attempts_max": 1})
    assert "the last save failed: Redis can't be reached." in lines.witness.messages


class NoBolts:
    """Bolts that never come; ``notices`` is what is said about them."""

    count = 2

    def __init__(self, *notices: BoltNotice) -> None:
        self.notices = notices
        self.stopped = 0

    def listen_host(self) -> str:
        return "127.0.0.1"

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        for notice in self.notices:
            notify(notice)

    def stop(self, *, timeout_s: float) -> None:
        self.stopped += 1


def test_no_bolt_comes(lines: Lines) -> None:
    bolts = NoBolts()
    with pytest.raises(BoltsUnavailableError, match="no bolt has been heard") as caught:
        lines.run(bolts, **{"start.bolts_timeout_s": 0.5})
    assert "start.bolts_timeout_s" in str(caught.value)
    assert bolts.stopped == 1


def test_all_bolts_say_that_they_will_not_come(lines: Lines) -> None:
    fatal = [BoltNotice(b, "fatal", "can't be loaded.", "Install it.") for b in ("b1", "b2")]
    with pytest.raises(BoltsUnavailableError, match=r"can't be loaded\. Install it\."):
        lines.run(NoBolts(*fatal))


def test_bolts_that_can_not_be_started(lines: Lines) -> None:
    class Broken(NoBolts):
        def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
            raise RuntimeError("no cluster")

    bolts = Broken()
    with pytest.raises(RuntimeError, match="no cluster") as caught:
        lines.run(bolts)
    assert caught.value.report.outcome == "failed"
    assert bolts.stopped == 1


def test_bolts_that_can_not_be_stopped_do_not_hide_the_result(lines: Lines) -> None:
    class Stubborn(LocalBolts):
        def stop(self, *, timeout_s: float) -> None:
            super().stop(timeout_s=timeout_s)
            raise RuntimeError("the cluster is gone")

    with pytest.raises(RuntimeError, match="the cluster is gone"):
        lines.run(Stubborn(lines.load, count=2))
    lines.assert_exact()
    assert lines.store.load("lines").records == 3_000


def test_a_view_that_fails_does_not_cost_the_work(lines: Lines) -> None:
    class Blind(Witness):
        def update(self, snapshot: Snapshot) -> None:
            if snapshot.records_acked:
                raise RuntimeError("a defect of the view")

    lines.witness = Blind()

    def load(batch: Batch) -> None:
        time.sleep(0.1)
        lines.load(batch)

    with pytest.raises(RuntimeError, match="a defect of the view"):
        lines.run(LocalBolts(load, count=2))
    done = lines.store.load("lines").records
    assert done == count_rows(lines.database)
    lines.witness = Witness()
    lines.run()
    lines.assert_exact()


def test_the_view_shows_the_target_that_bolts_pace(lines: Lines) -> None:
    """Bolts tell once a second: the run goes on until the view has seen it."""

    class Eyes(Witness):
        def update(self, snapshot: Snapshot) -> None:
            super().update(snapshot)
            if any(target.target == "lines-db" for target in snapshot.targets):
                seen.set()

    seen = threading.Event()
    lines.witness = Eyes()

    def load(batch: Batch) -> None:
        with paced("lines-db", limits=Limits(in_flight_max=2)) as call:
            call.run(lines.load, batch)
        assert seen.wait(PATIENCE_S)

    lines.run(LocalBolts(load, count=4))
    lines.assert_exact()
    # Targets of other tests are this process's too.
    shown = (view for s in lines.witness.snapshots for view in s.targets)
    view = next(view for view in shown if view.target == "lines-db")
    assert (view.limit, view.alone) == (2, 1)


def test_process_that_ends_its_thread(lines: Lines) -> None:
    """SystemExit and friends are failures of the tuple, not of the bolt."""

    def load(batch: Batch) -> None:
        if batch.attempt == 1 and batch.span.first[1] == 1:
            sys.exit(1)
        lines.load(batch)

    report = lines.run(LocalBolts(load, count=2))
    lines.assert_exact()
    assert report.tuples_failed == 1
