"""Outages, refusals and bad rows at drawn times: each row is written once, or is a letter.

A good row may become one only if an outage begins while a bad row beside it is being looked for.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.bolts.batch import Batch
from flowctl.errors import RetryLater
from tests.delivery_parts import Clock
from tests.unit.test_delivery import Letters, deliver

_GAP_S = 5.0  # between outages: time enough for a call that succeeds


class Case(msgspec.Struct, frozen=True):
    """``outages``: how long after the one before each begins, how long it lasts [s] and what it
    raises; ``bad`` rows fail always, alone or with others, by an error about them or an unknown
    one."""

    rows: int
    rows_max: int
    attempts_max: int
    call_s: float
    row_s: float
    outages: tuple[tuple[float, float, str], ...]
    bad: tuple[int, ...]
    is_about_rows: bool


_cases = st.builds(
    Case,
    rows=st.integers(1, 400),
    rows_max=st.sampled_from([1, 7, 50, 500]),
    attempts_max=st.sampled_from([4, 5]),
    call_s=st.sampled_from([0.001, 0.02, 0.3]),
    row_s=st.sampled_from([0.0, 0.001, 0.05]),
    outages=st.lists(
        st.tuples(st.floats(0.0, 3.0), st.floats(0.01, 7.5), st.sampled_from(["unknown", "full"])),
        max_size=3,
    ).map(tuple),
    bad=st.lists(st.integers(0, 399), max_size=6, unique=True).map(tuple),
    is_about_rows=st.booleans(),
)


@pytest.mark.req("S110")
@settings(max_examples=200, deadline=None)
@given(case=_cases)
def test_each_row_is_written_once_or_becomes_a_letter(case: Case) -> None:
    clock, letters, taken = Clock(), Letters(), Counter[int]()
    spans, at_s = [], 0.0
    for after_s, for_s, what in case.outages:
        spans.append((at_s + after_s, at_s + after_s + for_s, what))
        at_s += after_s + for_s + _GAP_S
    bad = {number for number in case.bad if number < case.rows}

    def take(batch: Batch) -> None:
        clock.sleep(case.call_s + case.row_s * len(batch))
        for since_s, until_s, what in spans:
            if since_s <= clock.now_s < until_s:
                raise RetryLater("full") if what == "full" else OSError(5, "I/O error")
        values = [record.value for record in batch]
        if bad & set(values):
            raise ValueError("bad") if case.is_about_rows else RuntimeError("bad")
        taken.update(values)

    tally = deliver(
        take, range(case.rows), clock,
        rows_max=case.rows_max, attempts_max=case.attempts_max, dead_letter=letters,
        gave_up_in_a_row_max=case.rows,
    )  # fmt: skip
    lost = {letter[3] for letter in letters.kept}
    assert taken == Counter(set(range(case.rows)) - lost), "each once, or as a letter"
    assert bad <= lost
    assert (tally.rows, tally.written, tally.kept) == (case.rows, len(taken), len(lost))
    if not bad or all(what == "full" for *_, what in case.outages):
        assert lost == bad, "no good one is given up"
