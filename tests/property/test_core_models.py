"""Parts of the core against the simplest thing that could be right."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flowctl.core.cost import ServiceModel
from flowctl.core.ledger import PartitionLedger
from flowctl.core.positions import encode, show
from flowctl.core.rangeset import RangeSet
from flowctl.core.records import Position, Record
from flowctl.core.settings import WindowSettings
from flowctl.core.window import AckSample, make_policy
from flowctl.errors import JobError

pytestmark = pytest.mark.on_change()

# -- RangeSet against a set of numbers ---------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=25)


@given(RANGES)
def test_a_range_set_is_a_set_of_numbers(ranges: list[tuple[int, int]]) -> None:
    tested, model = RangeSet(), set[int]()
    for start, length in ranges:
        low, high = tested.add(start, start + length)
        model |= set(range(start, start + length))
        assert set(range(low, high)) <= model
        assert low - 1 not in model and high not in model  # the whole merged range
    assert {n for low, high in tested for n in range(low, high)} == model
    assert [n in tested for n in range(70)] == [n in model for n in range(70)]
    assert len(tested) == sum(1 for n in model if n - 1 not in model)
    for start, length in ranges:
        assert tested.covers(start, start + length)
    while tested.first() is not None:
        assert tested.first() == tested.pop_first()


@given(RANGES, st.integers(0, 60), st.integers(1, 10))
def test_a_range_is_covered_if_all_its_numbers_are_in(
    ranges: list[tuple[int, int]], start: int, length: int
) -> None:
    tested, model = RangeSet(), set[int]()
    for low, size in ranges:
        tested.add(low, low + size)
        model |= set(range(low, low + size))
    assert tested.covers(start, start + length) == set(range(start, start + length)).issubset(model)


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        RangeSet().add(3, 3)


# -- the ledger, over crashes, against a set of positions --------------------------------


@pytest.mark.req("S11", "S13", "S14")
@given(st.data())
def test_over_any_crashes_a_ledger_is_a_set_of_positions(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25), label="records")
    done, ledger = set[int](), PartitionLedger("p")
    for _ in range(data.draw(st.integers(1, 4), label="runs")):
        ledger = PartitionLedger("p", ledger.checkpoint())
        begin = int(ledger.cumulative or 0) + 1  # type: ignore[arg-type]
        read_to = data.draw(st.integers(begin - 1, count), label="read to")
        left_out = data.draw(st.booleans(), label="the producer leaves out what is done")
        positions = [n for n in range(begin, read_to + 1) if not (left_out and n in done)]
        step = data.draw(st.integers(1, 6), label="chunk")
        todo: list[tuple[int, int]] = []
        for i in range(0, len(positions), step):
            records = [Record(n, None) for n in positions[i : i + step]]
            for seq, run in ledger.admit(records):
                todo += [(seq + k, record.position) for k, record in enumerate(run)]  # type: ignore[misc]
        assert {n for _, n in todo} == set(range(begin, read_to + 1)) - done
        for seq, n in data.draw(st.permutations(todo), label="acks")[: len(todo) // 2 + 1]:
            ledger.ack(seq, seq + 1, n, n)
            done.add(n)
        _agree(ledger, done)


def _agree(ledger: PartitionLedger, done: set[int]) -> None:
    checkpoint = ledger.checkpoint()
    covered = set(range(1, int(checkpoint.position or 0) + 1))  # type: ignore[arg-type]
    assert checkpoint.records == len(covered)
    assert len(covered) + 1 not in done or checkpoint.acked  # as far as it can be known
    for span in checkpoint.acked:
        numbers = set(range(span.first, span.last + 1))  # type: ignore[arg-type, operator]
        assert len(numbers) == span.records and not numbers & covered
        covered |= numbers
    assert covered == done


@pytest.mark.req("S97", "S99", "S101")
@given(st.sets(st.integers(0, 200), max_size=40).map(sorted), st.data())
def test_over_gaps_a_ledger_commits_what_a_walk_from_the_start_would(
    offsets: list[int], data: st.DataObject
) -> None:
    """Offsets of Kafka have gaps: holes block the commit, gaps do not."""
    ledger = PartitionLedger("p")
    emitted: dict[int, int] = {}
    acked: set[int] = set()
    for offset in offsets:
        [(seq, _)] = ledger.admit([Record(offset, None)])
        emitted[offset] = seq
        for one in data.draw(st.permutations(sorted(emitted.keys() - acked)))[:1]:
            if data.draw(st.booleans()):
                ledger.ack(emitted[one], emitted[one] + 1, one, one)
                acked.add(one)
        done = list(itertools.takewhile(acked.__contains__, sorted(emitted)))
        assert ledger.cumulative == (done[-1] if done else None)
        assert ledger.uncommitted == len(emitted) - len(done)


# -- positions as bytes ------------------------------------------------------------------

INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.just("\0"))
SHAPES = st.lists(st.sampled_from([INTS, FLOATS, TEXTS, st.none()]), max_size=4)


@st.composite
def two_of_one_shape(draw: st.DrawFn) -> tuple[Position, Position]:
    if draw(st.booleans()):
        shape = draw(st.sampled_from([INTS, FLOATS, TEXTS]))
        return draw(shape), draw(shape)
    parts = draw(SHAPES)
    first = tuple(draw(part) for part in parts)
    # Often equal at the beginning, and sometimes the other's prefix: there the order is decided.
    shared, kept = draw(st.integers(0, len(parts))), draw(st.integers(0, len(parts)))
    second = tuple(first[i] if i < shared else draw(part) for i, part in enumerate(parts))
    return first, second[:kept] if draw(st.booleans()) else second


@pytest.mark.req("S12")
@given(two_of_one_shape())
def test_positions_sort_as_bytes_as_they_do_as_values(pair: tuple[Position, Position]) -> None:
    first, second = pair
    assert (encode(first) < encode(second)) == (first < second)  # type: ignore[operator]
    assert (encode(first) == encode(second)) == (first == second)


@given(st.floats(allow_nan=False) | st.just(-0.0), st.floats(allow_nan=False) | st.just(0.0))
def test_also_the_two_zeros(first: float, second: float) -> None:
    assert (encode(first) == encode(second)) == (first == second)


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, b"x", [1], ((1,),)])
def test_what_is_no_position_is_refused(bad: object) -> None:
    with pytest.raises(JobError):
        encode(bad)  # type: ignore[arg-type]


def test_positions_as_people_read_them() -> None:
    assert [show(p) for p in (None, 12, "k", (7, "a"))] == ["-", "12", "k", "7:a"]


# -- the literal rule, whatever happens ----------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "over", "expire"]),
        st.floats(0.001, 1.0),  # time since the step before
        st.floats(0.0, 3.0),  # how long ago the tuple was sent
        st.booleans(),  # was the window full
    ),
    max_size=60,
)


@pytest.mark.req("S4", "S5", "S6", "S17")
@given(st.sampled_from(["round", "ack"]), st.integers(1, 3), st.integers(1, 12), STEPS)
def test_aiad_moves_by_a_step_at_most_and_shrinks_once_a_round(
    growth: Literal["round", "ack"],
    step: int,
    initial: int,
    steps: list[tuple[str, float, float, bool]],
) -> None:
    settings = WindowSettings(
        policy="aiad", growth=growth, step=step, initial=initial, max=12, threshold_s=0.5
    )
    policy = make_policy(settings)
    now_s, shrunk_at_s = 0.0, -math.inf
    for what, by_s, age_s, limited in steps:
        now_s += by_s
        before, sent_at_s = policy.window, now_s - age_s
        if what == "expire":
            policy.on_expired(now_s, sent_at_s)
        else:
            rtt_s = 1.0 if what == "over" else 0.1
            policy.on_ack(
                AckSample(now_s, sent_at_s, rtt_s, None, None, 1, limited, ServiceModel())
            )
        moved = policy.window - before
        assert 1 <= policy.window <= 12
        assert -step <= moved <= step
        if what == "expire":
            assert moved in (0, -1)
        if moved < 0 and growth == "round":
            assert sent_at_s >= shrunk_at_s, "shrank twice for one round"
            shrunk_at_s = now_s


@given(st.integers(1, 12), STEPS)
def test_an_unused_window_does_not_grow(
    initial: int, steps: list[tuple[str, float, float, bool]]
) -> None:
    assume(steps)
    settings = WindowSettings(policy="aiad", growth="ack", initial=initial, max=12, threshold_s=0.5)
    policy = make_policy(settings)
    for what, by_s, _, _ in steps:
        before = policy.window
        policy.on_ack(
            AckSample(
                by_s, 0.0, 1.0 if what == "over" else 0.1, None, None, 1, False, ServiceModel()
            )
        )
        assert policy.window <= before
