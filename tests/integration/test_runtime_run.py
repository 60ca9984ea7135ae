"""Whole runs inside the test's process: real sockets, threads and SQLite, a store in memory."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fault_parts import PATIENCE_S, assert_exact, count_rows, until, write_lines

from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.records import Batch, Checkpoint, Record, Span
from flowctl.errors import (
    BoltsUnavailableError,
    CheckpointUnavailableError,
    FencedError,
    FlowctlError,
    ProcessError,
)
from flowctl.instrumentation.snapshot import Report, Snapshot
from flowctl.ports import BoltNotice, Endpoint
from flowctl.runtime.spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl.wire.codec import FrameWriter
from flowctl.wire.frames import AckFrame, FailFrame, Heartbeat
from flowctl.wire.handshake import hello_of, join_spout
from flowctl_files import TextLines
from flowctl_sql import SqlSink
from tests.runtime_parts import FailingStore, Witness


class Lines:
    """A file of lines, and a sink that is compared with it."""

    def __init__(self, place: Path, count: int) -> None:
        self.input = write_lines(place / "in.log", count)
        self.database = place / "out.db"
        self.store = MemoryCheckpointStore()
        self.witness = Witness()
        self._sink = SqlSink(
            f"sqlite:///{self.database}",
            table="lines",
            schema="CREATE TABLE lines (file TEXT, line INTEGER, text TEXT)",
        )

    def load(self, batch: Batch) -> None:
        rows = [
            {"file": batch.span.partition, "line": record.position[1], "text": record.value}
            for record in batch
        ]
        self._sink.write(rows, batch=batch)

    def spout(self, bolts: Any = None, **settings: Any) -> FlowControlSpout:
        return FlowControlSpout(
            name="lines",
            producer=TextLines(str(self.input)),
            bolts=bolts or LocalBolts(self.load, count=4),
            checkpoint=self.store,
            settings=Settings().with_overrides(settings),
        )

    def run(self, bolts: Any = None, **settings: Any) -> Report:
        return self.spout(bolts, **settings).run(view=self.witness)

    def assert_exact(self) -> None:
        assert_exact(self.database, self.input)


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    return Lines(tmp_path, 3_000)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    yield
    ours = [t.name for t in threading.enumerate() if t.name.startswith("flowctl-")]
    until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("flowctl-")],
        f"the end of {ours}",
        patience_s=20,
    )


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


# -- strangers -------------------------------------------------------------------------------


def _says_nothing(sock: socket.socket) -> None:
    del sock


def _talks_garbage(sock: socket.socket) -> None:
    sock.sendall(os.urandom(4096))


def _talks_http(sock: socket.socket) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: spout\r\n\r\n")


def _claims_a_huge_frame(sock: socket.socket) -> None:
    sock.sendall(b"\xff\xff\xff\xff" + b"x" * 1024)


@pytest.mark.parametrize(
    "behave", [_says_nothing, _talks_garbage, _talks_http, _claims_a_huge_frame]
)
def test_strangers_at_the_port_get_nothing_and_do_no_harm(
    lines: Lines, free_port: int, behave: Callable[[socket.socket], None]
) -> None:
    met = threading.Event()

    def load(batch: Batch) -> None:
        met.wait(PATIENCE_S)  # the run lasts until the strangers are done
        lines.load(batch)

    got = bytearray()

    def visit() -> None:
        try:
            for _ in range(10):
                with socket.create_connection(("127.0.0.1", free_port), timeout=10) as sock:
                    behave(sock)
                    sock.settimeout(0.2)
                    with contextlib.suppress(OSError):
                        got.extend(sock.recv(65536))
        finally:
            met.set()

    stranger = threading.Thread(target=lambda: (until(lambda: _listens(free_port)), visit()))
    stranger.start()
    report = lines.run(LocalBolts(load, count=4), **{"listen.port": free_port})
    stranger.join()
    assert report.outcome == "finished"
    lines.assert_exact()
    text = lines.input.read_bytes()[:40]
    assert text not in bytes(got), "a stranger was given records"
    assert report.bolts_lost == 0


@pytest.mark.parametrize("any_address", ["0.0.0.0", "::"])
def test_listening_at_all_addresses_bolts_are_told_one_they_can_reach(
    lines: Lines, any_address: str
) -> None:
    if any_address == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    told: list[Endpoint] = []

    class Told(LocalBolts):
        def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
            told.append(endpoint)
            super().start(endpoint, notify)

    lines.run(Told(lines.load, count=2), **{"listen.host": any_address, "listen.tls": "off"})
    lines.assert_exact()
    assert [endpoint.host for endpoint in told] == ["127.0.0.1"]


def test_a_bolt_with_the_key_of_another_run_is_refused(lines: Lines, free_port: int) -> None:
    met = threading.Event()

    def load(batch: Batch) -> None:
        met.wait(PATIENCE_S)
        lines.load(batch)

    notices: list[BoltNotice] = []
    seen: list[Batch] = []

    def intrude() -> None:
        until(lambda: _listens(free_port))
        stranger = LocalBolts(seen.append, count=2)
        stranger.start(Endpoint("127.0.0.1", free_port, b"k" * 32, "lines"), notices.append)
        until(lambda: [n for n in notices if n.kind == "fatal"])
        stranger.stop(timeout_s=10)
        met.set()

    thread = threading.Thread(target=intrude)
    thread.start()
    report = lines.run(LocalBolts(load, count=2), **{"listen.port": free_port})
    thread.join()
    lines.assert_exact()
    assert seen == []
    assert report.bolts_lost == 0


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# -- stores and bolts ------------------------------------------------------------------------


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
        if batch.span.first[1] > 1_000:
            raise ValueError("no more")
        lines.load(batch)

    with pytest.raises(ProcessError):
        lines.run(LocalBolts(load, count=2), **{"retry.attempts_max": 1})
    assert "the last save failed: Redis can't be reached." in lines.witness.messages


LIES = {
    "no slots": None,  # said at the door
    "a record index far below": FailFrame(1, 1, "E", "", -1_000_000, False),
    "times that are none": AckFrame(1, 1, math.nan, 1e300, -1.0),
    "a tuple of another bolt": AckFrame(1, 1, 0.0, 0.0, 0.0),
    "no tuple at all": AckFrame(1 << 60, 1, 0.0, 0.0, 0.0),
    "fewer than no slots busy": Heartbeat(-7, 0),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_peer_with_the_key_that_lies_is_dropped_and_the_run_is_exact(
    lines: Lines, lie: Any
) -> None:
    """It calls itself b3, which the run expects and nobody else is."""
    lied = threading.Event()

    class AndALiar(LocalBolts):
        names = ("b1", "b2", "b3")

        def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
            self.lying = threading.Thread(target=self.lie, args=(endpoint,))
            self.lying.start()
            for bolt in ("b1", "b2"):
                thread = threading.Thread(target=self._supervise, args=(endpoint, bolt, notify))
                self._threads.append(thread)
                thread.start()

        def lie(self, endpoint: Endpoint) -> None:
            try:
                given.wait(PATIENCE_S)  # tuple 1 is at another bolt
                hello = hello_of("b3", 1)
                if lie is None:
                    with pytest.raises(OSError):
                        join_spout(endpoint, msgspec.structs.replace(hello, slots=0))
                    return
                sock, _ = join_spout(endpoint, hello)
                with sock:
                    writer = FrameWriter(1 << 20)
                    writer.append(lie)
                    sock.sendall(writer.take())
                    with contextlib.suppress(OSError):
                        while sock.recv(65536):  # until we are thrown out
                            pass
            finally:
                lied.set()

    given = threading.Event()

    def load(batch: Batch) -> None:
        given.set()
        lied.wait(PATIENCE_S)
        lines.load(batch)

    bolts = AndALiar(load, count=2)
    report = lines.run(bolts)
    bolts.lying.join()
    assert report.outcome == "finished"
    lines.assert_exact()
    assert report.peers_dropped == report.bolts_lost == (lie is not None)


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
                raise RuntimeError("the terminal is gone")

    lines.witness = Blind()

    def load(batch: Batch) -> None:
        time.sleep(0.1)
        lines.load(batch)

    with pytest.raises(RuntimeError, match="the terminal is gone"):
        lines.run(LocalBolts(load, count=2))
    done = lines.store.load("lines").records
    assert done == count_rows(lines.database)
    lines.witness = Witness()
    lines.run()
    lines.assert_exact()


def test_process_that_ends_its_thread(lines: Lines) -> None:
    """SystemExit and friends are failures of the tuple, not of the bolt."""

    def load(batch: Batch) -> None:
        if batch.attempt == 1 and batch.span.first[1] == 1:
            sys.exit(1)
        lines.load(batch)

    report = lines.run(LocalBolts(load, count=2))
    lines.assert_exact()
    assert report.tuples_failed == 1


def _write_as(lines: Lines, epoch: int) -> None:
    """As a driver of ``epoch`` did, whose clock was wrong."""
    span = Span("lines", "elsewhere", (0, 0), (0, 0), epoch)
    batch = Batch([Record((0, 0), "")], span, bolt="b", attempt=1)
    lines._sink.write([None], batch=batch)


def test_a_sink_that_knows_a_newer_epoch_than_an_emptied_store(lines: Lines) -> None:
    """The clock was a day ahead, then the store was emptied: the second start works."""
    tomorrow = int(time.time()) + 86_400
    _write_as(lines, tomorrow)
    with pytest.raises(FencedError, match=f"Start the job again: .* above {tomorrow}") as caught:
        lines.run()
    assert caught.value.newest_epoch == tomorrow
    lines.run()
    lines.assert_exact()
    assert lines._sink.newest_epoch("lines") == tomorrow + 1


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
