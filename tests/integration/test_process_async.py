"""``async def process``: tasks of an event loop, up to ``slots`` of them at once."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
import warnings
from typing import Any

import pytest
from wire_peers import ThreadBolt, spout, tuple_of

from flowctl import FlowControlSpout, LocalBolts, Settings
from flowctl.bolts.batch import Batch
from flowctl.bolts.worker import FlowControlBolt
from flowctl.core.messages import Ack, Heartbeat
from flowctl.errors import ConfigError, FencedError, RetryLater
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl.wire.frames import Dying
from flowctl_storm import LocalStages, Topology
from tests.runtime_parts import ListProducer


async def sleep(batch: Batch) -> None:
    await asyncio.sleep(batch[0].value)


class Counting:
    """How many run at once, on which loops and threads."""

    def __init__(self, wait_s: float = 0.01) -> None:
        self._wait_s = wait_s
        self.calls = self.running = self.most = 0
        self.loops: set[int] = set()
        self.threads: set[str] = set()

    async def __call__(self, batch: Batch) -> None:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.loops.add(id(asyncio.get_running_loop()))
        self.threads.add(threading.current_thread().name)
        await asyncio.sleep(self._wait_s)
        self.running -= 1


def test_tuples_are_acked_as_they_finish():
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", sleep, slots=3)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, 0.6), tuple_of(2, 0.01), tuple_of(3, 0.3))
        s.until(lambda: len(s.acks("b1")) == 3)
        assert s.acks("b1") == [2, 3, 1]
        times = {frame.tuple_id: frame.service_s for frame in s.frames("b1", Ack)}
        assert times[2] < 0.3 <= times[3] < 0.6 <= times[1]
        s.end("b1")
        summary = bolt.wait()
    assert (summary.acked, summary.records, summary.ended) == (3, 3, "end")


@pytest.mark.parametrize("slots", [1, 5])
@pytest.mark.parametrize("wrap", [lambda p: p, functools.partial], ids=["object", "partial"])
def test_slots_run_at_once_and_no_more(slots: int, wrap: Any):
    process = Counting()
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", wrap(process), slots=slots)
        s.until(lambda: s.joined("b1"))
        s.send("b1", *(tuple_of(n) for n in range(30)))
        s.until(lambda: len(s.acks("b1")) == 30)
        s.send("b1", *(tuple_of(n) for n in range(30, 40)))  # to slots that were idle
        s.until(lambda: len(s.acks("b1")) == 40)
        s.end("b1")
        bolt.wait()
    assert process.calls == 40
    assert process.most == slots
    assert len(process.loops) == len(process.threads) == 1


def test_what_is_raised_fails_the_tuple_and_the_others_go_on():
    async def below() -> None:
        raise ValueError("bad line")

    async def process(batch: Batch) -> None:
        for record in batch:
            await asyncio.sleep(0)
            match record.value:
                case "bad":
                    await below()
                case "exit":
                    raise SystemExit(3)
                case "cancelled":
                    raise asyncio.CancelledError
                case "later":
                    raise RetryLater("quota", after_s=1.5)
                case "fenced":
                    raise FencedError("a newer driver")
                case "lazy":
                    return asyncio.sleep(0)

    values = ["ok", "bad", "exit", "cancelled", "later", "ok", "fenced", "lazy"]
    with warnings.catch_warnings(), spout() as s:
        warnings.simplefilter("error")
        bolt = ThreadBolt(s.endpoint, "b1", process, slots=len(values))
        s.until(lambda: s.joined("b1"))
        tuples = [tuple_of(n, "ok", value) for n, value in enumerate(values)]
        s.send("b1", *tuples[:-2])
        s.until(lambda: len(s.acks("b1")) + len(s.fails("b1")) == 6)
        s.send("b1", tuple_of(9))  # a slot is still shut, the others are not
        s.until(lambda: 9 in s.acks("b1"))
        s.send("b1", *tuples[-2:])  # these two end the run
        s.until(lambda: len(s.fails("b1")) == 6)
        s.end("b1")
        summary = bolt.wait()
        fails = {values[f.tuple_id]: f for f in s.fails("b1")}
    assert sorted(s.acks("b1")) == [0, 5, 9]
    assert (summary.acked, summary.failed) == (3, 6)
    assert fails["bad"].error == "ValueError: bad line"
    assert fails["bad"].record_index == 1
    assert "in below" in fails["bad"].traceback
    assert "coroutines.py" not in fails["bad"].traceback
    assert fails["exit"].error == "SystemExit: 3"
    assert fails["cancelled"].error == "CancelledError"
    assert (fails["later"].is_refused, fails["later"].after_s) == (True, 1.5)
    assert fails["fenced"].is_fenced
    assert fails["lazy"].is_fatal and "returned a coroutine (sleep)" in fails["lazy"].error


@pytest.mark.parametrize("how", ["end", "cancel", "eof"])
def test_what_runs_at_the_end_is_cancelled(how: str):
    ended: list[str] = []
    begun = threading.Semaphore(0)

    async def process(batch: Batch) -> None:
        begun.release()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)  # tidying may take a turn
            ended.append(batch[0].value)

    with spout() as s:
        running = FlowControlBolt(s.endpoint, "b1", process, slots=2)
        summaries: list[Any] = []
        thread = threading.Thread(target=lambda: summaries.append(running.run()))
        thread.start()
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "one"), tuple_of(2, "two"), tuple_of(3, "three"))
        s.until(lambda: begun.acquire(blocking=False))
        s.until(lambda: begun.acquire(blocking=False))
        if how == "end":
            s.end("b1")
        elif how == "cancel":
            running.cancel()
        else:
            s.server.close()
        thread.join(10)
        assert not thread.is_alive()
        if how == "cancel":
            s.until(lambda: s.left("b1"))
    assert sorted(ended) == ["one", "two"], "the third was never begun"
    assert not s.acks("b1") and not s.fails("b1")
    assert (summaries[0].acked, summaries[0].failed) == (0, 0)


def test_cancelled_before_it_began():
    with spout() as s:
        bolt = FlowControlBolt(s.endpoint, "b1", sleep, slots=2)
        bolt.cancel()
        thread = threading.Thread(target=bolt.run)
        thread.start()
        s.until(lambda: s.left("b1"))
        thread.join(10)
        assert not thread.is_alive()


def test_an_interrupt_ends_the_bolt():
    async def process(batch: Batch) -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process, slots=2)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1), tuple_of(2))
        s.until(lambda: s.left("b1"))
        with pytest.raises(KeyboardInterrupt):
            bolt.wait()
        assert s.frames("b1", Dying)[0] == Dying("process raised KeyboardInterrupt")


@pytest.mark.parametrize("where", ["flowctl.bolts.turns.ack_of", "flowctl.bolts.link.Link._next"])
def test_a_defect_of_ours_ends_the_bolt_and_is_not_swallowed(monkeypatch, where: str):
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(where, broken)
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", sleep, slots=2)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, 0))
        s.until(lambda: s.left("b1"))
        with pytest.raises(ZeroDivisionError):
            bolt.wait()


def test_heartbeats_go_on_while_the_loop_is_held_up():
    async def process(batch: Batch) -> None:
        time.sleep(0.5)  # what one should not do

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process, slots=2)
        s.until(lambda: s.joined("b1"))
        before = len(s.frames("b1", Heartbeat))
        s.send("b1", tuple_of(1))
        s.until(lambda: s.acks("b1"))
        assert len(s.frames("b1", Heartbeat)) >= before + 4
        s.end("b1")
        bolt.wait()


def test_idle_time_is_that_of_slots_without_a_tuple():
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", sleep, slots=2)
        s.until(lambda: s.joined("b1"))
        s.until(lambda: len(s.frames("b1", Heartbeat)) > 0.2 / s.endpoint.heartbeat_s)
        s.send("b1", *(tuple_of(n, 0.2) for n in range(8)))  # both slots, for 0.8 s
        s.until(lambda: len(s.acks("b1")) == 8)
        first, *_, last = s.frames("b1", Ack)
        assert first.idle_total_s >= 0.1
        assert last.idle_total_s - first.idle_total_s < 0.1, "it was never idle"
        begun_at_s = time.monotonic()
        s.send("b1", tuple_of(9, 0.6))  # one slot: the other is idle, which is half a bolt
        s.until(lambda: 9 in s.acks("b1"))
        s.send("b1", tuple_of(10, 0.0))
        s.until(lambda: 10 in s.acks("b1"))
        passed_s = time.monotonic() - begun_at_s
        one, other = s.frames("b1", Ack)[-2:]
        assert 0.2 < other.idle_total_s - one.idle_total_s < passed_s - 0.2, "half of 0.6 s"
        assert {beat.busy_slots for beat in s.frames("b1", Heartbeat)} == {0, 1, 2}
        s.end("b1")
        bolt.wait()


def test_context_variables_do_not_pass_from_tuple_to_tuple():
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    seen: list[int] = []

    async def process(batch: Batch) -> None:
        seen.append(variable.get())
        variable.set(batch[0].value)
        await asyncio.sleep(0)
        assert variable.get() == batch[0].value

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process, slots=2)
        s.until(lambda: s.joined("b1"))
        s.send("b1", *(tuple_of(n, n) for n in range(1, 21)))
        s.until(lambda: len(s.acks("b1")) == 20)
        s.end("b1")
        bolt.wait()
    assert seen == [0] * 20


# -- whole runs --------------------------------------------------------------------------------


def job(process: Any, *, records: int = 500, **more: Any) -> FlowControlSpout:
    settings = {"tuple.records_max": 5, **more.pop("settings", {})}
    return FlowControlSpout(
        name="j",
        producer=ListProducer(records),
        bolts=LocalBolts(process, **{"count": 2, "slots": 8, **more.pop("bolts", {})}),
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides(settings),
        **more,
    )


def test_a_run_calls_the_body_for_each_record_on_one_loop():
    process, seen = Counting(0.02), []

    async def noting(batch: Batch) -> None:
        await process(batch)
        seen.extend(record.position for record in batch)

    report = job(noting).run(view="off")
    assert sorted(seen) == list(range(1, 501))
    assert report.records_acked == 500
    assert len(process.loops) == 1, "a client that is kept belongs to one"
    assert 8 < process.most <= 16, "windows left slots empty"


class Letters:
    """A dead letter that counts."""

    def __init__(self) -> None:
        self.records = 0

    def dead_letter(self, job: str, partition: str, records: Any, **_: Any) -> None:
        self.records += len(records)

    def close(self) -> None:
        pass


async def hidden(batch: Batch) -> None:
    raise AssertionError("nothing awaits this")


@pytest.mark.parametrize(
    "process",
    [lambda batch: hidden(batch) or None, lambda batch: map(print, batch)],
    ids=["coroutine", "map"],
)
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_work_that_is_handed_back_ends_the_run_at_once(process: Any, mode: str):
    letters = Letters()
    spout = job(
        process,
        records=5_000,
        dead_letter=letters,
        settings={"retry.attempts_max": 1, "guarantee.mode": mode},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigError, match="process: returned a ") as caught:
            spout.run(view="off")
    assert caught.value.remedy
    report = caught.value.report  # type: ignore[attr-defined]
    assert report.outcome == "failed"
    assert (report.records_acked, letters.records) == (0, 0)
    assert report.tuples_failed == 0, "no attempt was used up"
    assert spout.checkpoint.load("j").records == 0 or mode == "at_most_once"


def test_a_stage_of_a_topology_that_hands_work_back_ends_the_run_too():
    topology = Topology("t")
    topology.spout("s", ListProducer(100))
    topology.bolt("first", lambda given, out: hidden(given) or None).shuffle("s")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigError, match=r"returned a coroutine \(hidden\)"):
            topology.run(LocalStages(), checkpoint=MemoryCheckpointStore(), view="off")
