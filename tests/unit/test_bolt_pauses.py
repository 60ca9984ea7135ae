"""The rule of pauses (bolts/pauses.py), in time that only moves when it is told."""

from __future__ import annotations

import pytest

from flowctl.bolts.pauses import Pauses
from flowctl.core.retry import TARGET


class Bolt:
    """Slots that take a tuple as soon as they may; ``answers`` says what a call comes to."""

    def __init__(self, slots: int) -> None:
        self.pauses = Pauses()
        self.slots = [f"s{n}" for n in range(slots)]
        self.now_s = 0.0
        self.calls_at_s: list[float] = []

    def run(self, until_s: float, *, after_s: float | None = None) -> None:
        """All calls are refused at once, for so long."""
        while self.now_s < until_s:
            for slot in self.slots:
                if self.pauses.wait_s(slot, self.now_s) <= 0:
                    self.pauses.begun(slot, self.now_s)
                    self.calls_at_s.append(self.now_s)
                    self.pauses.refused(slot, after_s, self.now_s)
            self.now_s = round(self.now_s + 0.01, 2)


@pytest.mark.parametrize("slots", [1, 4, 64])
def test_a_bolt_makes_two_calls_a_second_at_most_and_then_fewer(slots: int):
    bolt = Bolt(slots)
    bolt.run(12.0)
    assert bolt.calls_at_s[:4] == [0.0, 0.5, 1.5, 3.5]
    gaps = [b - a for a, b in zip(bolt.calls_at_s, bolt.calls_at_s[1:], strict=False)]
    assert min(gaps) >= TARGET.first_s and max(gaps) <= TARGET.most_s + 0.02


def test_calls_that_were_under_way_when_it_shut_are_one_refusal():
    bolt = Bolt(64)
    for slot in bolt.slots:
        bolt.pauses.begun(slot, 0.0)
    for slot in bolt.slots:
        bolt.pauses.refused(slot, None, 1.0)
    waits = [bolt.pauses.wait_s(slot, 1.0) for slot in bolt.slots]
    assert waits == [TARGET.first_s] * 64


def test_a_success_opens_the_bolt_but_not_the_slot_that_was_refused():
    pauses = Pauses()
    for slot in "abc":
        pauses.begun(slot, 0.0)
    pauses.refused("a", None, 1.0)
    assert pauses.wait_s("c", 1.0) == TARGET.first_s, "nothing succeeded since: all wait"
    pauses.succeeded("b")
    assert pauses.wait_s("b", 1.1) <= 0
    assert pauses.wait_s("c", 1.1) <= 0
    assert pauses.wait_s("a", 1.1) == pytest.approx(0.4)
    pauses.succeeded("a")
    assert pauses.is_free


def test_after_a_success_the_scale_begins_again():
    pauses = Pauses()
    for now_s in (0.0, 1.0, 3.0):
        pauses.begun("a", now_s)
        pauses.refused("a", None, now_s)
    assert pauses.wait_s("a", 3.0) == TARGET.most_s
    pauses.succeeded("a")
    pauses.begun("a", 5.0)
    pauses.refused("a", None, 5.0)
    assert pauses.wait_s("a", 5.0) == TARGET.first_s


@pytest.mark.parametrize(
    ("after_s", "waits_s"),
    [
        (None, [0.5, 1.0, 2.0, 2.0]),
        (3.0, [3.0, 3.0, 3.0, 3.0]),
        (300.0, [5.0, 5.0, 5.0, 5.0]),  # the rest is the driver's business
        (0.05, [0.05, 0.5, 1.0, 2.0]),  # believed once
        (0.0, [0.0, 0.5, 1.0, 2.0]),
    ],
)
def test_how_long_a_slot_waits(after_s: float | None, waits_s: list[float]):
    pauses, now_s = Pauses(), 0.0
    for wait_s in waits_s:
        pauses.begun("a", now_s)
        pauses.refused("a", after_s, now_s)
        assert pauses.wait_s("a", now_s) == pytest.approx(wait_s)
        now_s += wait_s


def test_a_call_that_fails_but_is_not_refused_ends_the_row_of_refusals():
    """Kind: bad records behind a target that now and then refuses took two seconds each."""
    pauses = Pauses()
    pauses.failed("a")
    assert pauses.is_free
    pauses.refused("a", None, 0.0)
    pauses.failed("b")
    assert pauses.is_shut, "its call was under way before"
    pauses.begun("b", 0.5)
    pauses.failed("b")
    assert not pauses.is_shut
    pauses.begun("a", 0.5)
    pauses.failed("a")
    assert pauses.is_free
