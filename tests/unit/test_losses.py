"""What a run leaves out: how much is too much, why it was, and how that is shown."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from flowctl.config import LossSettings, Settings
from flowctl.core.counters import Counters
from flowctl.core.events import RecordsRejected, TupleDeadLettered, TupleGaveUp
from flowctl.errors import ConfigError, InfrastructureError, TooManyLostError
from flowctl.instrumentation import summary
from flowctl.instrumentation.failure_groups import KINDS_MAX, OTHERS, Reasons, folded
from flowctl.instrumentation.plain import PlainView, line
from flowctl.instrumentation.snapshot import LossReason
from flowctl.runtime.control import RunControl
from flowctl.runtime.losses import SHARE_COUNTS_FROM, LossBudget, Losses
from flowctl_files import FileDeadLetter
from tests.listener_parts import Letters
from tests.unit.test_view_plain import REPORT, SNAPSHOT


def rejected(*reasons: str) -> RecordsRejected:
    return RecordsRejected(
        at_s=1.0, tuple_id=1, bolt="b1", partition="p",
        positions=tuple(range(len(reasons))), reasons=reasons,
    )  # fmt: skip


def gave_up(tuple_id: int, reason: str) -> TupleGaveUp:
    return TupleGaveUp(
        at_s=1.0, tuple_id=tuple_id, partition="p", first=1, last=1, attempts=3, bolts=("b1",),
        reason=reason,
    )  # fmt: skip


def dead_lettered(tuple_id: int, records: int) -> TupleDeadLettered:
    return TupleDeadLettered(
        at_s=1.0, tuple_id=tuple_id, partition="p", first=1, last=1, records=records
    )


# -- reasons -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("rejected: bad id 17", "bad id #"),
        ("ValueError: bad id '17-x', at record 5:6", "ValueError: bad id '…'"),
        ('KeyError: "a b"', "KeyError: '…'"),
        ("it can't be, and won't be", "it can't be, and won't be"),
        ("at 0x7f3a2b, 1.25 s", "at #, # s"),
        (
            "HTTPStatusError: Client error '422 Unprocessable Entity' for url 'http://h/1'",
            "HTTPStatusError: Client error '422 Unprocessable Entity' for url '…'",
        ),
        (
            "HTTPError: 404 Client Error: x for url: http://h/12",
            "HTTPError: 404 Client Error: x for url: http://h/#",
        ),
        ("Error code: 413 - too large by 12", "Error code: 413 - too large by #"),
        ("HTTP 400: field 7", "HTTP 400: field #"),
        ("first line\nsecond line", "first line"),
        ("x" * 500, "x" * 119 + "…"),
        ("", ""),
    ],
)
def test_reasons_that_differ_in_numbers_and_quotes_are_one(reason: str, kind: str) -> None:
    """A status is no number of a record: 404 and 422 are two kinds."""
    assert folded(reason) == kind


def test_the_most_frequent_come_first_of_rejected_and_given_up_alike() -> None:
    reasons = Reasons()
    reasons.take(gave_up(7, "ValueError: row 8, at record 9"))
    reasons.take(dead_lettered(7, 5))
    reasons.take(rejected("rejected: no id", "rejected: no id", "rejected: age -3"))
    reasons.take(dead_lettered(8, 1))
    assert reasons.most(3) == (
        LossReason("ValueError: row #", 5),
        LossReason("no id", 2),
        LossReason("age -#", 1),
    )
    assert reasons.most(9)[3] == LossReason("not known", 1)


def test_a_reason_of_its_own_for_each_record_does_not_add_up() -> None:
    reasons = Reasons()
    for n in range(1000):
        reasons.add("bad " + "abcdefghij"[n % 10] * (1 + n // 10), 1)
    assert len(reasons.most(10_000)) == KINDS_MAX + 1
    assert reasons.most(1)[0] == LossReason(OTHERS, 1000 - KINDS_MAX)


# -- the limit ---------------------------------------------------------------------------------


def test_a_count_allows_exactly_so_many() -> None:
    budget = LossBudget.parse("100")
    assert not budget.is_exceeded(100, 100, at_end=False)
    assert budget.is_exceeded(101, 1_000_000, at_end=False)
    assert LossBudget.parse("0").is_exceeded(1, 1, at_end=False)


@pytest.mark.parametrize("text", ["0.1%", "0.1 %", " 0.10% "])
def test_a_share_is_exact_and_counts_from_a_thousand_records_on_or_at_the_end(text: str) -> None:
    budget = LossBudget.parse(text)
    assert not budget.is_exceeded(1, SHARE_COUNTS_FROM - 1, at_end=False)
    assert budget.is_exceeded(1, SHARE_COUNTS_FROM - 1, at_end=True)
    assert not budget.is_exceeded(1, 1_000, at_end=False)
    assert budget.is_exceeded(2, 1_000, at_end=False)
    assert not budget.is_exceeded(200, 200_000, at_end=True)
    assert budget.is_exceeded(201, 200_000, at_end=True)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "%", "0,1%", "1e3", "5 percent", "inf%"])
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"loss\.fail_over: .* is neither a count nor a share"):
        LossBudget.parse(text)


@pytest.mark.parametrize("text", ["101%", "100.01 %", "1000%"])
def test_a_share_of_more_than_all_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--fail-over: '.*%' is more than all records"):
        LossBudget.parse(text, name="--fail-over")
    assert LossBudget.parse("100%").share == 1


def test_the_setting_takes_both_and_nothing_else() -> None:
    for text in ("100", "0.1%", "0.1 %"):
        assert Settings().with_overrides({"loss.fail_over": text}).loss.fail_over == text
    assert Settings().with_overrides({"loss.fail_over": "none"}).loss.fail_over is None
    with pytest.raises(ConfigError, match=r"loss\.fail_over"):
        Settings().with_overrides({"loss.fail_over": "many"})
    assert Losses(LossSettings(fail_over="5").fail_over, None, job="j")


def counters(**numbers: int) -> Counters:
    return Counters(**numbers)


def control(numbers: Counters) -> RunControl:
    core: Any = SimpleNamespace(counters=numbers)
    return RunControl(core)


def test_a_run_is_stopped_and_told_of_the_final_numbers_and_reasons() -> None:
    losses = Losses("10", FileDeadLetter(), job="my job")
    numbers = counters(records_acked=5_000, records_rejected=4, records_dead_lettered=6)
    run = control(numbers)
    losses.enforce(run)
    assert run.error is None and not run.stopping.is_set()
    numbers.records_dead_lettered = 7
    losses.enforce(run)
    assert isinstance(run.error, TooManyLostError) and run.stopping.is_set()
    losses.take(gave_up(1, "ValueError: row 7"))
    losses.take(dead_lettered(1, 7))
    numbers.records_dead_lettered = 9  # what was in flight came in
    told = losses.verdict(run.error, numbers)
    assert isinstance(told, TooManyLostError)
    for text in (
        "4 records rejected · 9 dead-lettered, of 5 000 records done in this run",
        "--fail-over allows 10", "Most frequent: ValueError: row # (7)",
        "flowctl dlq show 'my job'", "loss.fail_over",
    ):  # fmt: skip
        assert text in str(told)


def test_a_share_is_seen_without_a_further_loss_and_exactly_at_the_end() -> None:
    losses = Losses("0.1%", Letters(), job="j")
    numbers = counters(records_acked=999, records_rejected=2)
    run = control(numbers)
    losses.enforce(run)
    assert run.error is None
    numbers.records_acked = 1_000
    losses.enforce(run)
    assert isinstance(run.error, TooManyLostError)
    numbers.records_acked = 900
    told = losses.verdict(None, numbers)
    assert isinstance(told, TooManyLostError) and "in the job's Letters" in str(told)
    numbers.records_acked = 2_000
    assert losses.verdict(None, numbers) is None


def test_without_a_limit_nothing_stops_a_run_and_other_errors_stay() -> None:
    numbers = counters(records_acked=10, records_rejected=10)
    losses = Losses(None, None, job="j")
    run = control(numbers)
    losses.enforce(run)
    assert run.error is None and losses.verdict(None, numbers) is None
    error = ValueError("mine")
    assert Losses("0", None, job="j").verdict(error, numbers) is error
    kept_nowhere = Losses("0", None, job="j").verdict(None, numbers)
    assert "kept nowhere" in str(kept_nowhere)


class Counted(Letters):
    """Says how many letters are open, or raises."""

    def __init__(self, letters: int | Exception) -> None:
        super().__init__()
        self.letters = letters

    def open_letters(self, job: str) -> int:
        assert job == "j"
        if isinstance(self.letters, Exception):
            raise self.letters
        return self.letters


def test_letters_of_earlier_runs_count_at_the_end_of_a_run_that_found_nothing_to_do() -> None:
    losses = Losses("0", Counted(30), job="j", records_before=100)
    run = control(counters())
    losses.enforce(run)
    assert run.error is None  # this run may process them again
    told = losses.verdict(None, counters())
    assert isinstance(told, TooManyLostError)
    text = "30 dead letters of earlier runs are still open, of 100 records done in all runs"
    assert text in str(told)
    assert Losses("30", Counted(30), job="j").verdict(None, counters()) is None


def test_a_letter_of_this_run_is_counted_once() -> None:
    numbers = counters(records_acked=50, records_rejected=2, records_dead_lettered=1)
    assert Losses("3", Counted(3), job="j").verdict(None, numbers) is None
    told = Losses("3", Counted(4), job="j").verdict(None, numbers)
    text = "2 records rejected · 1 dead-lettered · 1 dead letter of earlier runs is still open, of"
    assert text in str(told)


def test_a_share_is_of_what_all_runs_did() -> None:
    numbers = counters(records_acked=1_000, records_rejected=2)
    assert not Losses("0.1%", None, job="j", records_before=1_000).is_too_many(numbers)
    assert Losses("0.1%", None, job="j", records_before=999).is_too_many(numbers)
    losses = Losses("0.1%", Counted(3), job="j", records_before=1_000)
    assert isinstance(losses.verdict(None, numbers), TooManyLostError)


def test_letters_that_can_not_be_counted_are_an_error_but_hide_no_other() -> None:
    losses = Losses(None, Counted(OSError("disk gone")), job="j")
    told = losses.verdict(None, counters())
    assert isinstance(told, InfrastructureError)
    assert "the letters in the dead letter Counted can't be counted: OSError: disk gone" in str(
        told
    )
    error = ValueError("mine")
    assert losses.verdict(error, counters()) is error


# -- what is shown -----------------------------------------------------------------------------


def test_the_summary_says_records_where_they_are_and_why() -> None:
    report = msgspec.structs.replace(
        REPORT, records_rejected=4, records_dead_lettered=12, records_left_out=200_000,
        calls_refused=7, dead_letters_hint="flowctl dlq show visits",
        loss_reasons=(LossReason("ValueError: row #", 12), LossReason("no id", 4)),
    )  # fmt: skip
    found = summary.lines(report)
    assert "4 records rejected · 12 dead-lettered (see `flowctl dlq show visits`)" in found
    assert "most frequent: ValueError: row # (12) · no id (4)" in found
    assert "200 000 records written before, left out · 7 calls refused by the target" in found


def test_the_summary_says_that_rejected_records_are_kept_nowhere() -> None:
    report = msgspec.structs.replace(REPORT, records_rejected=6)
    text = "6 records rejected and kept nowhere: --dead-letters DIR keeps such records"
    assert text in summary.lines(Losses(None, None, job="j").completed(report))
    kept = summary.lines(Losses(None, Letters(), job="j").completed(report))
    assert "6 records rejected" in kept


def test_the_summary_tells_of_letters_of_earlier_runs() -> None:
    report = msgspec.structs.replace(
        REPORT, records_rejected=4, letters_open=34, dead_letters_hint="flowctl dlq show visits"
    )
    text = "30 dead letters of earlier runs are still open: flowctl dlq show visits"
    assert text in summary.lines(report)
    report = msgspec.structs.replace(report, records_rejected=34)
    assert "still open" not in "\n".join(summary.lines(report))


def test_a_run_whose_sink_had_all_names_what_forgets_it() -> None:
    report = msgspec.structs.replace(REPORT, job="my job", records_left_out=REPORT.records_acked)
    text = "\n".join(summary.lines(report))
    assert "`flowctl checkpoint clear 'my job' --sink FILE:NAME`" in text
    for left_out, acked in ((REPORT.records_acked - 1, REPORT.records_acked), (0, 0)):
        report = msgspec.structs.replace(report, records_left_out=left_out, records_acked=acked)
        assert "checkpoint clear" not in "\n".join(summary.lines(report))


@pytest.mark.parametrize(
    ("rejections", "letters", "text"),
    [(0, 0, ""), (1, 0, "1 record rejected"), (0, 1, "1 record dead-lettered"),
     (0, 2_000, "2 000 records dead-lettered")],
)  # fmt: skip
def test_losses_in_words(rejections: int, letters: int, text: str) -> None:
    assert summary.losses(rejections, letters) == text


def test_nothing_is_said_of_what_did_not_happen() -> None:
    text = "\n".join(summary.lines(REPORT)) + line(SNAPSHOT)
    for word in ("rejected", "dead-lettered", "left out", "refused", "most frequent"):
        assert word not in text


def test_the_views_show_it_while_it_happens() -> None:
    snapshot = msgspec.structs.replace(
        SNAPSHOT, records_rejected=4, records_dead_lettered=1_200, records_left_out=3
    )
    text = "4 rejected  1 200 dead-lettered  3 written before, left out"
    assert text in line(snapshot)

    from rich.console import Console

    from flowctl.instrumentation.live import LiveView

    console = Console(file=io.StringIO(), width=100, height=30)
    console.print(LiveView(console=console).render(snapshot))
    shown = console.file
    assert isinstance(shown, io.StringIO) and text in shown.getvalue()


def test_an_event_is_a_line_and_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    view = PlainView(out)
    view.start("j", "j")
    view.event(rejected("rejected: no id", "rejected: no name"))
    assert "b1  rejected 2 records (p 0): rejected: no id" in out.getvalue()
