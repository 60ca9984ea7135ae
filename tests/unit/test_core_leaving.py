"""A bolt that is to leave ends what it has begun, gives back the rest, and nothing runs twice."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.core.messages import (
    Ack,
    End,
    Heartbeat,
    Processed,
    Progress,
    RangeEmission,
    Revoke,
    Revoked,
    Split,
    SplitAnswer,
)
from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Record
from flowctl.core.settings import CoreSettings, TupleSettings, WindowSettings
from flowctl.core.spout import SpoutCore
from flowctl.testing.invariants import check
from flowctl.testing.range_invariants import check_ranges


@pytest.fixture
def core() -> SpoutCore:
    settings = CoreSettings(
        tuple=TupleSettings(records_max=1), window=WindowSettings(policy="fixed", initial=3)
    )
    core = SpoutCore(settings)
    for bolt in ("b1", "b2"):
        core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0, in_order=True)
        core.on_heartbeat(bolt, 1, Heartbeat(0, 0), now_s=0.0)
    core.offer("p", [Record(n, n) for n in range(20)], now_s=0.0)
    return core


def _sent(core: SpoutCore, now_s: float) -> dict[str, list[int]]:
    sent: dict[str, list[int]] = {}
    while (emission := core.poll_emit(now_s=now_s)) is not None:
        sent.setdefault(emission.bolt, []).append(emission.tuple_id)
    check(core)
    return sent


def _ack(core: SpoutCore, bolt: str, tuple_id: int, now_s: float) -> Any:
    outcome = core.on_ack(bolt, 1, Ack(tuple_id, 1, 0.0, 0.1), now_s=now_s)
    check(core)
    return outcome


def test_it_is_asked_for_the_rest_and_waited_for_until_it_holds_nothing(core: SpoutCore) -> None:
    begun, *rest = _sent(core, 0.0)["b1"]
    core.retire("b1", now_s=0.1)
    assert core.poll_order() == Revoke("b1", [begun, *rest])
    assert not core.dismiss("b1", now_s=0.1, reason="gone soon")
    core.on_revoked("b1", 1, Revoked(rest), now_s=0.2)
    assert not core.dismiss("b1", now_s=0.2, reason="gone soon")
    _ack(core, "b1", begun, 0.3)
    assert "b1" not in _sent(core, 0.3), "it has room, but gets nothing"
    assert core.dismiss("b1", now_s=0.3, reason="gone soon")
    assert core.poll_order() == End("b1")
    assert "b1" not in core.bolts
    assert core.counters.bolts_lost == 0
    assert core.counters.tuples_failed == core.counters.tuples_expired == 0


def test_what_it_gave_back_goes_to_another_and_it_may_come_again(core: SpoutCore) -> None:
    begun, *rest = _sent(core, 0.0)["b1"]
    core.retire("b1", now_s=0.1)
    core.on_revoked("b1", 1, Revoked(rest), now_s=0.2)
    for tuple_id in list(core.bolts["b2"].flight):
        _ack(core, "b2", tuple_id, 0.3)
    assert set(rest) <= set(_sent(core, 0.3)["b2"])
    _ack(core, "b1", begun, 0.3)
    assert core.dismiss("b1", now_s=0.3, reason="gone soon")
    core.add_bolt("b1", slots=1, epoch=2, now_s=1.0, in_order=True)
    assert _sent(core, 1.0)["b1"]


def test_one_that_dies_while_it_is_to_leave_is_a_bolt_that_died(core: SpoutCore) -> None:
    held = _sent(core, 0.0)["b1"]
    core.retire("b1", now_s=0.1)
    core.remove_bolt("b1", now_s=0.2, reason="killed")
    for tuple_id in list(core.bolts["b2"].flight):
        _ack(core, "b2", tuple_id, 0.3)
    core.on_deadline(now_s=20.0)
    assert set(_sent(core, 20.0)["b2"]) & set(held)


def test_one_that_reads_a_range_gives_back_what_it_has_not_claimed() -> None:
    core = RangeCore(CoreSettings(window=WindowSettings(policy="fixed", initial=2)))
    core.offer_extents({"p": Extent(0, 100 << 20, "v1", size_bytes=100 << 20)})
    for bolt in ("a", "b"):
        core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0, in_order=True)
    sent = list(iter(lambda: core.poll_emit(now_s=0.0), None))
    first, *queued = [emission.tuple_id for emission in sent if emission.bolt == "a"]
    core.retire("a", now_s=0.0)
    question, revoke = iter(core.poll_order, None)
    assert isinstance(question, Split)
    assert (question.tuple_id, question.keep) == (first, 0.0)
    assert revoke == Revoke("a", [first, *queued])
    core.on_revoked("a", 1, Revoked(queued), now_s=0.1)
    answer = SplitAnswer(first, question.request, 3000)  # so much it has claimed
    core.on_split("a", 1, answer, now_s=0.1)
    assert not core.dismiss("a", now_s=0.1, reason="gone soon")
    start = next(e.start for e in sent if isinstance(e, RangeEmission) and e.tuple_id == first)
    done = Progress(first, 1, start, 3000, 0.0, Processed(records=30))
    core.on_progress("a", 1, done, now_s=0.2)
    assert core.dismiss("a", now_s=0.2, reason="gone soon")
    check_ranges(core)
    assert core.checkpoint().partitions["p"].position == 2999
