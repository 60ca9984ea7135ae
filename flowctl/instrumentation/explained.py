"""A run explained from its event log: why it was not faster, and what was decided."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from flowctl.core import events as ev
from flowctl.instrumentation.event_text import NAMES, sentence
from flowctl.instrumentation.numbers import bar, clock, count, counted, duration, percent, rate
from flowctl.instrumentation.plain import is_routine
from flowctl.instrumentation.run_events import PROGRESS_EVERY_S
from flowctl.instrumentation.snapshot import Shares, TupleTime, Verdict

Line: TypeAlias = dict[str, Any]  # of the event log

WIDTH: Final = 100  # columns
DECISIONS_MAX: Final = 20  # about half a screen
# Of one name, by rank: twenty lines about tuples that expired would hide all else.
_OF_A_KIND: Final = (DECISIONS_MAX, 8, 5)
# Around the time that is asked for: what was decided shortly before shows in what followed.
_AROUND: Final = timedelta(seconds=60)
# Progress is written on time, unless the driver's machine is busy: after so long [s] none has come.
_LATE_S: Final = PROGRESS_EVERY_S + 1.0
# A run that wrote nothing for so long [s] does not go on.
_SILENT_S: Final = 3 * PROGRESS_EVERY_S
_BAR_CELLS: Final = 30
SHARE_MIN: Final = 0.005  # would be shown as 0 %
_CLASSES: Final = {name: kind for kind, name in NAMES.items()}
# Not decisions: what the sections above are made of, and what each run has.
_NOT_DECIDED: Final = frozenset({"run_started", "progress", "run_finished", "intake_resumed"})
# What explains most comes first if not all can be shown.
_FIRST: Final = ("limit_changed", "target_down", "target_back", "sink_cap_changed")
_SECOND: Final = ("bolt_removed", "tuple_gave_up", "call_takes_long", "tuples_resized")
# What the time of the bolts' slots was spent on, by the names of ``Shares``.
SPENT: Final = {
    "sink": "calls wait for the target",
    "service": "process works",
    "pauses": "processes stand still",
    "refused": "bolts rest, as the target refused",
    "source": "bolts wait for input",
    "driver": "bolts wait for the driver",
    "window": "windows and limits hold tuples back",
    "path": "tuples and acks are under way",
    "ending": "all input was sent, others still work",
}


class Question(NamedTuple):
    """What is asked: at which time (None: of the run as a whole), and of which bolt or target."""

    at: datetime | None = None
    bolt: str = ""
    target: str = ""


class LoggedRun(NamedTuple):
    """The lines of one run, oldest first."""

    lines: tuple[Line, ...]

    @property
    def began(self) -> datetime:
        """When its first line was written."""
        return time_of(self.lines[0])

    @property
    def ended(self) -> datetime:
        """When its last line was written."""
        return time_of(self.lines[-1])

    @property
    def finished(self) -> Line | None:
        """The line of its end; None: it goes on, or was killed."""
        last = self.lines[-1]
        return last if last["event"] == "run_finished" else None

    def state_at(self, at: datetime | None) -> Line:
        """Return the numbers of that time; None: the newest ones, without those of the end."""
        seen = [line for line in self.lines if line["event"] == "progress"]
        before = [line for line in seen if at is None or time_of(line) <= at]
        return (before or seen or [{}])[-1 if before else 0]


def time_of(line: Line) -> datetime:
    """Return when a line was written, in local time."""
    return datetime.fromisoformat(line["time"]).astimezone()


def runs_of(lines: Iterable[Line]) -> list[LoggedRun]:
    """Return the runs of a log, oldest first; two drivers may have written at once."""
    runs: dict[object, list[Line]] = {}
    for line in lines:
        if "time" in line:
            runs.setdefault(line.get("run"), []).append(line)
    return [LoggedRun(tuple(run)) for run in runs.values()]


def verdict_at(run: LoggedRun, at: datetime | None = None) -> Verdict:
    """Return the verdict at a time; None: on the run as a whole, or now if it goes on."""
    end = run.finished if at is None else None
    line = end or run.state_at(at)
    if not line:  # a run of less than a line of progress: the newest verdict, without its shares
        seen = [line for line in run.lines if line["event"] == "limit_changed"]
        for line in reversed([line for line in seen if at is None or time_of(line) <= at]):
            headline, _, why = line["verdict"].partition(": ")
            return Verdict(
                limit=line["after"], headline=headline, why=why, remedy=line["remedy"],
                since_s=line["since_s"],
            )  # fmt: skip
    return msgspec.convert(line.get("verdict", {}), Verdict)


def explained(run: LoggedRun, asked: Question, *, now: datetime) -> list[str]:
    """Return the explanation in lines of at most :data:`WIDTH` columns; ``now``: in local time."""
    verdict = verdict_at(run, asked.at)
    state = run.state_at(asked.at)
    sections = [
        (_headline(run, now), _verdict(run, verdict, asked)),
        ("where the time of the bolts went", _time(verdict.shares, verdict.tuple_time)),
        (asked.bolt, _bolt(state, asked.bolt)),
        (f"target {asked.target}", _target(state, asked.target)),
        ("what was decided", _decided(run, asked)),
        ("what a kill repeats", _kill(run, state, asked)),
        ("what to change", _change(run, verdict, asked)),
    ]
    lines: list[str] = []
    for title, body in sections:
        if body:
            lines += ["", *_wrapped(title, ""), *(part for text in body for part in _wrapped(text))]
    return lines[1:]


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    behind = len(text) - len(text.lstrip())
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + " " * (behind or 2 * bool(indent)),
        drop_whitespace=True,
        break_on_hyphens=False,
    ) or [""]


# -- the sections ------------------------------------------------------------------------------


def _headline(run: LoggedRun, now: datetime) -> str:
    job, end = run.lines[0].get("job", "?"), run.finished
    began = f"{run.began:%Y-%m-%d %H:%M:%S}"
    told = end or run.state_at(None)
    done = "no numbers yet"
    if told:
        done = (
            f"{counted(told.get('records_acked', 0), 'record')} in"
            f" {clock(told.get('elapsed_s', 0.0))}, {rate(told.get('records_per_s', 0.0))}"
        )
    if end is not None:
        how = f"{end['outcome']} at {run.ended:%H:%M:%S}"
    elif (silent_s := (now - run.ended).total_seconds()) <= _LATE_S:
        how = "going on"
    elif silent_s <= _SILENT_S:
        how = f"no word since {run.ended:%H:%M:%S}, though one is due every {PROGRESS_EVERY_S:g} s"
    else:
        how = f"no end in the log, whose last line is of {run.ended:%H:%M:%S}: killed, or cut off"
    return f"{job} · began {began} · {how} · {done}"


def _verdict(run: LoggedRun, verdict: Verdict, asked: Question) -> list[str]:
    since = run.began + timedelta(seconds=verdict.since_s)
    lines = [verdict.said("" if verdict.is_fine else f"{since:%H:%M:%S}")]
    end = run.finished
    if end is not None and asked.at is None and end.get("error"):
        lines.append(f"{end['outcome']}: {end['error'].partition(chr(10))[0]}")
    return lines


def _time(shares: Shares, took: TupleTime) -> list[str]:
    told = {name: getattr(shares, name) for name in SPENT}
    shown = sorted((n for n in told if told[n] >= SHARE_MIN), key=told.__getitem__, reverse=True)
    lines = [
        f"{name:<8} {percent(told[name]):>5}  {bar(told[name], 1.0, _BAR_CELLS):<{_BAR_CELLS}}"
        f"  {SPENT[name]}"
        for name in shown
    ]
    if took.service_s:
        whole_s = took.path_s + took.queue_s + took.service_s
        sink = f" ({duration(took.sink_s)} of it in the sink)" if took.sink_s else ""
        lines.append(
            f"a tuple takes {duration(whole_s)}: {duration(took.path_s)} under way,"
            f" {duration(took.queue_s)} in its bolt's queue, {duration(took.service_s)} in"
            f" process{sink}"
        )
    return lines


def _bolt(state: Line, name: str) -> list[str]:
    if not name:
        return []
    for bolt in state.get("bolts", ()):
        if bolt["name"] == name:
            facts = [
                "connected" if bolt.get("up") else "down",
                rate(bolt.get("records_per_s", 0.0)),
                f"{percent(bolt.get('share', 0.0), digits=1)} of all records",
                f"{bolt.get('in_flight', 0)} in flight of {bolt.get('window', 0)}",
                f"{duration(bolt.get('service_p50_s'))} in process",
                f"{counted(bolt.get('moved_away', 0), 'tuple')} moved away",
            ]
            return [" · ".join(facts)]
    known = ", ".join(bolt["name"] for bolt in state.get("bolts", ()))
    return [
        "The log has no numbers of this bolt then.  It keeps those of 12, in trouble first:"
        f" {known or 'none yet'}."
    ]


def _target(state: Line, name: str) -> list[str]:
    if not name:
        return []
    for target in state.get("targets", ()):
        if target["target"] == name:
            facts = [
                f"limit {target['limit']} ({target['reason']})",
                f"used {target['used']:.1f}",
                f"{rate(target['calls_per_s'])} done",
                f"{percent(target['refused_share'], digits=1)} refused",
                f"calls waited {clock(target['waited_s'])} in all",
            ]
            return [" · ".join(facts)]
    known = ", ".join(target["target"] for target in state.get("targets", ()))
    return [f"No target of this name was called then. Known: {known or 'none'}."]


def _kill(run: LoggedRun, state: Line, asked: Question) -> list[str]:
    end = run.finished
    if end is not None and asked.at is None and end["outcome"] != "failed":
        return [f"Nothing: the run is over, and {count(end.get('records_saved', 0))} records are"
                " saved."]  # fmt: skip
    if not state:
        return ["Not known: the run was too short for a line of progress."]
    again, pending = state.get("kill_reruns", 0), state.get("records_pending_now", 0)
    at = f"{time_of(state):%H:%M:%S}"
    if not state.get("store_survives"):
        return [f"Everything, as of {at}: the checkpoint is in memory only."]
    lines = [
        f"As of {at}: {counted(again, 'record')}, {count(max(0, again - pending))} of which are"
        f" done and paid for, and not saved; {count(min(again, pending))} are at bolts."
    ]
    if begun := state.get("batches_begun", 0):
        lines.append(f"And the batches of ranges that bolts have begun, up to {count(begun)}.")
    return lines


def _change(run: LoggedRun, verdict: Verdict, asked: Question) -> list[str]:
    """Return what to do: about what ended the run and what it left out, and to make it faster."""
    end = run.finished if asked.at is None else None
    lines = []
    if end is not None and end.get("error"):
        # The remedy is the last line of an error.
        lines.append(end["error"].rpartition("\n")[2])
    if end is not None and (nowhere := end.get("records_kept_nowhere", 0)):
        lines.append(
            f"{counted(nowhere, 'record')} were rejected and kept nowhere: --dead-letters DIR keeps"
            " such records."
        )
    return [*lines, *([verdict.remedy] if verdict.remedy else [])] or ["Nothing."]


# -- what was decided --------------------------------------------------------------------------


class _Decision(NamedTuple):
    rank: int  # the lowest are shown first, if not all are
    at: datetime
    text: str
    name: str


def _decided(run: LoggedRun, asked: Question) -> list[str]:
    """Return the decisions, those that explain most if there are many, and how many more."""
    decisions = [d for line in run.lines if (d := _decision(line, asked)) is not None]
    left_out: Counter[str] = Counter()
    if not asked.bolt and not asked.target and asked.at is None:
        for line in run.lines:
            left_out.update(line.get("left_out", {}))
    shown = sorted(_chosen(decisions), key=lambda decision: decision.at)
    left_out.update(Counter(d.name for d in decisions) - Counter(d.name for d in shown))
    lines = [f"{decision.at:%H:%M:%S}  {decision.text}" for decision in shown]
    if left_out:
        more = ", ".join(f"{count(n)} × {name.replace('_', ' ')}" for name, n in left_out.items())
        lines.append(f"and more: {more}" if lines else more)
    return lines or ["Nothing."]


def _chosen(decisions: Sequence[_Decision]) -> list[_Decision]:
    seen: Counter[str] = Counter()
    told = []
    for decision in decisions:
        if decision.text and seen[decision.name] < _OF_A_KIND[decision.rank]:
            seen[decision.name] += 1
            told.append(decision)
    return sorted(told, key=lambda decision: decision.rank)[:DECISIONS_MAX]


def _decision(line: Line, asked: Question) -> _Decision | None:
    """Return what ``line`` says was decided; without a text if it is only counted."""
    name, at = line["event"], time_of(line)
    if name in _NOT_DECIDED or (asked.at is not None and abs(at - asked.at) > _AROUND):
        return None
    if asked.bolt and asked.bolt not in _bolts_of(line):
        return None
    if asked.target and name not in _FIRST:
        return None
    rank = 0 if name in _FIRST else 1 if name in _SECOND else 2
    return _Decision(rank, at, _text(line, in_detail=bool(asked.bolt)), name)


def _bolts_of(line: Line) -> Sequence[object]:
    return [line.get("bolt"), line.get("moved_from"), line.get("slow_bolt"), *line.get("bolts", ())]


def _text(line: Line, *, in_detail: bool) -> str:
    if line["event"] == "limit_changed":
        return f"verdict: {line['verdict']}"
    if line["event"] == "tuples_resized":
        call = f", as a call costs {duration(line['call_s'])}" if line.get("call_s") else ""
        was = f", before {count(line['before'])}" if line["before"] else ""
        return f"tuples hold about {counted(line['after'], 'record')}{was}{call}"
    if line["event"] == "call_takes_long":
        return f"{line['bolt']}  a call of process runs for {clock(line['for_s'])}"
    event = event_of(line)
    if event is None or (is_routine(event) and not in_detail):
        return ""
    if isinstance(event, ev.WindowChanged):
        return _window(event) if in_detail else ""
    if isinstance(event, ev.IntakePaused):
        if event.reason == "buffer full":  # any source that is faster than the bolts
            return ""
        return f"reading pauses: {event.reason} ({counted(event.records, 'record')} wait)"
    return f"{sentence(event)}{_inputs(event)}"


def _inputs(event: ev.FlowEvent) -> str:
    """Return the numbers that decided, where the sentence is without them."""
    match event:
        case ev.SinkCapChanged(goodput=float(goodput), best=float(best)) if best:
            return f" ({rate(goodput)} of {rate(best)})"
        case ev.StateChanged(silent_s=float(silent_s)):
            return f" (silent for {duration(silent_s)})"
        case ev.TupleMoved(sent_before_s=float(sent_before_s)) if sent_before_s:
            return f", {duration(sent_before_s)} after the first time"
        case ev.RangeSplit(positions=int(positions)) if positions:
            return f" ({count(positions)} positions)"
        case _:
            return ""


def _window(event: ev.WindowChanged) -> str:
    return (
        f"{event.bolt}  window {event.before} → {counted(event.after, 'tuple')}: {event.reason}"
        f" ({duration(event.service_s)} in process, {duration(event.path_s)} under way)"
    )


def event_of(line: Mapping[str, Any]) -> ev.FlowEvent | None:
    """Return the core's event that was logged; None if it is another, or of another version."""
    kind = _CLASSES.get(line["event"])
    if kind is None:
        return None
    fields = {name: line[name] for name in kind.__struct_fields__ if name in line}
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        return None
