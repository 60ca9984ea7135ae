"""Bolts that collect, a topology with one, and how a run of it ends."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from flowctl_storm import Input, ManualCollector, Topology
from tests.topology_driver import Hub, nothing, passing, topology

QUICK = {"retry.attempts_max": 3, "retry.backoff_first_s": 0.01}


class Totals:
    """Counts by key and holds what it counted; what it emits at the end is of all of that."""

    ends: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self.counts[given.value] += 1
        self.held.append(given)

    def on_end(self, out: ManualCollector) -> None:
        self.ends.append(out.bolt)
        if self.held:
            out.emit(sorted(self.counts.items()), anchors=self.held)
        for given in self.held:
            out.ack(given)
        self.counts.clear()
        self.held.clear()


class Pairs:
    """Holds each input until "go" comes; then emits all that it holds as one value."""

    def __init__(self) -> None:
        self.held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self.held.append(given)
        if given.value == "go":
            out.emit([each.value for each in self.held], self.held)
            for each in self.held:
                out.ack(each)


def collecting(code: Any, *, sink: Any = nothing, count: int = 1, **how: Any) -> Topology:
    made = topology(**how)
    made.bolt("first", passing).shuffle("s")
    made.bolt("total", code, count=count).shuffle("first")
    made.bolt("sink", sink).shuffle("total")
    return made


def finish(hub: Hub, **how: Any) -> None:
    hub.core.end_of_input(now_s=hub.now_s)
    hub.run(**how)
