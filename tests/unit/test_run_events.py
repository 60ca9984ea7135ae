"""A run's beginning, progress and end, for machines."""

from __future__ import annotations

import json
import logging
import os
import socket
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

import flowctl
from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.errors import FlowctlError, SourceError
from flowctl.instrumentation.logging import configure
from flowctl.instrumentation.run_events import PROGRESS_EVERY_S, RunEvents, changed_settings
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import ListProducer, Witness
from tests.unit.test_view_plain import REPORT, SNAPSHOT, Time

AT = datetime(2026, 11, 22, 3, 4, 5, 678_900, tzinfo=timezone.utc)
AT_TEXT = "2026-11-22T03:04:05.678+00:00"


@pytest.mark.req("S121")
def test_each_event_has_the_job_and_the_wall_clock_and_can_be_json() -> None:
    time = Time()
    settings = Settings().with_overrides({"lab.window.policy": "fixed", "tuple.records_max": 7})
    with structlog.testing.capture_logs() as logs:
        told = RunEvents("j", settings, clock=time, now=lambda: AT, logger=structlog.get_logger())
        told.started()
        for _ in range(int(PROGRESS_EVERY_S * 4 * 2)):  # twice the interval, four a second
            time.now_s += 0.25
            told.look(SNAPSHOT)
        time.now_s += 1.0
        report = told.finished(REPORT)
    assert (report.started_at, report.ended_at) == (AT_TEXT, AT_TEXT)
    assert report.versions["flowctl"] == flowctl.__version__
    assert report.settings == logs[0]["settings"]
    assert [log["event"] for log in logs] == ["run_started", "progress", "progress", "run_finished"]
    assert {(log["job"], log["at"]) for log in logs} == {("j", AT_TEXT)}
    began, progress, _, ended = logs
    assert began["version"] == flowctl.__version__
    assert (began["host"], began["pid"]) == (socket.gethostname(), os.getpid())
    assert began["settings"] == {"lab.window.policy": "fixed", "tuple.records_max": 7}
    wanted = {"records_acked": 42_000, "records_per_s": 8400.0, "bolts_up": 1, "done": 0.21}
    assert progress.items() >= wanted.items()
    wanted = {"outcome": "finished", "records_acked": 200_000, "tuples_moved": 3, "bolts_lost": 0}
    assert ended.items() >= wanted.items()
    json.dumps(logs)


@pytest.mark.parametrize(
    ("outcome", "level"), [("finished", "info"), ("interrupted", "warning"), ("failed", "error")]
)
def test_how_it_ended_is_its_level(outcome: Any, level: str) -> None:
    report = msgspec.structs.replace(REPORT, outcome=outcome, error="why")
    with structlog.testing.capture_logs() as logs:
        RunEvents("j", Settings(), logger=structlog.get_logger()).finished(report)
    assert (logs[0]["log_level"], logs[0]["error"]) == (level, "why")


def test_settings_are_told_as_far_as_they_differ_and_without_secrets() -> None:
    assert changed_settings(Settings()) == {}
    settings = Settings().with_overrides({"listen.advertise": "redis://u:hush@host"})
    assert "hush" not in str(changed_settings(settings))
    assert list(changed_settings(settings)) == ["listen.advertise"]


def test_the_report_in_a_file_says_when_with_what_and_how_fast(tmp_path: Path) -> None:
    def load(batch: Batch) -> None:
        batch.reject(0)

    spout = FlowControlSpout(
        name="j",
        producer=[1, 2, 3],
        bolts=LocalBolts(load, count=1),
        settings=Settings().with_overrides({"tuple.records_max": 1}),
    )
    spout.run(view="off", report_path=tmp_path / "report.json")
    told = json.loads((tmp_path / "report.json").read_text())
    began, ended = (datetime.fromisoformat(told[key]) for key in ("started_at", "ended_at"))
    assert began <= ended
    assert told["records_per_s"] == pytest.approx(3 / told["elapsed_s"])
    assert told["versions"].keys() >= {"flowctl", "python"}
    assert told["settings"] == {"tuple.records_max": 1}
    lost = ("records_rejected", "records_dead_lettered", "records_left_out")
    assert [told[key] for key in lost] == [3, 0, 0]


class Broken(ListProducer):
    def poll(self, max_records: int) -> Any:
        raise SourceError("the source is gone.", remedy="Bring it back.")


class NoStore(MemoryCheckpointStore):
    def acquire(self, job: str) -> int:
        raise FlowctlError("the store is away.", remedy="Start it.")


def run(producer: Any, store: Any) -> None:
    spout = FlowControlSpout(
        name="j", producer=producer, bolts=LocalBolts(lambda batch: None, count=1), checkpoint=store
    )
    spout.run(view=Witness())


@pytest.mark.parametrize(
    ("producer", "store", "names", "outcome"),
    [
        (ListProducer(0), MemoryCheckpointStore(), ["run_started", "run_finished"], "finished"),
        (Broken(9), MemoryCheckpointStore(), ["run_started", "run_finished"], "failed"),
        (ListProducer(9), NoStore(), ["run_finished"], "failed"),
    ],
)
def test_every_run_says_how_it_ended(
    producer: Any, store: Any, names: list[str], outcome: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        try:
            run(producer, store)
        except FlowctlError:
            assert outcome == "failed"
    told = [log for log in logs if log["event"].startswith("run_")]
    assert [log["event"] for log in told] == names
    assert told[-1]["outcome"] == outcome


@pytest.mark.parametrize(("flow_events", "lines"), [(True, 1), (False, 0)])
def test_the_command_shows_them_in_its_log_only_if_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], flow_events: bool, lines: int
) -> None:
    failed = msgspec.structs.replace(REPORT, outcome="failed", error="why")
    try:
        configure("WARNING", flow_events=flow_events)
        RunEvents("j", Settings(), logger=structlog.get_logger()).finished(failed)
        structlog.get_logger().log(logging.WARNING, "failures_repeated", count=2)
    finally:
        structlog.reset_defaults()
    assert capsys.readouterr().err.count("event=") == 2 * lines
