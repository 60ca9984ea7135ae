"""Two drivers of one job with --standby: one works, the other takes over when it is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_parts import Job

from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED
from flowctl_redis.embedded import EmbeddedServer

LINES = 6_000


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    server = EmbeddedServer(tmp_path / "redis")
    # Slow enough that the first driver is still at work when the second has started.
    yield Job(tmp_path, LINES, TUPLE_S=5, FLOWCTL_REDIS_URL=server.start())
    server.stop()


def test_the_driver_in_waiting_takes_over_from_one_that_was_killed(job: Job) -> None:
    first = job.start("--standby", "--set", "checkpoint.interval_s=0.05")
    job.until_rows(200, first)
    second = job.start("--standby", TUPLE_S=0)
    second.until_said("standby: waiting while")
    third = job.start("--standby")
    third.until_said("standby: waiting while")
    third.process.terminate()
    assert third.wait() == EXIT_INTERRUPTED, third.said
    first.kill()
    assert second.wait() == EXIT_FINISHED, second.said
    assert "taking over" in second.said
    assert second.report["resumed_records"] > 0
    job.assert_exact()


@pytest.mark.on_change("redis")
def test_a_driver_that_was_frozen_comes_back_and_is_fenced(job: Job) -> None:
    first = job.start("--standby", "--set", "checkpoint.interval_s=0.1")
    job.until_rows(200, first)
    second = job.start("--standby", TUPLE_S=0)
    second.until_said("standby: waiting while")
    first.process.send_signal(signal.SIGSTOP)
    assert second.wait() == EXIT_FINISHED, second.said
    os.killpg(first.process.pid, signal.SIGCONT)
    assert first.wait() == EXIT_FAILED, first.said
    assert "taken over" in first.said or "newer" in first.said, first.said
    job.assert_exact()


def test_a_driver_that_ends_lets_the_other_go_on_at_once(job: Job) -> None:
    """What is left to do is nothing."""
    first = job.start("--standby", TUPLE_S=0)
    second = job.start("--standby", TUPLE_S=0)
    assert {first.wait(), second.wait()} == {EXIT_FINISHED}, first.said + second.said
    assert "nothing to do" in first.said + second.said
    job.assert_exact()
