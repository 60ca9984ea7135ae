"""Delivery of a partition's rows: settled, again, in pieces, kept, or the partition fails."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.delivery.delivery import Delivery, ReadRows
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.sections import section_of
from flowctl.delivery.tally import Tally
from flowctl.errors import (
    FencedError,
    ProcessError,
    RetryLater,
    TargetDownError,
    TooManyLostError,
    UnrunnableError,
)
from tests.delivery_parts import Clock, PatientPacer


class Letters:
    """A dead letter store in memory."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, Any, Any, int, str]] = []

    def dead_letter(
        self, job: str, partition: str, records: Sequence[Record], *, attempts: int, reason: str
    ) -> None:
        for record in records:
            self.kept.append((job, partition, record.position, record.value, attempts, reason))

    def close(self) -> None:
        pass


def deliver(
    process: Callable[[Batch], Any], values: Any, clock: Clock | None = None, **plan: Any
) -> Tally:
    return delivery(process, clock, **plan).run(values)


def delivery(process: Callable[[Batch], Any], clock: Clock | None = None, **plan: Any) -> Delivery:
    clock = clock or Clock()
    pacer = PatientPacer(clock, plan.get("refusal"))
    where = Where("job", "7")
    return Delivery(
        Plan(process=process, **plan), where, pacer, clock=clock, sleep=clock.sleep, chance=None
    )


class Target:
    """Takes values, and counts how often each came to be taken."""

    def __init__(self) -> None:
        self.taken: Counter[Any] = Counter()

    def take(self, batch: Batch) -> None:
        self.taken.update(record.value for record in batch)


# -- all is well ---------------------------------------------------------------------------------


def test_all_rows_are_written_once_and_counted() -> None:
    target = Target()
    tally = deliver(target.take, range(3_000))
    assert target.taken == Counter(range(3_000))
    assert (tally.rows, tally.written, tally.lost) == (3_000, 3_000, 0)


def test_no_rows_make_no_call() -> None:
    assert deliver(lambda batch: pytest.fail("called"), []) == Tally()


def test_calls_begin_small_and_stay_below_rows_max() -> None:
    sizes: list[int] = []
    deliver(lambda batch: sizes.append(len(batch)), range(2_000), rows_max=300)
    assert sizes[0] == 25
    assert max(sizes) == 300


def sizes_of_calls(call_s: float, row_s: Callable[[int], float], rows: int) -> list[int]:
    """``row_s``: what a row of the call with this number costs."""
    clock, sizes = Clock(), []

    def slow(batch: Batch) -> None:
        clock.sleep(call_s + row_s(len(sizes)) * len(batch))
        sizes.append(len(batch))

    deliver(slow, range(rows), clock, call_max_s=0.5)
    return sizes


@pytest.mark.parametrize(
    ("call_s", "row_s", "rows"),
    [(0.0, 0.0025, 200), (0.05, 0.01, 45), (0.1, 0.01, 40), (0.0, 0.7, 1)],
)
def test_rows_per_call_follow_the_time_that_a_call_takes(
    call_s: float, row_s: float, rows: int
) -> None:
    """As many as take the half second that is allowed; now and then fewer, to tell what costs."""
    sizes = sizes_of_calls(call_s, lambda number: row_s, 40 * rows)
    late = sizes[5:-1]
    assert max(late) <= max(2, rows)
    assert late.count(rows) + late.count(rows - 1) >= 0.8 * len(late)


def test_a_call_that_is_dear_by_itself_has_rows_for_most_of_its_time() -> None:
    """Calls of .2 s and rows of 20 ms: with what .5 s allow, two fifths would be the calls' own."""
    sizes = sizes_of_calls(0.2, lambda number: 0.02, 20_000)
    assert len(sizes) <= 110, "24 times as long as a call are 240 rows, so 84 calls would do"


def test_rows_that_become_dear_make_the_next_calls_small() -> None:
    """Of the rows before, which were four times as cheap, twenty calls took five seconds each."""
    sizes = sizes_of_calls(0.05, lambda number: 0.01 if number < 20 else 0.04, 2_000)
    assert max(sizes[22:]) <= 13, "11 rows take half a second"


def test_spans_name_the_rows_and_how_far_all_are_settled() -> None:
    spans = []
    deliver(lambda batch: spans.append(batch.span), "abcdef", rows_max=2)
    assert [(s.job, s.partition, s.first, s.last) for s in spans] == [
        ("job", "7", 0, 1),
        ("job", "7", 2, 3),
        ("job", "7", 4, 5),
    ]
    assert [span.acked_through for span in spans] == [None, 1, 3]


def test_spans_never_count_a_row_as_settled_that_waits_for_its_next_attempt() -> None:
    """A sink merges what it remembers up to there: the row would count as written."""
    clock, settled, told = Clock(), set(), []

    def process(batch: Batch) -> None:
        clock.sleep(0.02)
        [number] = [record.value for record in batch]
        told.append((batch.span.acked_through, {n for n in range(number) if n not in settled}))
        if number == 3 and batch.attempt < 4:
            raise RuntimeError("not yet")
        settled.add(number)

    deliver(process, range(100), clock, rows_max=1)
    assert any(waits for _, waits in told), "others went on meanwhile"
    assert all(through is None or through < min(waits, default=100) for through, waits in told)


def test_what_is_cut_off_by_a_refusal_keeps_its_failures() -> None:
    """Else a row that fails would be tried attempts_max times again after each refusal."""
    clock, letters, calls = Clock(), Letters(), []

    def process(batch: Batch) -> None:
        calls.append(len(batch))
        for record in batch:
            if record.value == 2 and len(batch) == 4 and len(calls) > 1:
                raise RetryLater("full", after_s=0)
        if batch[-1].value == 3:
            raise RuntimeError("no three")

    deliver(process, range(4), clock, attempts_max=3, dead_letter=letters)
    assert [(value, attempts) for *_, value, attempts, _ in letters.kept] == [(3, 3)]
    assert calls == [4, 4, 2, 2, 1, 1]


def test_a_coroutine_function_runs_in_one_event_loop() -> None:
    import asyncio

    loops = set()
    target = Target()

    async def process(batch: Batch) -> None:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        target.take(batch)

    deliver(process, range(200))
    assert len(loops) == 1
    assert target.taken == Counter(range(200))


# -- refusals ------------------------------------------------------------------------------------


def test_a_refusal_is_waited_for_as_long_as_it_says_and_costs_no_attempt() -> None:
    clock, target, refusals = Clock(), Target(), [5.0] * 9

    def process(batch: Batch) -> None:
        if refusals:
            raise RetryLater("busy", after_s=refusals.pop())
        target.take(batch)

    tally = deliver(process, range(10), clock, attempts_max=2)
    assert target.taken == Counter(range(10))
    assert (tally.refused, tally.failed, tally.calls) == (9, 0, 10)
    assert clock.now_s >= 9 * 5
    assert tally.waited_s == pytest.approx(clock.now_s)  # nothing else took any time


def test_only_what_was_refused_of_a_bulk_call_goes_again() -> None:
    chance = random.Random(5)
    taken: Counter[int] = Counter()

    def bulk(batch: Batch) -> None:
        refused = [index for index in range(len(batch)) if chance.random() < 0.05]
        taken.update(r.value for i, r in enumerate(batch) if i not in refused)
        if refused:
            raise RetryLater("items refused", after_s=0.1, again=refused)

    tally = deliver(bulk, range(5_000))
    assert taken == Counter(range(5_000)), "each once in the end, none that was taken again"
    assert tally.written == 5_000 and tally.refused > 0


def test_what_was_rejected_in_a_call_that_was_refused_in_part_is_settled_too() -> None:
    letters, seen = Letters(), []

    def bulk(batch: Batch) -> None:
        seen.append([record.value for record in batch])
        if len(batch) == 4:
            batch.reject(1, "mapping")
            raise RetryLater("full", again=[1, 3])

    tally = deliver(bulk, "abcd", dead_letter=letters)
    assert seen == [["a", "b", "c", "d"], ["d"]]
    assert (tally.written, tally.rejected, tally.kept) == (3, 1, 1)


def test_a_bulk_call_that_took_nothing_goes_again_whole() -> None:
    seen: list[int] = []

    def bulk(batch: Batch) -> None:
        seen.append(len(batch))
        if len(seen) == 1:
            raise RetryLater("full", again=range(len(batch)))

    tally = deliver(bulk, "abcd")
    assert seen == [4, 4]
    assert (tally.written, tally.refused) == (4, 1)


def test_the_time_in_calls_and_the_time_waited_are_told_apart() -> None:
    clock, refusals = Clock(), [True, False, True]

    def process(batch: Batch) -> None:
        clock.sleep(2.0)
        if refusals and refusals.pop():
            raise RetryLater("full", after_s=5.0)

    tally = deliver(process, "ab", clock)
    assert (tally.calls, tally.refused) == (2, 1)
    assert tally.called_s == 4.0
    assert tally.waited_s == 5.0


def test_indices_that_are_none_of_the_batch_end_the_partition() -> None:
    def bulk(batch: Batch) -> None:
        raise RetryLater("full", again=[len(batch)])

    with pytest.raises(UnrunnableError, match="not indices of a batch of 3"):
        deliver(bulk, "abc")


def test_a_target_that_refuses_for_too_long_fails_the_partition() -> None:
    def process(batch: Batch) -> None:
        raise ConnectionRefusedError

    with pytest.raises(TargetDownError, match="refused every call"):
        deliver(process, range(10))


def test_a_piece_that_times_out_again_and_again_goes_in_halves() -> None:
    target = Target()

    def process(batch: Batch) -> None:
        if len(batch) > 60:
            raise TimeoutError
        target.take(batch)

    deliver(process, range(500))
    assert target.taken == Counter(range(500))


def test_of_calls_that_time_out_the_next_ones_are_smaller() -> None:
    """Each of 40 calls of 500 rows was halved anew, after three time-outs each time."""
    clock, late = Clock(), []

    def process(batch: Batch) -> None:
        if len(batch) > 60:
            late.append(clock.now_s)
            raise TimeoutError

    tally = deliver(process, range(20_000), clock)
    assert tally.written == 20_000
    assert len(late) == 3, "a time-out may be half a minute, so a larger call is tried rarely"
    assert tally.calls <= 20_000 / 50 + 5


def test_calls_grow_again_when_they_do_not_time_out_any_more() -> None:
    clock, sizes = Clock(), []

    def process(batch: Batch) -> None:
        clock.sleep(0.01)
        sizes.append(len(batch))
        if len(batch) > 60 and clock.now_s < 5.0:
            raise TimeoutError

    deliver(process, range(100_000), clock)
    assert max(sizes[10:50]) < 60 and sizes[-2] == 500


def test_a_piece_that_is_refused_as_a_whole_is_not_sent_in_more_calls() -> None:
    """Only a time-out may mean that it is too large; a target that is full would get more calls."""
    clock, sizes = Clock(), []

    def process(batch: Batch) -> None:
        sizes.append(len(batch))
        if len(batch) > 60 and clock.now_s < 10:
            raise RetryLater("full", after_s=1)

    deliver(process, range(500), clock)
    [refused] = {size for size in sizes if sizes.count(size) > 5}
    assert refused > 60 and min(sizes[sizes.index(refused) :]) == refused


def test_calls_row_by_row_get_through_a_target_that_takes_few_in_a_row() -> None:
    """Each call of fn makes one request for each row, and the eighth in a row is refused."""
    clock, in_a_row = Clock(), [0.0, 0]
    requests: Counter[int] = Counter()

    def process(batch: Batch) -> None:
        for record in batch:
            if clock.now_s > in_a_row[0]:
                in_a_row[:] = [clock.now_s, 0]
            in_a_row[1] += 1
            if in_a_row[1] > 7:
                raise RetryLater("slow down", after_s=1)
            requests[record.value] += 1

    tally = deliver(process, range(300), clock, rows_max=100)
    assert set(requests) == set(range(300)) and tally.written == 300
    assert requests.total() <= 2.2 * 300, "what came before a refusal is sent once more"


def test_connections_are_given_back_by_who_waits_longer_than_it_works() -> None:
    clock, released, refusals = Clock(), [], [1.0]

    def process(batch: Batch) -> None:
        clock.sleep(0.1)
        if batch.span.first == 2 and refusals:
            raise RetryLater("busy", after_s=refusals.pop())

    deliver(process, range(6), clock, rows_max=2, release=lambda: released.append(clock.now_s))
    assert released == [pytest.approx(1.3)], "after the call that had to wait, and only then"


def test_an_attempt_of_the_task_counts_as_one_of_its_calls() -> None:
    clock, seen = Clock(), []
    plan = Plan(process=lambda batch: seen.append(batch.attempt))
    pacer = PatientPacer(clock)
    Delivery(plan, Where("job", "7", attempt=3), pacer, clock=clock, sleep=clock.sleep).run("a")
    assert seen == [3]


def test_the_users_own_rule_decides() -> None:
    calls = []

    def process(batch: Batch) -> None:
        calls.append(1)
        if len(calls) < 4:
            raise ValueError("full")

    tally = deliver(process, "ab", refusal=lambda error: isinstance(error, ValueError))
    assert (tally.refused, tally.failed) == (3, 0)


# -- rows that can't be written ------------------------------------------------------------------


def poison(target: Target, bad: set[int]) -> Callable[[Batch], None]:
    def process(batch: Batch) -> None:
        values = [record.value for record in batch]  # read to the end: no row is named
        if bad & set(values):
            raise ValueError("not a row")
        target.take(batch)

    return process


@pytest.mark.parametrize("bad", [{0}, {499}, {77, 78}, {3, 200, 450}])
def test_the_bad_rows_are_found_and_kept_and_all_others_written_once(bad: set[int]) -> None:
    target, letters = Target(), Letters()
    tally = deliver(poison(target, bad), range(500), dead_letter=letters)
    assert target.taken == Counter(set(range(500)) - bad)
    assert {value for *_, value, _, _ in letters.kept} == bad
    assert (tally.written, tally.gave_up, tally.kept) == (500 - len(bad), len(bad), len(bad))
    assert letters.kept[0][-1] == "ValueError: not a row"


def test_the_row_that_was_being_read_is_known_at_once() -> None:
    letters = Letters()

    def process(batch: Batch) -> None:
        for record in batch:
            if record.value == 20:
                raise ValueError("not a row")

    tally = deliver(process, range(25), dead_letter=letters, attempts_max=2)
    assert [value for *_, value, _, _ in letters.kept] == [20]
    assert tally.failed == 2, "once in the piece, once alone"


def test_without_a_dead_letter_a_row_that_fails_ends_the_partition() -> None:
    with pytest.raises(ProcessError, match="row 3 of partition 7 failed 5 times: ValueError"):
        deliver(poison(Target(), {3}), range(10))


def test_where_nothing_succeeds_the_target_is_to_blame_and_little_is_kept() -> None:
    letters = Letters()
    with pytest.raises(ProcessError, match="no call succeeded between them"):
        deliver(poison(Target(), set(range(500))), range(500), dead_letter=letters)
    assert len(letters.kept) == 8


def test_a_rejected_row_without_a_place_to_keep_it_ends_the_partition() -> None:
    with pytest.raises(TooManyLostError, match="a row was rejected \\(no id\\)"):
        deliver(lambda batch: batch.reject(0, "no id"), "ab")


def test_rejected_rows_are_kept_or_accepted_up_to_a_share() -> None:
    def process(batch: Batch) -> None:
        for record in batch:
            if record.value % 50 == 0:
                batch.reject(record, "no id")

    letters = Letters()
    tally = deliver(process, range(500), dead_letter=letters)
    assert (tally.rejected, tally.kept, len(letters.kept)) == (10, 10, 10)
    assert deliver(process, range(500), fail_over="2%").rejected == 10
    with pytest.raises(TooManyLostError, match="10 of 500 rows were left out"):
        deliver(process, range(500), fail_over="1%")
    with pytest.raises(TooManyLostError, match="fail_over allows 3"):
        deliver(process, range(500), fail_over="3")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "disk full"), ValueError("no JSON")])
def test_a_rejected_row_that_can_not_be_kept_ends_the_partition_and_nothing_is_sent_twice(
    error: Exception,
) -> None:
    """A full disk of the dead letter is no refusal of the target, which has the other rows."""
    target = Target()

    def reject_one(batch: Batch) -> None:
        target.take(batch)
        for record in batch:
            if record.value == 7:
                batch.reject(record, "no seven")

    class Full(Letters):
        def dead_letter(self, *given: Any, **named: Any) -> None:
            raise error

    with pytest.raises(ProcessError, match="the dead letter Full raised"):
        deliver(reject_one, range(20), dead_letter=Full())
    assert target.taken == Counter(range(20))


def test_a_share_of_all_rows_is_not_one_of_each_partition() -> None:
    """``write(df)`` counts over all partitions, on the driver."""
    reject = {"fail_over": "1%", "process": lambda batch: batch.reject(0, "no id")}
    with pytest.raises(TooManyLostError):
        deliver(values="ab", **reject)
    assert deliver(values="ab", at_end=False, **reject).rejected == 1


def test_a_letter_between_two_sections_that_were_read_is_of_other_rows() -> None:
    """It has another mark: it may be of an older version of a batch, and must stay."""
    rows = ReadRows(section_of)
    for first, last in [((0, 5, 0), (0, 5, 9)), ((0, 5, 10), (0, 5, 19)), ((1, 9, 20), (1, 9, 29))]:
        rows.read(first, last)
    assert (
        rows.is_written((0, 5, 9)) and rows.is_written((0, 5, 15)) and rows.is_written((1, 9, 20))
    )
    assert rows.is_written((0, 7, 3)) is rows.is_written((1, 2, 22)) is rows.is_written("x") is None


@pytest.mark.parametrize(("which", "written"), [({0, 3, 4}, set(range(6))), (None, set())])
def test_of_a_call_that_a_target_had_in_part_all_are_written_if_it_says_which_it_had(
    which: set[int] | None, written: set[int]
) -> None:
    rows = ReadRows(section_of)
    records = [Record((0, 5, number), number) for number in range(6)]
    first, last = records[0].position, records[-1].position
    batch = Batch(records, Span("job", "7", first, last, 1), bolt="7", attempt=1)
    batch.left_out_at = which
    rows.read(first, last)
    rows.left_out(batch)
    assert {record.value for record in records if rows.is_written(record.position)} == written


def test_the_dead_letter_gets_what_it_can_keep() -> None:
    letters = Letters()
    deliver(lambda batch: batch.reject(0, "no"), ["a"], dead_letter=letters, letter_value=str.upper)
    assert letters.kept == [("job", "7", 0, "A", 1, "rejected: no")]


def test_mistakes_in_fn_end_the_partition_at_once() -> None:
    calls = []

    def fenced(batch: Batch) -> None:
        calls.append(1)
        raise FencedError("a newer one")

    with pytest.raises(FencedError):
        deliver(fenced, range(10))
    with pytest.raises(UnrunnableError, match="returned a generator"):
        deliver(lambda batch: (calls.append(1) for _ in batch), range(10))
    assert len(calls) == 1


def test_waiting_pieces_do_not_hold_up_the_others_but_reading_is_bounded() -> None:
    target, read = Target(), []

    def values() -> Any:
        for value in range(3_000):
            read.append(value)
            yield value

    def process(batch: Batch) -> None:
        if len(read) < 3_000 and read and target.taken.total() < 40:
            raise ValueError("not yet")
        target.take(batch)

    with pytest.raises(ProcessError):
        deliver(process, values(), rows_max=10)
    assert len(read) <= 100, "eight pieces wait, and one more is read"


def test_the_counts_are_there_although_it_raised() -> None:
    one = delivery(poison(Target(), {120}))
    with pytest.raises(ProcessError):
        one.run(range(300))
    assert one.tally.written > 0 and one.tally.gave_up == 1


def test_a_tally_says_what_happened() -> None:
    total = Tally(rows=10, written=8, rejected=2, kept=2, calls=3, waited_s=1.25)
    total.add(Tally(rows=5, written=5, calls=1, refused=1))
    assert str(total) == (
        "15 rows: 13 written, 2 rejected, 2 kept in the dead letter, 1 calls refused; 4 calls,"
        " waited 1.2 s"
    )
    assert total.fields()["rows"] == 15 and "left_out" not in total.fields()
    assert Tally(called_s=1.23456).fields() == {"rows": 0, "written": 0, "called_s": 1.235}


def test_a_sink_is_told_not_to_join_over_a_row_that_was_given_up() -> None:
    """Else a redriven letter that was given up again would count as written."""
    told: list[tuple[Any, Any]] = []

    def fn(batch: Batch) -> None:
        told.append((batch.span.acked_through, batch.span.unsettled))
        if batch[0].value == 2:
            raise ValueError("bad row")

    delivery(fn, rows_max=1, attempts_max=1, dead_letter=Letters()).run(range(5))
    after = [unsettled for through, unsettled in told if through is not None and through >= 2]
    assert after and set(after) == {(None, 2)}
    assert told[0][1] is None
