"""RangeCore step by step: sizes, splits, failures, what is kept, what grows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flowctl.core.carried import Packed
from flowctl.core.events import TargetWentDown
from flowctl.core.letters import Shown, to_show
from flowctl.core.messages import Heartbeat, RejectedRecord, Revoked, SplitAnswer
from flowctl.core.ranges.consumer import RangeConsumer
from flowctl.core.ranges.extent import Extent
from flowctl.core.ranges.splits import Donor, share_kept
from flowctl.core.records import (
    AckedRange,
    AckOutcome,
    Checkpoint,
    LostRange,
    PartitionCheckpoint,
    Receipts,
    Record,
)
from flowctl.core.tuples import FlowTuple
from flowctl.errors import ConfigError, SourceError
from tests.range_driver import MB, Ranges, split_scene


def test_the_first_ranges_are_a_block_and_then_seconds_of_work() -> None:
    ranges = Ranges("a")
    first, second = ranges.emit()
    assert [(e.start, e.stop) for e in (first, second)] == [(0, MB), (MB, 2 * MB)]
    assert (first.identity, first.records) == ("v1", ())
    sizes = []
    for _ in range(6):
        for e in (first, second):
            ranges.clock.advance((e.stop - e.start) * 1e-7)
            ranges.did(e, e.start, e.stop)
        following = ranges.emit()
        first, second = following[0], following[-1]
        sizes.append(first.stop - first.start)
    assert sizes[0] <= 4 * 2 * MB, "no more than four times all that it has done"
    assert 1.0 <= sizes[-1] * 1e-7 <= 4.0, "seconds of work"


def test_reports_that_come_every_so_often_do_not_look_like_calls_of_a_fixed_cost() -> None:
    """A slow bolt reports less in the same time: it was taken for as fast as the others."""
    ranges = Ranges("a", "b", "c", "slow", stop=400 * MB)
    for number in range(40):
        for emission in ranges.emit():
            fit = 10_000 if emission.bolt == "slow" else 100_000 + 1_000 * number
            ranges.clock.advance(0.01)
            stop = min(emission.stop, emission.start + fit)
            ranges.did(emission, emission.start, stop, service_s=0.1)
    service = ranges.core.bolts["slow"].service
    assert ranges.core.book.pool.fixed_records == 0.0
    assert service.record_s == pytest.approx(service.mean_s / service.mean_records)


def test_where_there_is_nothing_ranges_get_longer_until_there_is() -> None:
    """Keys of a table may lie 2^62 apart: ranges of a fixed length would never get there."""
    ranges = Ranges("a", "b", stop=2**62)
    count = 0
    while emissions := ranges.emit():
        count += len(emissions)
        assert count < 200, "it never ends"
        for emission in emissions:
            ranges.clock.advance(0.01)
            ranges.did(emission, emission.start, emission.stop, records=0)
    last = 2**62 - 1
    assert ranges.state.position == last
    assert count > 20, "step by step: what comes may be dense"


def test_the_checkpoint_is_the_one_of_records_both_ways() -> None:
    ranges = Ranges("a", "b")
    first, second = ranges.emit()[:2]
    ranges.did(first, 0, 1000)
    ranges.did(second, second.start, second.start + 500)
    spans = (AckedRange(second.start, second.start + 499, 5),)
    assert ranges.state == PartitionCheckpoint(999, 10, spans, mark="v1")
    assert ranges.core.intake.take_moved() == {"p": ranges.state}

    again = Ranges("a", checkpoint=ranges.core.checkpoint())
    assert again.state == ranges.state
    e = again.emit()[0]
    assert e.start == 1000, "goes on behind what is done"
    assert e.stop == second.start, "and leaves out what is done above"


def test_what_was_done_and_written_again_since_is_refused_by_name() -> None:
    ranges = Ranges("a", stop=1000)
    (e,) = ranges.emit()
    ranges.did(e, 0, 999)
    assert ranges.state.end is None, "there is more to do"
    ranges.did(e, 999, 1000)
    saved = ranges.core.checkpoint()
    assert (ranges.state.end, ranges.state.mark) == ("v1", None)
    assert Ranges("a", stop=1000, checkpoint=saved).emit() == []
    with pytest.raises(SourceError, match=r"p: all of it was done.*it was v1, and is now v2"):
        Ranges("a", extent=Extent(0, 1000, "v2"), checkpoint=saved)


@pytest.mark.parametrize("done", [(0, 400), (400, 700)], ids=["the beginning", "the middle"])
def test_what_was_done_in_part_and_written_again_since_is_refused_by_name(
    done: tuple[int, int],
) -> None:
    ranges = Ranges("a", "b", stop=2 * MB)
    e = ranges.emit()[0]
    assert ranges.state == PartitionCheckpoint(), "it was not begun: it may become another"
    ranges.did(e, *done)
    assert (ranges.state.end, ranges.state.mark) == (None, "v1")
    saved = ranges.core.checkpoint()
    assert Ranges("a", stop=2 * MB, checkpoint=saved).emit(), "it goes on"
    with pytest.raises(SourceError, match=r"p: a part of it .* it was v1, and is now v2") as caught:
        Ranges("a", extent=Extent(0, 2 * MB, "v2"), checkpoint=saved)
    assert "rewind JOB --partition p --start --sink FILE.py:SINK" in caught.value.remedy


def test_a_checkpoint_of_another_kind_of_source_is_refused_by_name() -> None:
    other = Checkpoint({"p": PartitionCheckpoint((100, 7), 7)})
    with pytest.raises(SourceError, match="Another kind of source"):
        Ranges(checkpoint=other)
    with pytest.raises(SourceError, match="'p'"):
        Ranges(checkpoint=other)


def test_both_end_together() -> None:
    consumer = Ranges("a").core.bolts["a"]
    assert isinstance(consumer, RangeConsumer)
    flow_tuple = FlowTuple(1, None)  # type: ignore[arg-type]

    def kept(
        position_s: float,
        other_s: float,
        *,
        late_s: float = 0.0,
        lag_s: float = 0.0,
        positions: float = 1000.0,
    ) -> float:
        donor = Donor(positions, position_s, late_s, consumer, flow_tuple)
        return share_kept(donor, other_s, lag_s)

    assert kept(1.0, 1.0) == 0.5
    assert kept(10.0, 1.0) == pytest.approx(1 / 11)
    assert kept(1.0, 1.0, lag_s=100.0) == 0.55
    assert kept(1.0, 1.0, lag_s=5000.0) == 1.0, "sooner by itself"
    assert kept(1.0, 1.0, late_s=2000.0) == 0.0, "it may never go on"
    assert kept(1.0, 1.0, positions=2.0) == 0.5
    assert kept(3.0, 1.0, positions=2.0) == 0.0, "it would not get to the next one"


def test_an_idle_bolt_gets_the_end_of_a_range_once_its_bolt_has_answered() -> None:
    ranges, ours = split_scene()
    (question,) = ranges.questions()
    assert (question.bolt, question.tuple_id) == ("a", ours.tuple_id)
    assert 0.05 < question.keep < 0.15, "a tenth of the speed"
    assert ranges.emit() == [], "the rest is nobody's before the answer"
    answer = SplitAnswer(ours.tuple_id, question.request, 500_000)
    assert ranges.core.on_split("a", 1, answer, now_s=ranges.clock()) is AckOutcome.ACKED
    (rest,) = ranges.emit()
    assert (rest.bolt, rest.start, rest.stop) == ("b", 500_000, ours.stop)
    assert ranges.core.on_split("a", 1, answer, now_s=ranges.clock()) is AckOutcome.DUPLICATE
    assert ranges.did(ours, 100_000, 500_000) is AckOutcome.ACKED
    assert ranges.did(rest, rest.start, rest.stop) is AckOutcome.ACKED
    assert ranges.core.is_drained
    assert ranges.state == PartitionCheckpoint(
        2 * MB - 1, ranges.core.counters.records_acked, end="v1"
    )


def test_an_answer_that_does_not_come_is_asked_for_again_under_its_number() -> None:
    ranges, _ = split_scene()
    (question,) = ranges.questions()
    ranges.wait(0.3, "a", "b")
    assert ranges.questions() == [question]


def test_a_slow_bolt_that_is_idle_gets_no_more_than_it_can_do_in_time() -> None:
    ranges = Ranges("a", "b", "c", stop=3 * MB)
    of = {e.bolt: e for e in ranges.emit()}
    ranges.end()
    ranges.wait(0.1, "a", "b", "c")
    for bolt, position_s in (("a", 1e-7), ("b", 1e-7), ("c", 1e-6), ("c", 1e-6)):
        start = ranges.core.book.pending[of[bolt].tuple_id].cut.pieces[0][0]
        ranges.wait(position_s * MB / 2, "a", "b", "c")
        ranges.did(of[bolt], start, start + MB // 2, service_s=position_s * MB / 2)
    ranges.core.on_revoked("b", 1, Revoked([of["b"].tuple_id]), now_s=ranges.clock())
    given = ranges.emit()
    assert given[0].start == of["b"].start + MB // 2
    assert [e.stop for e in given[:-1]] == [e.start for e in given[1:]] and len(given) <= 8
    slow = sum(e.stop - e.start for e in given if e.bolt == "c")
    assert 0.02e6 * 0.8 <= slow <= 0.2 * MB, "a tenth of the others' speed"
    assert {e.bolt for e in given} == {"b", "c"}, "the others do the rest"


def test_if_the_bolt_dies_the_split_never_happened() -> None:
    ranges, ours = split_scene()
    (question,) = ranges.questions()
    ranges.core.remove_bolt("a", now_s=ranges.clock(), reason="died")
    answer = SplitAnswer(ours.tuple_id, question.request, 500_000)
    assert ranges.core.on_split("a", 1, answer, now_s=ranges.clock()) is AckOutcome.UNKNOWN
    ranges.wait(1.0, "b")
    (all_of_it,) = ranges.emit()
    assert (all_of_it.bolt, all_of_it.start, all_of_it.stop) == ("b", 100_000, ours.stop)


def test_a_bolt_that_refuses_is_not_asked_again_before_it_has_done_something() -> None:
    ranges, ours = split_scene()
    (question,) = ranges.questions()
    answer = SplitAnswer(ours.tuple_id, question.request, ours.stop)
    ranges.core.on_split("a", 1, answer, now_s=ranges.clock())
    ranges.wait(0.05, "a", "b")
    ranges.emit()
    assert ranges.questions() == []


def test_a_range_that_moves_whole_stays_longer_each_time() -> None:
    """A source that is slow to open: otherwise bolts would pass the range on for ever."""
    ranges = Ranges("a", "b", stop=2 * MB)
    ours, theirs = ranges.emit()
    ranges.end()
    left = MB // 8  # not worth two ranges
    for start in range(0, MB, MB // 16):
        ranges.wait(0.01, "a", "b")
        ranges.did(theirs, theirs.start + start, theirs.start + start + MB // 16)
        if start < MB - left:
            ranges.did(ours, start, start + MB // 16)
    stayed_s = []
    for _ in range(5):
        since_s, questions = ranges.clock(), ranges.questions()
        while not questions and ranges.clock() < since_s + 20:
            ranges.wait(0.1, "a", "b")
            ranges.emit()
            questions = ranges.questions()
        stayed_s.append(ranges.clock() - since_s)
        (question,) = questions
        answer = SplitAnswer(question.tuple_id, question.request, 0)
        ranges.core.on_split(question.bolt, 1, answer, now_s=ranges.clock())
        (moved,) = ranges.emit()
        assert (moved.start, moved.stop) == (MB - left, MB)
    assert stayed_s[2] < stayed_s[3] < stayed_s[4]
    assert stayed_s[4] >= 1.9


def test_who_would_not_get_the_end_of_a_range_does_not_ask_for_it() -> None:
    """What was refused at both others is at ``a``: they would pass it back to it for ever."""
    ranges, ours = split_scene()
    (question,) = ranges.questions()
    for cut, asks in (({"b"}, False), ({"a"}, True), ({"a", "b"}, True)):
        ranges.core._splits.forget(ours.tuple_id)
        ranges.core.book.pending[ours.tuple_id].avoided = cut
        ranges.wait(0.2, "a", "b")
        ranges.emit()
        assert bool(ranges.questions()) is asks, cut
    assert question.bolt == "a"


def test_what_cannot_be_split_is_one_range_and_nobody_asks_for_its_end() -> None:
    extent = Extent(0, 50 * MB, "v1", is_splittable=False, size_bytes=50 * MB)
    ranges = Ranges("a", "b", extent=extent)
    (whole,) = ranges.emit()
    assert (whole.start, whole.stop) == (0, 50 * MB)
    ranges.end()
    ranges.wait(0.1, "a", "b")
    ranges.did(whole, 0, MB)
    ranges.emit()
    assert ranges.questions() == []


def test_a_source_that_grows_goes_on_and_one_that_changes_is_refused() -> None:
    extent = Extent(0, 1000, "v1", is_final=False, size_bytes=1000)
    ranges = Ranges("a", extent=extent)
    (first,) = ranges.emit()
    ranges.did(first, 0, 1000)
    assert not ranges.core.intake.is_final
    ranges.core.offer_extents({"p": Extent(0, 1500, "v1", is_final=True, size_bytes=1500)})
    assert ranges.core.intake.is_final
    (second,) = ranges.emit()
    assert (second.start, second.stop) == (1000, 1500)
    assert ranges.core.intake.progress == (1000, 1500)
    with pytest.raises(SourceError, match="has changed since the run began"):
        ranges.core.offer_extents({"p": Extent(0, 1500, "v2")})


def test_a_part_that_fails_goes_again_and_the_rest_stays_where_it_is() -> None:
    ranges = Ranges("a", "b")
    sent = ranges.emit()
    first = sent[0]
    ranges.did(first, 0, 1000)
    assert ranges.failed(first, 1000, 1500) is AckOutcome.FAILED
    assert ranges.did(first, 1500, first.stop) is AckOutcome.ACKED
    assert ranges.state.position == 999
    ranges.wait(1.0, "a", "b")
    for e in (e for e in sent if e.bolt == "b"):
        ranges.did(e, e.start, e.stop)
    again = next(e for e in ranges.emit() if e.start == 1000)
    assert (again.stop, again.bolt) == (1500, "b"), "to another bolt"
    assert ranges.state.position == 999
    ranges.did(again, 1000, 1500)
    assert ranges.state.position >= first.stop - 1, "and what others did behind it"


@pytest.mark.req("S109")
def test_a_source_that_cannot_be_read_ends_the_run_and_is_no_dead_letter() -> None:
    ranges = Ranges("a", stop=1000, has_dead_letter=True, settings={"retry_attempts_max": 2})
    (e,) = ranges.emit()
    for expected in (AckOutcome.FAILED, AckOutcome.GAVE_UP):
        outcome = ranges.failed(e, 0, 1000, records=0, is_read_error=True, is_data_error=True)
        assert outcome is expected
        assert (ranges.core.gave_up is not None) is (expected is AckOutcome.GAVE_UP)
        ranges.wait(20.0, "a")
        e = next(iter(ranges.emit()), e)
    assert ranges.core.gave_up is not None
    assert ranges.core.poll_dead_letter() is None


def test_a_record_that_fails_alone_is_a_letter_with_its_value() -> None:
    ranges = Ranges("a", stop=1000, has_dead_letter=True, settings={"retry_attempts_max": 1})
    (e,) = ranges.emit()
    ranges.did(e, 0, 400)
    poison = Record(400, "the line")
    ranges.failed(e, 400, 500, records=1, record=poison)
    ranges.did(e, 500, 1000)
    dead = ranges.core.poll_dead_letter()
    assert dead is not None
    assert list(dead.records) == [poison]
    assert ranges.state.position == 399
    ranges.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=ranges.clock())
    assert ranges.state == PartitionCheckpoint(999, 10, end="v1", lost=(LostRange(499, 499, 0),))


def test_when_the_target_is_down_bolts_give_back_what_they_have_not_begun() -> None:
    ranges = Ranges("a", "b")
    ours, theirs = ranges.emit()[:2]
    ranges.did(ours, 0, 1000)
    at = {ours.bolt: ours, theirs.bolt: theirs}
    down = False
    for start in range(1000, 9000, 1000):
        for e in at.values():
            ranges.failed(e, e.start + start, e.start + start + 1000, is_refused=True)
        ranges.wait(0.2, "a", "b")
        events = list(iter(ranges.core.poll_event, None))
        down = down or any(isinstance(event, TargetWentDown) for event in events)
    assert down
    questions = {question.bolt: question.keep for question in ranges.questions()}
    assert questions == {"a": 0.0, "b": 0.0}


def test_receipts_come_with_what_is_done_and_never_from_one_who_was_given_up() -> None:
    ranges = Ranges("a", "b", stop=2000, keeps_receipts=True)
    (e,) = ranges.emit()
    ranges.did(e, 0, 1000, receipts=[b"file 1"])
    assert ranges.core.poll_receipts() == Receipts("p", 0, 1000, 10, [b"file 1"])
    ranges.core.on_revoked("a", 1, Revoked([e.tuple_id]), now_s=ranges.clock())
    (again,) = ranges.emit()
    assert (again.bolt, again.start) == ("b", 1000)
    late = ranges.did(e, 1000, 2000, bolt="a", receipts=[b"file 2"])
    assert late is AckOutcome.DUPLICATE
    assert ranges.core.poll_receipts() is None
    assert ranges.did(again, 1000, 2000) is AckOutcome.ACKED


def test_what_was_kept_and_not_saved_is_done() -> None:
    ranges = Ranges("a", stop=2000)
    ranges.core.adopt(Receipts("p", 0, 1500, 15, [b"file"]), now_s=0.0)
    (e,) = ranges.emit()
    assert (e.start, e.stop) == (1500, 2000)
    assert ranges.state == PartitionCheckpoint(1499, 15, mark="v1")


def test_what_a_bolt_did_that_was_given_up_is_done_and_it_is_called_off() -> None:
    ranges = Ranges("a", "b", stop=MB)
    (e,) = ranges.emit()
    ranges.did(e, 0, 1000)
    ranges.core.on_heartbeat("a", 1, Heartbeat(1, 0), now_s=ranges.clock())
    ranges.wait(4.0, "b")
    ranges.wait(1.0, "b")
    (again,) = ranges.emit()
    assert (again.bolt, again.start) == ("b", 1000)
    assert ranges.did(e, 1000, 5000, bolt="a") is AckOutcome.LATE
    assert ranges.state.position == 4999
    assert {(q.bolt, q.keep) for q in ranges.questions()} == {("a", 0.0)}
    assert ranges.did(again, 1000, 6000) is AckOutcome.ACKED, "what is new of it counts"
    assert ranges.state.position == 5999


def test_a_failure_that_a_bolt_without_the_range_tells_changes_nothing() -> None:
    """A late frame of a bolt that was given up, or of one that is wrong.  The kind: who does not
    hold a range can't cut it, or what its holder has done would be told of twice."""
    ranges = Ranges("a", "b", stop=2 * MB)
    ours, theirs = ranges.emit()
    counters = ranges.core.counters
    before = (counters.tuples_failed, counters.pieces, counters.records_pending_now)
    told = ranges.failed(ours, ours.start, ours.start + 1_000, bolt=theirs.bolt)
    assert told is AckOutcome.DUPLICATE
    assert (counters.tuples_failed, counters.pieces, counters.records_pending_now) == before
    assert ranges.did(ours, ours.start, ours.stop) is AckOutcome.ACKED


def test_a_part_that_was_refused_waits_as_long_as_the_target_asks() -> None:
    ranges = Ranges("a", "b", stop=2 * MB)
    ours, theirs = ranges.emit()
    ranges.end()
    ranges.did(theirs, theirs.start, theirs.stop)
    refused = {"is_refused": True, "after_s": 5.0}
    assert ranges.failed(ours, ours.start, ours.stop, **refused) is AckOutcome.REFUSED
    for _ in range(49):
        ranges.wait(0.1, "a", "b")
        assert not [again for again in ranges.emit() if again.start < ours.stop]
    ranges.wait(0.2, "a", "b")
    assert [again.start for again in ranges.emit()] == [ours.start]


def test_keys_may_be_as_far_apart_as_64_bits_are() -> None:
    """A key that is a hash: ranges get longer where there is nothing, and the third had more
    positions than Python's len() can count."""
    first, stop = -(1 << 63), (1 << 63) - 1
    ranges = Ranges("a", extent=Extent(first, stop))
    ranges.end()
    for _ in range(100):
        for sent in ranges.emit():
            ranges.clock.advance(0.01)
            ranges.did(sent, sent.start, sent.stop, records=0, service_s=0.0)
        if ranges.core.is_drained:
            break
    assert ranges.core.is_drained
    assert ranges.state.position == stop - 1


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(Packed(b"", {1, 2}), {1, 2}), (to_show("half a line"), Shown("half a line")), ("x", "x")],
)
def test_a_letter_has_the_value_that_the_bolts_message_stands_for(sent: Any, kept: Any) -> None:
    ranges = Ranges("a", stop=1000, has_dead_letter=True, settings={"retry_attempts_max": 1})
    (e,) = ranges.emit()
    ranges.did(e, 0, 10, records=2, rejected=[RejectedRecord(3, sent, "no use")])
    ranges.failed(e, 10, 11, records=1, record=Record(10, sent), record_at=10, is_data_error=True)
    letters = list(iter(ranges.core.poll_dead_letter, None))
    assert [letter.records for letter in letters] == [(Record(3, kept),), (Record(10, kept),)]
    assert all(type(letter.records[0].value) is type(kept) for letter in letters)
    assert letters[1].gave_up.reason == "boom, at record 10"


def test_times_a_little_below_nothing_count_as_none() -> None:
    """They are differences of sums of a bolt's clock."""
    ranges = Ranges("a", stop=1000)
    (e,) = ranges.emit()
    ranges.wait(0.1, "a")
    ranges.did(e, 0, 500, service_s=-1e-3, read_s=-1e-3, wait_s=-1e-3)
    service = ranges.core.bolts["a"].service
    assert (service.record_s, service.path_s) == (0.0, pytest.approx(0.1))


def test_who_is_gone_says_nothing_that_counts() -> None:
    """A late frame of a connection that ended."""
    ranges = Ranges("a", stop=1000)
    (e,) = ranges.emit()
    for bolt in ("b", "a"):
        if bolt == "a":
            ranges.core.remove_bolt("a", now_s=ranges.clock(), reason="it left")
        answer = SplitAnswer(e.tuple_id, 1, 10)
        assert ranges.did(e, 0, 100, bolt=bolt) is AckOutcome.UNKNOWN
        assert ranges.failed(e, 0, 100, bolt=bolt) is AckOutcome.UNKNOWN
        assert ranges.core.on_split(bolt, 1, answer, now_s=ranges.clock()) is AckOutcome.UNKNOWN
    assert ranges.state == PartitionCheckpoint()
    assert ranges.core.counters.acks_unknown == 6
    ranges = Ranges("a", stop=1000)
    (e,) = ranges.emit()
    never_sent = replace(e, tuple_id=e.tuple_id + 1)
    assert ranges.did(never_sent, 0, 100) is AckOutcome.UNKNOWN
    assert ranges.did(e, 0, 1001) is AckOutcome.UNKNOWN, "it has no such positions"


def test_ranges_that_are_saved_before_they_are_done_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="can't be processed at most once yet") as caught:
        Ranges("a", settings={"guarantee_mode": "at_most_once"})
    assert caught.value.field == "guarantee.mode"


def test_a_sink_is_not_guarded_by_the_times_of_parts_of_ranges() -> None:
    assert Ranges("a").core.guard is None


def test_to_wait_for_the_source_is_work_of_the_one_who_waits() -> None:
    """A bolt whose disk is slow gets less, as one whose calls are."""
    record_s = []
    for service_s, read_s in ((0.04, 0.0), (0.01, 0.03)):
        ranges = Ranges("a")
        e = ranges.emit()[0]
        for start in range(0, 10_000, 1000):
            ranges.wait(0.04, "a")
            ranges.did(e, start, start + 1000, service_s=service_s, read_s=read_s)
        record_s.append(ranges.core.bolts["a"].service.record_s)
    assert record_s[0] == pytest.approx(record_s[1])


def test_where_a_record_takes_seconds_it_is_a_range_of_its_own() -> None:
    """Also behind a place where there is nothing, for which ranges get longer."""
    ranges = Ranges("a", extent=Extent(0, 100_000))
    for records in (1, 0, 1):
        for e in ranges.emit():
            ranges.wait(2.5, "a")
            ranges.did(e, e.start, e.start + 1, records=records, service_s=2.5)
            ranges.did(e, e.start + 1, e.stop, records=records, service_s=2_500.0)
    assert {e.stop - e.start for e in ranges.emit()} == {1}


def test_a_range_whose_middle_is_done_goes_out_as_two() -> None:
    """A bolt is told of one span: it would do the middle again, or nobody the end."""
    ranges = Ranges("a", "b", stop=1000)
    (e,) = ranges.emit()
    ranges.core.on_revoked("a", 1, Revoked([e.tuple_id]), now_s=ranges.clock())
    assert ranges.did(e, 400, 500, bolt="a") is AckOutcome.LATE
    sent = ranges.emit()
    assert sorted((again.start, again.stop) for again in sent) == [(0, 400), (500, 1000)]
    assert len({again.tuple_id for again in sent}) == 2
    for again in sent:
        ranges.did(again, again.start, again.stop)
    ranges.end()
    assert ranges.core.is_drained


def test_what_comes_late_of_one_partition_is_done_of_that_one() -> None:
    """Positions of others are the same numbers."""
    ranges = Ranges("a", "b", stop=1000)
    ranges.core.offer_extents({name: Extent(0, 1000) for name in ("q", "r")})
    sent = {e.partition: e for e in ranges.emit()}
    late = sent["q"]
    ranges.core.on_revoked(late.bolt, 1, Revoked([late.tuple_id]), now_s=ranges.clock())
    assert ranges.did(late, 0, 400) is AckOutcome.LATE
    states = ranges.core.checkpoint().partitions
    assert {name: state.position for name, state in states.items()} == {
        "p": None, "q": 399, "r": None,
    }  # fmt: skip


def test_before_anything_succeeded_what_failed_goes_first() -> None:
    """A process that can never work must fail soon, not once it was tried on all of the source."""
    ranges = Ranges("a", "b")
    sent = ranges.emit()
    first = sent[0]
    ranges.failed(first, first.start, first.stop)
    for _ in range(20):
        ranges.wait(0.2, "a", "b")
        again = ranges.emit()
        assert {e.start for e in again} <= {first.start}, "nothing else of the source"
        if again:
            break
    for e in (*again, *sent[1:]):
        ranges.did(e, e.start, e.stop)
    assert {e.start for e in ranges.emit()} - {e.start for e in sent}, "it works: on with the rest"


def test_the_record_that_was_being_read_is_looked_at_alone() -> None:
    """Not halves of halves: ``process`` was at it as it raised."""
    ranges = Ranges("a", "b", stop=1000, has_dead_letter=True)
    (e,) = ranges.emit()
    ranges.did(e, 0, 100)
    ranges.failed(e, 100, 300, records=200, record_at=250, is_data_error=True)
    parts = set()
    for _ in range(40):
        for again in ranges.emit():
            parts.add((again.start, again.stop))
            if again.start <= 250 < again.stop:
                ranges.failed(again, again.start, again.stop, records=again.stop - again.start,
                              record_at=250, is_data_error=True)  # fmt: skip
            else:
                ranges.did(again, again.start, again.stop)
        ranges.wait(0.5, "a", "b")
    assert (250, 251) in parts
    assert not [part for part in parts if part[0] <= 250 < part[1] and part != (250, 251)]


def test_what_is_told_of_a_range_that_is_done_must_be_possible_too() -> None:
    ranges = Ranges("a", stop=1000)
    (e,) = ranges.emit()
    core = ranges.core
    assert core.may_tell_of(e.tuple_id, 0, 1000)
    for start, stop in ((0, 1001), (5, 4), (-1, 5)):
        assert not core.may_tell_of(e.tuple_id, start, stop)
    ranges.did(e, 0, 1000)
    assert core.may_tell_of(e.tuple_id, 400, 400)
    assert not core.may_tell_of(e.tuple_id, 5, 4)
