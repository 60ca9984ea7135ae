"""The page of all jobs and targets of one place: who uses which target, how much, what was refused.

What is shown of a job is what its run keeps for others; of a target, what its workers report.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from flowctl.core.pacing.figures import OVER_S, StoredTarget, StoredUse
from flowctl.core.pacing.leases import Claim, Sums
from flowctl.instrumentation import summary
from flowctl.instrumentation.numbers import clock, count, counted, percent, rate
from flowctl.instrumentation.page import page_with, policy
from flowctl.instrumentation.page_parts import ALARMS
from flowctl.instrumentation.page_server import Feed, PageServer, Site
from flowctl.instrumentation.shown import Shown
from flowctl.instrumentation.text import printable
from flowctl.instrumentation.views import Page

NAME: Final = "team_page.html"
WORKERS_SHOWN: Final = 50  # of one job at one target: some screenfuls
# A target of which so much is used is full: a limit that adapts is never used to the last call.
FULL: Final = 0.9
# A worker reports four times a second; a target that none has used for so long [s] is idle.
_IDLE_S: Final = 3.0
_NO_JOB: Final = "(no job)"

_encode: Final = msgspec.json.Encoder().encode


class Seen(NamedTuple):
    """What was read at ``at_s`` (wall clock); ``unread`` entries are damaged, or of another
    version.
    """

    at_s: float
    shown: tuple[Shown, ...]
    targets: tuple[StoredTarget, ...]
    unread: int = 0


class TeamState:
    """What the page shows, as JSON.  For one thread.

    Rates of a job at a target come from the sums that are stored, as read now and some seconds ago.
    """

    def __init__(self, place: str) -> None:
        self._place = printable(place)
        self._before: dict[str, deque[tuple[float, Mapping[str, Sums]]]] = {}

    def told(self, seen: Seen) -> bytes:
        """Return what to show of ``seen``, which is newer than what was told before."""
        for target in seen.targets:
            self._note(target, seen.at_s)
        targets = [self._target(target) for target in seen.targets]
        targets.sort(key=lambda each: (-each["fill"], each["name"]))
        jobs = [_job(shown, seen.at_s) for shown in seen.shown] + _other_jobs(seen)
        jobs.sort(key=lambda each: (_RANK[each["tone"]], each["name"]))
        return _encode(
            {
                "place": self._place,
                "unix_ms": int(seen.at_s * 1000),
                "verdict": _verdict(targets, jobs),
                "targets": targets,
                "jobs": jobs,
                "warnings": _warnings(seen),
            }
        )

    def _note(self, target: StoredTarget, at_s: float) -> None:
        kept = self._before.setdefault(target.target, deque())
        kept.append((at_s, target.jobs))
        while len(kept) > 2 and at_s - kept[1][0] >= OVER_S:
            kept.popleft()

    def _lately(self, target: str, job: str) -> tuple[Sums, float]:
        """Return what a job did at a target lately, and in how many seconds; 0: not known yet."""
        (first_s, first), (last_s, last) = self._before[target][0], self._before[target][-1]
        return last.get(job, Sums()).minus(first.get(job, Sums())), last_s - first_s

    def _target(self, found: StoredTarget) -> dict[str, Any]:
        is_idle = found.seen_s > _IDLE_S
        claims: dict[str, list[Claim]] = {}
        for claim in found.claims:
            claims.setdefault(claim.job, []).append(claim)
        names = sorted({*found.jobs, *claims})
        jobs = [self._user(found, name, claims.get(name, [])) for name in names]
        jobs.sort(key=lambda job: (-job["permits"], job["name"]))
        used = 0.0 if is_idle else found.used
        return {
            "name": printable(found.target),
            "limit": found.limit,
            "used": used,
            "fill": used / found.limit if found.limit else 0.0,
            "idle": is_idle,
            "full": list(_full(found, used, jobs)),
            "facts": _facts(found, is_idle=is_idle),
            "quotas": [_quota(use) for use in found.quotas],
            "jobs": jobs,
        }

    def _user(self, target: StoredTarget, job: str, claims: list[Claim]) -> dict[str, Any]:
        done, span_s = self._lately(target.target, job)
        in_all = target.jobs.get(job, Sums())
        permits = sum(claim.holds for claim in claims)
        share = permits / target.leased if target.leased else 0.0
        is_known = span_s > 0
        return {
            "name": printable(job) or _NO_JOB,
            "permits": permits,
            "share": share,
            "row": [
                percent(share),
                f"{count(permits)} of {count(target.leased)}",
                rate(done.calls / span_s) if is_known else "…",
                percent(done.refused_share, digits=1) if is_known else "…",
                count(in_all.calls),
                count(in_all.refused),
                count(in_all.failed),
                clock(in_all.waited_s),
            ],
            "workers": [_worker(claim) for claim in _busiest(claims)],
            "more": max(0, len(claims) - WORKERS_SHOWN),
        }


def _busiest(claims: list[Claim]) -> list[Claim]:
    ranked = sorted(claims, key=lambda claim: (-claim.in_flight, -claim.holds, claim.worker))
    return ranked[:WORKERS_SHOWN]


def _worker(claim: Claim) -> list[str]:
    waits = "waits for a permit" if claim.is_held else "has what it needs"
    state = f"{count(claim.resting)} rest, as they were refused" if claim.resting else waits
    return [
        printable(claim.worker),
        count(claim.in_flight),
        count(claim.holds),
        count(claim.want),
        state,
    ]


def _facts(found: StoredTarget, *, is_idle: bool) -> list[str]:
    facts = [f"limit {found.limit}: {found.reason}" if found.limit else "nothing learned yet"]
    if is_idle:
        facts.append(f"not used for {clock(found.seen_s)}")
    else:
        facts += [
            f"used {found.used:.1f}, on average over {found.recent_s:.0f} s",
            f"{found.calls_per_s:.1f} calls/s",
            f"{percent(found.recent.refused_share, digits=1)} refused",
            counted(len(found.claims), "worker"),
        ]
    if found.budget is not None:
        facts.append(f"budget {found.budget:g} a second, used {found.cost_per_s:.4g}")
    if found.rate is not None:
        facts.append(f"takes {found.rate:.4g} a second, as was learned")
    facts += [f"set by hand: {name} {value:g}" for name, value in sorted(found.operator.items())]
    return [printable(fact) for fact in facts]


def _full(found: StoredTarget, used: float, jobs: list[dict[str, Any]]) -> Iterator[str]:
    """Say which of its limits are full, and who fills them."""
    name = printable(found.target)
    if found.limit and used >= FULL * found.limit and jobs:
        most = jobs[0]
        yield f"{name} is full: {most['name']} has {percent(most['share'])} of it"
    for use in found.quotas:
        if use.used >= FULL * use.amount and use.by_job:
            job, of_job = max(use.by_job.items(), key=lambda entry: entry[1])
            who = f"{printable(job) or _NO_JOB} used {percent(of_job / use.amount)}"
            yield f"{name} has {percent(use.left / use.amount)} of {use.quota} left: {who}"


def _quota(use: StoredUse) -> dict[str, Any]:
    reset = "never ends" if use.reset_s is None else f"ends in {clock(use.reset_s)}"
    most = sorted(use.by_job.items(), key=lambda entry: -entry[1])
    facts = [f"{use.used:,.6g} of {use.amount:,.6g} used", f"{use.left:,.6g} left", reset]
    facts += [f"{job or _NO_JOB} {used:,.6g}" for job, used in most]
    return {
        "name": printable(use.quota),
        "limit": use.amount,
        "used": use.used,
        "facts": [printable(fact) for fact in facts],
    }


# -- jobs --------------------------------------------------------------------------------------

_RANK: Final = {tone: place for place, tone in enumerate(("bad", "warn", "calm", "good", "over"))}


def _job(shown: Shown, now_s: float) -> dict[str, Any]:
    """Return a row: how a job is, what it says of itself, and how far it is."""
    tone, state, said = _state(shown, now_s)
    seen = shown.report or shown.snapshot
    at = datetime.fromtimestamp(shown.at_unix_ms / 1000)
    row = ["", "", "", ""]
    if seen is not None:
        row[1] = rate(seen.records_per_s)
        row[2] = summary.losses(seen.records_rejected, seen.records_dead_lettered) or "none"
    if shown.snapshot is not None:
        row[0] = _progress(shown)
        row[3] = f"{count(shown.snapshot.bolts_up)} of {count(len(shown.snapshot.bolts))}"
    return {
        "name": printable(shown.job),
        "tone": tone,
        "state": state,
        "said": printable(said),
        "row": [*row, f"{at:%Y-%m-%d %H:%M:%S}", printable(shown.driver)],
    }


def _other_jobs(seen: Seen) -> list[dict[str, Any]]:
    """Return rows of the jobs that have no driver of flowctl's, such as writes by ``flow_sink``:
    known are the workers that call targets now.
    """
    known = {shown.job for shown in seen.shown}
    workers: dict[str, dict[str, int]] = {}
    for target in seen.targets:
        for claim in target.claims:
            if claim.job and claim.job not in known and target.seen_s <= _IDLE_S:
                at = workers.setdefault(claim.job, {})
                at[target.target] = at.get(target.target, 0) + 1
    return [
        {
            "name": printable(job),
            "tone": "calm",
            "state": "working",
            "said": printable(f"calls {', '.join(sorted(at))}"),
            "row": ["", "", "", counted(max(at.values()), "worker"), "", ""],
        }
        for job, at in workers.items()
    ]


def _warnings(seen: Seen) -> list[str]:
    if not seen.unread:
        return []
    what = "damaged, or written by another version of flowctl"
    return [f"not shown, as they can't be read ({what}): {count(seen.unread)}"]


def _state(shown: Shown, now_s: float) -> tuple[str, str, str]:
    """Return how loud a job is, its state, and why."""
    if shown.report is not None:
        report = shown.report
        is_good = report.outcome == "finished" and not report.records_lost
        tone = "over" if is_good else "bad" if report.outcome == "failed" else "warn"
        return tone, report.outcome, summary.lines(report)[0]
    if shown.is_silent(now_s):
        return "bad", "no word", "killed, standing still, or it can't reach this place"
    if shown.snapshot is None:
        return "calm", "starting", shown.headline
    verdict = shown.snapshot.verdict
    tone = "calm" if verdict.is_fine else "bad" if verdict.limit in ALARMS else "warn"
    return tone, shown.snapshot.phase, verdict.sentence


def _progress(shown: Shown) -> str:
    snapshot = shown.snapshot
    if snapshot is None:
        return ""
    if snapshot.progress is None:
        return counted(snapshot.records_acked, "record")
    to_go = f", {clock(snapshot.eta_s)} to go" if snapshot.eta_s and not shown.report else ""
    return percent(snapshot.progress) + to_go


def _verdict(targets: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a person should know first: which targets are full and by whom, and which jobs
    need a look.
    """
    told = [said for target in targets for said in target.pop("full")]
    is_full = bool(told)
    alarms = [job["name"] for job in jobs if job["tone"] == "bad"]
    if alarms:
        need = "needs" if len(alarms) == 1 else "need"
        told.append(f"{counted(len(alarms), 'job')} {need} a look: {', '.join(alarms[:5])}")
    if not told:
        told = ["No target is full, and no job is in trouble" if targets or jobs else
                "Nothing has been seen here yet"]  # fmt: skip
    return {"tone": "bad" if alarms else "warn" if is_full else "calm", "sentence": ". ".join(told)}


# -- the page ----------------------------------------------------------------------------------


class TeamPage:
    """Serves the page at ``where``; ``place`` says whose jobs and targets it shows.

    Raises :class:`ConfigError` for an address that can't be used.
    """

    def __init__(self, place: str, where: Page) -> None:
        self._state = TeamState(place)
        self._newest = b"null"
        self._feed = Feed(lambda: self._newest)
        site = Site(self._feed, html=self._html, policy=policy(NAME))
        self._server = PageServer(where.host, where.port, site)

    @property
    def url(self) -> str:
        """Where it is."""
        return self._server.url

    def show(self, seen: Seen) -> None:
        """Show what was read."""
        self._publish(self._state.told(seen))

    def fail(self, problem: str) -> None:
        """Show that nothing can be read, beside what was read last."""
        last = msgspec.json.decode(self._newest) or {}
        at = f"{datetime.fromtimestamp(time.time()):%H:%M:%S}"
        said = {"tone": "bad", "sentence": printable(f"At {at} this could not be read: {problem}")}
        self._publish(_encode({**last, "verdict": said}))

    def close(self) -> None:
        """Stop to serve."""
        self._server.close()

    def _publish(self, newest: bytes) -> None:
        self._newest = newest
        self._feed.publish(newest)

    def _html(self) -> bytes:
        return page_with(self._newest, name=NAME, is_live=True).encode()
