"""The live view, rendered to a recorded console: are the facts on screen, at every width?"""

from __future__ import annotations

import errno
import io
import sys

import msgspec
import pytest
from rich.console import Console

from flowctl.core.events import BoltState, StateChanged, TupleExpired, TupleHedged, TupleMoved
from flowctl.core.records import AckedRange
from flowctl.instrumentation.live import LiveView, bar_parts, choose
from flowctl.instrumentation.numbers import holes_bar
from flowctl.instrumentation.snapshot import BoltView, Limit, PartitionView, Snapshot, Verdict


def bolt(number: int, **changes: object) -> BoltView:
    view = BoltView(
        name=f"b{number}",
        state=BoltState.NORMAL,
        up=True,
        window=20,
        in_flight=18,
        ack_rtt_p50_s=0.041,
        service_p50_s=0.02,
        acked=1904,
        share=0.09,
        records_acked=19_040,
        records_per_s=400.0,
    )
    return msgspec.structs.replace(view, **changes)


def snapshot(**changes: object) -> Snapshot:
    base = Snapshot(
        job="access-logs",
        elapsed_s=14.2,
        phase="running",
        bolts=(
            bolt(1),
            bolt(2, window=9, records_per_s=40.0),
            bolt(3, state=BoltState.BUSY, window=2, in_flight=2, ack_rtt_p50_s=0.41, moved_away=3),
            bolt(4),
        ),
        partitions=(
            PartitionView(
                name="a.log",
                position=5702,
                records=5702,
                acked_above=(AckedRange(5705, 5730, 26), AckedRange(5733, 5741, 9)),
            ),
        ),
        records_acked=142_000,
        records_per_s=4210.4,
        records_buffered=0,
        records_skipped=0,
        tuples_acked=1420,
        tuples_expired=1,
        tuples_moved=3,
        progress=0.71,
        eta_s=14.0,
        records_saved=5702,
        kill_reruns=12,
        kill_reruns_cumulative_only=39,
    )
    return msgspec.structs.replace(base, **changes)


def screen(shot: Snapshot, *, width: int = 120, height: int = 40, events: tuple = ()) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    view = LiveView(console=console, clock=lambda: 0.0)
    view.start("access-logs", "access-logs · 3 bolts")
    for event in events:
        view.show_event(event)
    console.print(view.render(shot))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_the_facts_are_on_screen(width: int) -> None:
    verdict = Verdict(limit=Limit.NOTHING, headline="nothing is wrong", why="all bolts are busy")
    shot = snapshot(held_up_by="backpressure", held_up_share=0.9, verdict=verdict)
    text = screen(shot, width=width)
    for fact in (
        "access-logs · 3 bolts", "nothing is wrong: all bolts are busy",
        "normal", "slow", "busy", "410 ms", "400/s", "40/s", "32 %", "3.2 %",
        "10x slower", "3 moved away", "b2 is 10x slower and gets 3.2 % (an equal share: 25.0 %)",
        "5 702 saved", "2 holes",
        "a kill now would run 12 records again (cumulative only: 39)",
        "records 142 000", "71 %", "4 210/s", "ETA 0:14",
    ):  # fmt: skip
        assert fact in text, fact


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = screen(snapshot(), width=width).splitlines()
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "columns"), [(40, ["rate"]), (50, ["rate", "in", "flight"])])
def test_a_narrow_terminal_shows_fewer_columns_and_cuts_none(
    width: int, columns: list[str]
) -> None:
    head, first, *_ = screen(snapshot(), width=width).splitlines()[1:]
    assert head.split() == ["bolt", "state", "share", *columns]
    assert "…" not in head + first and "400/s" in first


class Vanished(io.StringIO):
    """A terminal that is gone after some writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self._writes = writes

    def write(self, text: str) -> int:
        self._writes -= 1
        if self._writes < 0:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_terminal_that_vanished_does_not_end_the_run(writes: int) -> None:
    logged = []

    class Logger:
        def log(self, level: int, event: str, **_: object) -> None:
            logged.append(event)

    streams = sys.stdout, sys.stderr
    console = Console(file=Vanished(writes), force_terminal=True)
    view = LiveView(console=console, clock=lambda: 0.0, logger=Logger())  # type: ignore[arg-type]
    view.start("access-logs", "access-logs · 3 bolts")
    for _ in range(3):
        view.update(snapshot())
        view.message("a line")
    assert logged == ["view_lost"]
    assert (sys.stdout, sys.stderr) == streams, "what the job prints goes its own way again"


def test_holes_are_drawn_from_the_acked_ranges() -> None:
    line = next(row for row in screen(snapshot()).splitlines() if "holes" in row)
    bar = line.split("5702 ")[1].split(" 5741")[0]
    assert bar.strip("█").count("░") >= 2
    assert bar.startswith("█") and bar.endswith("█")


def test_the_bar_loses_its_labels_before_it_goes() -> None:
    part = PartitionView(
        name="logs/access-0.log",
        position=(2_293_423, 12_200),
        records=12_200,
        acked_above=(AckedRange((2_300_000, 12_240), (2_400_000, 12_700), 460),),
    )
    shot = snapshot(partitions=(part,))
    wide = screen(shot, width=120)
    narrow = screen(shot, width=80)
    assert "2293423:12200" in wide and "2400000:12700" in wide
    assert "2293423:12200" in narrow and "2400000:12700" not in narrow
    assert "░" in next(row for row in narrow.splitlines() if "hole" in row)


def test_twelve_bolts_fit_a_terminal_of_24_lines() -> None:
    text = screen(snapshot(bolts=tuple(bolt(n) for n in range(1, 13))), width=80, height=24)
    assert all(f"\nb{n} " in text for n in range(1, 13))


def test_positions_that_are_no_numbers_still_make_a_bar() -> None:
    part = PartitionView(
        name="keys", position="k1", records=1, acked_above=(AckedRange("k3", "k7", 5),)
    )
    assert holes_bar(bar_parts(part), 20).count("░") == 1


def test_many_bolts_show_those_in_trouble_and_a_summary() -> None:
    bolts = tuple(
        bolt(n, state=BoltState.BUSY if n == 50 else BoltState.NORMAL, up=n != 60)
        for n in range(1, 65)
    )
    shown = [view.name for view in choose(bolts, rows_max=12)]
    assert {"b50", "b60"} <= set(shown) and len(shown) == 11
    text = screen(snapshot(bolts=bolts))
    left = 64 - sum(f"\nb{n} " in text for n in range(1, 65))
    assert left < 50, "the screen's height is used"
    assert f"and {left} more: {left} normal" in text


def test_wide_terminals_show_more_and_longer_bars() -> None:
    def head(width: int) -> list[str]:
        return screen(snapshot(), width=width).splitlines()[1].split()

    assert set(head(80)) < set(head(108)) < set(head(160))
    bars = [max(len(row.split()[2]) for row in screen(snapshot(), width=w).splitlines()
                if row.startswith("b1 ")) for w in (80, 108, 160)]  # fmt: skip
    assert bars[0] < bars[1] < bars[2]


@pytest.mark.parametrize("width", [80, 100, 108, 140, 160])
@pytest.mark.parametrize("stage", ["b", "enrich-addresses."])
def test_a_note_on_a_row_cuts_no_other_column(width: int, stage: str) -> None:
    bolts = [bolt(n, name=f"{stage}{n}") for n in range(1, 13)]
    bolts[4] = bolt(5, name=f"{stage}5", records_per_s=40.0, moved_away=1234)
    shot = snapshot(bolts=tuple(bolts), held_up_by="backpressure", held_up_share=0.9)
    head, *rows = screen(shot, width=width).splitlines()[1:14]
    assert head.split()[:4] == ["bolt", "state", "share", "rate"]
    for number, row in enumerate(rows, start=1):
        name, state, *_ = row.split()
        assert (name, state) == (f"{stage}{number}", "slow" if number == 5 else "normal")
        assert ("0.9 %" if number == 5 else "9.0 %") in row
        assert (" 40/s" if number == 5 else " 400/s") in row
    assert ("10x slower" if stage == "b" else "10x") in rows[4]


def test_a_healthy_run_has_no_colour_of_alarm() -> None:
    """Single late round trips, moves and copies at the end are part of it."""
    bolts = tuple(bolt(n, state=BoltState.SLOW, moved_away=1) for n in range(1, 5))
    styles = colours(snapshot(bolts=bolts, phase="draining"))
    assert not styles & {"yellow", "red"}
    assert "yellow" in colours(snapshot(held_up_by="backpressure", held_up_share=0.9))
    assert "red" in colours(snapshot(bolts=(bolt(1, up=False),)))


def colours(shot: Snapshot) -> set[str]:
    console = Console(width=100, height=40, file=io.StringIO())
    group = LiveView(console=console).render(shot)
    segments = [part for line in console.render_lines(group) for part in line]
    return {s.style.color.name for s in segments if s.style is not None and s.style.color}


def test_moves_and_late_round_trips_are_no_news() -> None:
    events = (
        TupleMoved(at_s=5.0, tuple_id=1, bolt="b1", moved_from="b2", attempt=2),
        TupleHedged(at_s=5.0, tuple_id=1, bolt="b1", slow_bolt="b2", attempt=2),
        StateChanged(
            at_s=5.0, bolt="b3", before=BoltState.NORMAL, after=BoltState.SLOW, reason="overdue"
        ),
    )
    assert screen(snapshot(), events=events) == screen(snapshot())


def test_a_short_terminal_still_shows_progress() -> None:
    text = screen(snapshot(bolts=tuple(bolt(n) for n in range(1, 13))), height=20)
    assert len(text.splitlines()) <= 20
    assert "ETA 0:14" in text


def test_events_give_their_reasons() -> None:
    text = screen(
        snapshot(),
        events=(
            StateChanged(
                at_s=5.0, bolt="b3", before=BoltState.NORMAL, after=BoltState.BUSY,
                reason="rtt", ack_rtt_s=0.41, threshold_s=0.12,
            ),
            TupleExpired(at_s=5.5, bolt="b3", tuple_id=5703, attempt=1, rto_s=1.0),
        ),
    )  # fmt: skip
    assert "b3  rtt 410 ms > 120 ms  NORMAL → BUSY" in text
    assert "b3  tuple 5703 expired: no ack within 1.0 s" in text


def test_store_away_and_notes_are_shown() -> None:
    text = screen(snapshot(store_away_s=12.0, note="waiting for 4 of 12 bolts"))
    assert "checkpoint store unavailable for 12.0 s" in text
    assert "waiting for 4 of 12 bolts" in text


@pytest.mark.parametrize("width", [80, 120])
def test_with_a_store_that_forgets_nothing_is_claimed_of_a_kill(width: int) -> None:
    text = screen(snapshot(store_survives=False), width=width)
    assert "kept in memory only: a kill starts over" in text
    assert "a kill now would run" not in text


def test_markup_in_names_is_text() -> None:
    assert "[red]x[/red]" in screen(snapshot(note="[red]x[/red]"))
