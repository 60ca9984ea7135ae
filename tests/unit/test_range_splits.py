"""Whose range is split while some work and some are idle; what is taken back from whom."""

from __future__ import annotations

import pytest

from flowctl.core.messages import RangeEmission, RejectedRecord, Split, SplitAnswer
from flowctl.core.records import AckOutcome
from tests.range_driver import MB, Ranges


def at_work(*bolts: str, **position_s: float) -> tuple[Ranges, dict[str, RangeEmission]]:
    """Each has a range of a block, and nothing is left; each has told how fast it is."""
    ranges = Ranges(*bolts, stop=len(bolts) * MB)
    of = {e.bolt: e for e in ranges.emit()}
    ranges.end()
    ranges.wait(0.1, *bolts)
    for bolt, e in of.items():
        if bolt in position_s:
            ranges.did(e, e.start, e.start + 50_000, service_s=position_s[bolt] * 50_000)
    return ranges, of


def finish(ranges: Ranges, e: RangeEmission) -> list[Split]:
    """Its bolt is idle; return who is asked then."""
    start = ranges.core.book.pending[e.tuple_id].cut.pieces[0][0]  # type: ignore[attr-defined]
    ranges.did(e, start, e.stop, service_s=(e.stop - start) * 1e-6)
    ranges.emit()
    return ranges.questions()


def test_the_one_with_the_latest_end_is_asked_and_then_the_next() -> None:
    ranges, of = at_work("a", "b", "c", "d", a=2e-6, b=3e-6, c=1e-6, d=1e-6)
    (first,) = finish(ranges, of["c"])
    assert first.bolt == "b", "the slowest"
    ranges.wait(0.02, "a", "b", "c", "d")
    (second,) = finish(ranges, of["d"])
    assert second.bolt == "a", "whoever was asked and has not answered is not asked twice"
    assert second.request != first.request


@pytest.mark.parametrize("asked", ["a", "b"])
def test_whoever_cannot_be_asked_does_not_hide_the_others(asked: str) -> None:
    """Suspect, or it gave nothing just now: the other one is."""
    ranges, of = at_work("a", "b", "c", **{asked: 9e-6, "c": 1e-6})
    other = "b" if asked == "a" else "a"
    ranges.did(of[other], of[other].start, of[other].start + 50_000, service_s=0.15)
    (question,) = finish(ranges, of["c"])
    assert question.bolt == asked
    answer = SplitAnswer(question.tuple_id, question.request, of[asked].stop)
    ranges.core.on_split(asked, 1, answer, now_s=ranges.clock())
    ranges.wait(0.15, "a", "b", "c")
    ranges.emit()
    assert [q.bolt for q in ranges.questions()] == [other]


def test_of_a_bolt_that_has_told_nothing_yet_the_others_speed_is_expected() -> None:
    ranges, of = at_work("a", "b", "c", b=1e-6, c=1e-6)
    ranges.wait(0.3, "a", "b", "c")
    ranges.did(of["b"], of["b"].start + 50_000, of["b"].stop - 100_000, service_s=0.9)
    (question,) = finish(ranges, of["c"])
    assert question.bolt == "a"
    assert 0.4 < question.keep < 0.6, "both are expected to be as fast"


def test_a_question_to_a_bolt_that_died_keeps_nobody_from_asking_the_next() -> None:
    ranges, of = at_work("a", "b", "c", a=9e-6, b=1e-6, c=1e-6)
    (question,) = finish(ranges, of["c"])
    assert question.bolt == "a"
    ranges.core.remove_bolt("a", now_s=ranges.clock(), reason="died")
    ranges.wait(1.0, "b", "c")
    (again,) = ranges.emit()
    assert (again.bolt, again.tuple_id) == ("c", of["a"].tuple_id)
    ranges.did(again, again.start, again.start + 50_000, service_s=0.5)
    ranges.did(of["b"], of["b"].start + 50_000, of["b"].stop, service_s=1.0)
    for _ in range(3):
        ranges.wait(0.2, "b", "c")
        ranges.emit()
    assert [(q.bolt, q.tuple_id) for q in ranges.questions()] == [("c", of["a"].tuple_id)]


def test_one_that_would_not_get_it_does_not_hide_the_next_that_is_idle() -> None:
    ranges, of = at_work("a", "b", "c", a=9e-6, b=1e-6, c=1e-6)
    ranges.core.book.pending[of["a"].tuple_id].avoided = {"b"}
    for bolt in ("b", "c"):
        e = of[bolt]
        ranges.did(e, e.start + 50_000, e.stop, service_s=1.0)
    ranges.emit()
    assert [q.bolt for q in ranges.questions()] == ["a"]


def test_no_end_is_asked_for_that_is_not_worth_two_reports() -> None:
    ranges, of = at_work("a", "b", a=1e-6, b=1e-6)
    a = of["a"]
    ranges.did(a, 50_000, a.stop - 60_000, service_s=0.05)  # about one more report
    assert finish(ranges, of["b"]) == []
    ranges.wait(0.2, "a", "b")
    ranges.emit()
    assert ranges.questions() == []


def given_up() -> tuple[Ranges, RangeEmission, RangeEmission]:
    """``a`` fell silent with all that is left, and ``b`` was given it."""
    ranges = Ranges("a", "b", stop=MB)
    (e,) = ranges.emit()
    ranges.did(e, 0, 1000)
    ranges.wait(4.0, "b")
    ranges.wait(1.0, "b")
    (again,) = ranges.emit()
    assert (again.bolt, again.start, again.stop) == ("b", 1000, MB)
    return ranges, e, again


def test_what_a_given_up_bolt_has_done_in_all_is_taken_from_the_one_who_has_it_now() -> None:
    ranges, e, again = given_up()
    assert ranges.did(e, 1000, MB, bolt="a") is AckOutcome.LATE
    assert ranges.state.position == MB - 1
    ranges.end()
    assert ranges.core.is_drained
    orders = list(iter(ranges.core.poll_order, None))
    assert ("b", [again.tuple_id]) in [(order.bolt, list(order.tuple_ids)) for order in orders]
    assert ranges.did(again, 1000, MB) is AckOutcome.DUPLICATE


def test_each_report_of_a_given_up_bolt_is_answered_with_the_word_to_stop() -> None:
    """The first word may be lost with a connection, or come before the bolt had begun."""
    ranges, e, _ = given_up()
    for start in (1000, 2000, 3000):
        assert ranges.did(e, start, start + 1000, bolt="a") is AckOutcome.LATE
        stops = [(q.bolt, q.tuple_id, q.keep) for q in ranges.questions()]
        assert stops and set(stops) == {("a", e.tuple_id, 0.0)}


def test_a_report_of_nothing_but_rejected_records_does_not_show_that_process_works() -> None:
    ranges = Ranges("a", "b")
    sent = ranges.emit()
    first, second, *_ = sent
    ranges.failed(first, first.start, first.stop)
    bad = [RejectedRecord(second.start, None, "no use")]
    ranges.did(second, second.start, second.start + 100, records=1, rejected=bad)
    assert ranges.emit() == [], "what failed comes first"
    ranges.did(second, second.start + 100, second.stop, records=1)
    assert ranges.emit() != []
