"""What is the limit of a run, found from its event log alone; each run has one thing wrong."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowctl.cli.explain import explain
from flowctl.config import Settings
from flowctl.instrumentation.event_log import read_lines
from flowctl.instrumentation.explained import WIDTH, runs_of
from flowctl.instrumentation.snapshot import Limit
from flowctl_lab.simulation.scenario import Bursts, Pauses, Scenario, Sink, Slow
from tests.explained_runs import BEGAN, WatchedSimulation


class FewBolts:
    """Bolts that leave room for more."""

    count = 2

    def has_room(self) -> bool:
        return True


SINK = Sink(slots=4, record_s=0.0005)
# 10 s of work for 12 bolts, in tuples of 30 ms; in each run one thing is wrong.
BASE: dict[str, Any] = {"what": "", "tuple_s": 0.021, "tuples": 4_000}
RUNS: dict[Limit, dict[str, Any]] = {
    Limit.NOTHING: {},
    Limit.TARGET: {"sink": SINK, "tuple_s": 0.001, "tuples": 1_600},
    Limit.ONE_BOLT: {"speeds": (*(1.0,) * 11, 0.1)},
    Limit.SOURCE: {"bursts": Bursts(rate=100, for_s=1.0, gap_s=1e-4), "tuples": 1_000},
    Limit.PATH: {"outlet_record_s": 60e-6, "tuples": 2_000},
    Limit.PAUSES: {"pauses": Pauses(for_s=1.0, gap_s=5.0)},
    Limit.TOO_FEW_BOLTS: {"bolts": 2, "tuples": 700},
    # The bolt goes on to say that it is alive.
    Limit.CALL_HANGS: {"slow": (Slow((3,), 1e-9, 2.0, 60.0),), "tuples": 23_000},
}
WORDS = {
    Limit.NOTHING: ("nothing is wrong", "all bolts are busy"),
    Limit.TARGET: ("the target is the limit", "of the best goodput; more bolts would not help"),
    Limit.ONE_BOLT: ("one bolt is slow", "b12 is"),
    Limit.SOURCE: ("the source is the limit", "bolts wait for input"),
    Limit.PATH: ("the path between driver and bolts", "a tuple is under way for"),
    Limit.PAUSES: ("the bolts' processes pause", "without a heartbeat"),
    Limit.TOO_FEW_BOLTS: ("all bolts are busy", "2 bolts work"),
    Limit.CALL_HANGS: ("a call hangs", "b4 has been at record 7 of p for"),
}


class Logs:
    """The event log of each run, which is made when it is first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __getitem__(self, limit: Limit) -> Path:
        path = self._directory / f"{limit.value}.jsonl"
        if not path.exists():
            given = {"name": limit.value, **BASE, **RUNS[limit]}
            bolts = FewBolts() if limit is Limit.TOO_FEW_BOLTS else None
            watched = WatchedSimulation(Scenario(**given), path, bolts=bolts)
            if limit is Limit.CALL_HANGS:
                watched.hangs = "b4", 2.0
            watched.run()
        return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    return Logs(tmp_path_factory.mktemp("logs"))


@pytest.mark.parametrize("limit", RUNS, ids=lambda limit: limit.value)
def test_the_log_alone_says_what_the_limit_was(limit: Limit, logs: Logs) -> None:
    shown = CliRunner().invoke(explain, [str(logs[limit])], catch_exceptions=False)
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    verdict = " ".join(line.strip() for line in lines[1 : lines.index("")])
    for words in WORDS[limit]:
        assert words in verdict
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("limit", "event", "inputs"),
    [
        (Limit.PATH, "window_changed", ("before", "after", "service_s", "path_s")),
        (Limit.TARGET, "sink_cap_changed", ("reason", "goodput", "best")),
        (Limit.PAUSES, "tuple_moved", ("moved_from", "bolt", "sent_before_s")),
        (Limit.PAUSES, "tuple_expired", ("bolt", "rto_s")),
        (Limit.NOTHING, "intake_paused", ("reason", "records")),
    ],
)
def test_each_decision_is_there_with_the_numbers_that_decided(
    limit: Limit, event: str, inputs: tuple[str, ...], logs: Logs
) -> None:
    lines = [line for line in read_lines(str(logs[limit])) if line["event"] == event]
    assert lines
    for name in inputs:
        assert any(line[name] for line in lines), name


def test_a_bolt_is_suspected_after_a_silence_that_is_told(logs: Logs) -> None:
    silent_s = [
        line["silent_s"]
        for line in read_lines(str(logs[Limit.PAUSES]))
        if line["event"] == "state_changed" and line["reason"] == "no heartbeat"
    ]
    assert silent_s
    assert min(silent_s) >= 0.99 * Settings().timeout.silence_s  # a float's rounding


def test_at_a_time_it_says_what_held_then(logs: Logs) -> None:
    """A call hangs from 2 s on; calls of 30 s are told."""
    for after_s, words in ((20, "one bolt is slow"), (55, "a call hangs")):
        at = (BEGAN + timedelta(seconds=after_s)).astimezone().isoformat()
        shown = CliRunner().invoke(explain, [str(logs[Limit.CALL_HANGS]), "--at", at])
        assert shown.output.splitlines()[1].strip().startswith(words)


@pytest.mark.parametrize("limit", RUNS, ids=lambda limit: limit.value)
def test_the_shares_add_up_in_each_line_of_the_log(limit: Limit, logs: Logs) -> None:
    [run] = runs_of(read_lines(str(logs[limit])))
    told = [line["verdict"]["shares"] for line in run.lines if line["event"] == "progress"]
    assert told
    for shares in told:
        assert sum(shares.values()) == pytest.approx(1.0)
