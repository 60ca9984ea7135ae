"""A target that fails in ways nobody recognises, for a while: no good record is given up for it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import pytest

from flowctl.core.events import TupleGaveUp
from flowctl.core.messages import Emission
from flowctl.core.records import AckOutcome
from flowctl.core.settings import RetrySettings
from tests.core_driver import Driver

pytestmark = pytest.mark.on_change()

WELL_S = 0.05  # a call that succeeds
FAILS_S = 0.0005  # a connection that is refused: at once, so all input has failed soon
POISON = 444
GIVE_UP_AFTER_S = RetrySettings().give_up_after_s
REJECTED_S = 0.2  # what a refusal asks for


class TargetLostError(Exception):
    """The run has to end, as the target was down for too long."""


class Target:
    """Refuses between ``refuses``, and raises something unknown between ``fails`` [s]."""

    def __init__(self, fails: tuple[float, float], refuses: tuple[float, float] = (0, 0)) -> None:
        self.fails = fails
        self.refuses = refuses

    def __call__(self, emission: Emission, at_s: float) -> str:
        if self.refuses[0] <= at_s < self.refuses[1]:
            return "refuses"
        if self.fails[0] <= at_s < self.fails[1]:
            return "fails"
        return "poison" if any(r.position == POISON for r in emission.records) else "ok"


def letters(
    target: Callable[[Emission, float], str], *, bolts: int, records: int, size: int = 10
) -> list[int]:
    """Run a job in virtual time; return the positions that were given up, in order."""
    driver = Driver(
        *[f"b{n}" for n in range(bolts)],
        has_dead_letter=True,
        tuple_records_max=size,
        window_initial=2,
    )
    driver.checks = False
    given_up: list[int] = []
    ends: list[tuple[float, int, Emission, str]] = []
    free_s: dict[str, float] = {}
    left = records
    for _ in range(200_000):
        if left:
            left -= driver.offer(left)
            if not left:
                driver.end()
        for emission in driver.emit():
            begins_s = max(driver.clock(), free_s.get(emission.bolt, 0.0))
            fate = target(emission, begins_s)
            ends_s = begins_s + (WELL_S if fate == "ok" else FAILS_S)
            free_s[emission.bolt] = ends_s
            heappush(ends, (ends_s, emission.tuple_id * 100 + emission.attempt, emission, fate))
        while (letter := driver.core.poll_dead_letter()) is not None:
            given_up += [record.position for record in letter.records]  # type: ignore[misc]
            driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())
        if not left and driver.core.is_drained:
            return sorted(given_up)
        if driver.core.is_target_lost:
            assert not given_up
            raise TargetLostError
        deadline_s = driver.core.next_deadline_s()
        next_s = min(ends[0][0] if ends else 1e9, 1e9 if deadline_s is None else deadline_s)
        driver.wait(max(0.0, next_s - driver.clock()))
        while ends and ends[0][0] <= driver.clock():
            _, _, emission, fate = heappop(ends)
            _answer(driver, emission, fate)
    raise AssertionError(f"stuck at {driver.clock():.1f} s")


def _answer(driver: Driver, emission: Emission, fate: str) -> None:
    if fate == "ok":
        driver.ack(emission)
    elif fate == "rejects":
        driver.fail(emission, error="not a number", is_data_error=True)
    elif fate == "refuses":
        driver.fail(emission, error="503", is_refused=True, after_s=REJECTED_S)
    else:
        driver.fail(emission)


@pytest.mark.req("S109")
@pytest.mark.parametrize("fails_for_s", [0.1, 0.3, 1.5, 6.0, 30.0])
@pytest.mark.parametrize("bolts", [1, 4, 64])
def test_an_outage_costs_no_good_record(bolts: int, fails_for_s: float) -> None:
    target = Target(fails=(1.0, 1.0 + fails_for_s))
    assert letters(target, bolts=bolts, records=1_000 * bolts) == [POISON]


@pytest.mark.parametrize("bolts", [1, 4, 16])
def test_one_shortly_after_another_costs_none_either(bolts: int) -> None:
    """The breaker is patient then: it takes longer to open, and all input has failed by then."""
    target = Target(fails=(2.5, 4.0), refuses=(0.5, 2.0))
    assert letters(target, bolts=bolts, records=2_000) == [POISON]


@pytest.mark.parametrize("fails_for_s", [0.3, 1.5, 8.0])
def test_one_at_the_end_of_the_input_costs_none(fails_for_s: float) -> None:
    """Nothing else is left to ask with; ten seconds go by before the records count as bad."""
    target = Target(fails=(2.4, 2.4 + fails_for_s))
    assert letters(target, bolts=4, records=2_000) == [POISON]


def bad_from(first: int) -> Callable[[Emission, float], str]:
    """A target that takes nothing with a record from ``first`` on."""
    return lambda emission, _: "fails" if emission.records[-1].position >= first else "ok"  # type: ignore[operator]


def test_a_bad_end_of_the_input_is_found_though_it_takes_ten_seconds() -> None:
    assert letters(bad_from(901), bolts=4, records=950) == list(range(901, 951))


def test_where_more_is_left_that_fails_the_run_ends_and_keeps_it() -> None:
    with pytest.raises(TargetLostError):
        letters(bad_from(901), bolts=4, records=1_200)


def test_one_bad_record_at_the_end_takes_no_time() -> None:
    """It is alone in failing, so it is not mistaken for a target that is down."""
    driver = Driver("a", "b", has_dead_letter=True, tuple_records_max=8)
    driver.offer(16)
    driver.end()
    while not driver.core.is_drained:
        for emission in driver.emit():
            is_bad = any(r.position == 16 for r in emission.records)
            (driver.fail if is_bad else driver.ack)(emission)
        if driver.core.poll_dead_letter() is not None:
            break
        driver.wait_for_deadline()
    (gave_up,) = driver.events(TupleGaveUp)
    assert gave_up.first == gave_up.last == 16
    assert driver.clock() < 8.0, "its back-offs"


@pytest.mark.parametrize("bolts", [1, 4])
def test_bad_records_in_every_tuple_do_not_look_like_a_target_that_is_down_for_long(
    bolts: int,
) -> None:
    """No whole tuple succeeds, so one that asks is halved until a part does."""
    bad = [n for n in range(1_000, 5_000) if n % 100 == 37]

    def target(emission: Emission, at_s: float) -> str:
        return "fails" if any(r.position in bad for r in emission.records) else "ok"

    assert letters(target, bolts=bolts, records=5_000, size=1_000) == bad


@pytest.mark.parametrize("fate", ["fails", "rejects"])
@pytest.mark.parametrize("first", range(0, 7, 2))
def test_bad_records_do_not_make_a_target_look_down_that_refuses_now_and_then(
    fate: str, first: int
) -> None:
    """Kind: a refusal among bad records, so that nothing counts as bad, and each takes a question.

    The run even ended then, as the target seemed to be down for too long.
    """
    bad = [n for n in range(100, 6_000) if n % 100 == 5]
    calls, last_s = count(first), 0.0

    def target(emission: Emission, at_s: float) -> str:
        nonlocal last_s
        last_s = at_s
        if next(calls) % 7 == 0:
            return "refuses"
        return fate if any(r.position in bad for r in emission.records) else "ok"

    assert letters(target, bolts=4, records=6_000, size=500) == bad
    assert last_s < GIVE_UP_AFTER_S / 3


@pytest.mark.parametrize("since_s", [0.3, 0.35, 0.4, 0.45])
@pytest.mark.parametrize("fails_for_s", [0.3, 1.5, 8.0])
def test_an_outage_in_which_two_large_tuples_are_left_costs_none(
    fails_for_s: float, since_s: float
) -> None:
    """Too few to tell that the target is down; without a success, nothing is given up for 10 s."""
    target = Target(fails=(since_s, since_s + fails_for_s))
    assert letters(target, bolts=2, records=3_000, size=1_000) == [POISON]


def test_no_tuple_is_cut_for_a_target_that_fails_again_before_anything_has_succeeded() -> None:
    """The search for a bad record costs calls, which a target that is down should not get."""
    driver = Driver("a", "b", tuple_records_max=8, has_dead_letter=True)
    driver.offer(8)
    (first,) = driver.emit()
    driver.wait(0.1)
    driver.ack(first)
    driver.offer(400)
    for _ in range(3):  # fails at once, for less than the breaker needs to open
        for emission in driver.emit(2):
            driver.fail(emission)
        driver.wait(0.12)
    assert driver.core.counters.tuples_failed > 2
    assert driver.core.counters.tuples_cut == 0


@pytest.mark.req("S109")
def test_a_bad_end_is_found_though_no_good_record_shares_a_tuple_with_it() -> None:
    """Nothing succeeds any more, so only the time that went by says that the records are bad."""
    bad = Target(fails=(2.45, float("inf")))
    given_up = letters(bad, bolts=4, records=2_000)
    assert given_up[0] == POISON
    assert given_up[-1] == 2_000
    assert 9 < len(given_up) <= 101, "more than the few that need no proof"


def test_an_ack_of_what_was_sent_before_takes_no_proof_back() -> None:
    """Acks come out of order: the newest sending that succeeded shows that the target is well."""
    driver = Driver("a", "b", "c", has_dead_letter=True, retry_attempts_max=2, window_initial=1)
    driver.offer(20)
    first, bad, other = driver.emit()
    driver.ack(first)
    slow = [other, *driver.emit()]
    driver.wait(0.1)
    driver.fail(bad)
    driver.wait(0.05)
    (quick,) = driver.emit()
    driver.wait(0.06)
    for emission in (quick, *slow):
        driver.ack(emission)
    (again,) = [emission for emission in driver.emit() if emission.tuple_id == bad.tuple_id]
    assert driver.fail(again) is AckOutcome.GAVE_UP
