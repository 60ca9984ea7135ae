"""Topologies over real sockets and threads: dead letters, and each guarantee with bolts killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowctl.config import Settings
from flowctl.core.events import TupleDeadLettered
from flowctl.errors import ProcessError
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl.topology import Collector, Input, LocalStages, Topology
from flowctl_files import JsonLinesDeadLetter, TextLines
from tests.listener_parts import Letters, Log
from tests.runtime_parts import Witness

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
