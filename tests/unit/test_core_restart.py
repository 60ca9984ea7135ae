"""A second core goes on from the first one's checkpoint."""

from __future__ import annotations

import pytest

from flowctl.core.records import Checkpoint, Record
from flowctl.core.spout import SpoutCore
from tests.core_driver import Driver, core_settings


def crashed_with(*acked: int, count: int = 8) -> Checkpoint:
    driver = Driver("a", window_policy="fixed", window_initial=count)
    driver.offer(count)
    for emission in driver.emit():
        if emission.records[0].position in acked:
            driver.ack(emission)
    return driver.core.checkpoint()


def run_again(checkpoint: Checkpoint, begin: int, count: int = 8) -> list[int]:
    """The positions that the next run processes, in order, if it reads from ``begin``."""
    core = SpoutCore(core_settings(window_policy="fixed", window_initial=50), checkpoint=checkpoint)
    core.add_bolt("a", slots=1, epoch=1, now_s=0.0)
    core.offer("p", [Record(n, n) for n in range(begin, count + 1)], now_s=0.0)
    positions: list[int] = []
    while (emission := core.poll_emit(now_s=0.0)) is not None:
        positions += [int(record.position) for record in emission.records]  # type: ignore[arg-type]
    return positions


@pytest.mark.req("S13")
def test_only_unacked_records_run_again() -> None:
    checkpoint = crashed_with(1, 2, 4, 5, 7)
    assert checkpoint.records == 5
    assert run_again(checkpoint, begin=3) == [3, 6, 8]


@pytest.mark.req("S13", "S102")
def test_also_if_the_producer_begins_at_the_beginning() -> None:
    assert run_again(crashed_with(1, 2, 4, 5, 7), begin=1) == [3, 6, 8]


@pytest.mark.req("S13", "S15")
def test_a_restart_begins_with_the_configured_window_whatever_was_learned() -> None:
    driver = Driver("a", window_initial=2, window_threshold_s=1.0)
    driver.offer(200)
    for _ in range(5):
        driver.clock.advance(0.01)
        for emission in driver.emit():
            driver.clock.advance(0.001)
            driver.ack(emission)
    assert driver.window("a") > 2
    again = Driver("a", checkpoint=driver.core.checkpoint(), window_initial=2)
    assert again.window("a") == 2


def test_partitions_that_are_not_read_again_keep_their_place() -> None:
    driver = Driver("a", window_initial=9)
    driver.offer(2, "p")
    driver.offer(2, "q")
    for emission in driver.emit():
        driver.ack(emission)
    checkpoint = driver.core.checkpoint()
    again = Driver("a", checkpoint=checkpoint)
    assert again.core.checkpoint().partitions == checkpoint.partitions
    again.core.offer("q", [Record(3, 3)], now_s=0.0)
    again.ack(again.emit()[0])
    assert again.position("q") == 3
    assert again.core.checkpoint().partitions["p"] == checkpoint.partitions["p"]


def test_what_was_skipped_is_counted_but_not_as_done_by_this_run() -> None:
    core = SpoutCore(core_settings(), checkpoint=crashed_with(1, 2, 4))
    core.offer("p", [Record(n, n) for n in range(3, 6)], now_s=0.0)
    assert core.intake.skipped == 1
    assert core.counters.records_acked == 0
    assert core.intake.buffer.records == 2
    assert core.intake.uncommitted == 3  # 4 is done, but above a hole
