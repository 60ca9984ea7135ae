"""What the page of a run shows: of a snapshot, of a report, and of the time before.  Pure.

Texts and numbers come from where the terminal's come from, and are made printable here; what this
returns can be JSON.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil
from typing import Any, Final, NamedTuple

from flowctl.core.pacing.figures import TargetView
from flowctl.core.positions import show
from flowctl.instrumentation import summary
from flowctl.instrumentation.call_lines import call_lines, dear_call, target_facts
from flowctl.instrumentation.explained import SHARE_MIN, SPENT
from flowctl.instrumentation.live import bar_parts
from flowctl.instrumentation.numbers import clock as as_clock
from flowctl.instrumentation.numbers import count, counted, duration, percent, rate
from flowctl.instrumentation.plain import kill_cost, left_out, store_away, target_down
from flowctl.instrumentation.slow_bolts import SlowBolt, condition
from flowctl.instrumentation.snapshot import (
    BoltView,
    Limit,
    PartitionView,
    Report,
    RunNumbers,
    Shares,
    Snapshot,
)
from flowctl.instrumentation.text import printable, shown_command

# A cell of a lane is a second: most tuples end within one.
CELL_S: Final = 1.0
# Five minutes: how far back somebody looks who has noticed that a run is slow.
CELLS_MAX: Final = 300
# Cells of all bolts together: what a page loads when it is opened stays below a quarter of a MB.
CELLS_OF_ALL: Final = 120_000
LATELY_CELLS: Final = 10  # how far back a stage is judged: moments differ
# A stage with work for this share of the time has hardly any left: it sets the pace.
STAGE_BUSY: Final = 0.8
POINTS_MAX: Final = 240  # of a curve: more are closer together than pixels

ROWS_ALL: Final = 100  # so many bolts have a row each
ROWS_OF_MANY: Final = 24  # of more, those that need a look: a screenful
PARTITIONS_SHOWN: Final = 12
RUNS_SHOWN: Final = 200  # of a partition, acked and missing in turn: more are narrower than pixels

# A bolt's condition in a lane, the worst first; what a page calls it.
CONDITIONS: Final = {
    "d": "down",
    "b": "overdue",
    "r": "refused",
    "s": "slow",
    "i": "waiting for work",
    "n": "working",
}
_CODES: Final = {"down": "d", "busy": "b", "refused": "r", "slow": "s", "normal": "n"}
_LEVELS: Final = "0123456789"
_TOP: Final = len(_LEVELS) - 1

_SHOW_TARGET: Final = ["flowctl", "targets", "show"]
# What nobody but a person can end; whatever else limits a run, the run goes on.
ALARMS: Final = (Limit.TARGET_DOWN, Limit.CALL_HANGS, Limit.STORE)


class Lanes:
    """The last minutes of each bolt: per second its condition and its rate.  For one thread.

    Bolts are numbered in the order in which they were first seen; a column has a character for
    each.  A level is a bolt's rate in ninths of the fastest one of its stage.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._columns: deque[tuple[int, str, str]] = deque()

    def take(self, snapshot: Snapshot, slow: Mapping[str, SlowBolt]) -> None:
        """Note the bolts of ``snapshot``; of several in one second the last one counts."""
        bolts = snapshot.bolts
        if len(self._numbers) < len(bolts):  # bolts never leave a snapshot
            for bolt in bolts:
                self._numbers.setdefault(bolt.name, len(self._numbers))
        codes, levels = [" "] * len(self._numbers), ["0"] * len(self._numbers)
        fastest = _fastest(bolts)
        for bolt in bolts:
            number = self._numbers[bolt.name]
            codes[number] = code_of(bolt, slow)
            best = fastest[_stage_of(bolt)]
            levels[number] = _level(bolt.records_per_s, best)
        cell = int(snapshot.elapsed_s / CELL_S)
        if self._columns and self._columns[-1][0] == cell:
            self._columns.pop()
        self._columns.append((cell, "".join(codes), "".join(levels)))
        while len(self._columns) > max(60, min(CELLS_MAX, CELLS_OF_ALL // max(1, len(bolts)))):
            self._columns.popleft()

    def number(self, bolt: BoltView) -> int:
        """Return the place of ``bolt`` in each column."""
        return self._numbers[bolt.name]

    def busy(self, bolts: Sequence[BoltView]) -> float:
        """Return the share of the last :data:`LATELY_CELLS` seconds in which ``bolts`` had work."""
        numbers = [self._numbers[bolt.name] for bolt in bolts]
        lately = [self._columns[-n - 1][1] for n in range(min(LATELY_CELLS, len(self._columns)))]
        seen = [codes[number] for codes in lately for number in numbers if number < len(codes)]
        return sum(code not in "id " for code in seen) / len(seen) if seen else 0.0

    def newest(self) -> tuple[int, str, str] | None:
        """Return the second, the conditions and the levels of the newest column."""
        return self._columns[-1] if self._columns else None

    def columns(self) -> list[tuple[int, str, str]]:
        """Return all columns that are kept, the oldest first."""
        return list(self._columns)


class Point(NamedTuple):
    """One moment of the curves; ``refused`` counts calls since the run began."""

    at_s: float
    records_per_s: float
    in_flight: int
    cap: int | None
    refused: int


class Curve:
    """The whole run in at most :data:`POINTS_MAX` moments, at equal distances.  For one thread."""

    def __init__(self) -> None:
        self._every_s = 0.25  # as often as there is a snapshot
        self._points: list[Point] = []

    def take(self, point: Point) -> None:
        """Note a moment, unless the last one is too close; if all is full, drop every other."""
        points = self._points
        if points and point.at_s - points[-1].at_s < 0.9 * self._every_s:  # a snapshot may be early
            return
        points.append(point)
        if len(points) > POINTS_MAX:
            self._points = points[::2]
            self._every_s *= 2

    def points(self) -> list[Point]:
        """Return the moments, the oldest first."""
        return self._points


def point_of(snapshot: Snapshot) -> Point:
    return Point(
        snapshot.elapsed_s,
        snapshot.records_per_s,
        snapshot.tuples_in_flight,
        snapshot.sink_cap,
        snapshot.calls_refused,
    )


def _level(records_per_s: float, best: float) -> str:
    # Rounded up: a bolt that does anything at all has a level.
    return _LEVELS[min(_TOP, ceil(_TOP * records_per_s / best))] if best else _LEVELS[0]


def _stage_of(bolt: BoltView) -> str:
    return bolt.name.rpartition(".")[0]


def _fastest(bolts: Sequence[BoltView]) -> dict[str, float]:
    """Return the best rate in each stage."""
    found: dict[str, float] = {}
    for bolt in bolts:
        stage = _stage_of(bolt)
        found[stage] = max(found.get(stage, 0.0), bolt.records_per_s)
    return found


# -- the parts of a page -----------------------------------------------------------------------


def code_of(bolt: BoltView, slow: Mapping[str, SlowBolt]) -> str:
    """Return the condition of ``bolt`` as a key of :data:`CONDITIONS`."""
    code = _CODES[condition(bolt, slow)]
    return "i" if code == "n" and not bolt.in_flight else code


def worst(bolts: Sequence[BoltView], codes: Mapping[str, str]) -> list[BoltView]:
    """Return the bolts that have a row: all, the worst first, or those of many that need a look."""
    # Of equal ones the first by name, so that rows keep their places from second to second.  A
    # refusal is the target's, hits one bolt after the other, and says nothing about any of them.
    calm = len(CONDITIONS)
    rank = {code: calm if code in "rin" else place for place, code in enumerate(CONDITIONS)}
    ranked = [(rank[codes[bolt.name]], number) for number, bolt in enumerate(bolts)]
    most = ROWS_ALL if len(bolts) <= ROWS_ALL else ROWS_OF_MANY
    return [bolts[number] for _, number in heapq.nsmallest(most, ranked)]


def verdict(snapshot: Snapshot, now_s: float) -> dict[str, Any]:
    """Return why the run is not faster, what to change, and where the time of its bolts went;
    ``now_s`` is the wall clock's time.
    """
    found = snapshot.verdict
    tone = "calm" if found.is_fine else "bad" if found.limit in ALARMS else "warn"
    since = datetime.fromtimestamp(now_s - max(0.0, snapshot.elapsed_s - found.since_s))
    return {
        "tone": tone,
        "sentence": _capital(printable(found.sentence)),
        "since": "" if found.limit is Limit.STARTING else f"since {since:%H:%M:%S}",
        "remedy": printable(found.remedy),
        "shares": _shares(found.shares),
    }


def ended(report: Report) -> dict[str, Any]:
    """Return how the run ended, and what its verdict was for most of the time."""
    is_good = report.outcome == "finished" and not report.records_lost
    why = (report.error or "").partition("\n")[0]
    if not why and report.records_acked:
        why = f"For most of the time: {report.verdict.sentence}."
    return {
        "tone": "good" if is_good else "bad" if report.outcome == "failed" else "warn",
        "sentence": _capital(printable(summary.lines(report)[0])),
        "since": "",
        "remedy": printable(why),
        "shares": _shares(report.verdict.shares),
    }


def _shares(shares: Shares) -> list[tuple[str, float, str, str]]:
    """Return the shares that can be seen: name, share, the share as text, and what it means."""
    told = ((name, getattr(shares, name), words) for name, words in SPENT.items())
    return [
        (name, share, percent(share), words) for name, share, words in told if share >= SHARE_MIN
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def tiles(snapshot: Snapshot) -> list[list[str]]:
    """Return the four figures on top: label, value, and what belongs to it."""
    done = count(snapshot.records_acked)
    to_go = "the source does not say how long it is"
    if snapshot.progress is not None:
        done = percent(snapshot.progress)
        to_go = "done" if snapshot.progress == 1 else "time to go: not known yet"
    if snapshot.eta_s is not None:
        to_go = f"{as_clock(snapshot.eta_s)} to go"
    up = f"{count(snapshot.bolts_up)} of {counted(len(snapshot.bolts), 'bolt')} up"
    again = f"{counted(snapshot.kill_reruns, 'record')} again"
    saved, age_s = f"{count(snapshot.records_saved)} saved", snapshot.checkpoint_age_s
    return [
        ["done", done, to_go],
        ["pace", rate(snapshot.records_per_s), up],
        [
            "a kill now would run",
            again if snapshot.store_survives else "everything again",
            saved if age_s is None else f"{saved}, all of it {duration(age_s)} ago",
        ],
        _left_out(snapshot),
    ]


def tiles_of(report: Report) -> list[list[str]]:
    """Return the four figures of a run that is over."""
    all_runs = f"{count(report.records_total)} in all runs"
    saves = counted(report.checkpoint_saves, "save")
    return [
        ["done", counted(report.records_acked, "record"), all_runs],
        ["pace, on average", rate(report.records_per_s), f"over {as_clock(report.elapsed_s)}"],
        ["in the checkpoint", counted(report.records_saved, "record"), saves],
        _left_out(report),
    ]


def _left_out(seen: RunNumbers) -> list[str]:
    lost = seen.records_lost
    return ["left out", counted(lost, "record"), "rejected or given up" if lost else "none failed"]


def facts(snapshot: Snapshot) -> list[str]:
    """Return further figures of the progress."""
    found = [counted(snapshot.records_acked, "record")]
    if snapshot.records_skipped:
        found.append(f"{count(snapshot.records_skipped)} skipped, as an earlier run had done them")
    found.append(f"{counted(snapshot.tuples_in_flight, 'tuple')} in flight")
    found += left_out(snapshot)
    found += dear_call(snapshot.dear_call)
    return [printable(fact) for fact in found]


def warnings(snapshot: Snapshot) -> list[str]:
    """Return what somebody may have to look after."""
    found = [snapshot.note] if snapshot.note and snapshot.phase != "starting" else []
    if snapshot.store_away_s is not None:
        found.append(store_away(snapshot))
    if not snapshot.store_survives:
        found.append(f"the checkpoint is {summary.IN_MEMORY}")
    return [printable(line) for line in (*found, *call_lines(snapshot.long_calls))]


def stages(snapshot: Snapshot, lanes: Lanes) -> list[dict[str, Any]]:
    """Return the stages of a topology, and how busy each was lately; none for a job of one stage.

    The busiest one sets the pace: what waits for it is held back, those behind it have time.
    """
    found: dict[str, list[BoltView]] = {}
    for bolt in snapshot.bolts:
        found.setdefault(_stage_of(bolt), []).append(bolt)
    if len(found) < 2:
        return []
    busy = {name: lanes.busy(bolts) for name, bolts in found.items()}
    most = max(busy.values())
    return [
        _stage(name, bolts, busy[name], sets_pace=busy[name] == most >= STAGE_BUSY)
        for name, bolts in found.items()
    ]


def _stage(name: str, bolts: Sequence[BoltView], busy: float, *, sets_pace: bool) -> dict[str, Any]:
    held, room = sum(bolt.in_flight for bolt in bolts), sum(bolt.window for bolt in bolts)
    return {
        "name": printable(name),
        "bolts": count(len(bolts)),
        "rate": rate(sum(bolt.records_per_s for bolt in bolts)),
        "held": f"{count(held)} of {count(room)}",
        "busy": busy,
        "text": percent(busy),
        "sets_pace": sets_pace,
    }


def target(snapshot: Snapshot) -> dict[str, Any]:
    """Return each limit that is known, and how much of it is used."""
    limits = [_limit(paced) for paced in snapshot.targets]
    in_flight = snapshot.tuples_in_flight
    if snapshot.sink_cap is not None:
        limits.insert(
            0,
            {
                "name": "the target of all bolts",
                "limit": snapshot.sink_cap,
                "used": in_flight,
                "facts": [f"at most {counted(snapshot.sink_cap, 'tuple')} in flight"],
            },
        )
    down = target_down(snapshot) if snapshot.target_down_s is not None else ""
    refused = snapshot.calls_refused
    return {
        "down": printable(down),
        "limits": limits,
        "facts": [
            f"{counted(refused, 'call')} refused so far" if refused else "no call was refused",
            f"{counted(in_flight, 'tuple')} in flight",
            *([] if limits else ["no limit is known: the target takes what it is given"]),
        ],
    }


def _limit(paced: TargetView) -> dict[str, Any]:
    told = [*target_facts(paced), f"{paced.calls_per_s:.1f} calls/s"]
    if not paced.alone:  # what others use is in the store
        told.append("of all jobs: " + shown_command([*_SHOW_TARGET, paced.target]))
    return {
        "name": printable(paced.target),
        "limit": paced.limit,
        "used": paced.used,
        "facts": [printable(fact) for fact in told],
    }


def checkpoint(snapshot: Snapshot) -> dict[str, Any]:
    """Return what is saved, what a kill costs, and the runs above the cumulative acks."""
    return {
        "kill": kill_cost(snapshot),
        "saved": f"{counted(snapshot.records_saved, 'record')} saved",
        "holes": counted(snapshot.holes, "hole"),
        "partitions": [_partition(part) for part in snapshot.partitions[:PARTITIONS_SHOWN]],
    }


def _partition(part: PartitionView) -> dict[str, Any]:
    if part.position is None and not part.acked_above:
        return {"name": printable(part.name), "where": "nothing is done yet", "runs": []}
    where = f"done up to {show(part.position)} ({counted(part.records, 'record')})"
    if part.acked_above:
        where += f", and parts up to {show(part.acked_above[-1].last)}"
    return {
        "name": printable(part.name),
        "where": printable(where),
        "runs": bar_parts(part)[:RUNS_SHOWN],
    }
