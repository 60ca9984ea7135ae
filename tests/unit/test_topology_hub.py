"""TopologyCore in virtual time: trees over several stages, and groupings."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from flowctl.core.events import TupleFailed
from flowctl_storm import Collector, Input
from tests.topology_driver import Hub, Sink, SpyLedger, nothing, passing, topology


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
    spy = hub.core.roots.ledgers[0] = SpyLedger()
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
    made.translations["s"] = lambda partition, record: record.value or None
    hub = Hub(made)
    hub.offer([0, "x"])
    hub.run()
    assert hub.core.stage_figures()[0].records == 1
    assert hub.core.checkpoint().partitions["s:p"].records == 2


@pytest.mark.parametrize("value", [ValueError("no"), {"a": bytearray(b"x")}])
def test_a_translate_that_fails_fails_its_root_only(value: Any) -> None:
    def translate(partition: str, record: Any) -> Any:
        if record.value != "bad":
            return record.value
        if isinstance(value, Exception):
            raise value
        return value

    made = topology()
    made.bolt("a", nothing).shuffle("s")
    made.translations["s"] = translate
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
    assert all(ledger.complete > 50 for ledger in hub.core.roots.ledgers)
    assert hub.figures.complete == 300


@pytest.mark.req("S37", "S40", "S59")
def test_roots_that_may_be_pending_and_an_inactive_spout_are_limits() -> None:
    made = topology(max_pending=3)
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made)
    assert not hub.core.is_at_limit
    hub.offer(range(1000))
    hub.emit()
    assert hub.core.is_at_limit
    hub.run()
    assert not hub.core.is_at_limit
    hub.core.is_active = False
    assert hub.core.is_at_limit
