"""``batch.reject`` and refusals: what the bolt reports, and how it slows down."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError

import pytest
from wire_peers import ThreadBolt, spout, tuple_of

from flowctl import FlowControlSpout, LocalBolts, Settings
from flowctl.bolts.batch import Batch
from flowctl.core.messages import Ack, DetailedAck, Heartbeat, Rejected, Revoke, Revoked, SettledAck
from flowctl.core.trees.settlement import Settlement
from flowctl.errors import ConfigError, RetryLater
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import ListProducer


def as_async(process: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
    async def called(batch: Batch) -> Any:
        made = process(batch)
        return await made if inspect.isawaitable(made) else made

    return called


BOTH = pytest.mark.parametrize("form", [lambda p: p, as_async], ids=["sync", "async"])


# -- single records ----------------------------------------------------------------------------


@BOTH
def test_rejected_records_ride_on_the_ack_sorted_cleaned_and_cut(form: Any):
    def process(batch: Batch) -> None:
        batch.reject(3, "postgres://me:secret@db/x is wrong")
        batch.reject(batch[1], ValueError("no number"))
        batch.reject(-1, "x" * 5_000)
        batch.reject(1, "a second reason")

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", form(process))
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, *"abcde"))
        (frame,) = s.until(lambda: s.frames("b1", DetailedAck))
        s.end("b1")
        summary = bolt.wait()
    assert frame.rejected == [
        Rejected(1, "ValueError: no number"),
        Rejected(3, "postgres://***@db/x is wrong"),
        Rejected(4, "x" * 1_000),
    ]
    assert frame.left_out == 0
    assert frame.service_s >= 0
    assert (summary.acked, summary.failed) == (1, 0)


def test_what_a_sink_left_out_is_told_and_an_ack_without_news_stays_small():
    def process(batch: Batch) -> None:
        batch.left_out = 2 if batch[0].value == "again" else 0

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "again", "b"), tuple_of(2, "new"))
        s.until(lambda: len(s.acks("b1")) == 2)
        s.end("b1")
        bolt.wait()
        told, plain = s.frames("b1", Ack)
    assert isinstance(told, DetailedAck) and told.left_out == 2
    assert type(plain) is Ack


@BOTH
def test_if_process_raises_nothing_is_settled(form: Any):
    def process(batch: Batch) -> None:
        batch.reject(0, "bad")
        if batch.attempt == 1:
            raise ValueError("and then this")

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", form(process))
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "a"))
        s.until(lambda: s.fails("b1"))
        s.send("b1", tuple_of(1, "a", attempt=2))
        s.until(lambda: s.acks("b1"))
        s.end("b1")
        bolt.wait()
        (fail,) = s.fails("b1")
    assert fail.error == "ValueError: and then this"
    assert s.frames("b1", DetailedAck)[0].rejected == [Rejected(0, "bad")]


def test_a_topologys_bolt_keeps_its_settlement():
    def process(batch: Batch) -> Settlement:
        batch.left_out = 1
        return Settlement()

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1))
        s.until(lambda: s.frames("b1", SettledAck))
        s.end("b1")
        bolt.wait()


# -- refusals ----------------------------------------------------------------------------------


class Target:
    """Refuses while ``is_down``, or above ``room`` calls at once; notes when it was called."""

    def __init__(self, *, room: int | None = None, takes_s: float = 0.0) -> None:
        self.is_down = room is None
        self.calls_at_s: list[float] = []
        self.done = 0
        self._room = room
        self._takes_s = takes_s
        self._busy = 0
        self._lock = threading.Lock()

    def call(self, batch: Batch) -> None:
        self._enter()
        time.sleep(self._takes_s)
        self._leave()

    async def acall(self, batch: Batch) -> None:
        self._enter()
        await asyncio.sleep(self._takes_s)
        self._leave()

    def _enter(self) -> None:
        with self._lock:
            self.calls_at_s.append(time.monotonic())
            if self.is_down or (self._room is not None and self._busy >= self._room):
                raise HTTPError("http://target/", 503, "no", None, None)  # type: ignore[arg-type]
            self._busy += 1

    def _leave(self) -> None:
        with self._lock:
            self._busy -= 1
            self.done += 1


@pytest.mark.parametrize(
    ("slots", "is_async"),
    [
        pytest.param(1, False, marks=[pytest.mark.slow, pytest.mark.on_change("wire")]),
        (8, False),
        pytest.param(1, True, marks=[pytest.mark.slow, pytest.mark.on_change("wire")]),
        (64, True),
    ],
    ids=str,
)
def test_a_bolt_calls_a_target_that_refuses_twice_a_second_at_most_then_less(slots, is_async):
    target = Target()
    with spout() as s:
        process = target.acall if is_async else target.call
        bolt = ThreadBolt(s.endpoint, "b1", process, slots=slots)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1000))  # one call, so that only one is under way when it shuts
        s.until(lambda: s.fails("b1"))
        s.send("b1", *(tuple_of(n) for n in range(200)))
        s.until(lambda: len(s.fails("b1")) == 4)
        gaps = [b - a for a, b in zip(target.calls_at_s, target.calls_at_s[1:], strict=False)]
        for gap, least in zip(gaps, [0.5, 1.0, 2.0], strict=True):
            assert gap >= least * 0.99
        assert all(f.is_refused and f.error.startswith("refused (HTTP 503)") for f in s.fails("b1"))

        target.is_down = False
        s.until(lambda: s.acks("b1"))  # within two seconds: the longest wait
        first_s = time.monotonic()
        s.until(lambda: len(s.acks("b1")) == 197)
        assert time.monotonic() - first_s < 1.0, "the first success did not open the bolt"
        s.end("b1")
        bolt.wait()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("how", ["end", "eof"])
def test_a_pause_ends_with_the_link(is_async: bool, how: str):
    def process(batch: Batch) -> None:
        raise RetryLater(after_s=100)

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", as_async(process) if is_async else process, slots=3)
        s.until(lambda: s.joined("b1"))
        s.send("b1", *(tuple_of(n) for n in range(9)))
        s.until(lambda: s.fails("b1"))
        ended_at_s = time.monotonic()
        if how == "end":
            s.end("b1")
        else:
            s.server.close()
        bolt.wait()
        assert time.monotonic() - ended_at_s < 3.0, "it waited for the pause of 5 s"


@BOTH
def test_what_is_queued_during_a_pause_can_be_taken_back_and_the_pause_is_not_idle(form: Any):
    def process(batch: Batch) -> None:
        raise RetryLater(after_s=100)

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", form(process))
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1), tuple_of(2), tuple_of(3))
        s.until(lambda: s.fails("b1"))
        s.send("b1", Revoke("b1", [2, 3]))
        s.until(lambda: s.frames("b1", Revoked))
        assert s.frames("b1", Revoked)[0].tuple_ids == [2, 3]
        beats = len(s.frames("b1", Heartbeat))
        s.until(lambda: len(s.frames("b1", Heartbeat)) >= beats + 6)  # nothing is queued now
        later = s.frames("b1", Heartbeat)[beats + 1 :]
        assert {beat.busy_slots for beat in later} == {1}  # so its idle time does not grow
        s.end("b1")
        summary = bolt.wait()
    assert (summary.failed, summary.revoked) == (1, 2)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_target_with_room_for_some_is_kept_busy_by_them(is_async: bool):
    target = Target(room=5, takes_s=0.02)
    with spout() as s:
        process = target.acall if is_async else target.call
        bolt = ThreadBolt(s.endpoint, "b1", process, slots=20)
        s.until(lambda: s.joined("b1"))
        s.send("b1", *(tuple_of(n) for n in range(2_000)))
        s.until(lambda: target.done > 10)
        begun_s, done = time.monotonic(), target.done
        s.until(lambda: time.monotonic() > begun_s + 2)
        share = (target.done - done) / (5 * (time.monotonic() - begun_s) / 0.02)
        refused = len(s.fails("b1"))
        s.end("b1")
        bolt.wait()
    assert share > 0.5, "the slots that were served had to wait for those that were not"
    assert refused < 20 * 2.5 * 2, "those that were not served called more than twice a second"


def job(bolts: LocalBolts, **settings: Any) -> FlowControlSpout:
    return FlowControlSpout(
        name="j",
        producer=ListProducer(50),
        bolts=bolts,
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides({"tuple.records_max": 10, **settings}),
    )


@BOTH
def test_refusals_use_up_no_attempt(form: Any):
    left = {"refusals": 4}
    lock = threading.Lock()

    def process(batch: Batch) -> None:
        with lock:
            left["refusals"] -= 1
            if left["refusals"] >= 0:
                raise RetryLater("quota", after_s=0.01)

    report = job(LocalBolts(form(process), count=2), **{"retry.attempts_max": 1}).run(view="off")
    assert report.records_acked == 50
    assert report.tuples_failed == 0


def test_a_rule_of_ones_own_is_asked_on_the_bolt():
    seen: list[str] = []

    def process(batch: Batch) -> None:
        if len(seen) < 2:
            raise LookupError("the queue is full")

    def rule(error: BaseException) -> float | None:
        seen.append(str(error))
        return 0.01 if "full" in str(error) else None

    bolts = LocalBolts(process, count=1, refusal=rule)
    report = job(bolts, **{"retry.attempts_max": 1}).run(view="off")
    assert report.records_acked == 50
    assert seen == ["the queue is full"] * 2


def test_a_rule_that_gives_no_answer_ends_the_run_by_name():
    def process(batch: Batch) -> None:
        raise LookupError("x")

    bolts = LocalBolts(process, count=1, refusal=lambda error: "maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="refusal: returned 'maybe'") as caught:
        job(bolts).run(view="off")
    assert caught.value.field == "refusal"
