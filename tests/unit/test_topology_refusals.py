"""What a target refuses goes again at its stage: no fault of a record, and no attempt."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from flowctl.core.messages import SettledAck
from flowctl.core.trees.settlement import FailedInput, Settlement
from flowctl.errors import RetryLater
from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl_storm import Batched, Collector, Input, ManualCollector
from tests.stage_code_parts import failed_of, run
from tests.topology_driver import Hub, Sink, passing, topology


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


def test_errors_that_say_that_a_target_is_away_are_refusals_too() -> None:
    """A connection that is refused says nothing about a record: no attempt is counted."""

    def away_from_3_on(given: Input, out: Collector) -> None:
        if given.value >= 3:
            raise ConnectionRefusedError("database away")

    said = run(away_from_3_on, *range(6))
    assert failed_of(said) == [3, 4, 5] and all(failed.refused for failed in said.failed)

    def away(inputs: Any, out: Collector) -> None:
        raise ConnectionRefusedError("database away")

    with pytest.raises(ConnectionRefusedError):
        run(Batched(away), *range(6))


def test_a_batched_bolt_that_is_refused_while_poison_is_looked_for_keeps_what_is_done() -> None:
    """The half that worked is settled; what was not reached is refused, not failed."""
    calls = []

    def store(inputs: Any, out: Collector) -> None:
        calls.append([given.value for given in inputs])
        if len(calls) == 1:
            raise ValueError("one of them is bad")
        if len(calls) == 3:
            raise RetryLater("429", after_s=1.0)
        out(len(inputs))

    said = run(Batched(store), *range(8))
    assert calls[1] == [0, 1, 2, 3]
    assert [emit.value for emit in said.emits] == [4]
    assert sorted(failed_of(said)) == [4, 5, 6, 7]
    assert all(failed.refused for failed in said.failed)


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
    assert hub.core.counters.calls_refused == target.refused, "the calls, not what was not tried"


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


def test_refusals_one_after_the_other_wait_longer_each_time_up_to_two_seconds() -> None:
    hub = refusing(Limited(0))
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
    assert waits_s == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
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
        dead = hub.core.poll_dead_letter()
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
    stages = hub.core.stages.values()
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
    frame = SettledAck(1, 1, 0.0, 0.0, 0.0, None, Settlement(failed=[new]))
    writer.append(frame)
    [read] = FrameReader(decoder_of(SettledAck), 1 << 20).feed(bytes(writer.take()))
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
