"""Writes without a driver of flowctl's are shown as runs: partitions in the place of bolts."""

from __future__ import annotations

import json
import threading
from typing import Any

import fakeredis
import msgspec
import pytest

from flowctl.core.events import BoltState
from flowctl.errors import CheckpointUnavailableError
from flowctl.instrumentation.shown import SILENT_S
from flowctl.instrumentation.shown_parts import shown_of
from flowctl.instrumentation.snapshot import Limit, Snapshot
from flowctl.instrumentation.task_part import Part, part_of, showing, unpack
from flowctl.instrumentation.team_page import Seen, TeamState
from flowctl_redis.targets import RedisTargets
from tests.unit.test_team_page import NOW_S, claim, target_of

WAIT_S = 30.0  # a thread of a busy machine
COUNTS = {"rows": 1_000, "written": 900, "calls": 9, "called_s": 9.5, "waited_s": 0.1}


def part(name: str, *, ago_s: float = 0.5, action: str = "w", is_over: bool = False,
         error: str = "", **counts: float) -> Part:  # fmt: skip
    return Part(
        job="adhoc", target="pg-main", action=action, name=name, worker="process 7 on host",
        began_unix_ms=int(1000 * (NOW_S - 10 - ago_s)), at_unix_ms=int(1000 * (NOW_S - ago_s)),
        is_over=is_over, error=error, counts=COUNTS | counts,
    )  # fmt: skip


def seen(*parts: Part) -> Snapshot:
    shown = shown_of(parts, NOW_S)
    assert shown is not None
    assert shown.snapshot is not None
    return shown.snapshot


def test_partitions_stand_in_the_place_of_bolts() -> None:
    done = part("2", is_over=True, written=1_000)
    dead = part("3", ago_s=SILENT_S + 1)
    snapshot = seen(part("10"), part("1", written=300), done, dead)
    assert [(bolt.name, bolt.up, bolt.records_acked) for bolt in snapshot.bolts] == [
        ("p1", True, 300), ("p3", False, 900), ("p10", True, 900),
    ]  # fmt: skip
    assert snapshot.records_acked == 300 + 900 + 900 + 1_000
    assert snapshot.records_saved == 1_000, "what no task of Spark writes again"
    assert snapshot.kill_reruns == 3_000, "and what those at work have read"
    assert snapshot.note.startswith("1 partition ended;")


def test_one_that_failed_stays_in_sight_with_the_kind_of_its_error() -> None:
    snapshot = seen(part("1"), part("2", is_over=True, error="OperationalError"))
    assert [(bolt.name, bolt.up, bolt.state) for bolt in snapshot.bolts] == [
        ("p1", True, BoltState.NORMAL), ("p2", False, BoltState.BUSY),
    ]  # fmt: skip
    assert "1 of them failed" in snapshot.note


@pytest.mark.parametrize(
    ("counts", "limit"),
    [
        ({}, Limit.NOTHING),
        ({"called_s": 1.0}, Limit.SOURCE),
        ({"called_s": 1.0, "waited_s": 8.5, "refused": 4}, Limit.TARGET_REFUSES),
        ({"called_s": 0.0, "calls": 0}, Limit.STARTING),
    ],
)
def test_it_says_what_holds_the_write_up(counts: dict[str, float], limit: Limit) -> None:
    verdict = seen(part("1", **counts), part("2", **counts)).verdict
    assert verdict.limit is limit
    assert sum(msgspec.structs.astuple(verdict.shares)) in (0.0, pytest.approx(1.0, abs=1e-6))


def test_calls_that_wait_for_a_place_are_not_taken_for_a_source_that_is_slow() -> None:
    waits = {"called_s": 1.0, "waited_s": 8.5}
    shown = shown_of([part("1", **waits)], NOW_S, target_of(claim("w", "adhoc", 8)))
    assert shown is not None
    assert shown.snapshot is not None
    assert shown.snapshot.verdict.names == ("pg-main",)
    assert shown.snapshot.targets[0].limit == 8


def test_only_the_newest_write_counts_and_it_is_over_some_time_after_its_last_partition() -> None:
    old = part("9", ago_s=60, action="before", is_over=True, error="OSError")
    ended = [part(n, ago_s=SILENT_S - 1, is_over=True, kept=2, rejected=2) for n in "12"]
    shown = shown_of([old, *ended], NOW_S)
    assert shown is not None
    assert shown.report is None, "another partition may begin"
    later = shown_of([old, *ended], NOW_S + 2)
    assert later is not None
    assert later.report is not None
    assert later.report.outcome == "finished"
    assert later.report.records_acked == 2 * 902
    assert later.report.dead_letters_hint == "flowctl dlq show adhoc"
    assert later.elsewhere.endswith("flowctl dlq show adhoc")
    failed = shown_of([part("1", ago_s=30, is_over=True, error="OSError")], NOW_S)
    assert failed is not None
    assert failed.report is not None
    assert (failed.report.outcome, failed.report.error) == ("failed", "1 partition failed: OSError")


def test_the_page_of_all_jobs_has_it_among_the_runs() -> None:
    shown = shown_of([part("1", rejected=3)], NOW_S)
    assert shown is not None
    told: dict[str, Any] = json.loads(
        TeamState("Redis at x").told(Seen(NOW_S, (shown,), (target_of(claim("w", "adhoc", 8)),)))
    )
    (job,) = told["jobs"]
    assert job["name"] == "adhoc"
    assert job["row"][2] == "3 records rejected"
    assert job["row"][3] == "1 of 1"


class Away:
    """A store that nobody reaches."""

    def __init__(self) -> None:
        self.came = threading.Event()

    def show_part(self, job: str, name: str, part: bytes) -> None:
        self.came.set()
        raise CheckpointUnavailableError("nobody answers.", remedy="Wait.")


def test_a_task_keeps_its_last_word_and_the_kind_of_its_error_in_redis() -> None:
    kept = RedisTargets("redis://x", client=fakeredis.FakeRedis())
    counts: dict[str, float] = {"rows": 5, "written": 0}
    begun = part_of("adhoc", "pg-main", action="w", name="7")
    with pytest.raises(ValueError, match="secret"), showing(kept, begun, lambda: counts):
        counts["written"] = 4
        raise ValueError("a secret of row 5")
    (told,) = unpack(kept.parts("adhoc"))
    assert (told.name, told.is_over, told.error) == ("7", True, "ValueError")
    assert told.counts == {"rows": 5, "written": 4}
    assert kept.jobs_with_parts() == ["adhoc"]
    assert kept.names() == [], "it is no target"


def test_a_store_that_is_away_holds_up_no_task() -> None:
    away = Away()
    with showing(away, part_of("j", "t", action="w", name="0"), dict):
        pass
    assert away.came.wait(WAIT_S)


def test_what_another_version_wrote_is_left_out() -> None:
    assert unpack([b"", b"\x91\x01"]) == []
    assert shown_of([], NOW_S) is None
