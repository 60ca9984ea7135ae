"""No thread of ours dies without ending the run: each is made to fail, and the run says which."""

from __future__ import annotations

import math
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.bolts.reading import Reading
from flowctl.config import CheckpointSettings, Settings
from flowctl.core.spout import SpoutCore
from flowctl.errors import BoltsUnavailableError, FlowctlError, InternalError
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.run import Run
from flowctl.runtime.sender import SpoutLoop
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl.wire import handshakes
from flowctl.wire.handshakes import PendingPeer
from flowctl_storm import LocalStages, Topology
from tests.listener_parts import Letters
from tests.runtime_parts import ListProducer, Witness

RECORDS = 3_000


class Defect(Exception):
    """What nobody expects."""


def fails(*_: Any, **__: Any) -> Any:
    raise Defect("injected")


def fails_for_one(batch: Batch) -> None:
    if any(record.position == RECORDS // 2 for record in batch):
        raise ValueError("injected")


def spout(process: Callable[[Batch], Any] = lambda batch: None, **how: Any) -> FlowControlSpout:
    settings = Settings().with_overrides({"tuple.records_max": 10, "retry.attempts_max": 1})
    return FlowControlSpout(
        name="job",
        producer=how.pop("producer", None) or ListProducer(RECORDS),
        bolts=LocalBolts(process, count=2),
        checkpoint=MemoryCheckpointStore(),
        settings=how.pop("settings", settings),
        **how,
    )


class Slow:
    """A process that waits until the test lets it go on, or half a second."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, batch: Batch) -> None:
        self.released.wait(0.5)


def assert_died(error: FlowctlError, thread: str, kind: str = "Defect") -> None:
    assert f"the thread {thread} died of {kind}" in error.problem, error.problem
    assert "report" in error.remedy


def failure(run: Callable[[], Any]) -> FlowctlError:
    with pytest.raises(InternalError) as caught:
        run()
    assert caught.value.report.outcome == "failed"
    return caught.value


def test_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    step, left = SpoutLoop.step, iter(range(50))

    def stepping(loop: SpoutLoop) -> Any:
        return step(loop) if next(left, None) is not None else fails()

    monkeypatch.setattr(SpoutLoop, "step", stepping)
    assert_died(failure(lambda: spout(Slow()).run(view="off")), "flowctl-sender")


def test_the_reader_where_the_defect_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpoutCore, "offer", fails)
    assert_died(failure(lambda: spout().run(view="off")), "flowctl-reader")


def test_the_reader_at_the_end_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpoutCore, "end_of_input", fails)
    assert_died(failure(lambda: spout().run(view="off")), "flowctl-reader")


def test_the_checkpointer_whose_interval_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "checked", lambda self: self)  # which refuses it
    settings = Settings(checkpoint=CheckpointSettings(interval_s=math.inf))
    error = failure(lambda: spout(Slow(), settings=settings).run(view="off"))
    assert_died(error, "flowctl-checkpointer", "OverflowError")


class Exiting(Letters):
    def dead_letter(self, *_: Any, **__: Any) -> None:
        raise SystemExit(3)


@pytest.mark.parametrize("where", ["port", "core"])
def test_the_dead_letters(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "core":
        monkeypatch.setattr(SpoutCore, "on_dead_lettered", fails)
    letters = Exiting() if where == "port" else Letters()
    error = failure(lambda: spout(fails_for_one, dead_letter=letters).run(view="off"))
    assert_died(error, "flowctl-dead-letters", "SystemExit" if where == "port" else "Defect")


def test_what_flushes_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_flush_ends", fails)
    with pytest.raises(InternalError) as caught:
        spout().run(view="off")
    assert_died(caught.value, "flowctl-ends")


def test_what_looks_after_a_local_bolt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowctl.bolts.local._Run._supervise", fails)
    with pytest.raises(BoltsUnavailableError) as caught:
        spout().run(view="off")
    assert "the thread flowctl-bolt-b" in str(caught.value) and "injected" in str(caught.value)


def test_the_link_of_a_bolt_ends_its_connection_and_the_bolt_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receive, left = Reading.receive_in_link, iter(range(3))

    def receiving(reading: Reading) -> Any:
        return fails() if next(left, None) == 1 else receive(reading)

    monkeypatch.setattr(Reading, "receive_in_link", receiving)
    view = Witness()
    report = spout(settings=Settings().with_overrides({"tuple.records_max": 10})).run(view=view)
    assert (report.outcome, report.records_acked) == ("finished", RECORDS)
    restarted = [message for message in view.messages if "restarts" in message]
    assert len(restarted) == 1, view.messages
    assert "the thread flowctl-link-b" in restarted[0]
    assert "died of Defect: injected" in restarted[0]


def test_a_handshake_that_fails_in_an_unexpected_way_keeps_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = threading.Event()
    with selectors.DefaultSelector() as selector:
        pool = handshakes.HandshakePool(b"key", None, done.set, selector)
        monkeypatch.setattr(handshakes, "receive_bolt", fails)
        ours, theirs = socket.socketpair()
        peer = PendingPeer(ours)
        pool._start(peer)
        assert done.wait(10)
    assert pool.take_authenticated() == [] and pool.rejected == 1 and not pool.running
    ours.close()
    theirs.close()


def exits(*_: Any) -> None:
    raise SystemExit(3)


def test_the_callbacks_of_a_topology() -> None:
    made = Topology("test")
    made.spout("s", ListProducer(100), on_ack=exits)
    made.bolt("b", lambda given, out: None).shuffle("s")
    with pytest.raises(InternalError) as caught:
        made.run(LocalStages(), view="off", checkpoint=MemoryCheckpointStore())
    assert_died(caught.value, "flowctl-callbacks", "SystemExit")


def test_the_listener_of_a_topology() -> None:
    class Listener:
        on_open = on_emit = on_ack = on_retry = on_max_retry_reached = staticmethod(exits)

    made = Topology("test")
    made.spout("s", ListProducer(100))
    made.bolt("b", lambda given, out: None).shuffle("s")
    with pytest.raises(InternalError) as caught:
        made.run(LocalStages(), view="off", checkpoint=MemoryCheckpointStore(), listener=Listener())
    assert_died(caught.value, "flowctl-listener", "SystemExit")
