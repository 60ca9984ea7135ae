"""Bolts that take their spouts in turn, and tell each the times of the bolt that it is to it."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl_lab.simulation.bolt_queue import BoltQueue
from flowctl_lab.simulation.network import Sending
from flowctl_lab.simulation.scenario import Pauses
from tests.simulation.simulation_runs import run, said

pytestmark = pytest.mark.on_change()

_LONG_PATH_S = 0.1  # one way: twenty tuples' time there and back
_JOINING: dict[str, Any] = {
    "one_way_s": _LONG_PATH_S, "joins_s": (0.0, 0.4, 0.8), "measured_from_s": 3.8, "until_s": 5.8
}  # fmt: skip


def _tuple(spout: int, tuple_id: int = 1) -> Sending:
    return Sending(spout, tuple_id, attempt=1, first=0, count=1)


@pytest.mark.parametrize(("slots", "policy"), [(1, "just_full"), (4, "just_full"), (1, "aiad")])
def test_spouts_share_evenly_whoever_came_first(slots: int, policy: str) -> None:
    """Over a long path, from the third second after the last has joined."""
    _, in_turn = run("three", policy, takes_turns=True, slots=slots, **_JOINING)
    assert in_turn.jain is not None
    assert in_turn.jain > 0.99
    assert in_turn.efficiency > 0.99


def test_taken_as_they_come_the_first_spout_keeps_most() -> None:
    _, as_they_come = run("three", "just_full", slots=1, **_JOINING)
    assert as_they_come.jain is not None
    assert as_they_come.jain < 0.95


def test_with_one_spout_nothing_is_different() -> None:
    """Its queue is the bolt's: each ack says the same, at the same time."""
    faults = {"pauses": Pauses(gap_s=1.0, for_s=0.2), "tuples": 2_000, "slots": 2}
    plain, _ = run("homog", "just_full", **faults)
    in_turn, _ = run("homog", "just_full", takes_turns=True, **faults)
    assert said(in_turn, "ack") == said(plain, "ack")
    assert len(said(plain, "ack")) >= 2_000


def test_others_turns_are_service_and_own_tuples_are_waited_for() -> None:
    ours, theirs = BoltQueue(slots=1), BoltQueue(slots=1)
    queues = [ours, theirs]
    long_one, first, second = _tuple(1), _tuple(0), _tuple(0, 2)
    theirs.add(0.0, long_one, queues)
    theirs.begin(0.0)
    ours.add(1.0, first, queues)  # nothing of its own is before it
    ours.add(2.0, second, queues)
    theirs.end(5.0, long_one)
    assert ours.begin(5.0) is first
    ours.end(6.0, first)
    assert (first.turn_at_s, first.began_at_s, first.idle_total_s) == (1.0, 5.0, 1.0)
    assert (second.turn_at_s, second.idle_total_s) == (6.0, 1.0)


def test_who_was_away_has_no_claim_to_the_time_since() -> None:
    busy, back = BoltQueue(slots=1), BoltQueue(slots=1)
    queues = [busy, back]
    for tuple_id in range(3):
        done = _tuple(0, tuple_id)
        busy.add(float(tuple_id), done, queues)
        busy.begin(float(tuple_id))
        busy.end(tuple_id + 1.0, done)
    busy.add(3.0, _tuple(0, 3), queues)
    back.add(3.0, _tuple(1), queues)
    assert back.claim == busy.claim == (0, 3.0)


def test_what_is_given_back_makes_way_for_the_next() -> None:
    queue = BoltQueue(slots=1)
    running, given, kept = _tuple(0, 1), _tuple(0, 2), _tuple(0, 3)
    for sending in (running, given, kept):
        queue.add(0.0, sending, [queue])
    queue.begin(0.0)
    assert queue.give_back(1.0, 0, [1, 2]) == [given]  # what was begun stays
    queue.end(2.0, running)
    assert (kept.turn_at_s, given.turn_at_s) == (2.0, None)
