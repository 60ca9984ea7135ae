"""The live view: one screen that is redrawn in place, with rich.

Screen and view come first, then the parts of the screen (table of bolts, checkpoint, progress),
then pictures of it: one moment of a run as SVG files, for a page, or to pass on.
"""

from __future__ import annotations

import io
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Final, TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowctl.core.events import FlowEvent
from flowctl.core.positions import show
from flowctl.core.records import Position
from flowctl.instrumentation import summary
from flowctl.instrumentation.call_lines import call_lines, dear_call, target_lines
from flowctl.instrumentation.event_text import EventLogger, repeated, sentence
from flowctl.instrumentation.numbers import (
    bar,
    clock,
    count,
    counted,
    duration,
    holes_bar,
    percent,
    rate,
)
from flowctl.instrumentation.plain import (
    is_routine,
    kill_cost,
    left_out,
    slow_line,
    store_away,
    target_down,
    verdict_line,
)
from flowctl.instrumentation.slow_bolts import (
    Condition,
    SlowBolt,
    condition,
    shares,
    slow_bolts,
)
from flowctl.instrumentation.snapshot import BoltView, PartitionView, Report, Snapshot, View
from flowctl.instrumentation.text import printable, printable_problem
from flowctl.instrumentation.views import BaseView, Beside

EVENTS_SHOWN = 5  # the newest events; the parts above must stay visible
# Headline, table head, checkpoint (2), progress, note, and the cursor: 12 bolts fit 24 lines.
_OTHER_LINES = 7


class Screen:
    """The parts of the screen: the headline, the state of the run, and the last few events.

    :meth:`render` needs no terminal, so pictures are drawn by it too.
    """

    def __init__(self, headline: str = "") -> None:
        self.headline = headline
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)

    def event(self, at: str, event: FlowEvent) -> None:
        """Note ``event`` if it is of interest to a person; ``at`` is the time to show."""
        text = sentence(event)
        if text and not is_routine(event):
            self._events.append(f"{at}  {text}")

    def note(self, at: str, text: str) -> None:
        """Note a line among the events."""
        self._events.append(f"{at}  {text}")

    def render(self, snapshot: Snapshot, *, width: int, height: int) -> Group:
        """Return the whole screen for ``snapshot`` on ``width`` columns and ``height`` lines."""
        lost, slow = "  ".join(left_out(snapshot)), slow_line(snapshot)
        verdict = wrap(verdict_line(snapshot), width)
        dear = dear_call(snapshot.dear_call)
        paced, stuck = target_lines(snapshot), call_lines(snapshot.long_calls)
        extra = len(verdict) + bool(lost) + bool(slow) + len(dear) + len(paced) + len(stuck)
        rows = max(3, height - _OTHER_LINES - EVENTS_SHOWN - extra)
        parts = [
            _line(self.headline, "bold"),
            *(_line(text, "" if snapshot.verdict.is_fine else "yellow") for text in verdict),
            *bolt_table(snapshot, rows_max=rows, width=width),
            *checkpoint_lines(snapshot, width=width),
            progress_line(snapshot),
        ]
        if slow:
            parts.append(_line(slow, "yellow"))
        parts += [_line(text, "yellow") for text in stuck]
        parts += [_line(text, "") for text in paced]
        parts += [_line(text, "dim") for text in dear]
        if lost:
            parts.append(_line(lost, "yellow"))
        if snapshot.note:
            parts.append(_line(snapshot.note, "yellow"))
        if snapshot.target_down_s is not None:
            parts.append(_line(target_down(snapshot), "bold red"))
        if snapshot.store_away_s is not None:
            parts.append(_line(store_away(snapshot), "bold red"))
        parts += [_line(text, "dim") for text in self._events]
        return Group(*parts)


class LiveView(BaseView):
    """Redraws on every :meth:`update`; keeps the last few events with their reasons."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        logger: EventLogger | None = None,
    ) -> None:
        super().__init__(clock=clock, logger=logger)
        self._console = console or Console(file=stream, highlight=False)
        self._screen = Screen()
        self._last: Snapshot | None = None
        self._live: Live | None = None

    def start(self, job: str, headline: str) -> None:
        super().start(job, headline)
        self._screen.headline = headline
        # Redrawn only by update(): a refresh thread of rich's would race with the caller.
        live = self._live = Live(
            Text(printable(headline)),
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
        )
        self._show(lambda: live.start(refresh=True))

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        self._last = snapshot
        self._draw()

    def show_event(self, event: FlowEvent) -> None:
        self._screen.event(self.now(), event)

    def show_repeats(self, event: FlowEvent, count: int) -> None:
        self._screen.note(self.now(), repeated(event, count))

    def message(self, text: str) -> None:
        # As Text: markup and emoji codes in foreign text have no effect.
        shown = Text(printable_problem(text))
        self._show(lambda: self._console.print(shown, highlight=False))

    def stop(self, report: Report) -> None:
        super().stop(report)
        if self._live is not None:
            self._draw()
            self._end()
        for text in summary.lines(report):
            self.message(text)

    def leave(self) -> None:
        self._end()

    def render(self, snapshot: Snapshot) -> Group:
        """Return the whole screen for ``snapshot``."""
        size = self._console.size
        return self._screen.render(snapshot, width=size.width, height=size.height)

    def _draw(self) -> None:
        live, last = self._live, self._last
        if live is not None and last is not None:
            self._show(lambda: live.update(self.render(last), refresh=True))
        if self._is_lost:
            self._end()

    def _end(self) -> None:
        """Give back the terminal and the standard streams, whether the terminal is still there or
        not.
        """
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):
                live.stop()


def _line(text: str, style: str) -> Text:
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


# -- parts of the screen -----------------------------------------------------------------------

_NAME_CELLS = 14  # cells of a partition's name: enough to know a path by its end
_BAR_CELLS_MIN = 6  # a shorter bar shows nothing
_BAR_CELLS_MAX = 40  # a longer bar shows no more
_STATE_CELLS = len("refused")  # the longest of Condition
_SHARE_CELLS = len(" 100 %")
_NOTE_CELLS = len("8.4x slower")  # what follows may be cut
_NOTE_CELLS_MIN = len("8.4x…")
# Columns of the terminal from which on a column of the table is shown.
_WIDE, _WIDER = 100, 140
# Cells that a column keeps, so that the table doesn't jump when its numbers grow.
_CELLS = {
    "rate": 9,
    "in flight": 9,
    "rtt p50": 7,
    "records": 9,
    "of all": 6,
    "window": 6,
    "service": 7,
}
# A healthy run has no colours: a colour shows what may need a look.
_STYLES: dict[Condition, str] = {
    "normal": "",
    "slow": "yellow",
    "refused": "yellow",
    "busy": "red",
    "down": "bold red",
}
_BAR_STYLE = "cyan"


def bolt_table(snapshot: Snapshot, *, rows_max: int, width: int) -> list[RenderableType]:
    """Return one row per bolt: its condition, its recent share and rate, and what it holds.

    Wider terminals also show its total, its window, and its service time.
    """
    slow = slow_bolts(snapshot)
    shown = choose(snapshot.bolts, rows_max=rows_max, slow=slow)
    names = {bolt.name for bolt in shown}
    hidden = [bolt for bolt in snapshot.bolts if bolt.name not in names]
    columns = _columns(width, shown)
    has_notes = _other_cells(columns, shown) + _BAR_CELLS_MIN + _NOTE_CELLS_MIN <= width
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("bolt", "state", "share"):
        table.add_column(name, no_wrap=True, min_width=4)
    for name in columns:
        table.add_column(name, no_wrap=True, justify="right", min_width=_CELLS[name])
    if has_notes:
        table.add_column("")  # the only column that gives way, as all others refuse to wrap
    share = shares(snapshot.bolts)
    widest = max((each or 0.0 for each in share.values()), default=0.0)
    room = width - _other_cells(columns, shown) - _NOTE_CELLS
    cells = max(_BAR_CELLS_MIN, min(_BAR_CELLS_MAX, room))
    for bolt in shown:
        style = _STYLES[condition(bolt, slow)]
        note = Text(_note(bolt, slow), style=style, no_wrap=True, overflow="ellipsis")
        table.add_row(
            *_row(bolt, slow, share[bolt.name], widest=widest, cells=cells),
            *(_cell(bolt, name) for name in columns),
            *([note] if has_notes else []),
        )
    return [table, _others(hidden, slow)] if hidden else [table]


def _columns(width: int, shown: Sequence[BoltView]) -> list[str]:
    columns = ["rate", "in flight", "rtt p50"]
    if width >= _WIDE:
        columns += ["records", "of all"]
    if width >= _WIDER:
        columns += ["service", "window"]
    gap = 2  # no gap behind the last column
    while columns and _other_cells(columns, shown) + _BAR_CELLS_MIN - gap > width:
        columns.pop()  # a column without room would cut the others
    return columns


def _other_cells(columns: Sequence[str], shown: Sequence[BoltView]) -> int:
    """Return how many columns a row needs beside bar and note: numbers and gaps, name, state,
    share.
    """
    names = max((cell_len(printable(bolt.name)) for bolt in shown), default=0)
    fixed = (max(names, len("bolt")), _STATE_CELLS, _SHARE_CELLS, *(_CELLS[n] for n in columns))
    return sum(cells + 2 for cells in fixed)


def choose(
    bolts: Sequence[BoltView], *, rows_max: int, slow: Mapping[str, SlowBolt] = MappingProxyType({})
) -> list[BoltView]:
    """Return the bolts to show, in order: all, or those in trouble and then the busiest."""
    if len(bolts) <= rows_max:
        return list(bolts)
    trouble = ("down", "busy", "refused", "slow", "normal")
    ranked = sorted(
        bolts,
        key=lambda b: (trouble.index(condition(b, slow)), -b.moved_away, -b.in_flight),
    )
    best = {bolt.name for bolt in ranked[: max(1, rows_max - 1)]}
    return [bolt for bolt in bolts if bolt.name in best]


def _row(
    bolt: BoltView,
    slow: Mapping[str, SlowBolt],
    share: float | None,
    *,
    widest: float,
    cells: int,
) -> list[RenderableType]:
    how = condition(bolt, slow)
    # The number has a cell for each of "100 %"; below ten it keeps a digit.
    number = percent(share, digits=1 if share is not None and share < 0.0995 else 0)
    drawn = Text(f"{bar(share or 0.0, widest, cells):<{cells}}", style=_STYLES[how] or _BAR_STYLE)
    return [
        Text(printable(bolt.name)),  # rich would read a str as markup
        Text(how, style=_STYLES[how]),
        drawn.append(f" {number:>5}", style=_STYLES[how] or "default"),
    ]


def _cell(bolt: BoltView, column: str) -> str:
    match column:
        case "rate":
            return rate(bolt.records_per_s)
        case "in flight":
            return count(bolt.in_flight)
        case "rtt p50":
            return duration(bolt.ack_rtt_p50_s)
        case "records":
            return count(bolt.records_acked)
        case "of all":
            return percent(bolt.share, digits=1)
        case "service":
            return duration(bolt.service_p50_s)
        case _:
            return count(bolt.window)


def _note(bolt: BoltView, slow: Mapping[str, SlowBolt]) -> str:
    facts = [slow[bolt.name].text] if bolt.name in slow and bolt.up else []
    if bolt.moved_away:
        facts.append(f"{count(bolt.moved_away)} moved away")
    return ", ".join(facts)


def _others(hidden: Sequence[BoltView], slow: Mapping[str, SlowBolt]) -> Text:
    found = Counter(condition(bolt, slow) for bolt in hidden)
    listed = ", ".join(f"{n} {state}" for state, n in sorted(found.items()))
    lately = rate(sum(bolt.records_per_s for bolt in hidden))
    records = count(sum(bolt.records_acked for bolt in hidden))
    text = f"and {len(hidden)} more: {listed}; {lately}; {records} records"
    return Text(text, no_wrap=True, overflow="ellipsis")


def checkpoint_lines(snapshot: Snapshot, *, width: int) -> list[Text]:
    """Return the checkpoint: what is saved, the fullest partition as a bar, the price of a kill."""
    saved = f"checkpoint  {count(snapshot.records_saved)} saved  {counted(snapshot.holes, 'hole')}"
    lines = [saved, f"{'':12}{kill_cost(snapshot)}"]
    if snapshot.partitions:
        lines[0] += _partition(snapshot.partitions[0], room=width - len(saved))
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]


def _partition(part: PartitionView, *, room: int) -> str:
    name = printable(part.name)
    name = name if len(name) <= _NAME_CELLS else "…" + name[1 - _NAME_CELLS :]
    through = f"  {name} {printable(show(part.position))} "
    top = f" {printable(show(part.acked_above[-1].last))}" if part.acked_above else ""
    for before, after in ((through, top), (through, ""), ("  ", "")):
        cells = min(_BAR_CELLS_MAX, room - len(before) - len(after))
        if cells >= _BAR_CELLS_MIN:
            return before + holes_bar(bar_parts(part), cells) + after
    return ""


def bar_parts(part: PartitionView) -> list[tuple[bool, float]]:
    """Return the runs after the cumulative ack as (acked, size), preceded by a stub for the part
    before it.

    Sizes are by position if positions count something (offsets); if not, an acked run is as long as
    its number of records, and a hole, whose size is unknown, has the shortest length.
    """
    parts: list[tuple[bool, float]] = []
    end = _number(part.position)
    for run in part.acked_above:
        first, last = _number(run.first), _number(run.last)
        if end is None or first is None or last is None:
            parts += [(False, 0.0), (True, float(run.records))]
        else:
            parts += [(False, max(0.0, first - end)), (True, max(0.0, last - first))]
        end = last
    # To scale, the part done below the holes would dwarf them: it gets a fifth of the bar.
    done = sum(size for _, size in parts) / 4
    return [(True, done or 1.0), *parts]


def _number(position: Position | None) -> float | None:
    if isinstance(position, tuple):
        position = position[0] if position else None
    return float(position) if isinstance(position, int | float) else None


def progress_line(snapshot: Snapshot) -> Text:
    """Return records done, share of the source, rate and time to go."""
    facts = [f"records {count(snapshot.records_acked)}"]
    if snapshot.records_skipped:
        facts.append(f"skipped {count(snapshot.records_skipped)} already acked")
    if snapshot.progress is not None:
        facts.append(percent(snapshot.progress))
    facts += [rate(snapshot.records_per_s), clock(snapshot.elapsed_s)]
    if snapshot.eta_s is not None:
        facts.append(f"ETA {clock(snapshot.eta_s)}")
    if snapshot.phase != "running":
        facts.append(snapshot.phase)
    return Text("  ".join(facts), style="bold", no_wrap=True, overflow="ellipsis")


# -- pictures ----------------------------------------------------------------------------------

# The usual widths of a terminal: an old one, half a screen, a whole one.
COLUMNS: Final = (80, 108, 160)
_LINES = 40
# The fonts that rich's pictures load from the web: a stored picture should need no network.
_WEB_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Picture(Beside):
    """Draws one moment of the run, beside the view that shows it.

    ``at_s``: how long after the first ack [s]; if the run ends before, its last moment.  With
    several ``columns``, each width has a file of its own: ``view-80.svg`` beside ``view-108.svg``.
    """

    def __init__(
        self, inner: View, path: Path, *, at_s: float, columns: Sequence[int], title: str
    ) -> None:
        super().__init__(inner)
        self._files = {
            width: path if len(columns) == 1 else path.with_stem(f"{path.stem}-{width}")
            for width in columns
        }
        self._at_s = at_s
        self._title = title
        self._screen = Screen()
        self._first_ack_s: float | None = None
        self._last: Snapshot | None = None
        self._is_drawn = False

    def start(self, job: str, headline: str) -> None:
        self._screen.headline = headline
        super().start(job, headline)

    def update(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        if self._first_ack_s is None and snapshot.records_acked:
            self._first_ack_s = snapshot.elapsed_s
        if self._first_ack_s is not None and snapshot.elapsed_s - self._first_ack_s >= self._at_s:
            self._draw()
        super().update(snapshot)

    def event(self, event: FlowEvent) -> None:
        at_s = self._last.elapsed_s if self._last is not None else 0.0
        self._screen.event(clock(at_s, tenths=True), event)
        super().event(event)

    def stop(self, report: Report) -> None:
        self._draw()
        super().stop(report)

    def _draw(self) -> None:
        if self._is_drawn or self._last is None:
            return
        self._is_drawn = True
        for width, path in self._files.items():
            path.write_text(self._svg(self._last, width), encoding="utf-8")

    def _svg(self, snapshot: Snapshot, width: int) -> str:
        console = Console(
            width=width,
            height=_LINES,
            record=True,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            highlight=False,
        )
        console.print(self._screen.render(snapshot, width=width, height=_LINES))
        svg = console.export_svg(title=self._title, unique_id="flowctl")
        return _WEB_FONTS.sub("", svg)
