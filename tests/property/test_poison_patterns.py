"""Records that fail again and again never block a small ``uncommitted_max`` (S94)."""

from __future__ import annotations

import random

import pytest

from flowctl.core.messages import Emission
from flowctl.core.records import AckOutcome
from tests.core_driver import Driver

pytestmark = pytest.mark.on_change()

PATTERNS = 1_000
UNCOMMITTED_MAX = 10
RECORDS = 40
STEPS_MAX = 5_000  # a run takes some 200: far above


@pytest.mark.req("S94", "S109", "S124")
@pytest.mark.parametrize("part", range(4))
def test_never_stuck_and_nothing_is_lost_silently(part: int) -> None:
    for seed in range(part, PATTERNS, 4):
        run(seed)


def run(seed: int) -> None:
    chance = random.Random(seed)
    # How often each record fails: most never, some now and then, some for ever.
    share = chance.choice([0.05, 0.3, 0.9])
    fails = {
        n: chance.choice([1, 2, 4, 1_000_000]) if chance.random() < share else 0
        for n in range(1, RECORDS + 1)
    }
    driver = Driver(
        *(f"b{n}" for n in range(chance.randint(1, 4))),
        has_dead_letter=True,
        buffer_uncommitted_max=UNCOMMITTED_MAX,
        tuple_records_max=chance.choice([1, 1, 3]),
        retry_attempts_max=chance.choice([1, 3, 5]),
    )
    driver.checks = seed % 20 == 0  # O(all it holds) at each step
    dead: set[object] = set()
    # A process that never worked ends the run, so something succeeds first.
    fails[1] = 0
    driver.offer(1)
    driver.ack(driver.emit()[0])
    acked: set[object] = {1}
    left = RECORDS - 1
    for _ in range(STEPS_MAX):
        if left:
            left -= driver.offer(left)
            assert driver.core.intake.uncommitted <= UNCOMMITTED_MAX
            if not left:
                driver.end()
        emissions = driver.emit()
        for emission in emissions:
            answer(driver, emission, fails, acked)
        while (letter := driver.core.poll_dead_letter()) is not None:
            dead |= {record.position for record in letter.records}
            driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())
        if not left and driver.core.is_drained:
            break
        if not emissions and driver.core.next_deadline_s() is not None:
            driver.wait_for_deadline()
    else:
        raise AssertionError(f"seed {seed}: stuck with {left} records unread")
    assert acked | dead == set(fails), f"seed {seed}"
    assert driver.position() == RECORDS, "what is dead is committed too"


def answer(driver: Driver, emission: Emission, fails: dict[int, int], acked: set[object]) -> None:
    positions = [record.position for record in emission.records]
    worst = max(fails[n] for n in positions)  # type: ignore[index]
    if worst == 0:
        assert driver.ack(emission) is AckOutcome.ACKED
        acked.update(positions)
        return
    for n in positions:
        fails[n] = max(0, fails[n] - 1)  # type: ignore[index]
    driver.fail(emission)
