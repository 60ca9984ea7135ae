"""Plain lines for files, pipes and CI: no control codes, a bounded number of lines."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TextIO

from flowctl.core import events as ev
from flowctl.instrumentation import summary
from flowctl.instrumentation.call_lines import call_lines, dear_call, target_lines
from flowctl.instrumentation.event_text import EventLogger, name_of, repeated, sentence
from flowctl.instrumentation.numbers import clock as as_clock
from flowctl.instrumentation.numbers import count, counted, duration, percent, rate
from flowctl.instrumentation.slow_bolts import claim, condition, slow_bolts
from flowctl.instrumentation.snapshot import Limit, Report, Snapshot
from flowctl.instrumentation.text import printable, printable_problem
from flowctl.instrumentation.views import BaseView

# Seconds between lines, as long as they say something new.
LINE_EVERY_S = 5.0
# The same while nothing changes: still alive, and a night fits on a few screens.
QUIET_EVERY_S = 60.0
# A rate that is so many times the one that was told is a change: more than that of equal tuples.
_RATE_CHANGED = 1.25
COLUMNS = 100  # of lines that tell the state, which a reader compares with one another
# Between two lines: important events always, of the others this many; the rest is counted.
EVENTS_PER_LINE = 4

# Nouns for routine events when they are counted, and what follows the noun.
_ROUTINE: dict[str, tuple[str, str]] = {
    "state_changed": ("change", " between NORMAL and SLOW"),
    "tuple_moved": ("tuple", " sent again"),
    "tuple_hedged": ("tuple", " run twice"),
}

_ALWAYS = (
    ev.BoltRemoved,
    ev.BoltAdded,
    ev.PeerDropped,
    ev.TupleFailed,
    ev.TupleGaveUp,
    ev.TargetWentDown,
    ev.TargetCameBack,
)


class PlainView(BaseView):
    """Writes a line every :data:`LINE_EVERY_S` seconds if something has changed, else every
    :data:`QUIET_EVERY_S`; and the events that matter.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        logger: EventLogger | None = None,
    ) -> None:
        super().__init__(clock=clock, logger=logger)
        self._stream = stream
        self._next_line_s = 0.0
        self._quiet_until_s = 0.0
        self._told: tuple[object, ...] = ()
        self._told_rate = 0.0
        self._events_shown = 0
        self._left_out: Counter[str] = Counter()
        self._store_away = False
        self._note = ""
        self._is_dear_told = False

    def start(self, job: str, headline: str) -> None:
        super().start(job, headline)
        self._write(headline)

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        self._show_store(snapshot)
        if snapshot.note and snapshot.note != self._note:
            self._write(f"{self.now()}  {snapshot.note}")
            self._note = snapshot.note
        now_s = self._clock()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + LINE_EVERY_S
            self._show_left_out()
            if self._is_news(snapshot) or now_s >= self._quiet_until_s:
                self._quiet_until_s = now_s + QUIET_EVERY_S
                self._show_state(snapshot)

    def _is_news(self, snapshot: Snapshot) -> bool:
        """Whether anything but the numbers of records has changed since the last line."""
        slow = slow_bolts(snapshot)
        state = (
            snapshot.phase, snapshot.note, snapshot.verdict.limit, snapshot.verdict.names,
            Counter(condition(bolt, slow) for bolt in snapshot.bolts), len(snapshot.long_calls),
            bool(snapshot.records_lost), snapshot.target_down_s is None, snapshot.dear_call is None,
            tuple((target.target, target.limit) for target in snapshot.targets),
        )  # fmt: skip
        before, now = self._told_rate, snapshot.records_per_s
        is_steady = before / _RATE_CHANGED <= now <= before * _RATE_CHANGED
        if state == self._told and is_steady:
            return False
        self._told, self._told_rate = state, now
        return True

    def _show_state(self, snapshot: Snapshot) -> None:
        at = as_clock(snapshot.elapsed_s, tenths=True)
        for text in _fitted(f"{at}  {line(snapshot)}", behind=" " * (len(at) + 2)):
            self._write(text)
        told = [verdict_line(snapshot), slow_line(snapshot), *target_lines(snapshot)]
        told += call_lines(snapshot.long_calls)
        if snapshot.dear_call and not self._is_dear_told:
            self._is_dear_told = True
            told += dear_call(snapshot.dear_call)
        if snapshot.target_down_s is not None:
            told.append(target_down(snapshot))
        for text in filter(None, told):
            self._timed(text)

    def show_event(self, event: ev.FlowEvent) -> None:
        text = sentence(event)
        if not text:
            return
        if not isinstance(event, _ALWAYS):
            if self._events_shown >= EVENTS_PER_LINE or is_routine(event):
                self._left_out[name_of(event)] += 1
                return
            self._events_shown += 1
        self._write(f"{self.now()}  {text}")

    def show_repeats(self, event: ev.FlowEvent, count: int) -> None:
        self._write(f"{self.now()}  {repeated(event, count)}")

    def message(self, text: str) -> None:
        self._note = text  # the same text as the snapshot's note would be redundant
        self._print(printable_problem(text))

    def stop(self, report: Report) -> None:
        super().stop(report)
        self._show_left_out()
        for text in summary.lines(report):
            self._write(text)

    def _show_store(self, snapshot: Snapshot) -> None:
        away = snapshot.store_away_s is not None
        if away and not self._store_away:
            self._write(f"{self.now()}  {store_away(snapshot)}")
        if self._store_away and not away:
            self._write(f"{self.now()}  checkpoint store back")
        self._store_away = away

    def _show_left_out(self) -> None:
        if self._left_out:
            parts = [_counted(name, n) for name, n in sorted(self._left_out.items())]
            self._write(f"{self.now()}  and more: {', '.join(parts)}")
        self._left_out.clear()
        self._events_shown = 0

    def _timed(self, text: str) -> None:
        """Write ``text`` behind the time, in lines of :data:`COLUMNS`."""
        now = self.now()
        for part in textwrap.wrap(
            printable(text),
            COLUMNS,
            initial_indent=f"{now}  ",
            subsequent_indent=" " * (len(now) + 4),
            break_on_hyphens=False,
        ):
            self._print(part)

    def _write(self, text: str) -> None:
        """Write one line, whatever foreign text is in it."""
        self._print(printable(text))

    def _print(self, text: str) -> None:
        self._show(lambda: print(text, file=self._stream, flush=True))


def is_routine(event: ev.FlowEvent) -> bool:
    """Whether a healthy run has many events like ``event``: they are counted, not shown one by one.

    Bolts go between NORMAL and SLOW all the time, and at the end of the input idle bolts take
    over what others hold.
    """
    if isinstance(event, ev.StateChanged):
        return ev.BoltState.BUSY not in (event.before, event.after)
    return isinstance(event, ev.TupleMoved | ev.TupleHedged)


def _counted(name: str, number: int) -> str:
    noun = _ROUTINE.get(name)
    if noun is None:
        return f"{count(number)} × {name.replace('_', ' ')}"
    return counted(number, noun[0]) + noun[1]


def line(snapshot: Snapshot) -> str:
    """Return the state of the run in one line."""
    facts = [f"records {count(snapshot.records_acked)}"]
    if snapshot.records_skipped:
        facts.append(f"skipped {count(snapshot.records_skipped)}")
    if snapshot.progress is not None:
        facts.append(percent(snapshot.progress))
    if snapshot.phase == "starting" and snapshot.note:  # there are no other facts yet
        return "  ".join([*facts, snapshot.note])
    facts.append(rate(snapshot.records_per_s))
    if snapshot.eta_s is not None:
        facts.append(f"ETA {as_clock(snapshot.eta_s)}")
    facts += left_out(snapshot)
    facts += [_bolts(snapshot), f"saved {count(snapshot.records_saved)}", _kill_repeats(snapshot)]
    if snapshot.phase != "running":
        facts.append(snapshot.phase)
    return "  ".join(facts)


def _fitted(text: str, *, behind: str) -> list[str]:
    """Return the facts of ``text``, which two spaces part, in lines of :data:`COLUMNS`."""
    lines = [""]
    for fact in text.split("  "):
        longer = f"{lines[-1]}  {fact}" if lines[-1].strip() else lines[-1] + fact
        if len(longer) <= COLUMNS or not lines[-1].strip():
            lines[-1] = longer
        else:
            lines.append(behind + fact)
    return lines


def _kill_repeats(snapshot: Snapshot) -> str:
    if not snapshot.store_survives:
        return "kept in memory only: a kill starts over"
    begun = f", batches begun {count(snapshot.batches_begun)}" if snapshot.batches_begun else ""
    return f"a kill repeats {count(snapshot.kill_reruns)}{begun}"


def left_out(snapshot: Snapshot) -> list[str]:
    """Return how many records were left out so far, rejected and given up."""
    numbers = {
        "rejected": snapshot.records_rejected,
        "dead-lettered": snapshot.records_dead_lettered,
        "written before, left out": snapshot.records_left_out,
    }
    return [f"{count(number)} {what}" for what, number in numbers.items() if number]


def verdict_line(snapshot: Snapshot, now: datetime | None = None) -> str:
    """Return why the run is not faster, with the time since when; "" while that is not known, or
    another line tells it (a target that is down).  ``now`` is the wall clock's time, if given.
    """
    verdict = snapshot.verdict
    if verdict.limit in (Limit.STARTING, Limit.TARGET_DOWN):
        return ""
    if verdict.is_fine:
        return verdict.sentence
    since = (now or datetime.now()) - timedelta(seconds=snapshot.elapsed_s - verdict.since_s)
    return verdict.said(f"{since:%H:%M:%S}")


def slow_line(snapshot: Snapshot) -> str:
    """Return which bolts are slow; "" if none is, or the verdict says it."""
    if snapshot.verdict.limit is Limit.ONE_BOLT:
        return ""
    return claim(slow_bolts(snapshot))


def kill_cost(snapshot: Snapshot) -> str:
    """Return what a kill now would repeat."""
    if not snapshot.store_survives:
        return "kept in memory only: a kill starts over"
    again = counted(snapshot.kill_reruns, "record")
    if snapshot.batches_begun:
        begun = f"the batches that bolts have begun (up to {count(snapshot.batches_begun)})"
        return f"a kill now would run {again} again, and {begun}"
    alone = count(snapshot.kill_reruns_cumulative_only)
    return f"a kill now would run {again} again (cumulative only: {alone})"


def target_down(snapshot: Snapshot, now: datetime | None = None) -> str:
    """Return the line for a target that is down; ``now`` is the wall clock's time, if given."""
    down_s = snapshot.target_down_s or 0.0
    since = (now or datetime.now()) - timedelta(seconds=down_s)
    return (
        f"the target has been down since {since:%H:%M:%S} ({as_clock(down_s)}): no attempt is "
        f"counted, one tuple at a time tests whether it is back ({snapshot.target_down_reason})"
    )


def store_away(snapshot: Snapshot) -> str:
    """Return the warning for a checkpoint store that can't be reached."""
    return (
        f"checkpoint store unavailable for {duration(snapshot.store_away_s)}: "
        "work goes on, nothing new is saved"
    )


def _bolts(snapshot: Snapshot) -> str:
    slow = slow_bolts(snapshot)
    found = Counter(condition(bolt, slow) for bolt in snapshot.bolts)
    listed = ", ".join(f"{n} {how}" for how, n in sorted(found.items()))
    return f"bolts {listed or 'none yet'}"
