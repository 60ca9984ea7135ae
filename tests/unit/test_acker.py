"""The XOR ledger of tuple trees."""

from __future__ import annotations

from itertools import permutations

import pytest

from flowctl.core.trees.acker import AckerLedger, TaskId, TreeOutcome, Verdict, owner_of
from flowctl.errors import InternalError

ROOT, SPOUT = 99, "s1"
COMPLETE = Verdict(ROOT, SPOUT, TreeOutcome.COMPLETE)
FAILED = Verdict(ROOT, SPOUT, TreeOutcome.FAILED)
EXPIRED = Verdict(ROOT, SPOUT, TreeOutcome.EXPIRED)


@pytest.mark.req("S81", "S65")
def test_the_worked_example() -> None:
    # spout → b1 (1), b2 (2); b1 → b3 (3); b2 → b3 (4)
    ledger = AckerLedger()
    assert ledger.on_init(ROOT, 1 ^ 2, SPOUT) is None
    assert ledger.on_ack(ROOT, 1 ^ 3) is None
    assert ledger.on_ack(ROOT, 2 ^ 4) is None
    assert ledger.on_ack(ROOT, 3) is None
    assert ledger.on_ack(ROOT, 4) == COMPLETE
    assert len(ledger) == 0
    assert 1 ^ 2 ^ 1 ^ 3 ^ 2 ^ 4 ^ 3 ^ 4 == 0


@pytest.mark.req("S81", "S76")
def test_the_worked_example_in_any_order() -> None:
    # 1, 2, 4, 8: with 1, 2, 3 some orders would be 0 in between (1 ^ 2 ^ 3 = 0), random ids are not
    for order in permutations([1 ^ 2, 1 ^ 4, 2 ^ 8, 4, 8]):
        ledger = AckerLedger()
        verdicts = [
            ledger.on_init(ROOT, value, SPOUT) if value == 1 ^ 2 else ledger.on_ack(ROOT, value)
            for value in order
        ]
        assert verdicts == [None] * 4 + [COMPLETE]


@pytest.mark.req("S76", "S77")
def test_an_init_after_all_acks_completes() -> None:
    ledger = AckerLedger()
    assert ledger.on_ack(ROOT, 5) is None
    assert ledger.on_ack(ROOT, 5) is None, "0, but whose is it?"
    assert ledger.on_ack(ROOT, 6) is None
    assert ledger.on_init(ROOT, 6, SPOUT) == COMPLETE
    assert (ledger.complete, len(ledger)) == (1, 0)


@pytest.mark.req("S66", "S77")
def test_a_fail_fails_the_tree_once() -> None:
    ledger = AckerLedger()
    ledger.on_init(ROOT, 1 ^ 2, SPOUT)
    assert ledger.on_fail(ROOT) == FAILED
    assert ledger.on_fail(ROOT) is None, "the other edge's fail: it is known to have failed"
    assert ledger.failed == 1


@pytest.mark.req("S76", "S78")
def test_a_fail_that_overtakes_its_init_is_remembered() -> None:
    # Ruling L.
    ledger = AckerLedger()
    assert ledger.on_fail(ROOT) is None
    assert ledger.on_ack(ROOT, 1) is None
    assert ledger.on_init(ROOT, 1 ^ 2, SPOUT) == FAILED
    assert len(ledger) == 0


@pytest.mark.req("S78")
def test_and_forgotten_after_a_while() -> None:
    ledger = AckerLedger()
    ledger.on_fail(ROOT)
    assert [ledger.on_tick() for _ in range(3)] == [[]] * 3
    assert (len(ledger), ledger.orphans, ledger.expired) == (0, 1, 0)


@pytest.mark.req("S78")
def test_to_the_letter_it_is_ignored() -> None:
    ledger = AckerLedger(remembers_early_fails=False)
    assert ledger.on_fail(ROOT) is None
    assert (len(ledger), ledger.unknown_fails) == (0, 1)
    assert ledger.on_init(ROOT, 1, SPOUT) is None
    assert ledger.on_fail(ROOT) == FAILED, "a known root fails in either mode"


@pytest.mark.req("S78")
def test_to_the_letter_a_fail_after_acks_counts() -> None:
    ledger = AckerLedger(remembers_early_fails=False)
    ledger.on_ack(ROOT, 1)
    ledger.on_fail(ROOT)
    assert ledger.on_init(ROOT, 1 ^ 2, SPOUT) == FAILED


@pytest.mark.req("S77")
def test_zero_wins_over_failed() -> None:
    ledger = AckerLedger()
    ledger.on_fail(ROOT)
    ledger.on_ack(ROOT, 3)
    assert ledger.on_init(ROOT, 3, SPOUT) == COMPLETE
    assert (ledger.complete, ledger.failed) == (1, 0)


def test_a_second_init_is_ignored() -> None:
    ledger = AckerLedger()
    ledger.on_init(ROOT, 6, SPOUT)
    assert ledger.on_init(ROOT, 6, SPOUT) is None, "6 ^ 6 is 0, and nothing was acked"
    assert ledger.on_init(ROOT, 6, "s2") is None
    assert ledger.duplicate_inits == 2
    assert ledger.on_ack(ROOT, 6) == COMPLETE


def test_a_second_ack_never_completes() -> None:
    ledger = AckerLedger()
    ledger.on_init(ROOT, 1 ^ 2, SPOUT)
    ledger.on_ack(ROOT, 1)
    ledger.on_ack(ROOT, 1)
    assert ledger.on_ack(ROOT, 2) is None
    assert [ledger.on_tick() for _ in range(3)] == [[], [], [EXPIRED]]


@pytest.mark.req("S79")
def test_a_tree_expires_at_the_third_tick() -> None:
    ledger = AckerLedger()
    ledger.on_init(ROOT, 6, SPOUT)
    assert [ledger.on_tick(), ledger.on_tick()] == [[], []]
    ledger.on_init(7, 1, "s2")
    assert ledger.on_tick() == [EXPIRED]
    assert (len(ledger), ledger.expired) == (1, 1)
    assert ledger.on_ack(ROOT, 6) is None, "too late"


@pytest.mark.req("S79")
def test_an_ack_does_not_prolong_a_tree() -> None:
    ledger = AckerLedger()
    ledger.on_init(ROOT, 1 ^ 2, SPOUT)
    ledger.on_tick()
    ledger.on_tick()
    ledger.on_ack(ROOT, 1)
    assert ledger.on_tick() == [EXPIRED]


@pytest.mark.req("S79")
def test_late_messages_of_a_tree_that_is_done_are_orphans() -> None:
    ledger = AckerLedger()
    ledger.on_init(ROOT, 1 ^ 2, SPOUT)
    ledger.on_fail(ROOT)
    ledger.on_ack(ROOT, 1)
    assert [ledger.on_tick() for _ in range(3)] == [[]] * 3, "the spout has been told"
    assert (ledger.orphans, ledger.expired, len(ledger)) == (1, 0, 0)


def test_a_bolt_may_prolong_a_tree() -> None:
    ledger = AckerLedger()
    ledger.on_init(ROOT, 6, SPOUT)
    for _ in range(10):
        assert ledger.on_tick() == []
        assert ledger.on_reset_timeout(ROOT) == Verdict(ROOT, SPOUT, TreeOutcome.PROLONGED)
    assert [ledger.on_tick() for _ in range(3)] == [[], [], [EXPIRED]]


def test_to_prolong_what_is_not_known_yet_or_any_more_is_nothing() -> None:
    ledger = AckerLedger()
    assert ledger.on_reset_timeout(ROOT) is None
    assert len(ledger) == 0
    ledger.on_ack(ROOT, 6)
    assert ledger.on_reset_timeout(ROOT) is None, "there is no spout to tell"


def test_trees_do_not_mix() -> None:
    ledger = AckerLedger()
    ledger.on_init(1, 5, "s1")
    ledger.on_init(2, 5, 2)
    assert ledger.on_ack(2, 5) == Verdict(2, 2, TreeOutcome.COMPLETE)
    assert ledger.on_ack(1, 5) == Verdict(1, "s1", TreeOutcome.COMPLETE)


@pytest.mark.req("S125")
def test_a_root_always_has_the_same_acker() -> None:
    ackers: list[TaskId] = ["a1", "a2", "a3"]
    owners = [owner_of(root, ackers) for root in range(1, 301)]
    assert owners == [owner_of(root, list(ackers)) for root in range(1, 301)]
    assert {owner: owners.count(owner) for owner in ackers} == dict.fromkeys(ackers, 100)
    assert owner_of(2**64 - 1, ["a1"]) == "a1"


@pytest.mark.req("S71")
def test_without_ackers_nobody_owns_a_root() -> None:
    with pytest.raises(InternalError, match="no acker"):
        owner_of(ROOT, [])
