"""One bad record fails alone, and what a target refuses is no fault of a record."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import msgspec
import pytest

from flowctl.core.events import TupleFailed
from flowctl.core.records import Batch, Record, Span
from flowctl.core.settlement import FailedInput, Settlement
from flowctl.errors import RetryLater
from flowctl.runtime.faults import gave_up_error
from flowctl.topology import Batched, Collector, Input, ManualCollector
from flowctl.topology.plan import input_id_of
from flowctl.topology.tasks import StageCode
from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import SettledFrame
from tests.topology_driver import Hub, Sink, passing, topology

FAST = {"retry.attempts_max": 3, "retry.backoff_first_s": 0.01}


def batch(*values: Any) -> Batch:
    records = [Record(input_id_of(n, 0), value) for n, value in enumerate(values)]
    return Batch(records, Span("t", "a", 0, len(values), 1), bolt="a.1", attempt=1)


def run(code: Any, *values: Any, isolates: bool = True) -> Settlement:
    return StageCode(code, ["s"], isolates=isolates).for_connection("a.1")(batch(*values))


def failed_of(said: Settlement) -> list[int]:
    return [failed.input_id >> 8 for failed in said.failed]


class Store:
    """Takes whole tuples, and none with a value of ``poison`` in it."""

    def __init__(self, *poison: int) -> None:
        self.poison = set(poison)
        self.calls: list[list[int]] = []
        self.stored: Counter[int] = Counter()

    def __call__(self, inputs: Any, out: Collector) -> None:
        values = [given.value for given in inputs]
        self.calls.append(values)
        if bad := self.poison & set(values):
            raise ValueError(f"bad {min(bad)}")
        self.stored.update(values)
        for given in inputs:
            out(given.value, anchors=given)


# -- whole tuples ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 10, 100, 256])
def test_a_batched_bolt_fails_only_the_record_that_it_can_not_take(size: int) -> None:
    for bad in {0, size // 3, size - 1}:
        store = Store(bad)
        said = run(Batched(store), *range(size))
        assert failed_of(said) == [bad]
        assert said.failed[0].reason == f"ValueError: bad {bad}"
        others = [n for n in range(size) if n != bad]
        assert store.stored == Counter(others), "each good one once"
        assert [emit.value for emit in said.emits] == others
        assert [emit.anchors for emit in said.emits] == [[input_id_of(n, 0)] for n in others]
        failing = sum(bad in call for call in store.calls)
        assert failing <= 1 + math.ceil(math.log2(size)), "the whole, and once a halving"


def test_several_bad_records_are_all_found() -> None:
    store = Store(3, 4, 70)
    said = run(Batched(store), *range(100))
    assert sorted(failed_of(said)) == [3, 4, 70]
    assert store.stored == Counter(set(range(100)) - {3, 4, 70})


def test_a_tuple_of_which_nothing_works_is_not_tried_one_by_one() -> None:
    """A database that is away raises for all: a few calls more, not two for each record."""
    store = Store(*range(100))
    said = run(Batched(store), *range(100))
    assert sorted(failed_of(said)) == list(range(100))
    assert len(store.calls) <= math.ceil(math.log2(100)) + 3


def test_a_lost_connection_is_nobodys_fault_and_is_not_looked_for() -> None:
    calls = []

    def away(inputs: Any, out: Collector) -> None:
        calls.append(len(inputs))
        raise ConnectionError("database away")

    assert len(failed_of(run(Batched(away), *range(100)))) == 100
    assert calls == [100]


def test_where_nothing_may_run_twice_a_tuple_fails_as_a_whole() -> None:
    store = Store(5)
    said = run(Batched(store), *range(10), isolates=False)
    assert (len(said.failed), len(store.calls)) == (10, 1)


@pytest.mark.parametrize(("mode", "calls"), [("at_least_once", "several"), ("at_most_once", "one")])
def test_a_job_looks_for_poison_where_it_may_run_twice(mode: str, calls: str) -> None:
    store = Store(5)
    made = topology()
    made.bolt("a", Batched(store)).shuffle("s")
    hub = Hub(made, overrides={"guarantee.mode": mode, **FAST})
    hub.offer(range(10))
    hub.core.on_committed()
    hub.step()
    assert (len(store.calls) == 1) == (calls == "one")


def test_poison_costs_good_roots_no_attempt_and_no_dead_letter() -> None:
    """4 poison records of 1,000 in whole tuples: 4 letters, all others arrive once."""
    poison = {7, 8, 300, 999}
    store = Store(*poison)
    made = topology()
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", Batched(store)).shuffle("a")
    hub = Hub(made, overrides=FAST, has_dead_letter=True)
    hub.offer(range(1_000))
    dead = []
    for _ in range(5_000):
        if hub.core.is_drained:
            break
        if not hub.step():
            hub.now_s += 0.01
        while (letter := hub.core.poll_dead()) is not None:
            dead.append(letter.records[0].value)
            hub.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=hub.now_s)
    assert hub.core.is_drained
    assert sorted(dead) == sorted(poison)
    assert hub.figures.failed == 4 * 3, "each poison root three times, no other ever"
    assert store.stored == Counter(set(range(1_000)) - poison)


@pytest.mark.parametrize("code", ["each", "batched", "manual"])
def test_a_bolt_that_exits_fails_its_input_only(code: str) -> None:
    """``sys.exit`` in a library of the user's is an error of one record, not of a tuple."""

    def each(given: Input, out: Collector) -> None:
        if given.value == 5:
            raise SystemExit(3)

    class Manual:
        def execute(self, given: Input, out: ManualCollector) -> None:
            each(given, out)
            out.ack(given)

    def whole(inputs: Any, out: Collector) -> None:
        for given in inputs:
            each(given, out)

    codes = {"each": each, "batched": Batched(whole), "manual": Manual}
    assert failed_of(run(codes[code], *range(10))) == [5]


# -- refusals ----------------------------------------------------------------------------------


class Limited:
    """Takes ``room`` calls, then refuses until it has room again."""

    def __init__(self, room: int, after_s: float | None = None) -> None:
        self.room = room
        self.after_s = after_s
        self.took: list[Any] = []
        self.refused = 0

    def __call__(self, given: Input, out: Collector) -> None:
        out(given.value)
        if not self.room:
            self.refused += 1
            raise RetryLater("429", after_s=self.after_s)
        self.room -= 1
        self.took.append(given.value)


def test_what_was_done_before_a_refusal_stays_done_and_the_rest_is_refused_not_failed() -> None:
    """The rest is not tried: a target that has no room is left alone."""
    target = Limited(3, after_s=2.0)
    said = run(target, *range(6))
    assert [emit.value for emit in said.emits] == [0, 1, 2]
    assert failed_of(said) == [3, 4, 5]
    assert all(failed.refused and failed.after_s == 2.0 for failed in said.failed)
    assert target.refused == 1


@pytest.mark.parametrize("code", ["each", "batched", "manual"])
def test_refused_at_the_first_record_the_whole_tuple_is(code: str) -> None:
    """So the window of the bolt shrinks as for any refusal, and nothing was said."""

    class Manual:
        def execute(self, given: Input, out: ManualCollector) -> None:
            raise RetryLater("429")

    def batched(inputs: Any, out: Collector) -> None:
        raise RetryLater("429")

    codes = {"each": Limited(0), "batched": Batched(batched), "manual": Manual}
    with pytest.raises(RetryLater):
        run(codes[code], *range(6))


def test_a_manual_bolt_may_be_refused_too() -> None:
    class Manual:
        def execute(self, given: Input, out: ManualCollector) -> None:
            out.emit(given.value, given)
            out.ack(given)
            if given.value == 3:
                raise RetryLater("429", after_s=1.0)

    said = run(Manual, *range(6))
    assert [emit.value for emit in said.emits] == [0, 1, 2]
    assert failed_of(said) == [3, 4, 5] and all(failed.refused for failed in said.failed)
    assert not said.held


def refusing(target: Any, **how: Any) -> Hub:
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", target).shuffle("a")
    return Hub(made, **how)


def test_what_is_refused_goes_again_at_its_stage_and_no_attempt_is_counted() -> None:
    target = Limited(3)
    hub = refusing(target, overrides={"retry.attempts_max": 1})
    hub.offer(range(20))
    for _ in range(3):
        hub.step()
    assert target.took == [0, 1, 2]
    assert not hub.core.is_drained
    target.room = 1_000
    hub.run()
    assert sorted(target.took) == list(range(20))
    assert (hub.figures.failed, hub.figures.replayed, hub.figures.complete) == (0, 0, 20)
    assert hub.core.counters.refused >= 17


def test_a_target_that_asks_to_be_left_alone_is() -> None:
    target = Limited(1, after_s=7.0)
    hub = refusing(target)
    hub.offer(range(2))
    hub.step()
    hub.step()
    began_s = hub.now_s
    target.room = 10
    hub.run()
    assert 7.0 <= hub.now_s - began_s < 7.5
    assert target.took == [0, 1]


def refuse_all(hub: Hub, *, after_s: float | None = None) -> None:
    """Each input of what is in flight is refused by itself, in a settlement."""
    while hub.in_flight:
        emission = hub.in_flight.popleft()
        ids: list[Any] = [record.position for record in emission.records]
        refused = [FailedInput(input_id, "no room", True, after_s) for input_id in ids]
        hub.ack(emission, Settlement(failed=refused))


def test_refusals_one_after_the_other_wait_longer_each_time() -> None:
    hub = refusing(Limited(0), overrides={"retry.backoff_first_s": 1.0})
    hub.offer(["x"])
    hub.step()
    asked_at_s = []
    while len(asked_at_s) < 7:
        hub.emit()
        if hub.in_flight:
            asked_at_s.append(hub.now_s)
            refuse_all(hub)
        due_s = hub.core.next_deadline_s()
        assert due_s is not None
        hub.now_s = due_s
    waits_s = [after - before for before, after in itertools.pairwise(asked_at_s)]
    assert waits_s == pytest.approx([1.0, 2.0, 4.0, 8.0, 10.0, 10.0])
    assert hub.figures.failed == 0


def test_a_tree_does_not_expire_while_a_part_of_it_waits_because_it_was_refused() -> None:
    target = Limited(1, after_s=45.0)  # over four times the trees' time
    hub = refusing(target)
    hub.offer(range(2))
    hub.step()
    hub.step()
    target.room = 10
    hub.run(until_s=100.0)
    assert (hub.figures.expired, hub.figures.replayed, hub.figures.complete) == (0, 0, 2)
    assert target.took == [0, 1]


def test_what_is_refused_for_too_long_fails() -> None:
    """``retry.give_up_after_s`` bounds it: a record that is refused for ever does not stay."""
    settings = {"retry.give_up_after_s": 12.0, "retry.attempts_max": 1}
    hub = refusing(Limited(0), overrides=settings, has_dead_letter=True)
    hub.offer(["never"])
    hub.step()
    dead = None
    while dead is None and hub.now_s < 100:
        hub.emit()
        refuse_all(hub, after_s=5.0)
        hub.now_s += 0.5
        dead = hub.core.poll_dead()
    assert dead is not None and "refused for 15 s: no room" in dead.gave_up.reason
    assert 12 < hub.now_s < 17


@pytest.mark.req("S88")
def test_at_most_once_what_is_refused_in_a_tuple_is_dropped_and_told() -> None:
    target = Limited(1)
    hub = refusing(target, overrides={"guarantee.mode": "at_most_once"})
    hub.offer(range(4))
    hub.core.on_committed()
    hub.run()
    assert target.took == [0]
    assert hub.core.counters.records_dropped == 3


@pytest.mark.req("S83")
def test_an_unanchored_input_that_is_refused_is_not_lost() -> None:
    target = Limited(1)
    made = topology()
    made.bolt("a", lambda given, out: out(given.value, anchored=False)).shuffle("s")
    made.bolt("b", target).shuffle("a")
    hub = Hub(made)
    hub.offer(range(4))
    hub.step()
    hub.step()
    target.room = 10
    hub.run()
    assert sorted(target.took) == [0, 1, 2, 3]
    assert hub.core.counters.records_dropped == 0


def test_a_stage_is_not_at_its_end_while_refused_inputs_wait() -> None:
    target, sink = Limited(1, after_s=3.0), Sink()
    made = topology()
    made.bolt("a", target).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(range(4))
    hub.core.end_of_input(now_s=0.0)
    hub.step()
    hub.emit()
    stages = hub.core._in_order
    assert [stage.is_ended for stage in stages] == [True, False]
    target.room = 10
    hub.run()
    assert sorted(sink.values) == [0, 1, 2, 3]


@pytest.mark.req("S120")
def test_peers_with_and_without_refused_inputs_understand_each_other() -> None:
    class OldFailed(msgspec.Struct, frozen=True, array_like=True):
        input_id: int
        reason: str

    old, new = OldFailed(1, "x"), FailedInput(1, "x", True, 2.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=OldFailed) == old
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=FailedInput) == FailedInput(
        1, "x"
    )
    writer = FrameWriter(1 << 20)
    frame = SettledFrame(1, 1, 0.0, 0.0, 0.0, None, Settlement(failed=[new]))
    writer.append(frame)
    [read] = FrameReader(decoder_of(SettledFrame), 1 << 20).feed(bytes(writer.take()))
    assert read == frame


def test_the_trees_of_a_tuple_that_is_refused_as_a_whole_live_on() -> None:
    """Else their roots would be planted again and again while the target is down."""
    target = Limited(0, after_s=6.0)
    hub = refusing(target)
    hub.offer(range(5))
    while hub.now_s < 60.0:
        if not hub.step():
            hub.now_s = max(hub.now_s, hub.core.next_deadline_s() or 0.0)
    target.room = 100
    hub.run(until_s=100.0)
    assert (hub.figures.expired, hub.figures.replayed, hub.figures.complete) == (0, 0, 5)
    assert target.took == [0, 1, 2, 3, 4]
    assert target.refused >= 8


# -- who is to blame ---------------------------------------------------------------------------


def test_an_error_names_the_bolt_that_raised_and_not_the_spout() -> None:
    def failing(given: Input, out: Collector) -> None:
        raise ValueError("bad")

    made = topology()
    made.bolt("parse", passing).shuffle("s")
    made.bolt("store", failing, count=2).fields("parse", 0)
    hub = Hub(made, overrides={"retry.attempts_max": 2, "retry.backoff_first_s": 0.01})
    hub.offer([["key"]])
    while hub.core.gave_up is None:
        if not hub.step():
            hub.now_s += 0.01
    hub.step()
    [bolt] = hub.core.gave_up.bolts
    assert bolt.startswith("store.")
    [failed] = [event for event in hub.events if isinstance(event, TupleFailed)]
    assert failed.bolt == bolt
    assert f"on {bolt}: ValueError: bad" in str(gave_up_error(hub.core.gave_up, None))


def test_what_no_bolt_failed_names_the_spout() -> None:
    made = topology()
    made.bolt("a", passing).shuffle("s")
    made.translations["s"] = lambda partition, record: 1 // 0
    hub = Hub(made, overrides={"retry.attempts_max": 1})
    hub.offer(["x"])
    hub.emit()
    assert hub.core.gave_up is not None and hub.core.gave_up.bolts == ("s",)
