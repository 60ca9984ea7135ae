"""Plain lines for files, pipes and CI: no control codes, a bounded number of lines."""

from __future__ import annotations

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
from flowctl.instrumentation.slow_bolts import claim, condition, slow_bolts, target_holds_back
from flowctl.instrumentation.snapshot import Report, Snapshot, WaitReason
from flowctl.instrumentation.text import printable, printable_problem
from flowctl.instrumentation.views import BaseView

# Seconds between lines: often enough to see that the run is alive, and an hour is only 720 lines.
LINE_EVERY_S = 5.0
# Between two lines: important events always, of the others this many; the rest is counted.
EVENTS_PER_LINE = 4

_HELD_UP_SHARE_MIN = 0.05  # less is the time between two wake-ups

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
    """Writes one line every :data:`LINE_EVERY_S` seconds, and the events that matter."""

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
            self._write(f"{as_clock(snapshot.elapsed_s, tenths=True)}  {line(snapshot)}")
            if slow := claim(slow_bolts(snapshot)):
                self._write(f"{self.now()}  {slow}")
            for text in target_lines(snapshot):
                self._write(f"{self.now()}  {text}")
            for text in call_lines(snapshot.long_calls):
                self._write(f"{self.now()}  {text}")
            if snapshot.dear_call and not self._is_dear_told:
                self._is_dear_told = True
                self._write(f"{self.now()}  {dear_call(snapshot.dear_call)[0]}")
            if snapshot.target_down_s is not None:
                self._write(f"{self.now()}  {target_down(snapshot)}")

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
    facts += [held_up(snapshot)] if held_up(snapshot) else []
    facts += [_bolts(snapshot), f"saved {count(snapshot.records_saved)}", kill_cost(snapshot)]
    if snapshot.phase != "running":
        facts.append(snapshot.phase)
    return "  ".join(facts)


def left_out(snapshot: Snapshot) -> list[str]:
    """Return how many records were left out so far, rejected and given up."""
    numbers = {
        "rejected": snapshot.records_rejected,
        "dead-lettered": snapshot.records_dead_lettered,
        "written before, left out": snapshot.records_left_out,
    }
    return [f"{count(number)} {what}" for what, number in numbers.items() if number]


def held_up(snapshot: Snapshot) -> str:
    """Return what the spout waits for, "" if not much: where to look when the run is slow.

    Windows are also full while the target is down or full; then the target is named.
    """
    if snapshot.target_down_s is not None:
        return "waits for the target, which is down"
    if snapshot.held_up_share < _HELD_UP_SHARE_MIN:
        return ""
    if snapshot.held_up_by == WaitReason.BACKPRESSURE and target_holds_back(snapshot):
        return f"waits {percent(snapshot.held_up_share)} for the target{_cap(snapshot)}"
    return f"waits {percent(snapshot.held_up_share)} {summary.WAITED_FOR[snapshot.held_up_by]}"


def _cap(snapshot: Snapshot) -> str:
    if snapshot.sink_cap is None:
        return ", which refuses"
    return f" (at most {counted(snapshot.sink_cap, 'tuple')} in flight)"


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
    return f"bolts {listed or 'none yet'}  in flight {count(snapshot.tuples_in_flight)}"
