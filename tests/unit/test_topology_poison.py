"""One bad record fails alone, whatever tuple it came in, and the error names who failed it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from flowctl.core.events import TupleFailed
from flowctl.runtime.faults import gave_up_error
from flowctl_storm import Batched, Collector, Input, ManualCollector
from flowctl_storm.plan import input_id_of
from tests.stage_code_parts import failed_of, run
from tests.topology_driver import Hub, passing, topology

FAST = {"retry.attempts_max": 3, "retry.backoff_first_s": 0.01}


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


def test_a_full_disk_is_nobodys_fault_and_is_not_looked_for() -> None:
    calls = []

    def full(inputs: Any, out: Collector) -> None:
        calls.append(len(inputs))
        raise OSError("disk full")

    assert len(failed_of(run(Batched(full), *range(100)))) == 100
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
        while (letter := hub.core.poll_dead_letter()) is not None:
            dead.append(letter.records[0].value)
            hub.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=hub.now_s)
    assert hub.core.is_drained
    assert sorted(dead) == sorted(poison)
    assert hub.figures.failed == 4 * 3, "each poison root three times, no other ever"
    assert store.stored == Counter(set(range(1_000)) - poison)


class Panic(BaseException):
    """As what a library written in Rust raises when it panics (``pyo3_runtime.PanicException``)."""


@pytest.mark.parametrize("error", [SystemExit(3), Panic("unwrap of None")], ids=["exit", "panic"])
@pytest.mark.parametrize("code", ["each", "batched", "manual"])
def test_a_bolt_that_exits_fails_its_input_only(code: str, error: BaseException) -> None:
    """``sys.exit`` in a library of the user's is an error of one record, not of a tuple."""

    def each(given: Input, out: Collector) -> None:
        if given.value == 5:
            raise error

    class Manual:
        def execute(self, given: Input, out: ManualCollector) -> None:
            each(given, out)
            out.ack(given)

    def whole(inputs: Any, out: Collector) -> None:
        for given in inputs:
            each(given, out)

    codes = {"each": each, "batched": Batched(whole), "manual": Manual}
    assert failed_of(run(codes[code], *range(10))) == [5]


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
