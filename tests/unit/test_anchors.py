"""The bolt's side of tuple trees."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from flowctl.core.trees.acker import AckerLedger, TreeOutcome, Verdict
from flowctl.core.trees.anchors import Anchored, PendingAcks
from flowctl.errors import JobError


def giving(ids: Iterable[int]) -> PendingAcks:
    return PendingAcks(iter(ids).__next__)


@pytest.mark.req("S64", "S65", "S72")
def test_the_new_id_goes_down_and_rides_on_the_parents_ack() -> None:
    pending, parent = giving([3]), Anchored({99: 1})
    assert pending.emit([parent], 1) == [{99: 3}]  # ruling K: the new id, not 1 ^ 3
    assert pending.ack(parent) == [(99, 1 ^ 3)]
    assert len(pending) == 0


@pytest.mark.req("S64")
def test_each_target_has_an_edge_of_its_own() -> None:
    pending, parent = giving([4, 8, 16]), Anchored({99: 1})
    assert pending.emit([parent], 2) == [{99: 4}, {99: 8}]
    assert pending.emit([parent], 1) == [{99: 16}]
    assert pending.ack(parent) == [(99, 1 ^ 4 ^ 8 ^ 16)]


@pytest.mark.req("S64", "S83")
def test_two_anchors_of_two_trees() -> None:
    pending, left, right = giving([4, 8]), Anchored({98: 1}), Anchored({99: 2})
    assert pending.emit([left, right], 1) == [{98: 4, 99: 8}]
    assert pending.ack(left) == [(98, 1 ^ 4)]
    assert pending.ack(right) == [(99, 2 ^ 8)]


@pytest.mark.req("S64", "S83")
def test_two_anchors_that_share_a_root() -> None:
    pending, left, right = giving([4, 8]), Anchored({99: 1}), Anchored({98: 3, 99: 2})
    (child,) = pending.emit([left, right], 1)
    assert child == {99: 4 ^ 8, 98: 8}
    values = pending.ack(left) + pending.ack(right) + pending.ack(Anchored(child))
    total = {98: 3, 99: 1 ^ 2}  # as their inits gave it
    for root, value in values:
        total[root] ^= value
    assert total == {98: 0, 99: 0}


def test_the_same_anchor_twice_is_two_edges() -> None:
    pending, parent = giving([4, 8]), Anchored({99: 1})
    assert pending.emit([parent, parent], 1) == [{99: 4 ^ 8}]
    assert pending.ack(parent) == [(99, 1 ^ 4 ^ 8)]


@pytest.mark.req("S83")
def test_without_an_anchor_nothing_is_tracked() -> None:
    pending, parent = giving([]), Anchored({99: 1})
    assert pending.emit([], 2) == [{}, {}]
    assert pending.ack(parent) == [(99, 1)]


@pytest.mark.req("S83")
def test_nor_from_an_untracked_one() -> None:
    pending, untracked = giving([4]), Anchored({})
    assert pending.emit([untracked], 1) == [{}]
    assert pending.emit([untracked, Anchored({99: 1})], 1) == [{99: 4}]
    assert pending.ack(untracked) == []
    assert pending.fail(untracked) == []


@pytest.mark.req("S72")
def test_an_ack_speaks_of_every_root() -> None:
    assert giving([]).ack(Anchored({98: 5, 99: 6})) == [(98, 5), (99, 6)]


@pytest.mark.req("S66")
def test_a_fail_names_every_root_and_forgets_the_edges() -> None:
    pending, parent = giving([4]), Anchored({98: 5, 99: 6})
    pending.emit([parent], 1)
    assert pending.fail(parent) == [98, 99]
    assert len(pending) == 0


def test_zero_targets_make_no_edge() -> None:
    pending, parent = giving([]), Anchored({99: 1})
    assert pending.emit([parent], 0) == []
    assert pending.ack(parent) == [(99, 1)]


@pytest.mark.req("S80")
def test_an_ack_takes_out_what_is_pending_and_missing_is_zero() -> None:
    pending, parent, leaf = giving([4]), Anchored({99: 1}), Anchored({99: 2})
    pending.emit([parent], 1)
    assert len(pending) == 1
    assert pending.ack(leaf) == [(99, 2 ^ 0)]
    assert pending.ack(parent) == [(99, 1 ^ 4)]
    assert len(pending) == 0


@pytest.mark.req("S80")
def test_what_is_held_for_too_long_fails_its_trees() -> None:
    pending, parent = giving([4]), Anchored({98: 5, 99: 1})
    pending.emit([parent], 1)
    assert [pending.on_tick() for _ in range(3)] == [[], [], [98, 99]]
    assert (pending.expired, len(pending)) == (1, 0)
    assert pending.emit([parent], 1) == [{}], "late, but no error: it is in no tree any more"
    assert pending.ack(parent) == []


@pytest.mark.req("S70", "S80")
def test_forgotten_edges_never_complete_a_tree_that_another_bolt_prolongs() -> None:
    ledger, pending = AckerLedger(), giving([4])
    ledger.on_init(99, 1 ^ 2, "s")
    slow, other = Anchored({99: 1}), Anchored({99: 2})
    pending.emit([slow], 1)  # edge 4: its receiver has not acked, and is killed later
    for _ in range(3):
        ledger.on_tick()
        ledger.on_reset_timeout(99)
        failed = pending.on_tick()
    assert ledger.on_ack(*pending.ack(other)[0]) is None
    assert pending.ack(slow) == [], "99, 1 would complete it, with edge 4 open"
    assert [ledger.on_fail(root) for root in failed] == [Verdict(99, "s", TreeOutcome.FAILED)]


@pytest.mark.req("S80")
def test_who_needs_longer_says_so() -> None:
    pending, parent = giving([4]), Anchored({98: 5, 99: 1})
    pending.emit([parent], 1)
    for _ in range(5):
        pending.on_tick()
        pending.on_tick()
        assert pending.reset_timeout(parent) == [98, 99]
    assert pending.ack(parent) == [(98, 5 ^ 4), (99, 1 ^ 4)]
    assert pending.reset_timeout(parent) == []


def test_the_first_word_on_an_input_counts() -> None:
    pending, acked, failed = giving([]), Anchored({99: 1}), Anchored({99: 2})
    pending.ack(acked)
    pending.fail(failed)
    assert pending.ack(acked) == []
    assert pending.fail(acked) == []
    assert pending.ack(failed) == []


def test_an_emit_after_the_ack_is_refused_and_changes_nothing() -> None:
    pending, open_, acked = giving([4]), Anchored({98: 1}), Anchored({99: 2})
    pending.ack(acked)
    with pytest.raises(JobError, match="Emit first"):
        pending.emit([open_, acked], 1)
    assert pending.ack(open_) == [(98, 1)]


def test_inputs_with_equal_edges_are_not_one() -> None:
    pending, one, other = giving([4]), Anchored({99: 1}), Anchored({99: 1})
    pending.emit([one], 1)
    assert pending.ack(other) == [(99, 1)]
    assert pending.ack(one) == [(99, 1 ^ 4)]
