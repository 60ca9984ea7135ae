"""What a peer says is checked against what it was given: who lies is dropped, named and counted."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from flowctl.core.events import BoltRemoved, PeerDropped
from flowctl.core.messages import (
    Ack,
    DetailedAck,
    Emission,
    Fail,
    Heartbeat,
    Processed,
    Progress,
    RangeFail,
    Rejected,
    Revoked,
    SettledAck,
    SplitAnswer,
)
from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.records import Record
from flowctl.core.spout import SpoutCore
from flowctl.core.trees.settlement import Emitted, FailedInput, Settlement, Watched
from flowctl.errors import FencedError, UnrunnableError
from flowctl.instrumentation.event_text import sentence
from flowctl.runtime.control import RunControl
from flowctl.runtime.inbound import InboundHandler
from flowctl.wire.frames import Dying
from flowctl.wire.server import Joined, Left, Received
from tests.core_driver import core_settings


class Driver:
    """Two bolts, each with a tuple of five records; ``ended`` are connections that were ended."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.core = SpoutCore(
            core_settings(tuple_records_max=5, window_policy="fixed", window_initial=1)
        )
        self.control = RunControl(self.core, clock=lambda: self.now_s)
        self.ended: list[str] = []
        self.inbound = InboundHandler(self.control, None, self.ended.append)
        for bolt in ("a", "b"):
            self.hear(Joined(bolt, 1, 2, "host", 7))
        self.core.offer("p", [Record(n, "x") for n in range(1, 11)], now_s=0.0)
        self.sent: dict[str, Emission] = {}
        while (emission := self.core.poll_emit(now_s=0.0)) is not None:
            self.sent[emission.bolt] = emission
        assert set(self.sent) == {"a", "b"}

    def hear(self, item: Any) -> None:
        with self.control.lock:
            self.inbound.take(item, self.now_s)

    def say(self, bolt: str, *frames: Any, epoch: int = 1) -> None:
        self.hear(Received(bolt, epoch, list(frames)))

    def reasons(self) -> dict[str, str]:
        """Why bolts left."""
        found = {}
        while (event := self.core.poll_event()) is not None:
            if isinstance(event, BoltRemoved):
                found[event.bolt] = event.reason
        return found

    def drops(self) -> list[PeerDropped]:
        found = []
        while (event := self.core.poll_event()) is not None:
            if isinstance(event, PeerDropped):
                found.append(event)
        return found


@pytest.fixture
def driver() -> Driver:
    return Driver()


def ack(driver: Driver, of: str = "a", **changes: Any) -> Ack:
    said = {"attempt": 1, "wait_s": 0.1, "service_s": 0.2, "idle_total_s": 0.3, "sink_s": None}
    return Ack(driver.sent[of].tuple_id, **{**said, **changes})


def detailed(driver: Driver, indices: list[int] = [], left_out: int = 0) -> DetailedAck:  # noqa: B006
    rejected = [Rejected(index, "no") for index in indices]
    tuple_id = driver.sent["a"].tuple_id
    return DetailedAck(tuple_id, 1, 0.1, 0.2, 0.3, None, rejected, left_out)


def fail(driver: Driver, of: str = "a", **changes: Any) -> Fail:
    said = {"attempt": 1, "error": "E", "traceback": "", "record_index": 0}
    return Fail(driver.sent[of].tuple_id, **{**said, **changes})


ABSURD = [math.nan, math.inf, -math.inf, -1.0, 1e300]


def told(**wrong: Any) -> TargetFigures:
    true = TargetFigures("w-1", "crm", "etl", 8, "goodput kept", True, 10, 1.0, 2, 0.5)
    return msgspec.structs.replace(true, **wrong)


LIES: dict[str, Any] = {
    "another bolt's tuple": lambda d: ack(d, "b"),
    "a tuple that was never sent": lambda d: Ack(99, 1, 0.1, 0.1, 0.1),
    "a tuple below all": lambda d: Ack(-1, 1, 0.1, 0.1, 0.1),
    "a sending that never was": lambda d: ack(d, attempt=2),
    "sending 0": lambda d: ack(d, attempt=0),
    "a rejected record below the first": lambda d: detailed(d, [-1]),
    "a rejected record behind the last": lambda d: detailed(d, [5]),
    "rejected twice": lambda d: detailed(d, [1, 1]),
    "rejected out of order": lambda d: detailed(d, [2, 1]),
    "left out below 0": lambda d: detailed(d, left_out=-1),
    "more left out than there are": lambda d: detailed(d, left_out=6),
    "a record index of -1,000,000": lambda d: fail(d, record_index=-1_000_000),
    "a record behind the last": lambda d: fail(d, record_index=5),
    "another's tuple failed": lambda d: fail(d, "b"),
    "an endless pause": lambda d: fail(d, is_refused=True, after_s=math.inf),
    "a pause of nan": lambda d: fail(d, is_refused=True, after_s=math.nan),
    "a pause below 0": lambda d: fail(d, is_refused=True, after_s=-1.0),
    "an error as long as a book": lambda d: fail(d, error="x" * 1_000_000),
    "fewer than no slots busy": lambda d: Heartbeat(-1, 0),
    "more slots busy than there are": lambda d: Heartbeat(3, 0),
    "fewer than none queued": lambda d: Heartbeat(0, -5),
    "more begun than there are slots": lambda d: Heartbeat(2, 0, [1, 2, 3]),
    "more came to it than it was sent": lambda d: Heartbeat(0, 0, arrived=1_000_000),
    "fewer than none came to it": lambda d: Heartbeat(0, 0, arrived=-1),
    "a source that it can't read": lambda d: fail(d, is_read_error=True),
    "no times": lambda d: Ack(d.sent["a"].tuple_id, 1),
    "a target used for no time": lambda d: Heartbeat(0, 0, targets=[told(call_s=math.nan)]),
    "a limit below none": lambda d: Heartbeat(0, 0, targets=[told(limit=-1)]),
    "a target of a long name": lambda d: Heartbeat(0, 0, targets=[told(target="x" * 70_000)]),
    "more targets than are told": lambda d: Heartbeat(0, 0, targets=[told()] * 17),
    "another's tuple given back": lambda d: Revoked([d.sent["b"].tuple_id]),
    "given back what was never sent": lambda d: Revoked([1 << 60]),
    **{
        f"{name} of {value}": lambda d, name=name, value=value: ack(d, **{name: value})
        for name in ("wait_s", "service_s", "idle_total_s", "sink_s")
        for value in ABSURD
    },
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_who_says_what_can_not_be_is_dropped_named_and_counted(driver: Driver, lie: Any) -> None:
    driver.say("a", lie(driver), ack(driver))  # nor is heard what it says in the same breath
    assert driver.ended == ["a"]
    assert list(driver.core.bolts) == ["b"]
    assert driver.core.counters.peers_dropped == driver.core.counters.bolts_lost == 1
    assert driver.core.counters.tuples_acked == 0
    (drop,) = driver.drops()
    assert drop.bolt == "a"
    assert sentence(drop).startswith("peer a broke the protocol: ")
    assert sentence(drop).endswith(": dropped")
    # The others work on, and what it held is theirs.
    driver.say("b", ack(driver, "b"))
    driver.now_s = 100.0
    driver.core.on_deadline(now_s=100.0)
    again = driver.core.poll_emit(now_s=100.0)
    assert again is not None
    assert (again.bolt, again.tuple_id) == ("b", driver.sent["a"].tuple_id)
    driver.say("b", Ack(again.tuple_id, again.attempt, 0.1, 0.1, 0.1))
    assert driver.core.checkpoint().partitions["p"].position == 10
    # What comes of the old connection later is of an epoch that is over.
    driver.say("a", lie(driver))
    driver.hear(Left("a", 1, "closed"))
    assert driver.core.counters.peers_dropped == 1


@pytest.mark.parametrize(
    "said",
    [
        SplitAnswer(1, 1, 9),
        Progress(1, 1, 0, 9, 0.0, Processed()),
        RangeFail(Fail(1, 1, "E"), 0, 9, 1),
    ],
)
def test_a_report_on_a_range_is_a_breach_where_there_is_none_and_then_ignored(
    driver: Driver, said: Any
) -> None:
    driver.say("a", said)
    assert driver.ended == ["a"]
    driver.say("a", said)  # read before its connection was ended
    assert driver.control.error is None
    assert driver.core.counters.peers_dropped == 1


def test_it_may_come_back(driver: Driver) -> None:
    driver.say("a", ack(driver, "b"))
    driver.hear(Joined("a", 2, 2, "host", 8))
    assert driver.core.bolts["a"].epoch == 2
    driver.say("a", Heartbeat(0, 0), epoch=2)
    assert driver.ended == ["a"]


def test_what_a_bolt_counts_reaches_the_core(driver: Driver) -> None:
    consumer = driver.core.bolts["a"]
    driver.say("a", Heartbeat(1, 0, arrived=1))
    assert consumer.arrived == 1
    driver.say("a", Heartbeat(1, 0))  # as one that doesn't count
    assert consumer.arrived == math.inf


@pytest.mark.parametrize(
    "said",
    [
        ack,
        lambda d: ack(d, wait_s=-1e-9, service_s=0.0),  # a sum of differences
        lambda d: detailed(d, [0, 4], left_out=5),
        lambda d: fail(d, record_index=4),
        lambda d: fail(d, record_index=None, is_refused=True, after_s=0.0),
        lambda d: Heartbeat(2, 1_000),
        lambda d: Heartbeat(2, 1_000, [1, 99]),
        lambda d: Heartbeat(2, 1_000, targets=[told(), told(target="other")]),
        lambda d: Revoked([d.sent["a"].tuple_id]),
        lambda d: Revoked([]),
    ],
)
def test_what_can_be_is_heard(driver: Driver, said: Any) -> None:
    driver.say("a", said(driver))
    assert driver.ended == []
    assert driver.core.counters.peers_dropped == 0


def test_late_is_no_lie(driver: Driver) -> None:
    """Who held a tuple once may ack, fail or give it back, whoever holds it now."""
    mine = driver.sent["a"]
    consumer = driver.core.bolts["a"]
    driver.say("a", Revoked([mine.tuple_id]))
    driver.say("b", ack(driver, "b"))  # has room now
    driver.core.on_deadline(now_s=0.0)
    again = driver.core.poll_emit(now_s=0.0)
    assert again is not None
    assert (again.bolt, again.tuple_id, again.attempt) == ("b", mine.tuple_id, 2)
    consumer.strays.clear()  # it is not even known to have it
    driver.say("a", Revoked([mine.tuple_id]), fail(driver, record_index=70), ack(driver))
    assert driver.ended == []
    assert driver.core.counters.acks_late == 1
    driver.say("a", ack(driver))  # and once more
    driver.say("b", Ack(mine.tuple_id, 2, 0.1, 0.1, 0.1))
    assert driver.ended == []
    assert driver.core.counters.acks_duplicate == 2


# -- topologies: what a settlement names -----------------------------------------------------


def settled(driver: Driver, of: str = "a", **said: Any) -> SettledAck:
    return SettledAck(driver.sent[of].tuple_id, 1, 0.1, 0.2, 0.3, None, Settlement(**said))


SETTLEMENT_LIES: dict[str, Any] = {
    "an anchor": {"emits": [Emitted("x", [6])]},
    "an input failed": {"failed": [FailedInput(6, "no")]},
    "an input acked": {"acked": [6]},
    "an input prolonged": {"prolonged": [6]},
    "an input held": {"held": [6]},
    "a value that is none": {"emits": [Emitted(object(), [])]},
    "a count below 0": {"watched": Watched(executed={"s": -1})},
    "a time of nan": {"watched": Watched(execute_s={"s": (math.nan, 1)})},
}


@pytest.mark.parametrize("said", SETTLEMENT_LIES.values(), ids=SETTLEMENT_LIES.keys())
def test_an_input_that_was_never_sent_is_not_settled(driver: Driver, said: Any) -> None:
    others = [record.position for record in driver.sent["b"].records]
    assert 6 in others
    driver.say("a", settled(driver, **said))
    assert driver.ended == ["a"]


def test_what_a_bolt_holds_it_may_settle_with_a_later_tuple(driver: Driver) -> None:
    claims = driver.inbound.claims
    held = settled(driver, held=[1, 2])
    assert claims.breach("a", 1, held) == ""
    assert claims.believed("a", held) is held
    driver.core.bolts["a"].flight[driver.sent["b"].tuple_id] = driver.core.bolts["b"].flight[
        driver.sent["b"].tuple_id
    ]  # as if it had that as well
    later = settled(driver, "b", acked=[1], emits=[Emitted("x", [1, 6])])
    assert claims.breach("a", 1, later) == ""
    assert claims.believed("a", later) is later
    again = settled(driver, "b", acked=[1])  # it is settled by now
    assert "input 1" in claims.breach("a", 1, again)
    claims.forget("a")  # a new connection holds nothing
    assert "input 2" in claims.breach("a", 1, settled(driver, "b", acked=[2]))


def test_what_a_bolt_holds_of_a_tuple_that_it_acked_late_it_may_settle(driver: Driver) -> None:
    claims = driver.inbound.claims
    sent = driver.sent["a"].tuple_id
    driver.core.bolts["a"].let_stray(sent, 0.0)  # its time ran out, and nobody has acked it
    held = settled(driver, held=[1, 2])
    assert claims.believed("a", held) is held
    later = settled(driver, "b", acked=[1], emits=[Emitted("x", [1, 6])])
    assert claims.believed("a", later).settlement.acked == [1]


def test_what_a_bolt_holds_of_a_tuple_that_another_acked_first_is_not_its_own(
    driver: Driver,
) -> None:
    claims = driver.inbound.claims
    sent = driver.sent["a"].tuple_id
    driver.core.bolts["a"].let_stray(sent, 0.0)
    del driver.core.book.pending[sent]  # done
    claims.believed("a", settled(driver, held=[1, 2]))
    later = settled(driver, "b", acked=[1])
    assert claims.believed("a", later).settlement.acked == []


def test_of_a_tuple_that_others_have_by_now_nothing_foreign_is_believed(driver: Driver) -> None:
    claims = driver.inbound.claims
    driver.say("a", Revoked([driver.sent["a"].tuple_id]))
    late = settled(
        driver,
        acked=[7],
        failed=[FailedInput(1, "mine"), FailedInput(8, "not mine")],
        emits=[Emitted("mine", [1, 9]), Emitted("not mine", [9]), Emitted("untracked", [])],
    )
    assert claims.breach("a", 1, late) == ""
    believed = claims.believed("a", late).settlement
    assert believed.acked == []
    assert believed.failed == [FailedInput(1, "mine")]
    assert [emit.value for emit in believed.emits] == ["mine", "untracked"]


def test_the_core_gets_no_more_of_a_settlement_than_is_believed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[Ack] = []
    monkeypatch.setattr(driver.core, "on_ack", lambda bolt, epoch, ack, now_s: got.append(ack))
    driver.say("a", Revoked([driver.sent["a"].tuple_id]))
    late = settled(driver, acked=[1, 7])
    driver.say("a", late)
    assert got == [msgspec.structs.replace(late, settlement=Settlement(acked=[1]))]


@pytest.mark.parametrize(
    ("how", "error", "failed"),
    [({"is_fenced": True}, FencedError, 1), ({"is_fatal": True}, UnrunnableError, 0)],
)
def test_what_ends_the_run_is_taken_out_of_flight(
    driver: Driver, how: dict[str, Any], error: type[Exception], failed: int
) -> None:
    driver.say("a", fail(driver, error="process: is none\nMend it.", **how))
    assert isinstance(driver.control.error, error)
    assert not driver.core.bolts["a"].flight
    counters = driver.core.counters
    assert (counters.tuples_failed, counters.tuples_revoked) == (failed, 1 - failed)


def test_a_bolt_that_said_why_it_dies_is_quoted() -> None:
    driver = Driver()
    driver.say("a", Dying("process raised KeyboardInterrupt"))
    driver.hear(Left("a", 1, "closed the connection"))
    driver.hear(Left("b", 1, "closed the connection"))
    assert driver.reasons() == {
        "a": "process raised KeyboardInterrupt",
        "b": "closed the connection",
    }
