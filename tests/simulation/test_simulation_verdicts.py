"""What is the limit of a run, found from its event log alone; each run has one thing wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowctl.cli.explain import explain
from flowctl.instrumentation.explained import WIDTH
from flowctl.instrumentation.snapshot import Limit
from flowctl_lab.simulation.scenario import Bursts, Pauses, Scenario, Sink, Slow
from tests.explained_runs import WatchedSimulation


class FewBolts:
    """Bolts that leave room for more."""

    count = 2

    def has_room(self) -> bool:
        return True


SINK = Sink(slots=4, record_s=0.0005)
# A run of 10 s of work on 12 bolts, with one thing wrong.
RUNS: dict[Limit, dict[str, Any]] = {
    Limit.NOTHING: {},
    Limit.TARGET: {"sink": SINK, "tuples": 2_000},
    Limit.ONE_BOLT: {"speeds": (*(1.0,) * 11, 0.1)},
    Limit.SOURCE: {"bursts": Bursts(rate=300, for_s=1.0, gap_s=1e-4), "tuples": 3_000},
    Limit.PATH: {"outlet_record_s": 20e-6, "tuples": 8_000},
    Limit.PAUSES: {"pauses": Pauses(for_s=1.0, gap_s=5.0)},
    Limit.TOO_FEW_BOLTS: {"bolts": 2, "tuples": 2_000},
    # The bolt goes on to say that it is alive.
    Limit.CALL_HANGS: {"slow": (Slow((3,), 1e-9, 2.0, 60.0),), "tuples": 70_000},
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


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[Limit, Path]:
    """The event log of each run."""
    directory = tmp_path_factory.mktemp("logs")
    found = {}
    for limit, wrong in RUNS.items():
        scenario = Scenario(**{"name": limit.value, "what": "", "tuples": 12_000, **wrong})
        path = found[limit] = directory / f"{limit.value}.jsonl"
        bolts = FewBolts() if limit is Limit.TOO_FEW_BOLTS else None
        watched = WatchedSimulation(scenario, path, bolts=bolts)
        if limit is Limit.CALL_HANGS:
            watched.hangs = "b4", 2.0
        watched.run()
    return found


@pytest.mark.parametrize("limit", RUNS, ids=lambda limit: limit.value)
def test_the_log_alone_says_what_the_limit_was(limit: Limit, logs: dict[Limit, Path]) -> None:
    shown = CliRunner().invoke(explain, [str(logs[limit])], catch_exceptions=False)
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    verdict = " ".join(line.strip() for line in lines[1 : lines.index("")])
    for words in WORDS[limit]:
        assert words in verdict
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)
