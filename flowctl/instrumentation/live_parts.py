"""The parts of the live screen: table of bolts, checkpoint bar, progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from flowctl.core.events import BoltState
from flowctl.core.positions import show
from flowctl.core.records import Position
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
from flowctl.instrumentation.plain import held_up, kill_cost
from flowctl.instrumentation.snapshot import BoltView, PartitionView, Snapshot
from flowctl.instrumentation.text import printable

# More do not fit a screen beside the rest; of more than that the most interesting are shown.
BOLTS_SHOWN_ALL = 16
BOLTS_SHOWN_BEST = 12
_NAME_CELLS = 14  # of a partition's name: enough of a path's end to know it
_BAR_CELLS_MIN = 6  # a shorter bar shows nothing
_BAR_CELLS_MAX = 40
_WIDE = 100  # columns from which on there is room for a longer bar
_COLOURS = {BoltState.NORMAL: "green", BoltState.SLOW: "yellow", BoltState.BUSY: "red"}
_COLUMNS = {"in flight": 9, "rtt p50": 7, "acked": 7, "share": 5}  # name: cells that it keeps


def bolt_table(snapshot: Snapshot, *, rows_max: int, width: int) -> list[RenderableType]:
    """Return a row a bolt: state, window, in flight, rtt, acked, share of all acked tuples."""
    shown = choose(snapshot.bolts, rows_max=rows_max)
    hidden = [bolt for bolt in snapshot.bolts if bolt not in shown]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("bolt", "state", "window"):
        table.add_column(name, no_wrap=True, min_width=4)
    for name, cells in _COLUMNS.items():
        table.add_column(name, no_wrap=True, justify="right", min_width=cells)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    widest = max((bolt.window for bolt in snapshot.bolts), default=1)
    for bolt in shown:
        table.add_row(*_row(bolt, widest, cells=20 if width >= _WIDE else 10))
    return [table, _others(hidden)] if hidden else [table]


def choose(bolts: Sequence[BoltView], *, rows_max: int) -> list[BoltView]:
    """Return the bolts to show, in their order: all, or those in trouble and then the busiest."""
    limit = rows_max if len(bolts) <= BOLTS_SHOWN_ALL else min(rows_max, BOLTS_SHOWN_BEST)
    if len(bolts) <= limit:
        return list(bolts)
    ranked = sorted(bolts, key=lambda b: (b.up, _calm(b), -b.moved_away, -b.in_flight))
    best = {bolt.name for bolt in ranked[: max(1, limit - 1)]}
    return [bolt for bolt in bolts if bolt.name in best]


def _calm(bolt: BoltView) -> int:
    return [BoltState.BUSY, BoltState.SLOW, BoltState.NORMAL].index(bolt.state)


def _row(bolt: BoltView, widest: int, *, cells: int) -> list[RenderableType]:
    colour = _COLOURS[bolt.state] if bolt.up else "red"
    window = f"{bar(bolt.window, widest, cells):<{cells}} {bolt.window:>3}"
    moved = f"{count(bolt.moved_away)} moved away" if bolt.moved_away else ""
    return [
        Text(printable(bolt.name)),  # a str would be read as markup
        Text(bolt.state.value if bolt.up else "down", style=colour),
        Text(window, style=colour),
        count(bolt.in_flight),
        duration(bolt.ack_rtt_p50_s),
        count(bolt.acked),
        percent(bolt.share),
        Text(moved),
    ]


def _others(hidden: Sequence[BoltView]) -> Text:
    states = Counter(bolt.state.value if bolt.up else "down" for bolt in hidden)
    listed = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    windows = [bolt.window for bolt in hidden]
    acked = count(sum(bolt.acked for bolt in hidden))
    text = (
        f"and {len(hidden)} more: {listed}; windows {min(windows)} to {max(windows)}; {acked} acked"
    )
    return Text(text, no_wrap=True, overflow="ellipsis")


def checkpoint_lines(snapshot: Snapshot, *, width: int) -> list[Text]:
    """Return the checkpoint: what is saved, the fullest partition as a bar, the price of a kill."""
    holes = sum(len(part.acked_above) for part in snapshot.partitions)
    saved = f"checkpoint  {count(snapshot.records_saved)} saved  {counted(holes, 'hole')}"
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
    """Return the runs after the cumulative ack as (acked, size), with a stub of what is before it.

    Sizes are by position where positions count something (offsets); where they don't, an acked
    run is as long as its records and a hole, whose size is unknown, the shortest there is.
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
    # What is done below the holes would dwarf them to scale: a fifth of the bar stands for it.
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
    if held_up(snapshot):
        facts.append(held_up(snapshot))
    return Text("  ".join(facts), style="bold", no_wrap=True, overflow="ellipsis")
