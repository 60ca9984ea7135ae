"""Topologies over real sockets and threads: dead letters, and each guarantee with bolts killed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowctl.config import Settings
from flowctl.core.events import TupleDeadLettered, TupleDropped
from flowctl.errors import ProcessError
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import JsonLinesDeadLetter, TextLines
from flowctl_storm import (
    Collector,
    Input,
    LocalStages,
    ManualCollector,
    Topology,
    TopologyReport,
)
from tests.listener_parts import Letters, Log
from tests.runtime_parts import Witness
from tests.topology_driver import Numbers

LINES = 600
POISON = "line 77"
FAST = {"retry.attempts_max": 3, "retry.backoff_first_s": 0.01, "tuple.records_max": 50}


def passing(given: Input, out: Collector) -> None:
    out(given.value)


class Poisoned:
    """Three stages, the last of which can't do one line."""

    def __init__(self, place: Path) -> None:
        self.got: list[str] = []
        (place / "in.log").write_text("".join(f"line {n}\n" for n in range(LINES)))
        self.store = MemoryCheckpointStore()
        self.view = Witness()
        self.topology = Topology("poisoned")
        self.topology.spout("lines", TextLines(str(place / "in.log")))
        self.topology.bolt("first", passing, count=2).shuffle("lines")
        self.topology.bolt("second", passing, count=2).shuffle("first")
        self.topology.bolt("third", self.last, count=2).shuffle("second")

    def last(self, given: Input, out: Collector) -> None:
        if given.value == POISON:
            raise ValueError("poison")
        self.got.append(given.value)

    def run(self, **how: Any) -> Any:
        settings = Settings().with_overrides(FAST)
        return self.topology.run(
            LocalStages(), checkpoint=self.store, settings=settings, view=self.view, **how
        )


@pytest.mark.req("S109", "S112", "S124")
def test_a_poison_record_of_the_third_stage_is_kept_and_all_else_goes_through(
    tmp_path: Path,
) -> None:
    made, log, path = Poisoned(tmp_path), Log(), tmp_path / "dead.jsonl"
    report = made.run(dead_letter=JsonLinesDeadLetter(path), listener=log)
    [letter] = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert (letter["job"], letter["value"], letter["attempts"]) == ("poisoned", POISON, 3)
    assert letter["partition"] == f"lines:{tmp_path}/in.log"
    assert letter["reason"].startswith("ValueError: poison")
    assert set(made.got) == {f"line {n}" for n in range(LINES)} - {POISON}
    assert (report.outcome, report.tuples_dead_lettered) == ("finished", 1)
    assert report.records_acked == report.records_saved == LINES
    [saved] = made.store.load("poisoned").partitions.values()
    assert (saved.records, saved.acked) == (LINES, ())
    [event] = [e for e in made.view.events if isinstance(e, TupleDeadLettered)]
    assert (event.first, event.records) == (saved_position(letter), 1)
    assert sum(what == "ack" for what, *_ in log.said) == LINES - 1
    assert [w for w, *about in log.said if about == [event.first]] == [
        "emit", "retry", "retry", "max",
    ]  # fmt: skip
    before = len(made.got)
    again = made.run(dead_letter=JsonLinesDeadLetter(path))
    assert (again.records_acked, len(made.got)) == (0, before)


def saved_position(letter: dict[str, Any]) -> Any:
    position = letter["position"]
    return tuple(position) if isinstance(position, list) else position


@pytest.mark.req("S109")
def test_without_a_dead_letter_the_run_ends_at_the_third_stages_poison(tmp_path: Path) -> None:
    made = Poisoned(tmp_path)
    with pytest.raises(ProcessError, match="process failed 3 times"):
        made.run()
    [saved] = made.store.load("poisoned").partitions.values()
    assert saved.records <= 77


@pytest.mark.req("S109")
def test_a_dead_letter_that_fails_ends_the_run_and_its_root_is_not_done(tmp_path: Path) -> None:
    made, letters = Poisoned(tmp_path), Letters()
    letters.error = OSError("disk full")
    with pytest.raises(ProcessError, match="Letters raised OSError: disk full"):
        made.run(dead_letter=letters)
    [saved] = made.store.load("poisoned").partitions.values()
    assert saved.records <= 77
    letters.error = None
    made.run(dead_letter=letters)
    assert len(letters.kept) == 1
    [saved] = made.store.load("poisoned").partitions.values()
    assert (saved.records, saved.acked) == (LINES, ())


DEATHS = 12


class Dying:
    """Three stages whose bolts die at some records: before, in, and after their work on them.

    Effects are lines of a file, one write each.
    """

    RECORDS = 3_000

    def __init__(self, place: Path) -> None:
        self.path = place / "effects"
        self.path.touch()
        self._file = os.open(self.path, os.O_APPEND | os.O_WRONLY)
        rng = random.Random(5)
        picked = rng.sample(range(1, self.RECORDS + 1), DEATHS)
        self._fatal = {(n, "abc"[i % 3], i % 2) for i, n in enumerate(picked)}  # a stage, a moment
        self._lock = threading.Lock()
        self.deaths: list[tuple[int, str, int]] = []
        self.store = MemoryCheckpointStore()
        self.view = Witness()
        self.topology = Topology("dying")
        self.topology.spout("s", Numbers(self.RECORDS))
        self.topology.bolt("a", self.pass_on, count=2).shuffle("s")
        self.topology.bolt("b", self.pass_on, count=2).fields("a", 0)
        self.topology.bolt("c", self.last, count=2).least_loaded("b")

    def die(self, number: int, bolt: str, moment: int) -> None:
        fate = (number, bolt.partition(".")[0], moment)
        with self._lock:
            if fate not in self._fatal:
                return
            self._fatal.discard(fate)
            self.deaths.append(fate)
        raise KeyboardInterrupt  # nothing in a bolt catches it: its connection ends without a word

    def pass_on(self, given: Input, out: Collector) -> None:
        number = given.value if isinstance(given.value, int) else given.value[0]
        self.die(number, out.bolt, 0)
        out([number])
        self.die(number, out.bolt, 1)

    def last(self, given: Input, out: Collector) -> None:
        (number,) = given.value
        self.die(number, out.bolt, 0)
        os.write(self._file, f"{number}\n".encode())
        self.die(number, out.bolt, 1)

    def run(self, mode: str) -> TopologyReport:
        # Small windows: a death costs what its bolt holds, and much should be left to die at.
        small = {"tuple.records_max": 20, "lab.window.max": 3, "checkpoint.interval_s": 0.05}
        settings = Settings().with_overrides({"guarantee.mode": mode, **small})
        return self.topology.run(
            LocalStages(), checkpoint=self.store, settings=settings, view=self.view
        )

    def effects(self) -> Counter[int]:
        return Counter(map(int, self.path.read_text().split()))

    def told(self) -> Counter[Any]:
        """How often each record was told as dropped; neighbours are told as one."""
        counts: Counter[Any] = Counter()
        for event in self.view.events:
            if isinstance(event, TupleDropped):
                counts.update(range(event.first, event.last + 1))  # type: ignore
        return counts


@pytest.mark.req("S87", "S88", "S89", "S105")
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once", "no_guarantee"])
def test_each_guarantee_when_bolts_of_any_stage_die(tmp_path: Path, mode: str) -> None:
    made = Dying(tmp_path)
    report = made.run(mode)
    effects, told = made.effects(), made.told()
    everything = set(range(1, made.RECORDS + 1))
    missing, doubled = everything - set(effects), {n for n, t in effects.items() if t > 1}
    print(f"{mode}: {len(made.deaths)} deaths, {len(missing)} missing, {len(doubled)} doubled,"
          f" {len(told)} told")  # fmt: skip
    assert len(made.deaths) >= (DEATHS if mode == "at_least_once" else DEATHS // 2)
    assert report.trees is not None
    if mode == "at_least_once":
        assert (missing, told) == (set(), Counter())
        assert report.trees.ledger_now == 0
    else:
        assert not doubled
        assert missing <= set(told), "some vanished without a word"
        assert max(told.values()) == 1
        assert report.records_dropped == len(told)
        assert report.records_acked + report.records_dropped == made.RECORDS
        assert report.trees.replayed == report.tuples_hedged == 0
    saved = made.store.load("dying").partitions["s:p"]
    assert (saved.position, saved.records, saved.acked) == (made.RECORDS, made.RECORDS, ())
    made.run(mode)
    assert made.effects() == effects, "a second run did something"


class LongRunning:
    """A record that takes several times the trees' time-out, among quick ones."""

    TREE_TIMEOUT_S = 1.5  # what a busy machine does not take for a quick record
    LASTS_S = 4.0  # two ticks at most until it expires, and some time to see it

    def __init__(self, *, prolongs: bool, is_manual: bool) -> None:
        self.begun: Counter[Any] = Counter()
        self._prolongs = prolongs
        self._lock = threading.Lock()
        self.topology = Topology("long", tree_timeout_s=self.TREE_TIMEOUT_S)
        self.topology.spout("s", Numbers(30))
        self.topology.bolt("first", passing).shuffle("s")
        work = self.work

        class Manual:
            def execute(self, given: Input, out: ManualCollector) -> None:
                work(given, out)
                out.ack(given)

        self.topology.bolt("last", Manual if is_manual else work, count=2).shuffle("first")

    def work(self, given: Input, out: Collector) -> None:
        with self._lock:
            self.begun[given.value] += 1
        if given.value != 7 or self.begun[7] > 1:  # the second time it is quick: the test ends
            return
        until_s = time.monotonic() + self.LASTS_S
        while time.monotonic() < until_s:
            if self._prolongs:
                out.prolong(given)
            time.sleep(0.02)

    def run(self) -> TopologyReport:
        # A bolt holds one record: none waits behind the long one.  No copy of it either.
        alone = {"tuple.records_max": 1, "lab.window.policy": "fixed", "lab.window.initial": 1}
        others = {"lab.timeout.heartbeat_s": 0.05, "hedge.enabled": False}
        return self.topology.run(
            LocalStages(),
            checkpoint=MemoryCheckpointStore(),
            settings=Settings().with_overrides({**alone, **others}),
            view="off",
        )


@pytest.mark.req("S48", "S79")
@pytest.mark.parametrize("is_manual", [False, True])
def test_a_bolt_that_prolongs_while_it_works_keeps_its_tree_alive(is_manual: bool) -> None:
    made = LongRunning(prolongs=True, is_manual=is_manual)
    trees = made.run().trees
    assert trees is not None
    assert made.begun == dict.fromkeys(range(1, 31), 1)
    assert (trees.complete, trees.expired, trees.replayed, trees.ledger_now) == (30, 0, 0, 0)


@pytest.mark.req("S48")
def test_one_that_works_and_does_not_say_so_keeps_it_too() -> None:
    """Its heartbeats say it: work is not repeated because it takes long."""
    made = LongRunning(prolongs=False, is_manual=False)
    trees = made.run().trees
    assert trees is not None and trees.expired == 0
    assert made.begun == dict.fromkeys(range(1, 31), 1)
