"""Rows that a target does not take: which may be left out, where they are kept, what is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flowctl.core.records import Record
from flowctl.delivery.lost_rows import LostRows, check_losses
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.tally import Tally
from flowctl.errors import ProcessError, TooManyLostError


class Letters:
    """A store that counts attempts; ``fault`` is what it raises at the end of one."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, str, int, Any]] = []
        self.counted: list[tuple[str, str, Any]] = []
        self.attempts = 0
        self.fault: Exception | None = None

    def of_attempt(self) -> Letters:
        self.attempts += 1
        return self

    def dead_letter(
        self, job: str, partition: str, records: Sequence[Record], *, attempts: int, reason: str
    ) -> None:
        (record,) = records
        assert (job, partition) == ("job", "p7")
        self.kept.append((record.position, reason, attempts, record.value))

    def count_attempt(self, job: str, partition: str, fate: Callable[[Any], Any]) -> None:
        if self.fault is not None:
            raise self.fault
        self.counted.append((job, partition, fate(5)))

    def close(self) -> None:
        pass


def lost(tally: Tally | None = None, **plan: Any) -> LostRows:
    return LostRows(Plan(process=lambda batch: None, **plan), Where("job", "p7"), tally or Tally())


ROW = Record(5, {"id": 5})


def test_a_row_that_nobody_keeps_ends_the_task() -> None:
    tally = Tally()
    with pytest.raises(
        TooManyLostError, match=r"rejected \(no such user\), and would be kept nowh"
    ):
        lost(tally).reject(ROW, "no such user")
    assert (tally.rejected, tally.kept) == (1, 0)
    with pytest.raises(ProcessError, match=r"row 5 of partition p7 .* 3 times: .*bad value\. Fix"):
        lost().give_up(ROW, 3, ValueError("bad value"))
    with pytest.raises(ProcessError, match="row 5 of partition p7 failed"):
        lost(fail_over="50%").give_up(ROW, 3, ValueError("bad value"))


def test_with_a_share_that_may_be_missing_rejected_rows_need_no_letter() -> None:
    tally = Tally(written=100)
    rows = lost(tally, fail_over="10%")
    for _ in range(9):
        rows.reject(ROW, "no such user")
    rows.end(lambda position: True)
    assert (tally.rejected, tally.kept, tally.lost) == (9, 0, 9)


def test_letters_hold_the_row_the_reason_and_the_attempts() -> None:
    letters, tally = Letters(), Tally()
    rows = lost(tally, dead_letter=letters, letter_value=lambda value: f"row {value['id']}")
    rows.reject(ROW, "x" * 100_000)
    rows.give_up(Record(6, {"id": 6}), 4, ValueError("bad value"))
    (one, other) = letters.kept
    assert one[0] == 5 and one[1].endswith("x") and len(one[1]) < 10_000
    assert (one[2], one[3]) == (1, "row 5")
    assert other == (6, "ValueError: bad value", 4, "row 6")
    assert (tally.rejected, tally.gave_up, tally.kept) == (1, 1, 2)
    assert letters.attempts == 1
    rows.end(lambda position: position == 5)
    assert letters.counted == [("job", "p7", True)]


def test_rows_are_kept_as_they_are_where_nothing_else_is_asked_for() -> None:
    letters = Letters()
    lost(dead_letter=letters).reject(ROW, "no such user")
    assert letters.kept[0][3] == {"id": 5}


def test_many_in_a_row_show_that_it_is_not_the_rows() -> None:
    rows = lost(dead_letter=Letters(), gave_up_in_a_row_max=3)
    for _ in range(3):
        rows.give_up(ROW, 5, ValueError("bad value"))
    rows.succeeded()
    for _ in range(3):
        rows.give_up(ROW, 5, ValueError("bad value"))
    rows.reject(ROW, "does not count")
    with pytest.raises(
        ProcessError, match=r"4 rows in a row failed, .* them: ValueError: bad value\."
    ):
        rows.give_up(ROW, 5, ValueError("bad value"))


def test_more_than_may_be_missing_ends_the_task_and_tells_of_the_last() -> None:
    tally = Tally(written=100)
    rows = lost(tally, dead_letter=Letters(), fail_over="2")
    rows.reject(ROW, "no such user")
    rows.give_up(ROW, 5, ValueError("bad value!"))
    with pytest.raises(TooManyLostError) as caught:
        rows.reject(ROW, "gone")
    text = str(caught.value)
    assert "p7: 3 of 103 rows were left out (2 rejected, 1 given up); fail_over allows 2" in text
    assert text.count("The last one:") == 1 and "gone. " in text
    assert "Fix the cause or raise the limit." in text


def test_a_share_is_looked_at_again_at_the_end_if_that_is_asked_for() -> None:
    for at_end, fails in ((True, True), (False, False)):
        rows = lost(Tally(written=2), dead_letter=Letters(), fail_over="10%", at_end=at_end)
        rows.reject(ROW, "one of three is too many, but there may be more rows")
        if fails:
            with pytest.raises(TooManyLostError, match="p7: 1 of 3 rows"):
                rows.end(lambda position: True)
        else:
            rows.end(lambda position: True)


def test_a_store_that_cannot_count_the_attempt_fails_the_task() -> None:
    letters = Letters()
    letters.fault = OSError("disk full")
    with pytest.raises(ProcessError, match=r"Letters raised OSError: disk full\. The letters of"):
        lost(dead_letter=letters).end(lambda position: True)


@pytest.mark.parametrize(
    ("fail_over", "tally", "fails"),
    [
        (None, Tally(rejected=9), False),
        ("1%", Tally(written=99, rejected=1), False),
        ("1%", Tally(written=98, rejected=1, gave_up=1), True),
        ("1%", Tally(written=100), False),
        ("0", Tally(), False),
    ],
)
def test_what_all_partitions_lost_is_held_against_the_limit(
    fail_over: str | None, tally: Tally, fails: bool
) -> None:
    if not fails:
        check_losses(fail_over, tally, "all")
        return
    with pytest.raises(TooManyLostError, match=r"all: 2 of 100 .* Look at the dead letters"):
        check_losses(fail_over, tally, "all")


def test_counts_of_partitions_are_added_up_and_said() -> None:
    one = Tally(
        rows=10, written=6, left_out=1, rejected=2, gave_up=2, kept=3, calls=4, waited_s=0.25
    )
    one.add(Tally(rows=5, written=5, calls=1, redriven=2, refused=3, failed=1, called_s=1.5))
    assert (one.rows, one.written, one.calls, one.lost, one.called_s) == (15, 11, 5, 4, 1.5)
    assert str(one) == (
        "15 rows: 11 written, 1 of them already there, 2 rejected, 2 given up, 3 kept in the dead"
        " letter, 2 letters redriven, 3 calls refused, 1 calls failed; 5 calls, waited 0.2 s"
    )
    assert str(Tally(rows=1, written=1, calls=1, waited_s=0.09)) == "1 rows: 1 written; 1 calls"
    assert Tally(written=2).fields() == {"rows": 0, "written": 2}
    assert one.fields()["left_out"] == 1
