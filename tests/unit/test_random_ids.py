"""Ids of trees: 64 random bits, seeded by the system, and replaceable for tests (S57, S123)."""

from __future__ import annotations

import random
import secrets

import pytest

from flowctl_storm.topology_job import random_ids
from tests.topology_driver import Hub, nothing, topology


@pytest.mark.req("S123")
def test_each_source_of_ids_is_seeded_by_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def randbits(bits: int) -> int:
        asked.append(bits)
        return 7

    monkeypatch.setattr(secrets, "randbits", randbits)
    first, second = random_ids(), random_ids()
    assert asked == [256, 256]
    assert [first() for _ in range(5)] == [second() for _ in range(5)], "the seed is all there is"


@pytest.mark.req("S57", "S123")
def test_ids_are_of_64_bits_never_0_and_do_not_repeat() -> None:
    ids = random_ids()
    drawn = [ids() for _ in range(10_000)]
    assert len(set(drawn)) == 10_000
    assert all(0 < number < 2**64 for number in drawn)
    assert sum(number >= 2**63 for number in drawn) == pytest.approx(5_000, rel=0.1)
    random.seed(1)
    one = random_ids()()
    random.seed(1)
    assert random_ids()() != one, "a seed of the user's own must not make ids repeat"


@pytest.mark.req("S123")
def test_a_topology_takes_the_ids_that_it_is_given() -> None:
    made = topology()
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made, next_id=iter([0xABC, 1]).__next__)
    hub.offer(["x"])
    hub.emit()
    assert 0xABC in hub.core.roots.trees
    assert len(hub.core.roots.trees) == 1
