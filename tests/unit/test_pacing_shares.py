"""Who gets how many permits and how much of a budget."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.pacing.leader import Shares, fair, rates
from flowctl.core.pacing.leases import RATE_MOST, Claim


def claim(worker: str, want: int, *, job: str = "", weight: float = 1.0, holds: int = 0) -> Claim:
    return Claim(worker, job, weight, want, RATE_MOST, holds)


def over_time(limit: int, claims: list[Claim], seconds: int) -> tuple[Counter[str], int]:
    """Permit-seconds of each worker, and how many permits moved."""
    shares = Shares()
    given_: Counter[str] = Counter()
    holds: dict[str, int] = {}
    moves = 0
    for step in range(seconds * 4):
        asked = [each._replace(holds=holds.get(each.worker, 0)) for each in claims]
        now = shares.permits(step / 4, limit, asked)
        moves += sum(max(0, now[w] - holds.get(w, 0)) for w in now)
        holds = now
        given_.update({worker: share / 4 for worker, share in now.items()})
    return given_, moves


@given(
    st.just(0.0) | st.floats(1e-9, 1e6),  # calls a second; the least of floats has no half
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1e5)), min_size=1, max_size=30),
)
def test_nobody_gets_more_than_it_wants_and_nothing_is_kept_back(
    total: float, claims: list[tuple[float, float]]
) -> None:
    shares = fair(total, claims)
    wanted = sum(want for _, want in claims)
    assert sum(shares) == pytest.approx(min(total, wanted), abs=1e-6 * (total + 1))
    assert all(s <= want * (1 + 1e-9) for s, (_, want) in zip(shares, claims, strict=True))
    # Who wants more than it got has for its weight at least as much as any other.
    level = max(s / w for s, (w, _) in zip(shares, claims, strict=True))
    for share, (weight, want) in zip(shares, claims, strict=True):
        assert share >= want * (1 - 1e-9) or share / weight >= level * (1 - 1e-6)


@given(st.integers(1, 200), st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_permits_are_the_limit_in_all_at_most(limit: int, wants: list[int]) -> None:
    claims = [claim(str(i), want) for i, want in enumerate(wants)]
    shares = Shares().permits(0.0, limit, claims)
    assert sum(shares.values()) <= limit
    if sum(wants) <= limit:
        assert all(shares[str(i)] >= want for i, want in enumerate(wants))
    else:
        assert sum(shares.values()) == limit
        assert all(shares[str(i)] <= want for i, want in enumerate(wants))


def test_permits_go_round_and_not_too_often() -> None:
    had, moves = over_time(10, [claim(str(i), 1) for i in range(32)], 600)
    assert max(had.values()) / min(had.values()) < 1.2
    assert moves / 10 <= 600 / 5  # each moves every five seconds at most


def test_jobs_share_by_weight_whatever_their_number_of_workers() -> None:
    claims = [claim(f"a{i}", 1, job="a", weight=3.0) for i in range(12)]
    claims += [claim(f"b{i}", 4, job="b", weight=1.0) for i in range(24)]
    had, _ = over_time(10, claims, 300)
    of_a = sum(s for worker, s in had.items() if worker.startswith("a"))
    assert of_a / (sum(had.values()) - of_a) == pytest.approx(3.0, rel=0.1)


def test_what_a_job_does_not_want_goes_to_the_other() -> None:
    claims = [claim("a", 2, job="a", weight=3.0), claim("b", 50, job="b")]
    shares = Shares().permits(0.0, 10, claims)
    assert shares == {"a": 2, "b": 8}


def test_all_of_a_budget_is_given_out_to_those_who_want_it() -> None:
    idle = Claim("idle", "", 1.0, 0, 1.0, 0)
    parts = rates(1000.0, [claim("a", 1), claim("b", 1), idle])
    assert parts == pytest.approx({"a": 499.5, "b": 499.5, "idle": 1.0})
    assert sum(rates(1000.0, [idle]).values()) == 1000.0


def test_jobs_share_a_budget_by_weight_whatever_their_number_of_workers() -> None:
    claims = [claim(f"a{i}", 1, job="a", weight=3.0) for i in range(4)]
    claims += [claim("b", 1, job="b", weight=1.0)]
    parts = rates(100.0, claims)
    assert parts == pytest.approx({"a0": 18.75, "a1": 18.75, "a2": 18.75, "a3": 18.75, "b": 25.0})
    assert rates(100.0, []) == {}


def test_a_permit_that_rests_is_of_use_to_another() -> None:
    refused = claim("a", 3)._replace(resting=3)
    assert Shares().permits(0.0, 4, [refused, claim("b", 4)]) == {"a": 0, "b": 4}
    half = claim("a", 3)._replace(resting=1)
    assert Shares().permits(0.0, 4, [half, claim("b", 4)]) == {"a": 2, "b": 2}
