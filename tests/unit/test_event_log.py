"""The event log: bounded, readable after any end, and enough to explain a run."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from click.testing import CliRunner

from flowctl.bolts.local import LocalBolts
from flowctl.cli.main import cli
from flowctl.config import Settings
from flowctl.core import events as ev
from flowctl.instrumentation.event_log import OLDER, EventLog, read_lines
from flowctl.instrumentation.explained import WIDTH, Question, event_of, explained, runs_of
from flowctl.instrumentation.run_events import PROGRESS_EVERY_S, RunEvents
from flowctl.instrumentation.snapshot import Limit, Report, Snapshot, Verdict
from flowctl.runtime.flow_control_spout import FlowControlSpout
from tests.runtime_parts import Witness
from tests.unit.test_view_plain import BOLT, REPORT, SNAPSHOT, Time

BEGAN = datetime(2026, 11, 22, 10, 30, 0, tzinfo=timezone.utc)
FULL = Verdict(
    limit=Limit.TARGET, headline="the target is the limit", why="more bolts would not help",
    remedy="Make it faster.", since_s=4.0,
)  # fmt: skip


class Told:
    """A run that is told to an event log, five seconds at a time."""

    def __init__(
        self, path: Path, *, run: int = 1, began: datetime = BEGAN, bytes_max: int = 1 << 20
    ) -> None:
        self.clock = Time()
        began_s = self.clock.now_s
        self.events = RunEvents(
            "j",
            Settings(),
            clock=self.clock,
            now=lambda: began + timedelta(seconds=self.clock.now_s - began_s),
            logger=structlog.get_logger(),
            log=EventLog(str(path), run=run, bytes_max=bytes_max),
        )
        with structlog.testing.capture_logs():
            self.events.started()

    def go(self, snapshot: Snapshot = SNAPSHOT, *happened: ev.FlowEvent) -> None:
        for event in happened:
            self.events.happened(event)
        self.clock.now_s += PROGRESS_EVERY_S
        self.look(snapshot)

    def look(self, snapshot: Snapshot) -> None:
        with structlog.testing.capture_logs():
            self.events.look(snapshot)

    def end(self, report: Report = REPORT) -> None:
        with structlog.testing.capture_logs():
            self.events.finished(report)


def explain(path: Path, *options: str) -> str:
    done = CliRunner().invoke(cli, ["explain", str(path), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= WIDTH
    return done.output


def expired(number: int, bolt: str = "b1") -> ev.TupleExpired:
    return ev.TupleExpired(at_s=1.0, bolt=bolt, tuple_id=number, attempt=1, rto_s=2.5)


def names(path: Path) -> list[str]:
    return [line["event"] for line in read_lines(str(path))]


def test_it_has_two_files_of_bounded_size_and_each_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    told = Told(path, bytes_max=20_000)
    for n in range(500):
        told.go(SNAPSHOT, expired(n))
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 20_000
    for file in (path, Path(f"{path}{OLDER}")):
        first = json.loads(file.read_text().splitlines()[0])
        assert (first["event"], first["job"], first["run"]) == ("run_started", "j", 1)
        assert first["settings_id"]


def test_of_many_events_of_a_kind_the_first_are_kept_and_the_rest_is_counted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "e.jsonl"
    told = Told(path)
    told.go(SNAPSHOT, *(expired(n) for n in range(1_000)))
    told.go(SNAPSHOT, expired(1_001))
    lines = list(read_lines(str(path)))
    kept = sum(line["event"] == "tuple_expired" for line in lines)
    [left_out] = [line["left_out"] for line in lines if "left_out" in line]
    assert kept + left_out["tuple_expired"] == 1_001
    assert kept < 50
    said = explain(path)
    shown = said.count("expired: no ack")
    assert 0 < shown <= 5
    assert f"{1_001 - shown} × tuple expired" in said


@pytest.mark.parametrize(
    "event",
    [
        ev.WindowChanged(at_s=1.0, bolt="b", before=2, after=4, reason="r", service_s=0.1),
        ev.SinkCapChanged(at_s=1.0, before=None, after=8, reason="r", goodput=9.0, best=10.0),
        ev.StateChanged(
            at_s=1.0, bolt="b", before=ev.BoltState.SLOW, after=ev.BoltState.BUSY, reason="r",
            silent_s=0.8,
        ),
        ev.TupleGaveUp(
            at_s=1.0, tuple_id=1, partition="p", first=(1, "a"), last=(2, None), attempts=5,
            bolts=("b1", "b2"), reason="r",
        ),
        ev.RangeSplit(
            at_s=1.0, tuple_id=1, bolt="b", partition="p", at=7, rest_id=2, positions=90
        ),
        ev.TupleMoved(
            at_s=1.0, tuple_id=1, bolt="b", moved_from="c", attempt=2, sent_before_s=3.0
        ),
        ev.IntakePaused(at_s=1.0, reason="buffer full", records=900),
    ],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_a_decision_is_read_with_all_its_inputs(event: ev.FlowEvent, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    Told(path).go(SNAPSHOT, event)
    [found] = [e for line in read_lines(str(path)) if (e := event_of(line)) is not None]
    assert found == event
    assert "what was decided" in explain(path)


def test_a_run_that_was_killed_is_explained_with_what_is_to_be_done_again(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    told = Told(path)
    shot = msgspec.structs.replace(
        SNAPSHOT, verdict=FULL, kill_reruns=1_200, records_pending_now=300
    )
    told.go(shot)
    with path.open("a") as file:
        file.write('{"event": "progress", "run": 1, "at"')  # a loss of power
    said = " ".join(explain(path).split())
    assert "no end in the log" in said
    assert "the target is the limit since" in said
    assert "1 200 records, 900 of which are done and paid for, and not saved; 300 are at" in said
    assert "what to change Make it faster." in said


@pytest.mark.parametrize(
    ("silent_s", "how"),
    [(4.0, "going on"), (7.0, "no word since"), (60.0, "no end in the log")],
)
def test_a_run_goes_on_only_as_long_as_its_lines_come(
    tmp_path: Path, silent_s: float, how: str
) -> None:
    """It was "going on" 15 s after a SIGKILL, though a line is due every 5 s."""
    path = tmp_path / "e.jsonl"
    told = Told(path)
    told.go()
    [run] = runs_of(read_lines(str(path)))
    now = run.ended + timedelta(seconds=silent_s)
    assert how in explained(run, Question(), now=now)[0]


def test_a_run_without_a_line_of_progress_is_explained_by_its_newest_verdict(
    tmp_path: Path,
) -> None:
    path = tmp_path / "e.jsonl"
    told = Told(path)
    told.look(msgspec.structs.replace(SNAPSHOT, verdict=FULL))
    said = explain(path)
    assert "no numbers yet" in said
    assert "the target is the limit since" in said
    assert "nothing was sent" not in said
    assert "what to change\n  Make it faster." in said


def test_what_to_change_is_what_ended_the_run_and_what_it_left_out(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    told = Told(path)
    told.go()
    error = "record 3 failed 5 times.\nTraceback: …\nFix process and run again."
    told.end(msgspec.structs.replace(REPORT, outcome="failed", error=error, records_kept_nowhere=2))
    [*_, changes] = explain(path).split("what to change\n")
    assert "Fix process and run again." in changes
    assert "2 records were rejected and kept nowhere" in changes
    assert "Nothing." not in changes


def test_of_a_bolt_that_is_not_in_the_log_it_says_which_are(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    Told(path).go()
    assert "in trouble first: b1" in explain(path, "--bolt", "b99")


def test_the_newest_run_is_explained_and_an_older_one_at_its_time(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    old = Told(path, run=1)
    old.go(msgspec.structs.replace(SNAPSHOT, verdict=FULL))
    old.end()
    new = Told(path, run=2, began=BEGAN + timedelta(hours=1))
    new.go()
    new.end(msgspec.structs.replace(REPORT, outcome="failed", error="KeyError: 'x'\nmore"))
    assert "failed: KeyError: 'x'" in explain(path)
    at = (BEGAN + timedelta(seconds=6)).astimezone()
    assert "the target is the limit" in explain(path, "--at", f"{at:%H:%M:%S}")
    assert "the target is the limit" in explain(path, "--at", at.isoformat())


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--at", "soon"], "is not a time"),
        (["--at", "2020-01-01T00:00:00"], "no run was there"),
    ],
)
def test_a_time_that_is_none_or_of_no_run_is_said(
    tmp_path: Path, options: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "e.jsonl"
    Told(path).go()
    done = CliRunner().invoke(cli, ["explain", str(path), *options])
    assert wanted in str(done.exception)


def test_an_unknown_job_is_said_with_those_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWCTL_CHECKPOINTS", str(tmp_path))
    Told(tmp_path / "orders.events.jsonl").go()
    done = CliRunner().invoke(cli, ["explain", "nope"])
    assert "there is no event log of 'nope'" in str(done.exception)
    assert "Known: orders." in str(done.exception)
    assert "j · began" in CliRunner().invoke(cli, ["explain", "orders"]).output


def test_what_a_bolt_did_is_told_with_the_numbers_that_decided(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    window = ev.WindowChanged(
        at_s=1.0, bolt="b1", before=2, after=6, reason="ack in range", service_s=0.04, path_s=0.002
    )
    Told(path).go(SNAPSHOT, window, expired(7), expired(8, bolt="b9"))
    said = explain(path, "--bolt", "b1")
    assert "b1  window 2 → 6 tuples: ack in range (40 ms in process, 2 ms under way)" in said
    assert "tuple 7 expired" in said
    assert "tuple 8" not in said
    assert "connected · " in said


def test_text_of_others_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    evil = "\x1b[2J\u202egone"
    lost = ev.BoltRemoved(at_s=1.0, bolt="b1", epoch=1, moved=1, reason=evil)
    Told(path).go(msgspec.structs.replace(SNAPSHOT, note=evil), lost)
    assert path.read_text().isascii()
    said = explain(path)
    assert "\\x1b[2J" in said
    assert all(line.isprintable() for line in said.splitlines())


def test_a_disk_that_takes_no_more_ends_the_log_and_not_the_run(tmp_path: Path) -> None:
    path = tmp_path / "no_directory"
    path.write_text("a file")
    told = Told(path / "e.jsonl")
    with structlog.testing.capture_logs() as logs:
        told.events.finished(REPORT)
    told.go()
    assert logs[0]["event"] == "run_finished"


def test_bolts_in_trouble_are_kept_of_a_thousand(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    bolts = [msgspec.structs.replace(BOLT, name=f"b{n}", up=n != 777) for n in range(1_000)]
    Told(path).go(msgspec.structs.replace(SNAPSHOT, bolts=tuple(bolts)))
    [line] = [line for line in read_lines(str(path)) if line["event"] == "progress"]
    assert line["bolts"][0]["name"] == "b777"
    assert len(json.dumps(line)) < 8_000
    assert (line["bolts_up"], line["bolts_all"]) == (999, 1_000)


@pytest.mark.parametrize("where", ["beside the checkpoint", "in a file that is named", "nowhere"])
def test_a_run_keeps_it_where_it_is_told_to(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWCTL_CHECKPOINTS", str(tmp_path / "kept"))
    settings: dict[str, Any] = {
        "in a file that is named": {"events.file": str(tmp_path / "named.jsonl")},
        "nowhere": {"lab.events.bytes_max": 0},
    }.get(where, {})
    FlowControlSpout(
        name="orders", producer=range(3), bolts=LocalBolts(print, count=1), settings=settings
    ).run(view=Witness())
    found = sorted(path.name for path in tmp_path.rglob("*.jsonl"))
    assert (
        found
        == {
            "beside the checkpoint": ["orders.events.jsonl"],
            "in a file that is named": ["named.jsonl"],
            "nowhere": [],
        }[where]
    )
    for path in tmp_path.rglob("*.jsonl"):
        [run] = runs_of(read_lines(str(path)))
        assert run.finished is not None
        assert names(path)[0] == "run_started"


def test_events_per_tuple_are_few_so_that_the_log_costs_a_run_nothing(tmp_path: Path) -> None:
    """Kind: a log on the way of each tuple.  Of a run with 2,000 tuples it has some dozens of
    lines."""
    spout = FlowControlSpout(
        name="orders",
        producer=range(2_000),
        bolts=LocalBolts(len, count=4),
        settings={"events.file": str(tmp_path / "e.jsonl"), "tuple.records_max": 1},
    )
    report = spout.run(view=Witness())
    assert report.tuples_acked == 2_000
    assert len(names(tmp_path / "e.jsonl")) < 120
