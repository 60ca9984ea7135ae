"""For tests of watched topologies: consumers that add up, hooks that count, three stages."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from flowctl.instrumentation.hooks import TaskHook
from flowctl.instrumentation.task_metrics import Point, TaskInfo
from flowctl_storm import Batched, Collector, Input, ManualCollector, Topology
from tests.topology_driver import Numbers


class Totals:
    """A metrics consumer that adds up all that comes, over tasks and ticks."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        self.means: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.own: dict[str, Counter[str]] = defaultdict(Counter)
        self.infos: list[TaskInfo] = []

    def __call__(self, info: TaskInfo, points: list[Point]) -> None:
        assert points, "no message without a point"
        self.infos.append(info)
        for point in points:
            if not isinstance(point.value, dict):
                self.own[info.component][point.name] += point.value
            elif point.name.endswith("_s"):
                self.means[info.component][point.name] += point.value.values()
            else:
                self.counts[info.component][point.name].update(point.value)

    def of(self, component: str) -> dict[str, dict[str, int]]:
        return {name: dict(counts) for name, counts in self.counts[component].items()}


class CountingHook(TaskHook):
    """Says through ``tell`` what it was called with: for workers that share no memory."""

    def __init__(self, tell: Any) -> None:
        for method in ("emit", "bolt_execute", "bolt_ack", "bolt_fail"):
            setattr(self, method, lambda info, method=method: tell(method))


class Gather:
    """Manual: holds a value until its partner comes, 1 and 2, 3 and 4 …"""

    def __init__(self) -> None:
        self.held: dict[int, Input] = {}

    def execute(self, given: Input, out: ManualCollector) -> None:
        pair = (given.value + 1) // 2
        other = self.held.pop(pair, None)
        if other is None:
            self.held[pair] = given
            return
        out.emit(2 * pair, anchors=(other, given))
        out.ack(other)
        out.ack(given)


def split(given: Input, out: Collector) -> None:
    out(given.value)
    if given.value % 10 == 0:
        out(given.value, stream="tens")
    out.count("seen")


def store(inputs: Any, out: Collector) -> None:
    out.count("rows", len(inputs))


def three_stages(records: int, hooks: Any = ()) -> Topology:
    """spout → split → gather → store, and split's tens straight to store."""
    made = Topology("watched")
    made.spout("s", Numbers(records))
    made.bolt("split", split, count=2, hooks=hooks).shuffle("s")
    made.bolt("gather", Gather).shuffle("split")
    made.bolt("store", Batched(store), count=2).shuffle("gather").shuffle("split", stream="tens")
    return made
