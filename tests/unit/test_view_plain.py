"""The plain view, the summary and the log: bounded lines, no control codes, stable names."""

from __future__ import annotations

import errno
import io
import json
import logging
import re

import msgspec
import pytest
import structlog

from flowctl.core import events as ev
from flowctl.errors import ConfigError
from flowctl.instrumentation import event_text, numbers, summary
from flowctl.instrumentation.live import LiveView
from flowctl.instrumentation.logging import get_logger
from flowctl.instrumentation.plain import (
    COLUMNS,
    EVENTS_PER_LINE,
    LINE_EVERY_S,
    QUIET_EVERY_S,
    PlainView,
    verdict_line,
)
from flowctl.instrumentation.plain import line as plain_line
from flowctl.instrumentation.snapshot import (
    BoltView,
    DearCall,
    Limit,
    LongCallView,
    Report,
    Snapshot,
    Verdict,
    Waits,
)
from flowctl.instrumentation.views import make_view, suits_live
from flowctl.logs import StdlibLogger
from flowctl.runtime.faults import target_down_error
from flowctl_storm.figures import TaskErrors, TopologyReport, TreeFigures

BOLT = BoltView(
    name="b1", state=ev.BoltState.NORMAL, up=True, window=4, in_flight=3,
    ack_rtt_p50_s=0.05, service_p50_s=0.04, acked=10, share=1.0,
)  # fmt: skip
DOWN = msgspec.structs.replace(BOLT, name="b2", up=False)
SNAPSHOT = Snapshot(
    job="j", elapsed_s=5.0, phase="running", bolts=(BOLT,), partitions=(),
    records_acked=42_000, records_per_s=8400.0, records_buffered=0, records_skipped=0,
    tuples_acked=420, tuples_expired=0, tuples_moved=0, progress=0.21, eta_s=19.0,
    records_saved=40_000, kill_reruns=1200, kill_reruns_cumulative_only=2400,
)  # fmt: skip
REPORT = Report(
    job="j", outcome="finished", error=None, elapsed_s=12.0, resumed=False, resumed_records=0,
    records_per_s=200_000 / 12, records_acked=200_000, records_skipped=0, records_total=200_000,
    records_saved=200_000, tuples_emitted=2003,
    tuples_acked=2000, tuples_expired=3, tuples_moved=3, tuples_failed=0, acks_late=1,
    acks_duplicate=2, bolts=(BOLT,), bolts_lost=0, checkpoint_saves=24, max_in_flight_records=900,
)  # fmt: skip


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def test_a_line_every_few_seconds_as_long_as_something_changes(out: io.StringIO) -> None:
    time = Time()
    view = PlainView(out, clock=time)
    view.start("j", "j · 1 bolt")
    per_s = 8400.0
    for _ in range(3):
        for _ in range(int(LINE_EVERY_S * 4)):  # four updates a second
            view.update(msgspec.structs.replace(SNAPSHOT, records_per_s=per_s))
            time.now_s += 0.25
        per_s *= 2
    lines = out.getvalue().splitlines()
    assert lines[0] == "j · 1 bolt"
    assert len(lines) == 1 + 3
    for fact in ("records 42 000", "21 %", "8 400/s", "ETA 0:19", "1 normal", "saved 40 000"):
        assert fact in lines[1]
    assert "a kill repeats 1 200" in lines[1]


def test_events_are_rate_limited_but_a_lost_bolt_is_always_shown(out: io.StringIO) -> None:
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    for n in range(50):
        view.event(ev.TupleExpired(at_s=1.0, bolt="b1", tuple_id=n, attempt=1, rto_s=1.0))
    view.event(ev.BoltRemoved(at_s=1.0, bolt="b1", epoch=1, moved=2, reason="worker died"))
    view.event(ev.BoltAdded(at_s=1.0, bolt="b1", epoch=2, slots=1))
    view.update(SNAPSHOT)
    text = out.getvalue()
    assert text.count("expired:") == EVENTS_PER_LINE
    assert f"and more: {50 - EVENTS_PER_LINE} × tuple expired" in text
    assert "b1  lost: worker died; 2 tuples to other bolts" in text
    assert "b1  back" in text


def test_what_a_healthy_run_has_many_of_is_counted_not_shown_one_by_one(out: io.StringIO) -> None:
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    normal, slow = ev.BoltState.NORMAL, ev.BoltState.SLOW
    for n in range(3):
        view.event(ev.StateChanged(at_s=1.0, bolt="b1", before=normal, after=slow, reason="rtt"))
        view.event(ev.TupleMoved(at_s=1.0, tuple_id=n, bolt="b1", moved_from="b2", attempt=2))
    view.event(ev.TupleHedged(at_s=1.0, tuple_id=9, bolt="b1", slow_bolt="b2", attempt=2))
    view.stop(REPORT)
    assert out.getvalue().splitlines()[1] == (
        "0:00.0  and more: 3 changes between NORMAL and SLOW, 1 tuple run twice, "
        "3 tuples sent again"
    )
    assert "sent again to" not in out.getvalue()


def test_the_line_names_the_slow_bolt_and_what_it_gets(out: io.StringIO) -> None:
    bolts = tuple(
        msgspec.structs.replace(BOLT, name=f"b{n}", records_per_s=10.0 if n == 2 else 100.0)
        for n in range(1, 5)
    )
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    view.update(
        msgspec.structs.replace(SNAPSHOT, bolts=bolts, held_up_by="backpressure", held_up_share=0.9)
    )
    assert "bolts 3 normal, 1 slow" in out.getvalue()
    assert "b2 is 10x slower and gets 3.2 % (an equal share: 25.0 %)" in out.getvalue()


def test_with_a_store_that_forgets_nothing_is_claimed_of_a_kill(out: io.StringIO) -> None:
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    view.update(msgspec.structs.replace(SNAPSHOT, store_survives=False))
    assert "kept in memory only: a kill starts over" in out.getvalue()
    assert "a kill now would run" not in out.getvalue()


def test_the_store_going_and_coming_is_one_line_each(out: io.StringIO) -> None:
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    for away_s in (1.0, 2.0, 3.0, None, None):
        view.update(msgspec.structs.replace(SNAPSHOT, store_away_s=away_s))
    assert out.getvalue().count("store unavailable") == 1
    assert out.getvalue().count("store back") == 1


def test_no_control_codes(out: io.StringIO) -> None:
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    view.update(SNAPSHOT)
    view.message("saved")
    view.stop(REPORT)
    assert all(c.isprintable() or c == "\n" for c in out.getvalue())


def test_summary_of_a_finished_run() -> None:
    text = "\n".join(summary.lines(REPORT))
    for fact in ("finished · 200 000 records in 0:12.0 · 16 667/s", "3 expired", "3 moved",
                 "1 late, 2 doubled", "200 000 records saved", "24 saves"):  # fmt: skip
        assert fact in text
    assert "resumed" not in text


@pytest.mark.req("S39", "S40")
def test_the_lines_say_why_the_run_is_not_faster_and_since_when(out: io.StringIO) -> None:
    verdict = Verdict(
        limit=Limit.TARGET, headline="the target is the limit", why="more bolts would not help",
        since_s=3.0,
    )  # fmt: skip
    view = PlainView(out, clock=Time())
    view.start("j", "j · 1 bolt")
    view.update(msgspec.structs.replace(SNAPSHOT, verdict=verdict))
    said = out.getvalue().splitlines()[2]
    assert re.fullmatch(
        r"0:00.0  the target is the limit since \d\d:\d\d:\d\d: more bolts would not help", said
    )


@pytest.mark.parametrize("limit", [Limit.STARTING, Limit.TARGET_DOWN])
def test_what_is_not_known_or_told_by_another_line_is_not_a_verdict(limit: Limit) -> None:
    assert not verdict_line(msgspec.structs.replace(SNAPSHOT, verdict=Verdict(limit=limit)))


def test_no_line_about_the_state_is_wider_than_a_hundred_columns(out: io.StringIO) -> None:
    verdict = Verdict(limit=Limit.TARGET, headline="the target is the limit", why="word " * 60)
    call = LongCallView(bolt="b1", partition="p" * 40, first=7, last=9 * 10**30, for_s=3600.0)
    shot = msgspec.structs.replace(
        SNAPSHOT, verdict=verdict, records_acked=10**12, records_saved=10**12, kill_reruns=10**9,
        records_rejected=10**7, records_dead_lettered=10**7, long_calls=(call,),
    )  # fmt: skip
    view = PlainView(out, clock=Time())
    view.start("j", "j · 1 bolt")
    view.update(shot)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert "a kill repeats 1 000 000 000" in " ".join(lines)


def test_while_nothing_changes_a_line_a_minute_says_so(out: io.StringIO) -> None:
    time = Time()
    view = PlainView(out, clock=time)
    view.start("j", "j · 1 bolt")
    for looks in range(int(4 * 10 * QUIET_EVERY_S)):  # ten minutes, four looks a second
        view.update(msgspec.structs.replace(SNAPSHOT, records_acked=100 * looks))
        time.now_s += 0.25
    assert len(out.getvalue().splitlines()) == 1 + 10
    view.update(msgspec.structs.replace(SNAPSHOT, bolts=(BOLT, DOWN)))
    assert "1 down" in "".join(out.getvalue().splitlines()[1 + 10 :])


def test_before_the_first_tuple_the_line_says_what_it_waits_for_and_nothing_else() -> None:
    """Kind: a view that states as known what isn't.  For 30 s while Spark started it said
    ``bolts none yet … a kill now would run 0 records again … draining``."""
    shot = msgspec.structs.replace(
        SNAPSHOT, phase="starting", note="starting Spark, waiting for 4 bolts", bolts=(),
        records_acked=0, progress=0.0, eta_s=None,
    )  # fmt: skip
    assert plain_line(shot) == "records 0  0 %  starting Spark, waiting for 4 bolts"


@pytest.mark.req("S39", "S40")
def test_the_summary_says_how_long_the_spout_waited_and_for_what() -> None:
    waits = Waits(backpressure_s=7.25, max_pending_s=0.1, no_input_s=9.0, last_tuples_s=0.5)
    text = "\n".join(summary.lines(msgspec.structs.replace(REPORT, waits=waits)))
    assert (
        "the spout waited 0:09.0 for input, 0:07.2 for busy bolts,"
        " 0:00.5 for bolts, which hold all that is left\n" in text
    )
    assert "the spout waited" not in "\n".join(summary.lines(REPORT))


def test_summary_of_a_resumed_run() -> None:
    report = msgspec.structs.replace(REPORT, resumed=True, resumed_records=5702, records_skipped=27)
    assert "resumed at 5 702, skipped 27 already acked" in "\n".join(summary.lines(report))


def test_summary_says_that_nothing_was_left_to_do() -> None:
    report = msgspec.structs.replace(
        REPORT, resumed=True, resumed_records=200_000, records_acked=0, elapsed_s=0.0
    )
    told = (
        "nothing to do: all 200 000 records were done before;"
        f" `flowctl checkpoint clear {REPORT.job}` begins anew"
    )
    assert told in summary.lines(report)


def test_summary_names_the_interruption_and_what_kept_it_from_saving() -> None:
    unsaved = msgspec.structs.replace(REPORT, outcome="interrupted", error="store away\nmore")
    assert summary.lines(unsaved)[0].startswith("interrupted, not all saved")
    assert summary.lines(unsaved)[-1] == "error: store away"
    stopped = msgspec.structs.replace(REPORT, outcome="interrupted")
    assert summary.lines(stopped)[0].startswith("interrupted and saved")


def test_summary_leaves_an_error_that_is_raised_to_whoever_catches_it() -> None:
    failed = msgspec.structs.replace(REPORT, outcome="failed", error="bad line")
    assert summary.lines(failed)[0].startswith("failed")
    assert "bad line" not in "\n".join(summary.lines(failed))


@pytest.mark.req("S121")
def test_every_event_has_a_stable_name() -> None:
    classes = [
        value for value in vars(ev).values()
        if isinstance(value, type) and issubclass(value, ev.FlowEvent) and value is not ev.FlowEvent
    ]  # fmt: skip
    assert {cls.__name__: event_text.NAMES[cls] for cls in classes} == {
        "BoltAdded": "bolt_added",
        "BoltRemoved": "bolt_removed",
        "WindowChanged": "window_changed",
        "SinkCapChanged": "sink_cap_changed",
        "StateChanged": "state_changed",
        "TupleExpired": "tuple_expired",
        "TupleHedged": "tuple_hedged",
        "TupleLost": "tuple_lost",
        "TupleMoved": "tuple_moved",
        "TupleFailed": "tuple_failed",
        "TupleRefused": "tuple_refused",
        "TupleCut": "tuple_cut",
        "RangeSplit": "range_split",
        "RecordsRejected": "records_rejected",
        "TargetWentDown": "target_down",
        "TargetCameBack": "target_back",
        "TupleGaveUp": "tuple_gave_up",
        "TupleDeadLettered": "tuple_dead_lettered",
        "TupleDropped": "tuple_dropped",
        "EmitUndelivered": "emit_undelivered",
        "TreesHeldUp": "trees_held_up",
        "PeerDropped": "peer_dropped",
        "PartitionTakenAway": "partition_taken_away",
        "PartitionGiven": "partition_given",
        "IntakePaused": "intake_paused",
        "IntakeResumed": "intake_resumed",
    }


@pytest.mark.req("S116")
@pytest.mark.req("S121")
def test_events_reach_structlog_as_plain_fields(out: io.StringIO) -> None:
    event = ev.StateChanged(
        at_s=2.0, bolt="b3", before=ev.BoltState.SLOW, after=ev.BoltState.BUSY, reason="expired"
    )
    with structlog.testing.capture_logs() as logs:
        PlainView(out, logger=structlog.get_logger()).event(event)
    assert logs == [
        {
            "event": "state_changed", "log_level": "info", "at_s": 2.0, "bolt": "b3",
            "before": "SLOW", "after": "BUSY", "reason": "expired",
            "ack_rtt_s": None, "threshold_s": None, "silent_s": None,
        }
    ]  # fmt: skip
    json.dumps(logs)


def test_the_library_stays_silent_until_logging_is_set_up(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    event = ev.BoltRemoved(at_s=1.0, bolt="b1", epoch=1, moved=0, reason="gone")
    structlog.reset_defaults()  # capture_logs elsewhere leaves it configured
    logging.getLogger("flowctl").propagate = False
    try:
        event_text.log_event(get_logger(), event)
    finally:
        logging.getLogger("flowctl").propagate = True
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.WARNING, logger="flowctl"):
        event_text.log_event(get_logger(), event)
    assert (caplog.records[0].event, caplog.records[0].reason) == ("bolt_removed", "gone")
    assert caplog.messages == ["bolt_removed at_s=1.0 bolt='b1' epoch=1 moved=0 reason='gone'"]


def test_a_field_that_has_the_name_of_an_attribute_of_log_records_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="flowctl"):
        StdlibLogger(logging.getLogger("flowctl")).log(logging.INFO, "x", name="n", args=(1,))
    assert (caplog.records[0].name, caplog.records[0].name_) == ("flowctl", "n")
    assert caplog.messages == ["x name='n' args=(1,)"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_auto_is_live_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    assert isinstance(make_view("auto", stream=Terminal()), LiveView)
    assert isinstance(make_view("auto", stream=io.StringIO()), PlainView)
    monkeypatch.setenv("CI", "1")
    assert not suits_live(Terminal())
    monkeypatch.delenv("CI")
    monkeypatch.setenv("TERM", "dumb")
    assert not suits_live(Terminal())
    with pytest.raises(ConfigError, match="auto, live, plain, quiet or page"):
        make_view("fancy")  # type: ignore[arg-type]


def test_numbers() -> None:
    assert numbers.count(142000) == "142 000"
    assert numbers.clock(3723.96, tenths=True) == "1:02:03.9"
    assert numbers.clock(14) == "0:14"
    assert numbers.duration(0.0414) == "41 ms"
    assert numbers.duration(0.00041) == "0.4 ms"
    assert numbers.percent(0.9999) == "99 %"
    assert numbers.percent(1.0) == "100 %"
    assert numbers.rate(0.5) == "0.5/s"
    assert numbers.bar(0.1, 100, 10) == "█"
    assert numbers.holes_bar([(True, 1), (False, 0.0), (True, 100)], 10).count("░") == 1


@pytest.mark.req("S68", "S85")
def test_a_topologys_summary_tells_of_trees_and_of_reported_errors() -> None:
    trees = TreeFigures(
        complete=20_000,
        failed=100,
        expired=0,
        replayed=80,
        pending_now=0,
        ledger_now=0,
        orphans=0,
        dropped_emits=0,
    )
    errors = [TaskErrors(task=f"store.{n}", count=n, latest=(f"E{n}",)) for n in range(1, 6)]
    report = TopologyReport(**msgspec.structs.asdict(REPORT), trees=trees, errors=tuple(errors))
    told = summary.lines(report)
    assert "trees 20 000 complete · 0 expired · 100 failed · 80 sent again" in told
    assert "store.1 reported 1 error, the last E1" in told
    assert "and 2 more tasks reported errors" in told


def test_a_dear_call_is_told_once_and_in_the_summary(out: io.StringIO) -> None:
    time, dear = Time(), DearCall(0.3, 812)
    view = PlainView(out, clock=time)
    view.start("j", "j · 1 bolt")
    for _ in range(3):
        view.update(msgspec.structs.replace(SNAPSHOT, dear_call=dear))
        time.now_s += LINE_EVERY_S
    told = "a call costs 0.3 s whatever its size: tuples hold about 812 records"
    assert out.getvalue().count(told) == 1
    assert told in summary.lines(msgspec.structs.replace(REPORT, dear_call=dear))


@pytest.mark.parametrize("has_refused", [True, False])
def test_of_a_target_that_is_down_it_is_said_whether_process_may_be_wrong(
    has_refused: bool,
) -> None:
    down = ev.TargetWentDown(at_s=1.0, reason="RuntimeError: boom", has_refused=has_refused)
    for text in (event_text.sentence(down), str(target_down_error(down, 601.0))):
        assert "RuntimeError: boom" in text
        assert ("process itself" in text) is not has_refused


def test_what_nobody_receives_is_undelivered_and_not_lost() -> None:
    """A tuple is lost if it never arrives, and is sent again: one word for each (glossary)."""
    event = ev.EmitUndelivered(
        at_s=1.0, bolt="p.1", source="p/odd", emits=5, reason="nobody receives stream 'odd' of 'p'"
    )
    said = "p.1  5 emits undelivered: nobody receives stream 'odd' of 'p'"
    assert event_text.sentence(event) == said


class Gone(io.StringIO):
    """``flowctl run 2>&1 | head -1``, or a full disk: only the first line is taken."""

    def write(self, text: str) -> int:
        if "\n" in self.getvalue():
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return super().write(text)


def test_nobody_who_reads_is_no_reason_to_end_the_run() -> None:
    gone, logged = Gone(), io.StringIO()

    class Logger:
        def log(self, level: int, event: str, **_: object) -> None:
            print(event, file=logged)

    view = PlainView(gone, clock=Time(), logger=Logger())  # type: ignore[arg-type]
    for text in ("one", "two", "three"):
        view.message(text)
    assert (gone.getvalue(), logged.getvalue()) == ("one\n", "view_lost\n")
