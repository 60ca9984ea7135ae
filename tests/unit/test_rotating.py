"""The map whose entries expire by ticks from outside, and when a tick is due."""

from __future__ import annotations

import pytest

from flowctl.core.trees.rotating import ACKER_BUCKETS, SPOUT_BUCKETS, RotatingMap, TickTimer
from flowctl.errors import ConfigError


def filled(buckets: int, *keys: str) -> RotatingMap[str, int]:
    entries: RotatingMap[str, int] = RotatingMap(buckets)
    for number, key in enumerate(keys):
        entries.put(key, number)
    return entries


@pytest.mark.req("S46", "S47", "S48")
@pytest.mark.parametrize(
    ("put_at", "lived"),
    [
        (0.01, 1.99),  # right after a tick: almost two
        (0.5, 1.5),
        (0.99, 1.01),  # right before one: that tick alone must not expire it
    ],
)
def test_with_two_buckets_an_entry_lives_one_to_two_ticks(put_at: float, lived: float) -> None:
    entries = filled(2)  # ticks come at 1.0, 2.0, …
    entries.put("k", 7)
    dropped_at = next(tick for tick in (1, 2, 3) if entries.rotate() == {"k": 7})
    assert dropped_at - put_at == pytest.approx(lived)
    assert "k" not in entries


@pytest.mark.req("S46")
@pytest.mark.parametrize("buckets", [2, 3, 5])
def test_the_nth_rotation_drops_and_returns_it_once(buckets: int) -> None:
    entries = filled(buckets, "a", "b")
    dropped = [entries.rotate() for _ in range(buckets + 2)]
    assert dropped == [{}] * (buckets - 1) + [{"a": 0, "b": 1}] + [{}] * 2


def test_the_spout_expires_before_the_acker() -> None:
    assert SPOUT_BUCKETS == 2  # ruling M: these two numbers
    assert ACKER_BUCKETS == 3


def test_put_again_begins_anew_with_one_entry_only() -> None:
    entries = filled(3, "k")
    entries.rotate()
    entries.rotate()
    entries.put("k", 5)
    assert len(entries) == 1
    assert [entries.rotate(), entries.rotate()] == [{}, {}]
    assert entries.rotate() == {"k": 5}


def test_put_into_the_newest_bucket_replaces() -> None:
    entries = filled(2, "k")
    entries.put("k", 9)
    assert (len(entries), entries.get("k")) == (1, 9)


def test_a_look_does_not_prolong_a_touch_does() -> None:
    entries = filled(2, "looked at", "touched")
    entries.rotate()
    assert entries.get("looked at") == 0
    assert "looked at" in entries
    assert entries.touch("touched")
    assert entries.rotate() == {"looked at": 0}
    assert entries.rotate() == {"touched": 1}
    assert not entries.touch("touched")


def test_remove_finds_it_in_any_bucket_once() -> None:
    entries = filled(3, "old")
    entries.rotate()
    entries.put("new", 1)
    assert sorted(entries) == ["new", "old"]
    assert (entries.remove("old"), entries.remove("new"), entries.remove("new")) == (0, 1, None)
    assert len(entries) == 0
    assert [entries.rotate() for _ in range(3)] == [{}] * 3


def test_what_is_not_there() -> None:
    entries: RotatingMap[str, int] = RotatingMap()
    assert entries.get("k") is None
    assert "k" not in entries
    assert not entries.touch("k")


def test_one_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match="buckets"):
        RotatingMap(1)


# -- when a tick is due ------------------------------------------------------------------


@pytest.mark.req("S79")
def test_a_tick_is_due_when_more_than_a_period_has_passed() -> None:
    timer = TickTimer(30.0, now_s=100.0)
    assert not timer.take(now_s=130.0)
    assert timer.due_after_s == 130.0
    assert timer.take(now_s=130.5)
    assert not timer.take(now_s=130.5), "given once"
    assert timer.due_after_s == 160.5


@pytest.mark.req("S79")
def test_missed_ticks_are_not_made_up_for() -> None:
    timer, entries = TickTimer(30.0, now_s=0.0), filled(2, "k")
    ticks = [timer.take(now_s=at_s) for at_s in (1_000.0, 1_000.1, 1_001.0)]
    assert ticks == [True, False, False]
    assert entries.rotate() == {}, "after a long pause nothing expires at one blow"


def test_a_period_of_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="period_s"):
        TickTimer(0.0, now_s=0.0)
