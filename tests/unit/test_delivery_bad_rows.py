"""What bad rows cost where there are many: calls, and rows that are sent again."""

from __future__ import annotations

import random

import pytest

from flowctl.bolts.batch import Batch
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.plan import Plan, Where
from tests.delivery_parts import Clock, PatientPacer
from tests.listener_parts import Letters

ROWS = 1_000


class Caller:
    """Fails with ``error`` at bad rows: as it reads them, or as a whole."""

    def __init__(self, bad: set[int], error: type[Exception], *, as_a_whole: bool) -> None:
        self._bad, self._error, self._as_a_whole = bad, error, as_a_whole
        self.clock = Clock()
        self.calls = 0
        self.done: set[int] = set()

    def __call__(self, batch: Batch) -> None:
        self.calls += 1
        self.clock.sleep(0.01)
        if self._as_a_whole and self._bad & {record.value for record in batch}:
            raise self._error("bad")
        for record in batch:
            if record.value in self._bad:
                raise self._error("bad")
            self.done.add(record.value)

    def deliver(self) -> Letters:
        letters, clock = Letters(), self.clock
        plan = Plan(process=self, dead_letter=letters, gave_up_in_a_row_max=float("inf"))
        delivery = Delivery(
            plan, Where("j", "p"), PatientPacer(clock), clock=clock, sleep=clock.sleep, chance=None
        )
        delivery.run(range(ROWS))
        return letters


@pytest.mark.parametrize(
    ("error", "as_a_whole", "most"),
    [
        (ValueError, False, 3.02),
        (ValueError, True, 6.0),
        (RuntimeError, False, 6.1),  # may be the target's: as careful as ever
        (RuntimeError, True, 9.1),
    ],
)
def test_what_one_bad_row_in_ten_costs(
    error: type[Exception], as_a_whole: bool, most: float
) -> None:
    calls = bad_rows = 0
    for seed in range(3):
        bad = set(random.Random(seed).sample(range(ROWS), ROWS // 10))
        caller = Caller(bad, error, as_a_whole=as_a_whole)
        letters = caller.deliver()
        assert caller.done == set(range(ROWS)) - bad, "every other row is written"
        assert len(letters.kept) == len(bad)
        calls, bad_rows = calls + caller.calls, bad_rows + len(bad)
    assert calls / bad_rows <= most


def test_a_row_that_a_sink_names_is_cut_out_at_once() -> None:
    bad = set(random.Random(1).sample(range(ROWS), ROWS // 10))

    class Naming(Caller):
        def __call__(self, batch: Batch) -> None:
            self.calls += 1
            for index, value in enumerate(batch.values):  # no row is read as a record
                if value in bad:
                    raise batch.row_error(index, "2.5 is no whole number.", remedy="Cast it.")
            self.done.update(batch.values)

    caller = Naming(bad, ValueError, as_a_whole=True)
    letters = caller.deliver()
    assert caller.done == set(range(ROWS)) - bad
    assert {reason for *_, reason in letters.kept} == {"RowError: 2.5 is no whole number. Cast it."}
    assert caller.calls <= 3.02 * len(bad)


@pytest.mark.parametrize("share", [0.002, 0.02, 0.3, 0.9])
def test_whatever_the_share_no_bad_row_costs_more_than_halving(share: float) -> None:
    bad = set(random.Random(1).sample(range(ROWS), int(share * ROWS)))
    caller = Caller(bad, ValueError, as_a_whole=True)
    caller.deliver()
    assert caller.done == set(range(ROWS)) - bad
    assert caller.calls <= 8 + 11 * len(bad)  # of 475 rows, and what was read before and after
    if share >= 0.3:
        assert caller.calls <= 4.5 * len(bad), "not halved from the largest each time"


def test_a_run_of_bad_rows_does_not_make_the_rest_go_one_by_one() -> None:
    bad = set(range(300, 320))
    caller = Caller(bad, ValueError, as_a_whole=True)
    caller.deliver()
    assert caller.done == set(range(ROWS)) - bad
    assert caller.calls <= 90
