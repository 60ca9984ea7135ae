"""The demo's parts: the log, the plan, the journal, and a check that must be able to fail."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.errors import ConfigError
from flowctl_lab.demo import journal, story, verify, weblog
from flowctl_lab.demo.command import _workplace
from flowctl_lab.demo.kill import Kill
from flowctl_lab.demo.plan import SLOW_FACTOR, Places, Plan
from flowctl_lab.demo.work import COLUMNS, SCHEMA, Work, parse

PLAN = Plan(seed=7, records=400, bolts=3, seconds=1.0)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    directory.mkdir()
    weblog.write(directory, seed=3, records=1003, files=8)
    return directory


@pytest.fixture
def database(tmp_path: Path, logs: Path) -> Path:
    path = tmp_path / "access.db"
    with sqlite3.connect(path) as connection:
        connection.execute(SCHEMA)
        for file in logs.glob("*.log"):
            for number, line in enumerate(file.read_text().splitlines(), start=1):
                row = parse(file.name, number, line)
                marks = ",".join("?" * len(COLUMNS))
                connection.execute(f"INSERT INTO access VALUES ({marks})", tuple(row.values()))
    connection.close()
    return path


def test_the_log_is_the_same_for_the_same_seed() -> None:
    assert list(weblog.generate(5, 50)) == list(weblog.generate(5, 50))
    assert list(weblog.generate(5, 50)) != list(weblog.generate(6, 50))


def test_all_lines_are_written_and_files_are_even(logs: Path) -> None:
    sizes = [len(path.read_text().splitlines()) for path in logs.glob("*.log")]
    assert sum(sizes) == 1003
    assert max(sizes) - min(sizes) <= 1


def test_some_lines_are_garbage_and_are_parsed_all_the_same() -> None:
    odd = [line for line in weblog.generate(1, 20_000) if r"\x16\x03" in line]
    assert odd
    row = parse("a.log", 1, odd[0].rstrip("\n"))
    assert (row["method"], row["status"]) == ("-", 400)


def test_a_true_copy_is_exact(logs: Path, database: Path) -> None:
    verdict = verify.verify(logs, database)
    assert verdict.exact
    assert verdict.input.rows == 1003


@pytest.mark.parametrize(
    ("damage", "lost", "doubled"),
    [
        ("DELETE FROM access WHERE file = 'access-3.log' AND line = 5", 1, 0),
        ("INSERT INTO access SELECT * FROM access WHERE line = 7", 0, 8),
        ("UPDATE access SET status = status + 1 WHERE file = 'access-1.log' AND line = 1", 0, 0),
        ("UPDATE access SET path = '/x' WHERE file = 'access-1.log' AND line = 1", 0, 0),
        # As many rows as before, one lost and one doubled: a count alone would not see it.
        ("UPDATE access SET line = 6 WHERE file = 'access-0.log' AND line = 5", 1, 1),
    ],
)
def test_any_damage_is_found(
    logs: Path, database: Path, damage: str, lost: int, doubled: int
) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute(damage)
    connection.close()
    verdict = verify.verify(logs, database)
    assert not verdict.exact
    assert (verdict.lost, verdict.doubled) == (lost, doubled)
    assert story.verdict_lines(PLAN, verdict, 0.0)[-1].startswith("NOT EXACT")


def test_the_plan_is_drawn_from_its_seed(tmp_path: Path) -> None:
    assert PLAN.slow_bolt in ("b1", "b2", "b3")
    assert 0.2 <= PLAN.kill_at <= 0.8
    assert {Plan(seed=s, records=1, bolts=3, seconds=1).slow_bolt for s in range(20)} == {
        "b1", "b2", "b3",
    }  # fmt: skip
    PLAN.save(tmp_path)
    assert Plan.load(tmp_path) == PLAN
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ConfigError, match="not the plan"):
        Plan.load(tmp_path)


def test_the_cost_of_a_record_makes_the_work_take_its_time() -> None:
    slow_s = PLAN.slow_to_s - PLAN.slow_from_s
    capacity_s = PLAN.bolts * PLAN.seconds - slow_s * (1 - 1 / SLOW_FACTOR)
    assert PLAN.cost_s * PLAN.records == pytest.approx(capacity_s)


class Sink:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, rows: list[dict[str, Any]], *, batch: Batch) -> None:
        assert len(rows) == len(batch)
        self.rows += rows


def batch(bolt: str, lines: list[int], *, epoch: int = 1) -> Batch:
    text = next(iter(weblog.generate(1, 1))).rstrip("\n")
    records = [Record((n * 100, n), text) for n in lines]
    span = Span("demo", "/logs/a.log", records[0].position, records[-1].position, epoch)
    return Batch(records, span, bolt=bolt, attempt=1)


def test_work_writes_rows_and_its_journal(tmp_path: Path) -> None:
    sink = Sink()
    plan = Plan(seed=7, records=1_000_000, bolts=3, seconds=0.5)
    work = Work(plan, tmp_path, sink)
    work(batch("b1", [1, 2, 5]))
    work(batch("b2", [3], epoch=2))
    assert [row["line"] for row in sink.rows] == [1, 2, 5, 3]
    assert sink.rows[0]["file"] == "a.log"
    assert journal.epochs(tmp_path) == [1, 2]
    assert journal.begun(tmp_path, 1) == {("a.log", 1), ("a.log", 2), ("a.log", 5)}
    assert journal.begun(tmp_path, 2) == {("a.log", 3)}


def test_the_slow_bolt_is_slow_only_in_its_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(PLAN, tmp_path, Sink())
    journal.started_unix_s(tmp_path, 1)
    started_s = float((tmp_path / "1.start").read_text())
    factors = []
    for since_s in (0.0, PLAN.slow_from_s, PLAN.slow_to_s - 0.001, PLAN.slow_to_s + 0.001):
        monkeypatch.setattr("flowctl_lab.demo.work.time.time", lambda s=since_s: started_s + s)
        factors.append(work._slowness(batch(PLAN.slow_bolt, [1])))
    assert factors == [1, SLOW_FACTOR, SLOW_FACTOR, 1]


def test_shares_are_measured_from_the_journal(tmp_path: Path) -> None:
    slow, fast = PLAN.slow_bolt, "b9"
    (tmp_path / "1.start").write_text("1000.0")
    (tmp_path / f"1-{slow}-1.txt").write_text(f"1000.0 {slow} a.log 1\n")
    (tmp_path / f"1-{fast}-1.txt").write_text(f"1001.0 {fast} a.log 2,3,4\n")
    share = story.share_of_slow_bolt(PLAN, tmp_path, 1)
    assert share.records == pytest.approx(0.25)
    assert share.slow_for_s == pytest.approx(0.35)
    could = 1 - 0.35 * 0.9
    assert share.capacity == pytest.approx(could / (2 + could))


def test_what_may_run_again_is_what_was_begun_and_not_saved() -> None:
    assert Kill(at=0.5, saved=100, begun=130, ran_again=30).bound == 30


def test_a_temporary_directory_goes_unless_it_can_be_resumed() -> None:
    with _workplace(None, keep=False) as places:
        pass
    assert not places.root.exists()
    with _workplace(None, keep=False) as places:
        places.keep = True
    assert places.root.exists()
    for path in sorted(places.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    places.root.rmdir()


def test_places_lie_in_the_directory(tmp_path: Path) -> None:
    places = Places(tmp_path / "d")
    places.make()
    assert all(p.is_relative_to(tmp_path) for p in (places.logs, places.database, places.redis))
