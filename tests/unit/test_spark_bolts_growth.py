"""``count="auto"``: waves of bolts while all have a slot; those that wait take later slots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from flowctl.errors import ConfigError
from flowctl.ports import BoltNotice
from pyspark_flowctl import SparkBolts
from pyspark_flowctl.bolts import Growth


class Bolt:
    def __init__(self, number: int) -> None:
        self.bolt = self.tag = f"b{number}"
        self.is_done = self.is_moving = False
        self.thread = threading.Thread(target=lambda: None)

    def move(self) -> None:
        self.is_moving = True


class Jobs:
    """``slots`` bolts run, those that came first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.leaving: set[str] = set()

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def executors(self, tags: Sequence[str]) -> Mapping[str, str]:
        return {tag: f"e{n}" for n, tag in enumerate(tags[: self.slots])}

    def going(self) -> set[str]:
        return self.leaving


def _growth(jobs: Jobs, notices: list[BoltNotice]) -> tuple[Growth, list[Bolt]]:
    started: list[Any] = []
    more: Any = (Bolt(n) for n in range(1, 201))
    options: Any = {"notify": notices.append, "stopping": threading.Event()}
    growth = Growth(jobs, started, more, **options)  # type: ignore[arg-type]
    growth._start(4)
    return growth, started


def _look(growth: Growth, times: int = 12) -> None:
    for _ in range(times):
        growth._look()


def test_as_many_as_there_are_slots_and_as_many_that_wait() -> None:
    growth, started = _growth(Jobs(6), [])
    _look(growth)
    assert len(started) == 12


def test_it_goes_on_when_slots_come_and_has_an_end() -> None:
    jobs = Jobs(2)
    growth, started = _growth(jobs, [])
    _look(growth)
    assert len(started) == 4
    jobs.slots = 12
    _look(growth)
    assert len(started) == 24
    jobs.slots = 1000
    _look(growth)
    assert len(started) == 200


def test_without_a_slot_a_few_wait() -> None:
    growth, started = _growth(Jobs(0), [])
    _look(growth)
    assert len(started) == 4


def test_when_none_can_run_that_is_said_for_all() -> None:
    notices: list[BoltNotice] = []
    jobs = Jobs(2)
    growth, started = _growth(jobs, notices)
    _look(growth)
    jobs.slots = 0
    growth.take(BoltNotice("b1", "fatal", "can't be loaded", "install it"))
    started[0].is_done = True
    _look(growth, 1)
    assert notices == []  # another may still come
    for bolt in started:
        bolt.is_done = True
    _look(growth, 1)
    assert notices == [BoltNotice("", "fatal", "can't be loaded", "install it")]


def test_bolts_on_an_executor_that_goes_are_told_to_move() -> None:
    jobs = Jobs(4)
    growth, started = _growth(jobs, [])
    _look(growth)
    jobs.leaving = {"e1", "e2"}
    _look(growth, 1)
    assert [bolt.bolt for bolt in started if bolt.is_moving] == ["b2", "b3"]


def test_count_is_a_number_or_auto() -> None:
    bolts = SparkBolts(print, count="auto")
    assert (bolts.count, bolts.follows_slots) == (200, True)
    bolts.count = 3
    assert (bolts.count, bolts.follows_slots) == (3, False)
    with pytest.raises(ConfigError, match="count: 'many' is not a count"):
        SparkBolts(print, count="many")  # type: ignore[arg-type]
