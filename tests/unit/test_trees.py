"""The spout's side of tuple trees."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from flowctl.core.trees.acker import AckerLedger, TreeOutcome
from flowctl.core.trees.anchors import Anchored, PendingAcks
from flowctl.core.trees.spout_trees import ROOT_ID_TRIES_MAX, SpoutTrees, TreeInit
from flowctl.errors import InternalError


def giving(ids: Iterable[int], *, has_ackers: bool = True) -> SpoutTrees:
    return SpoutTrees(iter(ids).__next__, has_ackers=has_ackers)


@pytest.mark.req("S81", "S57", "S75")
def test_the_worked_example_through_all_three_parts() -> None:
    next_id = iter([99, 1, 2, 3, 4]).__next__
    spout, ledger, bolts = SpoutTrees(next_id, has_ackers=True), AckerLedger(), PendingAcks(next_id)
    planting = spout.emit("s", 2, values=["v"], message_id="m")
    assert planting.init == TreeInit(99, 1 ^ 2, "s")
    assert planting.edges == [{99: 1}, {99: 2}]
    b1, b2 = (Anchored(edges) for edges in planting.edges)
    (to_b3,) = bolts.emit([b1], 1)
    (also_to_b3,) = bolts.emit([b2], 1)
    assert (to_b3, also_to_b3) == ({99: 3}, {99: 4})
    acks = [bolts.ack(each) for each in (b1, b2, Anchored(to_b3), Anchored(also_to_b3))]
    assert acks == [[(99, 1 ^ 3)], [(99, 2 ^ 4)], [(99, 3)], [(99, 4)]]
    ledger.on_init(planting.init.root, planting.init.value, planting.init.spout)
    *before, last = [ledger.on_ack(*ack) for (ack,) in acks]
    assert before == [None] * 3
    assert last is not None
    end = spout.on_ack(last.root, task="s", now_s=0.0)
    assert end is not None
    assert (end.is_ack, end.tree.message_id, end.tree.values) == (True, "m", ["v"])
    assert (len(spout), len(ledger), len(bolts)) == (0, 0, 0)


@pytest.mark.req("S57")
@pytest.mark.parametrize("message_id", [0, "", False, (3, 7)])
def test_any_message_id_but_none_is_tracked(message_id: object) -> None:
    spout = giving([99, 1])
    planting = spout.emit("s", 1, values=[], message_id=message_id)
    assert planting.init == TreeInit(99, 1, "s")
    assert planting.end is None
    assert 99 in spout


@pytest.mark.req("S58", "S83")
def test_without_a_message_id_nothing_is_tracked() -> None:
    spout = giving([])
    planting = spout.emit("s", 2, values=[])
    assert (planting.edges, planting.init, planting.end) == ([{}, {}], None, None)
    assert len(spout) == 0


@pytest.mark.req("S58", "S71", "S82")
@pytest.mark.parametrize(("started_at_s", "age_s"), [(None, None), (5.0, 0.0)])
def test_without_ackers_it_is_acked_at_once(
    started_at_s: float | None, age_s: float | None
) -> None:
    spout = giving([], has_ackers=False)
    planting = spout.emit("s", 1, values=["v"], message_id="m", started_at_s=started_at_s)
    assert (planting.edges, planting.init) == ([{}], None)
    end = planting.end
    assert end is not None
    assert (end.is_ack, end.age_s) == (True, age_s)
    assert (end.tree.message_id, end.tree.values) == ("m", ["v"])
    assert len(spout) == 0


@pytest.mark.req("S74")
@pytest.mark.parametrize("has_ackers", [True, False])
def test_zero_targets_track_nothing(has_ackers: bool) -> None:
    spout = giving([], has_ackers=has_ackers)
    planting = spout.emit("s", 0, values=[], message_id="m")
    assert (planting.edges, planting.init, planting.end) == ([], None, None)
    assert len(spout) == 0


@pytest.mark.req("S75")
@pytest.mark.parametrize("targets", [1, 2, 7])
def test_one_init_however_many_targets(targets: int) -> None:
    spout = giving([99, *(2**n for n in range(targets))])
    planting = spout.emit("s", targets, values=[], message_id="m")
    assert planting.init == TreeInit(99, 2**targets - 1, "s")
    assert planting.edges == [{99: 2**n} for n in range(targets)]


@pytest.mark.req("S73")
def test_a_root_id_that_is_pending_is_drawn_again() -> None:
    spout = giving([99, 1, 99, 99, 98, 2])
    spout.emit("s", 1, values=["first"], message_id="m1")
    planting = spout.emit("s", 1, values=["second"], message_id="m2")
    assert planting.init == TreeInit(98, 2, "s")
    end = spout.on_ack(99, task="s", now_s=0.0)
    assert end is not None
    assert end.tree.message_id == "m1"


@pytest.mark.req("S73")
def test_but_not_for_ever() -> None:
    spout = SpoutTrees(lambda: 99, has_ackers=True)
    spout.emit("s", 1, values=[], message_id="m")
    with pytest.raises(InternalError, match=f"{ROOT_ID_TRIES_MAX} ids in a row"):
        spout.emit("s", 1, values=[], message_id="m")


@pytest.mark.req("S49")
def test_at_the_callback_the_tree_is_pending_no_more() -> None:
    spout = giving([99, 1, 99, 2])
    spout.emit("s", 1, values=[], message_id="m")
    end = spout.on_fail(99, task="s", now_s=0.0)
    assert end is not None
    # What a spout does when it is told of a fail: it emits again, here even with the same root id.
    again = spout.emit("s", 1, values=[], message_id=end.tree.message_id)
    assert again.init == TreeInit(99, 2, "s")
    assert 99 in spout


@pytest.mark.req("S50")
def test_what_is_late_is_ignored_and_counted() -> None:
    spout = giving([99, 1])
    spout.emit("s", 1, values=[], message_id="m")
    assert spout.on_ack(99, task="s", now_s=0.0) is not None
    assert spout.on_ack(99, task="s", now_s=0.0) is None
    assert spout.on_fail(99, task="s", now_s=0.0) is None
    assert spout.on_ack(7, task="s", now_s=0.0) is None
    assert spout.late == 3


@pytest.mark.req("S50", "S69")
def test_mismatched_tasks_are_fatal_and_change_nothing() -> None:
    spout = giving([99, 1])
    spout.emit("s1", 1, values=[], message_id="m")
    with pytest.raises(InternalError, match="mismatched task ids"):
        spout.on_ack(99, task="s2", now_s=0.0)
    with pytest.raises(InternalError, match="mismatched task ids"):
        spout.on_fail(99, task="s2", now_s=0.0)
    assert spout.on_ack(99, task="s1", now_s=0.0) is not None


@pytest.mark.req("S46", "S47", "S48")
def test_a_pending_tree_fails_at_the_second_tick() -> None:
    spout = giving([99, 1, 98, 2])
    spout.emit("s", 1, values=["old"], message_id="m1", started_at_s=10.0)
    assert spout.on_tick(now_s=40.0) == []
    spout.emit("s", 1, values=["young"], message_id="m2")
    (end,) = spout.on_tick(now_s=70.0)
    assert (end.tree.message_id, end.tree.values, end.age_s) == ("m1", ["old"], 60.0)
    assert (end.is_ack, end.outcome) == (False, TreeOutcome.EXPIRED)
    assert len(spout) == 1
    assert spout.on_ack(99, task="s", now_s=71.0) is None


def test_a_tree_may_be_prolonged() -> None:
    spout = giving([99, 1])
    spout.emit("s", 1, values=[], message_id="m")
    for _ in range(5):
        assert spout.on_tick(now_s=0.0) == []
        assert spout.on_reset_timeout(99)
    assert [len(spout.on_tick(now_s=0.0)) for _ in range(2)] == [0, 1]
    assert not spout.on_reset_timeout(99)


@pytest.mark.req("S51", "S62", "S85")
@pytest.mark.parametrize(("started_at_s", "age_s"), [(None, None), (10.0, 2.5)])
def test_an_age_is_told_only_of_sampled_trees(
    started_at_s: float | None, age_s: float | None
) -> None:
    spout = giving([99, 1, 98, 2])
    for _ in range(2):
        spout.emit("s", 1, values=[], message_id="m", started_at_s=started_at_s)
    acked, failed = spout.on_ack(99, task="s", now_s=12.5), spout.on_fail(98, task="s", now_s=12.5)
    assert acked is not None
    assert failed is not None
    assert (acked.age_s, acked.outcome) == (age_s, TreeOutcome.COMPLETE)
    assert (failed.age_s, failed.outcome) == (age_s, TreeOutcome.FAILED)


@pytest.mark.req("S56")
def test_every_emission_counts() -> None:
    spout = giving([99, 1])
    spout.emit("s", 1, values=[], message_id="m")
    spout.emit("s", 1, values=[])
    spout.emit("s", 0, values=[], message_id="m")
    assert spout.emitted == 3
