"""The hub's messages by kind: acks, fails, ticks; a root leaves pending before anyone is told."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from flowctl_storm import Collector, Input
from tests.topology_driver import Hub, nothing, topology

pytestmark = pytest.mark.req("S49")
ROOT = 0xABC


def told_while_pending(hub: Hub) -> list[tuple[str | None, bool]]:
    """What is told of each end, and whether the root was pending at that moment."""
    told: list[tuple[str | None, bool]] = []

    class News(deque[Any]):
        def append(self, end: Any) -> None:
            told.append((end.reason, ROOT in hub.core.roots.trees))

    roots = hub.core.roots
    roots.wanted = roots.wanted._replace(ends=True, tasks=False)
    roots.news = News()
    return told


def one_root(code: Any, **settings: Any) -> tuple[Hub, list[tuple[str | None, bool]]]:
    made = topology(**settings)
    made.bolt("a", code).shuffle("s")
    # The stage's own timer does not take the tuple back from a bolt that is silent.
    patient = {"lab.timeout.rto_first_s": 1e6, "lab.timeout.rto_max_s": 1e6}
    hub = Hub(made, next_id=iter([ROOT, *range(1, 9)]).__next__, overrides=patient)
    told = told_while_pending(hub)
    hub.offer(["x"])
    hub.emit()
    assert ROOT in hub.core.roots.trees
    return hub, told


def test_an_ack() -> None:
    hub, told = one_root(nothing)
    hub.step()
    assert told == [(None, False)]


def test_a_fail() -> None:
    def failing(given: Input, out: Collector) -> None:
        raise ValueError("no")

    hub, told = one_root(failing)
    hub.step()
    assert told == [("ValueError: no", False)]


def test_a_tick() -> None:
    """Nobody answers: the second tick drops the bucket, and the root fails by that."""
    hub, told = one_root(nothing, tree_timeout_s=10.0)
    hub.in_flight.clear()
    for _ in range(2):
        assert told == []
        hub.now_s += 10.1
        hub.core.on_deadline(now_s=hub.now_s)
    assert told == [("its tree was not complete after 10 s", False)]
