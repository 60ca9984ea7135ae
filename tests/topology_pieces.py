"""Random topologies for property tests."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

from flowctl.errors import RetryLater
from flowctl_storm import Collector, Input, ManualCollector, Topology
from tests.topology_driver import topology


class Pieces:
    """A random chain of stages: each gets from one or two before it; the last is the sink."""

    def __init__(
        self, rng: random.Random, faults: float, *, holds: bool = False, **settings: Any
    ) -> None:
        """``holds``: some of its bolts are manual, and hold inputs; ``settings``: a topology's.

        ``faults`` and ``refuses`` are how often a call raises, and how often its target refuses.
        """
        self.refuses = 0.0
        self.rng = rng
        self.faults = faults
        self.arrived: Counter[tuple[Any, ...]] = Counter()
        self.topology: Topology = topology(**{"tree_timeout_s": 1e6, **settings})
        self.paths: dict[str, list[tuple[str, ...]]] = {"s": [("s",)]}
        names = ["s"]
        for number in range(rng.randint(1, 4)):
            name = f"b{number}"
            sources = rng.sample(names, min(len(names), rng.randint(1, 2)))
            is_manual = holds and rng.random() < 0.4
            self._add(name, sources, partial(Holding, self) if is_manual else self.pass_on)
            names.append(name)
        ends = [n for n in names[1:] if not self._feeds(n)]
        self._add("sink", ends, partial(HoldingSink, self) if holds else self.arrive)

    def _feeds(self, name: str) -> bool:
        return any(name in [s.component for s in p.plan.subscriptions] for p in self._declared())

    def _declared(self) -> Any:
        return self.topology.bolts.values()

    def _add(self, name: str, sources: list[str], code: Any) -> None:
        declarer = self.topology.bolt(name, code, count=self.rng.randint(1, 3))
        self.paths[name] = []
        for source in sources:
            kind = self.rng.choice(["shuffle", "least_loaded", "fields"])
            if kind == "fields":
                declarer.fields(source, 0)
            else:
                getattr(declarer, kind)(source)
            self.paths[name] += [(*path, name) for path in self.paths[source]]

    def maybe_fail(self) -> None:
        if self.rng.random() < self.faults:
            raise ValueError("by chance")
        if self.rng.random() < self.refuses:
            raise RetryLater("by chance")

    def pass_on(self, given: Input, out: Collector) -> None:
        out([*given.value, out.bolt.partition(".")[0]])
        self.maybe_fail()

    def arrive(self, given: Input, out: Collector) -> None:
        self.maybe_fail()
        number, *path = given.value
        self.arrived[number, ("s", *path, "sink")] += 1


class Holding:
    """A manual bolt that passes each input on when it has had two more."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self._pieces.maybe_fail()
        self._held.append(given)
        if len(self._held) > 2:
            first = self._held.pop(0)
            out.emit([*first.value, out.bolt.partition(".")[0]], anchors=first)
            out.ack(first)


class HoldingSink:
    """A manual sink: each input has its effect as it comes, and is acked when two more have."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self._pieces.arrive(given, out)
        self._held.append(given)
        if len(self._held) > 2:
            out.ack(self._held.pop(0))
