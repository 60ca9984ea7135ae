"""Runs whose sink knows more than they do: newer drivers and their epochs, and a lock of others."""

from __future__ import annotations

import sqlite3
import threading
import time

import pytest
from fault_parts import PATIENCE_S, until
from lines_parts import Lines

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.core.records import Checkpoint, Record, Span
from flowctl.errors import FencedError, FlowctlError

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def test_a_newer_driver_in_the_same_process_fences_the_older(lines: Lines) -> None:
    newer_may_end = threading.Event()
    failed: list[BaseException] = []

    def slowly(batch: Batch) -> None:
        time.sleep(0.02)
        lines.load(batch)

    def older() -> None:
        spout = lines.spout(
            LocalBolts(slowly, count=2),
            **{"tuple.records_max": 5, "checkpoint.interval_s": 0.05},
        )
        try:
            spout.run(view="off")
        except FlowctlError as error:
            failed.append(error)
        newer_may_end.set()

    thread = threading.Thread(target=older)
    thread.start()
    until(lambda: lines.store.load("lines").records > 0)

    def load(batch: Batch) -> None:
        newer_may_end.wait(PATIENCE_S)
        lines.load(batch)

    report = lines.run(LocalBolts(load, count=4))
    thread.join()
    assert isinstance(failed[0], FencedError)
    assert report.outcome == "finished"
    lines.assert_exact()


def _write_as(lines: Lines, epoch: int) -> None:
    """As a driver of ``epoch`` did, whose clock was wrong."""
    span = Span("lines", "elsewhere", (0, 0), (0, 0), epoch)
    batch = Batch([Record((0, 0), "")], span, bolt="b", attempt=1)
    lines.sink.write([None], batch=batch)


def test_a_sink_that_knows_a_newer_epoch_than_an_emptied_store(lines: Lines) -> None:
    """The clock was a day ahead, then the store was emptied: the second start works."""
    tomorrow = int(time.time()) + 86_400
    _write_as(lines, tomorrow)
    with pytest.raises(FencedError, match=f"Start the job again: .* above {tomorrow}") as caught:
        lines.run()
    assert caught.value.newest_epoch == tomorrow
    lines.run()
    lines.assert_exact()
    assert lines.sink.newest_epoch("lines") == tomorrow + 1


def test_a_sink_that_knows_a_newer_driver_that_the_store_knows_too(lines: Lines) -> None:
    newer: list[int] = []

    def load(batch: Batch) -> None:
        if not newer:
            newer.append(lines.store.acquire("lines") + 1)
            lines.store.save("lines", Checkpoint(), epoch=newer[0])
            _write_as(lines, newer[0])
        lines.load(batch)

    with pytest.raises(FencedError) as caught:
        lines.run(LocalBolts(load, count=1))
    assert "Start the job again" not in str(caught.value)
    assert lines.store.acquire("lines") == newer[0] + 1


def test_a_sink_that_is_locked_for_a_while(lines: Lines) -> None:
    """Nothing expires for good while a slow sink holds all bolts up."""
    blocker = sqlite3.connect(lines.database, check_same_thread=False, isolation_level=None)
    blocker.execute("PRAGMA journal_mode=WAL")
    blocker.execute("BEGIN IMMEDIATE")
    threading.Timer(3.0, lambda: blocker.execute("COMMIT")).start()
    report = lines.run()
    blocker.close()
    lines.assert_exact()
    assert report.tuples_failed == 0
