"""Estimates from a recording, beside runs of the same job with those settings, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowctl.cli.main import cli
from flowctl.config import RecordSettings, Settings
from flowctl.core.messages import Ack
from flowctl.core.records import Checkpoint, Record
from flowctl.core.spout import SpoutCore
from flowctl.runtime.control import RunControl
from flowctl.runtime.recording import Recording, Replay, RunOf, recorder_of
from flowctl_lab.what_if import Observed, estimated, simulated

RECORDS, PATH_S, CALL_S, RECORD_S = 30_000, 0.004, 0.02, 0.0004
SPEEDS = {"b1": 1.0, "b2": 1.0, "b3": 1.0, "b4": 0.25}


def ran(place: Path, overrides: Mapping[str, Any]) -> float:
    """Run the job; leave its recording in ``place``, return how long it took [s].

    A third of its records cost five times as much as the others, and one bolt is slow.
    """
    settings = Settings().with_overrides(overrides).for_bolts(len(SPEEDS))
    core = SpoutCore(settings)
    core.expect_bolts(len(SPEEDS))
    control = RunControl(core)
    recorder = recorder_of(
        control, RecordSettings(file=str(place)), RunOf("orders", 1, Checkpoint(), 7)
    )
    assert recorder is not None
    core.offer("p", [Record(n, "x") for n in range(RECORDS)], now_s=0.0, sizes=[1] * RECORDS)
    core.end_of_input(now_s=0.0)
    for bolt in SPEEDS:
        core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0, in_order=True)
    acks: list[tuple[float, str, Ack]] = []
    free_s = dict.fromkeys(SPEEDS, 0.0)
    now_s = 0.0
    while not core.is_drained:
        turn = control.turn(now_s, emits_max=256, bytes_max=None, heard_until_s=now_s)
        for e in turn.emissions:
            dear = sum(record.position % 90 < 30 for record in e.records)  # type: ignore[operator]
            service_s = (CALL_S + RECORD_S * (len(e.records) + 4 * dear)) / SPEEDS[e.bolt]
            came_s = now_s + PATH_S / 2
            begun_s = max(came_s, free_s[e.bolt])
            free_s[e.bolt] = begun_s + service_s
            ack = Ack(e.tuple_id, e.attempt, begun_s - came_s, service_s, 0.0)
            heapq.heappush(acks, (free_s[e.bolt] + PATH_S / 2, e.bolt, ack))
        now_s, bolt, ack = heapq.heappop(acks)
        core.on_ack(bolt, 1, ack, now_s=now_s)
    recorder.close()
    return now_s


SMALL = {"tuple.records_max": 20, "hedge.enabled": False}
BLIND = {"lab.window.policy": "fixed", "lab.window.initial": 3}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return tmp_path / "rec"


@pytest.mark.parametrize("otherwise", [SMALL, {**SMALL, **BLIND}, {"tuple.service_max_s": 2.0}])
def test_an_estimate_is_within_a_tenth_of_a_run_with_those_settings(
    recording: Path, tmp_path: Path, otherwise: dict[str, Any]
) -> None:
    as_it_was_s = ran(recording, {"hedge.enabled": False})
    took_s = ran(tmp_path / "other", {"hedge.enabled": False, **otherwise})
    read = Recording(str(recording))
    run, observed = Replay(read), Observed()
    for step in run.steps():
        observed.look(step)
    assert run.difference is None
    assert observed.took_s == as_it_was_s
    pool = run.core.book.pool
    before = Settings().with_overrides({"hedge.enabled": False}).for_bolts(len(SPEEDS))
    was_s, now_s = (
        simulated(observed, pool.call_s / pool.record_s, settings).took_s
        for settings in (before, before.with_overrides(otherwise))
    )
    assert was_s == pytest.approx(as_it_was_s, rel=0.1), "its error is told, and is small"
    assert now_s * as_it_was_s / was_s == pytest.approx(took_s, rel=0.1)


def test_the_command_tells_the_estimate_and_its_error(recording: Path) -> None:
    ran(recording, {"hedge.enabled": False})
    told = CliRunner().invoke(cli, ["replay", str(recording), "--set", "tuple.records_max=20"])
    assert told.exit_code == 0, told.output
    assert "the simulator's error" in told.output
    assert "otherwise" in told.output


def test_that_no_such_tuples_were_recorded_is_told(recording: Path) -> None:
    ran(recording, SMALL)
    lines = estimated(Recording(str(recording)), "", {"tuple.records_max": 10_000})
    assert any("none recorded held so many" in line for line in lines)
