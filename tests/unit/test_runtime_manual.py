"""The hand-driven life cycle: open, activate, next_tuple, ack, fail, deactivate, close."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from flowctl.config import Settings
from flowctl.core.driver import pump
from flowctl.core.messages import Ack, Emission
from flowctl.core.records import AckOutcome, Record
from flowctl.core.spout import SpoutCore
from flowctl.errors import CheckpointUnavailableError, ConfigError
from flowctl.ports import SourceChunk
from flowctl.runtime.manual import ManualSpout
from flowctl.testing.clock import ManualClock
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import FailingStore, ListProducer

ONE_A_TUPLE = {"tuple.records_max": 1, "lab.window.initial": 4, "lab.window.policy": "fixed"}


def spout_of(producer, store=None, **settings) -> ManualSpout:
    return ManualSpout(
        name="job",
        producer=producer,
        checkpoint=store or MemoryCheckpointStore(),
        settings=Settings().with_overrides({**ONE_A_TUPLE, **settings}),
    )


def emit_all(spout: ManualSpout) -> list[Emission]:
    found = []
    while (emission := spout.next_tuple()) is not None:
        found.append(emission)
    return found


@pytest.mark.req("S55", "S123")
def test_nothing_is_opened_or_emitted_before_it_is_active():
    producer = ListProducer(3)
    spout = spout_of(producer)
    assert not spout.open_was_called
    spout.open({"a": 1})
    assert spout.open_was_called
    assert not spout.is_active
    assert spout.next_tuple() is None
    assert (producer.opened, producer.polls) == (0, 0)
    spout.activate()
    assert producer.opened == 1
    assert spout.next_tuple() is not None


@pytest.mark.req("S55")
def test_repeats_are_ignored():
    producer, store = ListProducer(3), MemoryCheckpointStore()
    spout = spout_of(producer, store)
    spout.open({"a": 1})
    spout.activate()
    spout.activate()
    assert producer.opened == 1
    spout.deactivate()
    spout.deactivate()
    spout.activate()
    assert producer.opened == 1, "a pause must not read the source from its checkpoint again"
    spout.close()
    spout.close()
    assert producer.closed == 1


def test_calls_in_the_wrong_order_say_so():
    spout = spout_of(ListProducer(1))
    for call in (spout.activate, spout.next_tuple, spout.save):
        with pytest.raises(ConfigError, match=r"open: was not called yet\. Call open\(\) first\."):
            call()
    spout.deactivate()
    spout.close()
    spout.open({"a": 1})
    with pytest.raises(ConfigError, match=r"was called before\. Call close\(\) first\."):
        spout.open({"a": 1})


def test_all_records_go_out_and_the_last_ack_drains_it():
    spout = spout_of(ListProducer(3))
    spout.open({"a": 1})
    spout.activate()
    emissions = emit_all(spout)
    assert [e.records[0].position for e in emissions] == [1, 2, 3]
    assert not spout.is_drained
    assert {spout.ack(e) for e in emissions} == {AckOutcome.ACKED}
    assert spout.is_drained
    assert spout.ack(emissions[0]) is AckOutcome.DUPLICATE


@pytest.mark.req("S93")
def test_it_does_not_poll_while_polled_records_wait():
    producer = ListProducer(10, poll_max=10)
    spout = spout_of(producer, **{"lab.buffer.records_max": 2, "tuple.records_max": 10})
    spout.open({"a": 1})
    spout.activate()
    emissions = emit_all(spout)
    assert producer.polls <= 2
    while emissions:
        spout.ack(emissions.pop(0))
        emissions += emit_all(spout)
    assert spout.is_drained
    assert spout.checkpoint.load("job").records == 0, "nothing was saved yet"
    spout.close()
    assert spout.checkpoint.load("job").records == 10


@pytest.mark.req("S91")
def test_a_turn_commits_then_polls_then_emits_one():
    turn: list[str] = []

    class Source(ListProducer):
        def poll(self, max_records):
            turn.append("poll")
            return super().poll(max_records)

    class Store(MemoryCheckpointStore):
        def save(self, job, checkpoint, *, epoch):
            turn.append("commit")
            super().save(job, checkpoint, epoch=epoch)

    clock = ManualClock()
    spout = spout_of(Source(10, poll_max=2), Store(), **{"checkpoint.interval_s": 1.0})
    spout.open({"a": 1, "b": 1}, clock=clock)
    spout.activate()
    emissions = [spout.next_tuple(), spout.next_tuple()]
    assert turn == ["poll", "poll"], "the commit is not due"
    assert [emission.records[0].position for emission in emissions if emission] == [1, 2]
    spout.ack(emissions[0])
    turn.clear()
    clock.advance(1.0)
    third = spout.next_tuple()
    assert turn == ["commit", "poll"]
    assert third is not None and third.records[0].position == 3
    assert spout.checkpoint.load("job").partitions["p"].position == 1


@pytest.mark.req("S113")
def test_deactivate_saves_and_emits_no_more_but_takes_acks():
    store = MemoryCheckpointStore()
    spout = spout_of(ListProducer(4), store)
    spout.open({"a": 1})
    spout.activate()
    emissions = emit_all(spout)
    spout.ack(emissions[0])
    spout.deactivate()
    assert store.load("job").partitions["p"].position == 1
    assert spout.next_tuple() is None
    assert spout.ack(emissions[1]) is AckOutcome.ACKED
    spout.close()
    assert store.load("job").partitions["p"].position == 2


@pytest.mark.req("S11", "S13")
def test_opened_again_it_goes_on_with_what_is_not_acked():
    producer, store = ListProducer(4), MemoryCheckpointStore()
    spout = spout_of(producer, store)
    spout.open({"a": 1})
    spout.activate()
    for emission in emit_all(spout):
        if emission.records[0].position != 2:
            spout.ack(emission)
    spout.close()
    stored = store.load("job").partitions["p"]
    assert stored.position == 1
    assert [(r.first, r.last) for r in stored.acked] == [(3, 4)]

    spout.open({"a": 1})
    spout.activate()
    again = emit_all(spout)
    assert [r.position for e in again for r in e.records] == [2]
    spout.ack(again[0])
    spout.close()
    assert store.load("job").partitions["p"].position == 4


@pytest.mark.req("S108")
def test_an_ack_of_what_others_read_by_now_changes_nothing_and_the_listener_hears_of_it():
    heard: list[tuple[str, object]] = []

    class Listener:
        def __getattr__(self, name):
            return lambda *about: heard.append((name, about[0]))

    store, clock = MemoryCheckpointStore(), ManualClock()
    spout = spout_of(ListProducer(2), store)
    spout.listener = Listener()
    spout.open({"a": 1}, clock=clock)
    spout.activate()
    first, second = emit_all(spout)
    spout.ack(first)
    spout._core.handover.take_away("p", now_s=clock())  # as a rebalance does
    assert spout.ack(second) is AckOutcome.DUPLICATE
    assert spout.ack(second) is AckOutcome.DUPLICATE
    assert [about for name, about in heard if name == "on_ack"] == [first, second]
    spout.close()
    assert store.load("job").partitions == {}


def test_a_failed_tuple_goes_again_to_another_bolt_after_a_back_off():
    clock = ManualClock()
    spout = spout_of(ListProducer(1), **{"retry.backoff_first_s": 2.0})
    spout.open({"a": 1, "b": 1}, clock=clock)
    spout.activate()
    (first,) = emit_all(spout)
    assert spout.fail(first) is AckOutcome.FAILED
    assert spout.next_tuple() is None
    clock.advance(2.0)
    again = spout.next_tuple()
    assert again is not None
    assert (again.tuple_id, again.attempt) == (first.tuple_id, 2)
    assert again.bolt != first.bolt


@pytest.mark.req("S87")
def test_it_saves_on_its_interval_by_the_callers_clock():
    clock, store = ManualClock(), MemoryCheckpointStore()
    spout = spout_of(ListProducer(4), store, **{"checkpoint.interval_s": 5.0})
    spout.open({"a": 1}, clock=clock)
    spout.activate()
    spout.ack(emit_all(spout)[0])
    clock.advance(4.9)
    spout.next_tuple()
    assert store.load("job").records == 0
    clock.advance(0.1)
    spout.next_tuple()
    assert store.load("job").records == 1


def test_a_store_that_is_away_does_not_stop_the_work():
    clock, store = ManualClock(), FailingStore()
    spout = spout_of(ListProducer(4), store, **{"checkpoint.interval_s": 1.0})
    spout.open({"a": 1}, clock=clock)
    spout.activate()
    store.error = CheckpointUnavailableError("away")
    clock.advance(1.0)
    emissions = emit_all(spout)
    assert len(emissions) == 4
    assert store.tries == 1, "it is tried once an interval"
    for emission in emissions:
        spout.ack(emission)
    with pytest.raises(CheckpointUnavailableError):
        spout.save()
    store.error = None
    clock.advance(1.0)
    spout.next_tuple()
    assert store.load("job").records == 4


def test_close_lets_go_of_the_producer_even_if_the_save_fails():
    producer, store = ListProducer(1), FailingStore()
    spout = spout_of(producer, store)
    spout.open({"a": 1})
    spout.activate()
    store.error = CheckpointUnavailableError("away")
    with pytest.raises(CheckpointUnavailableError):
        spout.close()
    assert producer.closed == 1
    assert not spout.open_was_called


SERVICE_S, PATH_S, ROUNDS = 0.001, 0.1, 8  # a long path: windows are what limits
Next, Settle = Callable[[], Emission | None], Callable[[Emission], Any]


def windows_of(clock: ManualClock, bolts: list[str], take: Next, ack: Settle) -> list[int]:
    """How many tuples the bolts were given in each round trip; each is acked in its turn."""
    found = []
    for _ in range(ROUNDS):
        queues: dict[str, deque[Emission]] = {bolt: deque() for bolt in bolts}
        while (emission := take()) is not None:
            queues[emission.bolt].append(emission)
        found.append(sum(map(len, queues.values())))
        clock.advance(PATH_S)
        while any(queues.values()):
            clock.advance(SERVICE_S)
            for queue in filter(None, queues.values()):
                ack(queue.popleft())
    return found


def by_hand(settings: Settings, bolts: list[str], chunk: int) -> list[int]:
    clock = ManualClock()
    producer = ListProducer(20_000, poll_max=chunk)
    spout = ManualSpout(
        name="job", producer=producer, checkpoint=MemoryCheckpointStore(), settings=settings
    )
    spout.open(dict.fromkeys(bolts, 1), clock=clock)
    spout.activate()
    return windows_of(clock, bolts, spout.next_tuple, spout.ack)


def as_a_run_does(settings: Settings, bolts: list[str]) -> list[int]:
    """The reader has filled the buffer before the sender looks."""
    clock, core = ManualClock(), SpoutCore(settings)
    for bolt in bolts:
        core.add_bolt(bolt, slots=1, epoch=1, now_s=clock())
    core.offer("p", [Record(n, str(n)) for n in range(1, 20_001)], now_s=clock())

    def take() -> Emission | None:
        turn = pump(core, clock(), emits_max=1)
        return turn.emissions[0] if turn.emissions else None

    def ack(given: Emission) -> None:
        core.on_ack(given.bolt, 1, Ack(given.tuple_id, given.attempt), now_s=clock())

    return windows_of(clock, bolts, take, ack)


@pytest.mark.req("S4")
@pytest.mark.parametrize("chunk", [1, 7, 1_000])
@pytest.mark.parametrize("policy", ["aiad", "just_full", "rtt_only"])
@pytest.mark.parametrize("bolts", [["a"], ["a", "b"]])
def test_windows_grow_as_in_a_run(policy: str, bolts: list[str], chunk: int) -> None:
    """They stayed at 2: a buffer that was empty only because nobody had polled counted as a
    producer that is the limit.  The kind: by hand and in a run, the same bolts get the same."""
    letter = {
        "lab.window.policy": policy,
        "lab.window.growth": "ack",
        "lab.window.threshold_s": 1.0,
    }
    settings = Settings().with_overrides({**letter, "tuple.records_max": 1})
    windows = by_hand(settings, bolts, chunk)
    assert windows == as_a_run_does(settings, bolts)
    assert windows[-1] > 10 * windows[0]


@pytest.mark.req("S4")
def test_a_window_does_not_grow_while_the_producer_is_the_limit() -> None:
    """It said that it has no more now: nothing is known of what the bolt could hold."""
    clock = ManualClock()
    letter = {
        "lab.window.policy": "aiad",
        "lab.window.growth": "ack",
        "lab.window.threshold_s": 1.0,
    }
    settings = Settings().with_overrides({**letter, "tuple.records_max": 1})
    waiting: deque[Record] = deque()

    class Trickle(ListProducer):
        def poll(self, max_records: int) -> Any:
            records = list(waiting)
            waiting.clear()
            return SourceChunk("p", records)

    spout = ManualSpout(
        name="job", producer=Trickle(0), checkpoint=MemoryCheckpointStore(), settings=settings
    )
    spout.open({"a": 1}, clock=clock)
    spout.activate()
    last = 0
    for count in (2, *[4] * 10):  # at the start nobody knows who is the limit: it grows once
        waiting.extend(Record(last + n, "x") for n in range(1, count + 1))
        last += count
        emissions = emit_all(spout)
        assert len(emissions) == count, "the window is full, by chance"
        for emission in emissions:
            clock.advance(SERVICE_S)
            spout.ack(emission)
    waiting.extend(Record(last + n, "x") for n in range(1, 100))
    assert len(emit_all(spout)) == 4


class Files(ListProducer):
    """Two partitions, each told to have ended by a chunk of its own, with busy ones between."""

    def __init__(self) -> None:
        super().__init__(0)
        self.chunks = iter(
            [
                SourceChunk("a", [], is_busy=True),
                SourceChunk("a", [Record(1, "x")]),
                SourceChunk("a", [], end=(1, 7)),
                SourceChunk("b", [], is_busy=True),
                SourceChunk("b", [Record(1, "y"), Record(2, "z")], end=(2, 7)),
            ]
        )

    def poll(self, max_records: int) -> Any:
        return next(self.chunks, None)


def test_the_loop_of_the_page_ends_at_the_end_of_the_source_not_of_its_first_file():
    """It ended when the first partition did, and said that all was done.  The kind: a chunk that
    says something without having records is not one that says: nothing at the moment."""
    store = MemoryCheckpointStore()
    spout = spout_of(Files(), store)
    spout.open({"a": 1})
    spout.activate()
    done = []
    while (emission := spout.next_tuple()) is not None or not spout.is_drained:
        assert emission is not None
        done += [(emission.partition, record.value) for record in emission.records]
        spout.ack(emission)
    spout.deactivate()
    assert done == [("a", "x"), ("b", "y"), ("b", "z")]
    saved = store.load("job").partitions
    assert {name: each.end for name, each in saved.items()} == {"a": (1, 7), "b": (2, 7)}
