from __future__ import annotations

import secrets
import threading

import msgspec
import pytest
from wire_peers import PATIENCE_S, spout, tuple_of

from flowctl.bolts.local import LocalBolts
from flowctl.core.messages import Revoke
from flowctl.errors import ConfigError
from flowctl.ports import BoltNotice, Bolts
from flowctl.wire.auth import KEY_BYTES


def test_it_is_what_the_spout_runs():
    bolts: Bolts = LocalBolts(print, count=3)
    assert (bolts.count, bolts.listen_host()) == (3, "127.0.0.1")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"process": 5, "count": 1}, "process"),
        ({"process": print, "count": 0}, "count"),
        ({"process": print, "count": 1, "slots": 0}, "slots"),
    ],
)
def test_bad_arguments_name_the_field(arguments, field):
    with pytest.raises(ConfigError) as caught:
        LocalBolts(**arguments)
    assert caught.value.field == field


@pytest.mark.req("S25")
def test_all_bolts_come_work_and_leave():
    notices: list[BoltNotice] = []
    names = ["b1", "b2", "b3"]
    threads = threading.active_count()
    with spout() as s:
        bolts = LocalBolts(lambda batch: None, count=3, slots=2)
        bolts.start(s.endpoint, notices.append)
        s.until(lambda: all(s.joined(name) for name in names))
        for name in names:
            s.send(name, *(tuple_of(n) for n in range(100)))
        s.until(lambda: all(len(s.acks(name)) == 100 for name in names))
        for name in names:
            s.end(name)
        bolts.stop(timeout_s=PATIENCE_S)
    assert sorted((n.bolt, n.kind) for n in notices) == [(name, "starting") for name in names]
    assert threading.active_count() == threads


def test_a_bolt_that_goes_comes_back_with_a_new_epoch():
    notices: list[BoltNotice] = []

    def process(batch) -> None:
        if batch[0].value == "die":
            raise KeyboardInterrupt

    with spout() as s:
        bolts = LocalBolts(process, count=1)
        bolts.start(s.endpoint, notices.append)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "die"))
        s.until(lambda: len(s.joined("b1")) == 2)
        assert [m.epoch for m in s.joined("b1")] == [1, 2]
        s.send("b1", tuple_of(2))
        s.until(lambda: s.acks("b1") == [2])
        bolts.stop(timeout_s=PATIENCE_S)
    assert [n.kind for n in notices] == ["starting", "restarting"]
    assert "KeyboardInterrupt" in notices[1].detail


def test_a_spout_of_another_run_is_fatal():
    notices: list[BoltNotice] = []
    with spout() as s:
        bolts = LocalBolts(print, count=1)
        wrong = msgspec.structs.replace(s.endpoint, key=secrets.token_bytes(KEY_BYTES))
        bolts.start(wrong, notices.append)
        s.until(lambda: [n for n in notices if n.kind == "fatal"])
        assert notices[-1].remedy
        bolts.stop(timeout_s=PATIENCE_S)


def test_stop_does_not_wait_for_a_call_that_never_ends():
    entered, leave = threading.Event(), threading.Event()

    def process(batch) -> None:
        entered.set()
        leave.wait(PATIENCE_S)

    with spout() as s:
        bolts = LocalBolts(process, count=2)
        bolts.start(s.endpoint, lambda notice: None)
        s.until(lambda: s.joined("b1") and s.joined("b2"))
        s.send("b1", tuple_of(1))
        s.until(entered.is_set)
        bolts.stop(timeout_s=0.05)
        assert s.server.send("b1", Revoke("b1", [])) in (True, False)  # no deadlock, no error
        leave.set()
        bolts.stop(timeout_s=PATIENCE_S)


def test_stop_before_the_spout_answers_ends_them_too():
    with spout() as s:
        endpoint = s.endpoint
    bolts = LocalBolts(print, count=2)
    notices: list[BoltNotice] = []
    bolts.start(endpoint, notices.append)
    bolts.stop(timeout_s=PATIENCE_S)
    assert {n.kind for n in notices} <= {"starting"}
    assert not [t for t in threading.enumerate() if t.name.startswith("flowctl-bolt-")]
