"""The page of all jobs and targets of one place: who fills what, and who needs a look."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

import msgspec

from flowctl import Page
from flowctl.core.pacing.figures import StoredTarget, StoredUse
from flowctl.core.pacing.leases import RATE_MOST, Claim, Sums
from flowctl.instrumentation.page import page_with
from flowctl.instrumentation.shown import SILENT_S, Shown
from flowctl.instrumentation.snapshot import Limit, Report, Snapshot, Verdict
from flowctl.instrumentation.team_page import NAME, WORKERS_SHOWN, Seen, TeamPage, TeamState
from tests.unit.test_page import HOSTILE
from tests.unit.test_view_plain import REPORT, SNAPSHOT

NOW_S = 1_800_000_000.0


def claim(worker: str, job: str, holds: int) -> Claim:
    return Claim(worker, job, 1.0, holds, RATE_MOST, holds, holds)


def target_of(*claims: Claim, **changes: Any) -> StoredTarget:
    jobs = {each.job: Sums(100, 100.0, 20.0, 1, 0, 3.0) for each in claims}
    target = StoredTarget(
        target="pg-main", limit=8, reason="refused", budget=None,
        leased=sum(each.holds for each in claims), seen_s=0.2,
        recent=Sums(100, 100.0, 79.0, 5, 0, 1.0), recent_s=10.0, jobs=jobs, claims=claims,
        operator={},
    )  # fmt: skip
    return msgspec.structs.replace(target, **changes)


def job_of(name: str, *, ago_s: float = 0.5, verdict: Verdict | None = None,
           report: Report | None = None) -> Shown:  # fmt: skip
    snapshot: Snapshot = msgspec.structs.replace(SNAPSHOT, verdict=verdict or Verdict())
    return Shown(
        job=name, headline="4 bolts", driver="process 7 on host",
        at_unix_ms=int(1000 * (NOW_S - ago_s)), snapshot=snapshot, report=report,
    )  # fmt: skip


def told(*shown: Shown, targets: tuple[StoredTarget, ...] = (), unread: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        TeamState("Redis at x").told(Seen(NOW_S, shown, targets, unread))
    )
    return found


def test_the_first_sentence_says_whose_job_fills_the_target() -> None:
    claims = claim("w1", "orders", 5), claim("w2", "orders", 1), claim("w3", "adhoc", 2)
    said = told(targets=(target_of(*claims),))
    assert said["verdict"] == {
        "tone": "warn",
        "sentence": "pg-main is full: orders has 75 % of it",
    }
    [target] = said["targets"]
    assert [(job["name"], job["share"], job["permits"]) for job in target["jobs"]] == [
        ("orders", 0.75, 6),
        ("adhoc", 0.25, 2),
    ]
    assert target["facts"][:2] == ["limit 8: refused", "used 7.9, on average over 10 s"]
    half = target_of(*claims, recent=Sums(50, 50.0, 40.0, 0, 0, 0.0))
    assert told(targets=(half,))["verdict"]["sentence"].startswith("No target is full")
    idle = target_of(*claims, seen_s=60.0)
    said = told(targets=(idle,))
    assert said["verdict"]["tone"] == "calm" and "not used for 1:00" in said["targets"][0]["facts"]


def test_a_quota_that_is_nearly_used_up_says_who_used_it() -> None:
    use = StoredUse(
        quota="calls/day", amount=1000, used=950, reset_s=3600.0, by_job={"a": 100, "b": 850}
    )
    quiet = Sums(10, 10.0, 1.0, 0, 0, 0.0)
    said = told(targets=(target_of(claim("w", "a", 1), quotas=(use,), recent=quiet),))
    assert said["verdict"]["sentence"] == "pg-main has 5 % of calls/day left: b used 85 %"
    assert said["targets"][0]["quotas"][0]["facts"] == [
        "950 of 1,000 used", "50 left", "ends in 1:00:00", "b 850", "a 100"
    ]  # fmt: skip


def test_what_a_job_did_lately_is_the_difference_of_two_readings() -> None:
    state, first = TeamState("x"), target_of(claim("w", "orders", 4))
    state.told(Seen(NOW_S, (), (first,)))
    more = {"orders": first.jobs["orders"].plus(Sums(90, 90.0, 9.0, 10, 0, 0.0))}
    then = msgspec.structs.replace(first, jobs=more)
    said = json.loads(state.told(Seen(NOW_S + 10.0, (), (then,))))
    assert said["targets"][0]["jobs"][0]["row"][2:5] == ["9.0/s", "10.0 %", "190"]
    for second in range(11, 40):
        said = json.loads(state.told(Seen(NOW_S + second, (), (then,))))
    assert said["targets"][0]["jobs"][0]["row"][2] == "0/s", "what is long ago does not count"


def test_jobs_that_need_a_look_come_first() -> None:
    down = Verdict(limit=Limit.TARGET_DOWN, headline="pg-main is down")
    slow = Verdict(limit=Limit.SOURCE, headline="the source is the limit")
    said = told(
        job_of("fine", verdict=Verdict(limit=Limit.NOTHING, headline="nothing holds it up")),
        job_of("over", ago_s=3600.0, report=REPORT),
        job_of("failed", report=msgspec.structs.replace(REPORT, outcome="failed", error="x")),
        job_of("slow", verdict=slow),
        job_of("down", verdict=down),
        job_of("gone", ago_s=SILENT_S + 1),
    )
    assert [(job["name"], job["state"]) for job in said["jobs"]] == [
        ("down", "running"), ("failed", "failed"), ("gone", "no word"), ("slow", "running"),
        ("fine", "running"), ("over", "finished"),
    ]  # fmt: skip
    assert said["verdict"]["sentence"] == "3 jobs need a look: down, failed, gone"
    assert said["jobs"][0]["said"] == "pg-main is down"
    assert said["jobs"][0]["row"][:2] == ["21 %, 0:19 to go", "8 400/s"]


def test_jobs_without_a_driver_of_ours_are_known_by_the_targets_that_they_call() -> None:
    claims = claim("w1", "write", 2), claim("w2", "write", 2), claim("w3", "orders", 1)
    said = told(job_of("orders"), targets=(target_of(*claims),))
    found = {job["name"]: (job["state"], job["said"], job["row"][3]) for job in said["jobs"]}
    assert found["write"] == ("working", "calls pg-main", "2 workers")
    assert len(found) == 2


def test_workers_are_bounded_the_busiest_first() -> None:
    claims = [claim(f"w{n}", "orders", n) for n in range(WORKERS_SHOWN + 7)]
    [user] = told(targets=(target_of(*claims),))["targets"][0]["jobs"]
    assert (len(user["workers"]), user["more"]) == (WORKERS_SHOWN, 7)
    assert user["workers"][0][:2] == [f"w{WORKERS_SHOWN + 6}", str(WORKERS_SHOWN + 6)]


def test_nothing_and_what_cannot_be_read_are_said() -> None:
    assert told()["verdict"]["sentence"] == "Nothing has been seen here yet"
    assert told(unread=2)["warnings"] == [
        "not shown, as they can't be read (damaged, or written by another version of flowctl): 2"
    ]


def test_words_of_others_stay_words() -> None:
    verdict = Verdict(limit=Limit.SOURCE, headline=HOSTILE)
    target = target_of(claim(HOSTILE, HOSTILE, 8), target=HOSTILE, reason=HOSTILE)
    state = TeamState(HOSTILE)
    data = state.told(Seen(NOW_S, (job_of(HOSTILE, verdict=verdict),), (target,)))
    said = json.dumps(json.loads(data), ensure_ascii=False)
    assert not {"\x1b", "\u202e", "\ud800"} & set(said)
    assert page_with(data, name=NAME).count("</script>") == 2


def test_the_page_is_served_and_says_so_if_its_place_is_away() -> None:
    team = TeamPage("Redis at x", Page())
    try:
        team.show(Seen(NOW_S, (job_of("orders"),), ()))
        with urlopen(team.url) as answer:
            assert b'"orders"' in answer.read()
        team.fail("Redis does not answer.")
        with urlopen(f"{team.url}state") as answer:
            said = json.load(answer)
        assert (
            said["verdict"]["tone"] == "bad"
            and "Redis does not answer" in (said["verdict"]["sentence"])
        )
        assert said["jobs"][0]["name"] == "orders", "what was read last stays"
    finally:
        team.close()
