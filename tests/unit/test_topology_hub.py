"""TopologyCore in virtual time: trees over several stages, groupings, faults, back-pressure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from flowctl.core.events import TupleFailed
from flowctl.core.records import AckOutcome
from flowctl.topology import Batched, Collector, Input
from tests.topology_driver import Hub, SpyLedger, topology


def passing(given: Input, out: Collector) -> None:
    out(given.value)


def nothing(given: Input, out: Collector) -> None:
    pass


class Sink:
    """Remembers which bolt got what."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []

    def __call__(self, given: Input, out: Collector) -> None:
        self.got.append((out.bolt, given.value))

    @property
    def values(self) -> list[Any]:
        return [value for _, value in self.got]


def diamond(sink: Any) -> Any:
    made = topology()
    made.bolt("b1", passing).shuffle("s")
    made.bolt("b2", passing).shuffle("s")
    made.bolt("b3", sink).shuffle("b1").shuffle("b2")
    return made


@pytest.mark.req("S81", "S57", "S64", "S65", "S75")
def test_the_worked_example_over_the_real_thing() -> None:
    ids = iter([0xABC, 1, 2, 3, 4])  # the root, then the edges of the document
    hub = Hub(diamond(nothing), next_id=lambda: next(ids))
    spy = hub.core._roots.ledgers[0] = SpyLedger()
    hub.offer(["x"])
    hub.emit()
    for bolt in ("b1.1", "b2.1"):  # in the document's order
        emission = next(e for e in hub.in_flight if e.bolt == bolt)
        hub.in_flight.remove(emission)
        hub.ack(emission, hub.process_one(emission))
    hub.run()
    assert spy.told == [("init", 1 ^ 2), ("ack", 1 ^ 3), ("ack", 2 ^ 4), ("ack", 3), ("ack", 4)]
    assert len(spy) == 0
    assert hub.core.checkpoint().partitions["s:p"].position == 1


@pytest.mark.req("S72", "S77")
def test_a_record_counts_as_acked_when_its_whole_tree_is() -> None:
    hub = Hub(diamond(nothing))
    hub.offer(["x"])
    for done in range(4):
        assert hub.core.checkpoint().partitions["s:p"].records == 0, done
        hub.step()
    assert hub.core.checkpoint().partitions["s:p"].records == 1
    assert hub.core.is_drained
    assert hub.figures.ledger_now == 0


@pytest.mark.req("S83")
def test_an_unanchored_emit_does_not_hold_its_root() -> None:
    sink = Sink()
    made = topology()
    made.bolt("a", lambda given, out: out(given.value, anchored=False)).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"])
    hub.step()
    assert hub.core.checkpoint().partitions["s:p"].records == 1
    assert not hub.core.is_drained  # but a run goes on until it is through
    hub.run()
    assert sink.values == ["x"]


@pytest.mark.req("S84", "S66")
def test_a_value_that_fails_replays_its_root_only() -> None:
    seen: Counter[int] = Counter()

    def failing_once(given: Input, out: Collector) -> None:
        seen[given.value] += 1
        out(given.value)
        if given.value == 7 and seen[7] == 1:
            raise ValueError("seven")

    sink = Sink()
    made = topology()
    made.bolt("a", failing_once).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(range(1, 21))
    hub.run()
    assert seen == {value: 2 if value == 7 else 1 for value in range(1, 21)}
    # What it had emitted before it failed was taken back.
    assert sorted(sink.values) == list(range(1, 21))
    assert (hub.figures.failed, hub.figures.replayed, hub.figures.ledger_now) == (1, 1, 0)
    failed = [event for event in hub.events if isinstance(event, TupleFailed)]
    assert [(event.first, event.reason) for event in failed] == [(7, "ValueError: seven")]


@pytest.mark.req("S66")
def test_a_failure_far_down_replays_from_the_source() -> None:
    seen: Counter[Any] = Counter()

    def last(given: Input, out: Collector) -> None:
        seen[given.component] += 1
        if seen.total() == 1:
            raise ValueError("once")

    hub = Hub(diamond(last))
    hub.offer(["x"])
    hub.run()
    assert seen == {"b1": 2, "b2": 2}  # both ways again: the tree is one
    assert hub.figures.complete == 1
    # The other way's ack came when its tree had failed: an orphan, which goes after three ticks.
    assert (hub.figures.ledger_now, hub.figures.orphans) == (1, 0)
    for _ in range(4):
        hub.now_s += 31
        hub.emit()
    assert (hub.figures.ledger_now, hub.figures.orphans) == (0, 1)


def test_a_root_that_always_fails_ends_the_run() -> None:
    def never(given: Input, out: Collector) -> None:
        raise ValueError("never")

    made = topology()
    made.bolt("a", never).shuffle("s")
    hub = Hub(made, overrides={"retry.attempts_max": 3})
    hub.offer(["x", "y"])
    while hub.core.gave_up is None:
        hub.step()
    assert (hub.core.gave_up.partition, hub.core.gave_up.attempts) == ("s:p", 3)
    assert hub.core.checkpoint().partitions["s:p"].position is None


@pytest.mark.req("S56")
def test_fields_send_equal_keys_to_the_same_task() -> None:
    sink = Sink()
    made = topology()
    made.bolt("a", passing, count=2).shuffle("s")
    made.bolt("b", sink, count=4).fields("a", "user")
    hub = Hub(made)
    hub.offer({"user": f"u{n % 50}", "n": n} for n in range(1000))
    hub.run()
    tasks = defaultdict(set)
    for bolt, value in sink.got:
        tasks[value["user"]].add(bolt)
    assert {len(bolts) for bolts in tasks.values()} == {1}
    assert {bolt for bolts in tasks.values() for bolt in bolts} == {f"b.{n}" for n in (1, 2, 3, 4)}
    assert len(sink.got) == 1000


@pytest.mark.req("S56")
def test_direct_and_all() -> None:
    direct, everyone = Sink(), Sink()

    def sender(given: Input, out: Collector) -> None:
        out(given.value, task=given.value % 3)
        out(f"all {given.value}")

    made = topology()
    made.bolt("a", sender).shuffle("s")
    made.bolt("direct", direct, count=3).direct("a")
    made.bolt("all", everyone, count=2).all("a")
    hub = Hub(made)
    hub.offer(range(9))
    hub.run()
    assert sorted(direct.got) == sorted((f"direct.{n % 3 + 1}", n) for n in range(9))
    assert sorted(everyone.got) == sorted(
        (f"all.{t}", f"all {n}") for n in range(9) for t in (1, 2)
    )
    assert hub.figures.ledger_now == 0


@pytest.mark.req("S114")
def test_streams_go_to_those_who_asked_for_them() -> None:
    good, bad = Sink(), Sink()

    def parse(given: Input, out: Collector) -> None:
        out(given.value, stream="bad" if given.value % 2 else None)

    made = topology()
    made.bolt("a", parse).shuffle("s")
    made.bolt("good", good).shuffle("a")
    made.bolt("bad", bad).shuffle("a", stream="bad")
    hub = Hub(made)
    hub.offer(range(6))
    hub.run()
    assert (good.values, bad.values) == ([0, 2, 4], [1, 3, 5])


@pytest.mark.req("S74", "S107")
def test_what_nobody_gets_is_done() -> None:
    made = topology()
    made.bolt("a", nothing).shuffle("s")
    made._translate["s"] = lambda partition, record: record.value or None
    hub = Hub(made)
    hub.offer([0, "x"])
    hub.run()
    assert hub.core.stage_figures()[0].records == 1
    assert hub.core.checkpoint().partitions["s:p"].records == 2


@pytest.mark.parametrize("value", [ValueError("no"), {1, 2}])
def test_a_translate_that_fails_fails_its_root_only(value: Any) -> None:
    def translate(partition: str, record: Any) -> Any:
        if record.value != "bad":
            return record.value
        if isinstance(value, Exception):
            raise value
        return value

    made = topology()
    made.bolt("a", nothing).shuffle("s")
    made._translate["s"] = translate
    hub = Hub(made, overrides={"retry.attempts_max": 2})
    hub.offer(["good", "bad"])
    for _ in range(100):
        hub.step()
        hub.now_s += 0.01
    assert hub.core.gave_up is not None
    assert (hub.core.gave_up.first, hub.figures.complete) == (2, 1)


@pytest.mark.req("S58", "S71")
def test_without_ackers_a_root_is_done_when_it_is_emitted() -> None:
    made = topology(ackers=0)
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"])
    hub.emit()
    assert hub.core.checkpoint().partitions["s:p"].records == 1
    hub.run()
    assert hub.core.stage_figures()[1].records == 1


@pytest.mark.req("S125")
def test_several_ackers_share_the_roots() -> None:
    made = topology(ackers=3)
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing).shuffle("a")
    hub = Hub(made)
    hub.offer(range(300))
    hub.run()
    assert all(ledger.complete > 50 for ledger in hub.core._roots.ledgers)
    assert hub.figures.complete == 300


def test_a_worker_that_dies_has_emitted_nothing() -> None:
    sink = Sink()
    made = topology()
    made.bolt("a", passing, count=2).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(range(60))
    hub.emit()
    first = hub.in_flight[0]
    said = hub.process_one(first)  # all but the ack
    epoch = hub.epoch[first.bolt]
    lost = hub.kill(first.bolt)
    assert first in lost and said.emits
    hub.epoch[first.bolt], new_epoch = epoch, hub.epoch[first.bolt]
    assert hub.ack(first, said) is AckOutcome.UNKNOWN  # of a connection that is over
    hub.epoch[first.bolt] = new_epoch
    hub.run()
    assert sorted(sink.values) == list(range(60))
    assert hub.figures.ledger_now == 0


def test_the_second_ack_of_a_tuple_emits_nothing() -> None:
    sink = Sink()
    made = topology()
    made.bolt("a", lambda given, out: [out(given.value), out("l", anchored=False)]).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"])
    hub.emit()
    emission = hub.in_flight.popleft()
    said = hub.process_one(emission)
    assert hub.ack(emission, said) is AckOutcome.ACKED
    assert hub.ack(emission, said) is AckOutcome.DUPLICATE
    hub.run()
    assert sorted(sink.values) == ["l", "x"]


@pytest.mark.req("S48", "S79")
def test_a_tree_that_is_not_complete_in_time_goes_again() -> None:
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made, overrides={"timeout.rto_max_s": 1e6, "timeout.rto_first_s": 1e6})
    hub.offer(["x"])
    hub.emit()
    forgotten = hub.in_flight.popleft()
    hub.now_s = 10.1
    hub.emit()
    assert hub.figures.expired == 0  # it lives for one to two ticks
    hub.now_s = 20.2
    hub.emit()
    assert (hub.figures.expired, hub.figures.replayed) == (1, 1)
    hub.ack(forgotten, hub.process_one(forgotten))  # late: counted, not taken for the new one
    assert hub.core.checkpoint().partitions["s:p"].records == 0
    hub.run()
    assert hub.core.checkpoint().partitions["s:p"].records == 1


def test_a_tuple_that_kills_its_workers_fails_its_roots() -> None:
    made = topology()
    made.bolt("a", nothing, count=2).shuffle("s")
    hub = Hub(made, overrides={"retry.attempts_max": 2, "hedge.enabled": False})
    hub.offer(["poison"])
    kills = 0
    while hub.core.gave_up is None:
        hub.emit()
        hub.now_s += 0.2
        if hub.in_flight:
            hub.kill(hub.in_flight[0].bolt)
            kills += 1
    assert kills == 4  # two for each of the root's two attempts
    assert "died" in hub.core.gave_up.reason


@pytest.mark.req("S59", "S37")
def test_max_pending_bounds_the_roots() -> None:
    made = topology(max_pending=40)
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing).shuffle("a")
    hub = Hub(made, overrides={"tuple.records_max": 10})
    hub.offer(range(1000))
    most = 0
    while hub.step():
        most = max(most, len(hub.core._roots.trees))
    assert 40 <= most < 40 + 256  # planted in runs of 256
    assert hub.figures.complete == 1000


@pytest.mark.req("S52", "S53", "S59")
def test_a_stage_that_takes_nothing_stops_the_first_and_nothing_grows() -> None:
    made = topology()
    made.bolt("a", passing, count=2).shuffle("s")
    made.bolt("b", passing, count=2).shuffle("a")
    made.bolt("c", nothing, count=2).shuffle("b")
    hub = Hub(made)
    hub.offer(range(40_000))
    stuck = []
    for _ in range(5_000):
        hub.emit()
        hub.now_s += 0.001
        while hub.in_flight and hub.in_flight[0].bolt.startswith("c"):
            stuck.append(hub.in_flight.popleft())
        if hub.in_flight:
            emission = hub.in_flight.popleft()
            hub.ack(emission, hub.process_one(emission))
        hub.now_s += 0.02
    before = hub.core.stage_figures()
    assert not hub.in_flight
    assert before[0].records < 10_000
    assert hub.core.intake.buffer.records > 30_000
    for emission in stuck:  # it comes back to life: all goes on
        hub.ack(emission, hub.process_one(emission))
    hub.run(until_s=1e6)
    assert hub.figures.complete == 40_000


def test_a_restart_runs_only_trees_that_were_not_complete() -> None:
    sink = Sink()
    hub = Hub(diamond(nothing))
    hub.offer(range(50))
    for _ in range(3):
        hub.step()
    hub.run()
    hub.offer(range(50, 80), start=51)
    hub.emit()  # under way when the driver dies
    saved = hub.core.checkpoint()
    assert saved.partitions["s:p"].records == 50
    again = Hub(diamond(sink), checkpoint=saved)
    again.offer(range(80))
    again.run()
    assert sorted(sink.values) == sorted([*range(50, 80)] * 2)
    assert again.core.checkpoint().partitions["s:p"].records == 80


def test_a_key_that_is_missing_fails_the_root_with_words() -> None:
    made = topology()
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing, count=2).fields("a", "user")
    hub = Hub(made, overrides={"retry.attempts_max": 2})
    hub.offer([{"user": 1}, {"name": 1}])
    while hub.core.gave_up is None:
        hub.step()
    assert "user" in hub.core.gave_up.reason
    assert hub.figures.complete == 1


@pytest.mark.req("S82")
def test_ends_are_told_with_their_values() -> None:
    failed = []

    def once(given: Input, out: Collector) -> None:
        if not failed:
            failed.append(given.value)
            raise ValueError("once")

    made = topology()
    made.bolt("a", once).shuffle("s")
    made._callbacks["s"] = ()  # type: ignore[assignment]  # someone listens
    hub = Hub(made)
    hub.offer(["x"])
    hub.run()
    told = [(end.partition, end.position, end.value, end.reason) for end in hub.ends]
    assert told == [("p", 1, "x", "ValueError: once"), ("p", 1, "x", None)]


def test_a_batched_bolt_fails_and_acks_whole_tuples() -> None:
    calls: list[int] = []

    def store(inputs: Any, out: Collector) -> None:
        calls.append(len(inputs))
        if len(calls) == 1:
            raise ConnectionError("database away")

    made = topology()
    made.bolt("a", Batched(store)).shuffle("s")
    hub = Hub(made)
    hub.offer(range(20))
    hub.run()
    assert calls[0] == 20 and sum(calls) == 40
    assert (hub.figures.failed, hub.figures.complete) == (20, 20)
