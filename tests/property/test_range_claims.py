"""The claims of a range under any order of claims, splits, results and reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowctl.bolts.range_claims import PROGRESS_EARLY, PROGRESS_EVERY_S, RangeClaims
from flowctl.bolts.range_pace import RECORDS_MAX, SHARE, TARGET_S, BatchPace
from flowctl.core.cost import CallCost
from flowctl.core.messages import Processed

pytestmark = pytest.mark.on_change()

SHARES = st.floats(0, 1)


class ClaimsMachine(RuleBasedStateMachine):
    """Positions are records: each is processed here, given back, or neither yet; never both."""

    @initialize(start=st.integers(0, 20), length=st.integers(1, 60))
    def begin(self, start: int, length: int) -> None:
        self.claims = RangeClaims(start, start + length)
        self.start, self.whole = start, start + length
        self.processed: list[int] = []
        self.failed: list[int] = []
        self.given: list[int] = []
        self.told: list[int] = []
        self.answers: dict[int, int] = {}
        self.now_s = 0.0
        self.told_at_s: list[float] = []
        self.under_way: tuple[int, int] | None = None

    @rule(more=st.integers(0, 30))
    def claim(self, more: int) -> None:
        if self.under_way is None and not self.claims.is_finished:
            before = self.claims.claimed
            after = self.claims.claim(before + more)
            assert after <= before + more
            self.under_way = (before, after)

    @rule(raises=st.booleans(), sink_s=st.none() | st.just(0.5))
    def end(self, raises: bool, sink_s: float | None) -> None:
        if self.under_way is None:
            return
        begin, end = self.under_way
        self.under_way = None
        if raises:
            self.report(at_once=True)
            self.claims.failed()
            self.failed += range(begin, end)
        else:
            self.claims.done(Processed(records=end - begin, sink_s=sink_s))
            self.processed += range(begin, end)

    @rule(request=st.integers(0, 5), keep=SHARES)
    def split(self, request: int, keep: float) -> None:
        before = self.claims.stop
        answer = self.claims.split(request, keep)
        assert answer == self.answers.setdefault(request, answer)
        assert self.claims.claimed <= self.claims.stop <= answer
        self.given += range(self.claims.stop, before)

    @rule(later_s=st.floats(0, 0.3))
    def time_passes(self, later_s: float) -> None:
        self.now_s += later_s
        self.report(at_once=False)

    def report(self, *, at_once: bool) -> None:
        told = self.claims.progress(self.now_s, at_once=at_once)
        if told is not None:
            start, through, did = told
            positions = range(start, through)
            assert did.records == len(positions)
            self.told += positions
            if not at_once:
                self.check_pace()
            self.told_at_s.append(self.now_s)

    def check_pace(self) -> None:
        """With this report, there are ten a second since each of those before it, and few more."""
        for before, at_s in enumerate(reversed(self.told_at_s)):
            most = PROGRESS_EARLY + (self.now_s - at_s) / PROGRESS_EVERY_S
            assert before + 1 <= most + 1e-9

    @invariant()
    def every_position_has_one_owner(self) -> None:
        under_way = [*range(*self.under_way)] if self.under_way is not None else []
        left = [*range(self.claims.claimed, self.claims.stop)]
        owned = self.processed + self.failed + under_way + left + self.given
        assert sorted(owned) == [*range(self.start, self.whole)]

    @invariant()
    def only_what_was_processed_is_told(self) -> None:
        assert self.told == self.processed[: len(self.told)]
        assert self.claims.is_finished == (
            len(self.processed) + len(self.failed) == self.claims.stop - self.start
        )

    def teardown(self) -> None:
        if hasattr(self, "claims"):
            self.end(raises=False, sink_s=None)
            self.report(at_once=True)
            assert self.told == self.processed


TestClaims = ClaimsMachine.TestCase


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(1e-7, 20)), min_size=1, max_size=30))
def test_a_batch_takes_about_the_target_once_costs_are_known(costs):
    pace = BatchPace()
    for share, record_s in costs:
        before = pace.records
        records = max(1, pace.next_records // share)
        pace.took(records, records * record_s)
        # A trial has two records where a batch has one: so many were tried, too.
        assert 1 <= pace.records <= 4 * max(before, records)
        assert pace.records <= RECORDS_MAX
    record_s = costs[-1][1]
    for _ in range(120):  # a start that misled is forgotten in some seventy
        records = pace.next_records
        pace.took(records, records * record_s)
    wanted = min(max(TARGET_S / record_s, 1), RECORDS_MAX)
    assert 0.5 * wanted <= pace.records <= 1.5 * wanted


@given(st.floats(1e-4, 0.05), st.floats(0.2, 3))
def test_a_kill_repeats_a_share_of_what_is_done_and_long_jobs_have_few_batches(record_s, longest_s):
    pace, done_s, batches = BatchPace(longest_s), 0.0, 0
    while done_s < 100 * longest_s:
        records = pace.next_records
        batch_s = records * record_s
        assert batch_s <= max(record_s * 8, TARGET_S, min(longest_s, SHARE * done_s)) + record_s
        pace.took(records, batch_s)
        done_s += batch_s
        batches += 1
    assert pace.records * record_s > longest_s / 2 or pace.records == 1
    assert batches < 1.1 * (100 + 130)  # at the limit; and while they grow; and trials


def test_a_first_call_that_imports_for_seconds_does_not_make_batches_long():
    pace = BatchPace(2.0)
    pace.took(pace.records, 20.0)
    done = 0
    while done * 0.001 < 5.0:
        done += pace.records
        pace.took(pace.records, pace.records * 0.001)
    assert pace.records * 0.001 < 1.5 * max(TARGET_S, SHARE * 5.0)


def test_costs_that_fall_by_orders_of_magnitude_leave_no_variance_that_none_can_have():
    """The filter's gain grew without end, and the process thread of the bolt died of it."""
    for costs in ((1.0, 13.0, 1.0, 10.0, 0.25, 1e-7), (1.0, 11.0, 8.0, 1e-7)):
        pace = BatchPace()
        for record_s in (*costs, *([costs[-1]] * 60)):
            records = pace.next_records
            pace.took(records, records * record_s)
        assert pace.records == RECORDS_MAX


@pytest.mark.parametrize(
    "calls",
    [
        [(1, 20), (2, 1e-7), (8, 1e-7), (100, 1e-7), (32_768, 1.985427530411735), (2, 0.1)],
        [(1, 0.1), (32_768, 1e-7), (32_768, 1e-7), (32_768, 1e-7)],
    ],
    ids=["a variance below zero", "parts that vary together more than each does"],
)
def test_no_call_leads_away_from_what_it_took(calls):
    """Each of the two bounds on what is left of the variances is needed where the other holds.

    Without the first the filter ends with an error; without the second, a call that took just what
    was expected is expected to take a hundred times as long from then on.
    """
    cost = CallCost(*calls[0], drift=0.01)
    for records, service_s in calls[1:]:
        before_s = cost.of(records)
        cost.took(records, service_s)
        least_s, most_s = sorted((before_s, service_s))
        assert 0.999 * least_s <= cost.of(records) <= 1.001 * most_s
