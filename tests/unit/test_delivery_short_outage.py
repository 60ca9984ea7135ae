"""A delivery whose target fails in ways nobody recognises, for a while: no good row is given up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowctl.bolts.batch import Batch
from flowctl.errors import ProcessError
from tests.delivery_parts import Clock
from tests.unit.test_delivery import Letters, Target, deliver

CALL_S = 0.005


class Away(Target):
    """Fails from ``since_s`` on for ``for_s`` seconds, and for ``poison`` always."""

    def __init__(self, clock: Clock, since_s: float, for_s: float, poison: int = -1) -> None:
        super().__init__()
        self.clock = clock
        self.fails = (since_s, since_s + for_s)
        self.poison = poison

    def take(self, batch: Batch) -> None:
        self.clock.sleep(CALL_S)
        if self.fails[0] <= self.clock.now_s < self.fails[1]:
            raise OSError(5, "Input/output error")
        if any(record.value == self.poison for record in batch):
            raise RuntimeError("poison")
        super().take(batch)


@pytest.mark.parametrize("for_s", [0.1, 1.0, 9.0])
@pytest.mark.parametrize("since_s", [0.0, 0.1, 0.24])
def test_an_outage_costs_no_good_row(since_s: float, for_s: float) -> None:
    """At the start, in the middle, and in the last one of fifty calls."""
    clock, letters = Clock(), Letters()
    target = Away(clock, since_s, for_s)
    tally = deliver(target.take, range(1_000), clock, rows_max=20, dead_letter=letters)
    assert (tally.written, letters.kept) == (1_000, [])
    assert target.taken == dict.fromkeys(range(1_000), 1)


@pytest.mark.parametrize("attempts_max", [1, 5])
@pytest.mark.parametrize(
    ("rows", "rows_max", "since_s", "for_s", "call_s"),
    [
        (1_000, 1, 1.0, 4.0, CALL_S),
        (1_000, 1, 0.0, 9.0, CALL_S),
        (51, 25, 0.252, 9.0, CALL_S),  # the last call holds one row
        (60, 500, 40.0, 4.7, 1.2),  # one row a call, as rows are slow
    ],
)
def test_nor_does_it_where_a_call_holds_one_row(
    rows: int, rows_max: int, since_s: float, for_s: float, call_s: float, attempts_max: int
) -> None:
    """Kind: what is promised for rows must not depend on how many of them a call holds.

    A row that was read alone was never in doubt: with ``rows_max=1`` eight good rows were letters.
    """
    clock, letters = Clock(), Letters()
    target = Away(clock, since_s, for_s)

    def take(batch: Batch) -> None:
        target.take(batch)
        clock.sleep(call_s * len(batch) - CALL_S)

    tally = deliver(
        take, range(rows), clock,
        rows_max=rows_max, attempts_max=attempts_max, dead_letter=letters,
    )  # fmt: skip
    assert (tally.written, letters.kept) == (rows, [])
    assert target.taken == dict.fromkeys(range(rows), 1)


@pytest.mark.parametrize("rows_max", [1, 20])
def test_nor_does_a_second_one(rows_max: int) -> None:
    """Ten seconds are counted from the first failure since a call succeeded, not from the first."""
    clock, letters = Clock(), Letters()
    first, second = Away(clock, 0.1, 4.0), Away(clock, 20.0, 4.0)

    def take(batch: Batch) -> None:
        clock.sleep(0.1 * len(batch))
        first.take(batch)
        second.take(batch)

    tally = deliver(take, range(300), clock, rows_max=rows_max, dead_letter=letters)
    assert (tally.written, letters.kept) == (300, [])


@pytest.mark.parametrize("rows_max", [1, 20])
def test_a_target_that_is_away_is_asked_rarely_and_with_whole_calls(rows_max: int) -> None:
    """Its calls were cut down to single rows meanwhile, each of them tried five times."""
    clock = Clock()
    target = Away(clock, 1.0, 5.0)
    asked: list[float] = []

    def take(batch: Batch) -> None:
        if 1.0 <= clock.now_s < 6.0:
            asked.append(clock.now_s)
        target.take(batch)

    tally = deliver(take, range(400 * rows_max), clock, rows_max=rows_max, dead_letter=Letters())
    assert tally.written == 400 * rows_max
    assert len(asked) <= 32, "of eight that wait, each three times until it counts as down"
    assert sum(at_s > 1.5 for at_s in asked) <= 5
    assert tally.calls - 400 <= len(asked) + 12, "what it was asked with went on in halves"


@pytest.mark.parametrize("rows_max", [1, 20])
@pytest.mark.parametrize("error", [ValueError("seven"), RuntimeError("seven")])
def test_a_bad_row_does_not_hide_that_the_target_is_back(rows_max: int, error: Exception) -> None:
    """Whoever asks with the oldest row only would ask with the bad one, until ten seconds passed.

    The bad row has been found when the outage begins, and waits for its next attempt.
    """
    clock, letters = Clock(), Letters()
    target, bad = Away(clock, 1.0, 4.0), 196 * rows_max
    back: list[float] = []

    def take(batch: Batch) -> None:
        target.take(batch)
        if any(record.value == bad for record in batch):
            raise error
        if clock.now_s > 5.0:
            back.append(clock.now_s)

    tally = deliver(take, range(400 * rows_max), clock, rows_max=rows_max, dead_letter=letters)
    assert [letter[3] for letter in letters.kept] == [bad]
    assert tally.written == 400 * rows_max - 1
    assert back[0] < 7.2, "two seconds after it came back at most"


def test_a_target_that_says_what_is_wrong_with_a_row_is_back() -> None:
    """All that waits is bad, so nothing that it is asked with will ever succeed."""
    clock, letters = Clock(), Letters()
    target = Away(clock, 1.0, 4.0)

    def take(batch: Batch) -> None:
        target.take(batch)
        if 199 <= batch[0].value < 207:
            raise ValueError("no number")

    tally = deliver(take, range(400), clock, rows_max=1, dead_letter=letters)
    assert (tally.written, tally.kept) == (392, 8)
    assert clock.now_s < 9.0, "not ten seconds after the first failure"


@pytest.mark.parametrize("poison", [0, 19, 500, 980, 999])
def test_a_bad_row_is_found_without_waiting_for_long(poison: int) -> None:
    clock, letters = Clock(), Letters()
    target = Away(clock, 0, 0, poison)
    tally = deliver(target.take, range(1_000), clock, rows_max=20, dead_letter=letters)
    assert (tally.written, tally.kept) == (999, 1)
    assert [letter[3] for letter in letters.kept] == [poison]
    assert clock.now_s < 5.0


@pytest.mark.parametrize("rows_max", [1, 20, 500])
@pytest.mark.parametrize("error", [ValueError("seven"), RuntimeError("seven")])
def test_ten_bad_rows_become_letters_where_all_others_are_written(
    rows_max: int, error: Exception
) -> None:
    """Their last attempts come together when nothing else is left: nine in a row fail then."""

    def write(batch: Batch) -> None:
        clock.sleep(CALL_S)
        if any(record.value % 50 == 7 for record in batch):
            raise error
        target.take(batch)

    clock, letters, target = Clock(), Letters(), Target()
    tally = deliver(write, range(500), clock, rows_max=rows_max, dead_letter=letters)
    assert (tally.written, tally.kept) == (490, 10)
    assert [letter[3] for letter in sorted(letters.kept)] == list(range(7, 500, 50))


def test_so_do_bad_values_that_stand_together() -> None:
    def write(batch: Batch) -> None:
        clock.sleep(CALL_S)
        if any(record.value >= 480 for record in batch):
            raise ValueError("no number")
        target.take(batch)

    clock, letters, target = Clock(), Letters(), Target()
    tally = deliver(write, range(500), clock, rows_max=500, dead_letter=letters)
    assert (tally.written, tally.kept) == (480, 20)


def test_a_target_that_stays_away_fails_the_partition_after_ten_seconds() -> None:
    clock, letters = Clock(), Letters()
    target = Away(clock, 0.1, 1e9)
    with pytest.raises(ProcessError, match="9 rows in a row failed"):
        deliver(target.take, range(1_000), clock, rows_max=20, dead_letter=letters)
    assert len(letters.kept) <= 8
    assert 10.0 <= clock.now_s < 60.0


def test_a_mistake_in_the_function_is_found_at_once() -> None:
    def load(batch: Batch) -> None:
        raise TypeError("no such argument")

    clock = Clock()
    with pytest.raises(ProcessError):
        deliver(load, range(1_000), clock, rows_max=20, dead_letter=Letters())
    assert clock.now_s < 5.0


class Answered(Exception):
    """As an HTTP client raises it for an answer of 400 and above."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status, headers={})


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_rows_that_the_target_can_not_take_are_not_sent_for_ten_seconds(status: int) -> None:
    """It is well and says what is wrong: asking it again for long only costs it calls."""
    calls: dict[int, int] = {}
    for answer in (status, 500):
        clock, made = Clock(), []

        def take(batch: Batch, answer: int = answer, made: list[int] = made) -> None:
            made.append(len(batch))
            raise Answered(answer)

        with pytest.raises(ProcessError, match=f"HTTP {answer}"):
            deliver(take, range(500), clock, dead_letter=Letters())
        calls[answer] = len(made)
        assert (clock.now_s < 10.0) == (answer == status)
    assert calls[status] < calls[500] / 2
