"""Drives a ``SpoutCore`` by hand, for the tests of the core."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

import flowctl_lab.baselines  # noqa: F401  # tests name each policy
from flowctl.core.events import FlowEvent
from flowctl.core.messages import Ack, Emission, Fail, Heartbeat, Order, Revoked
from flowctl.core.records import AckOutcome, Checkpoint, Record
from flowctl.core.settings import (
    BufferSettings,
    CoreSettings,
    DispatchSettings,
    GuaranteeSettings,
    HedgeSettings,
    RetrySettings,
    TimeoutSettings,
    TupleSettings,
    WindowSettings,
)
from flowctl.core.spout import SpoutCore
from flowctl.core.tuples import Ids
from flowctl.testing.clock import ManualClock
from flowctl.testing.invariants import check

_SECTIONS = {
    "window": WindowSettings,
    "tuple": TupleSettings,
    "dispatch": DispatchSettings,
    "hedge": HedgeSettings,
    "timeout": TimeoutSettings,
    "retry": RetrySettings,
    "buffer": BufferSettings,
    "guarantee": GuaranteeSettings,
}
E = TypeVar("E", bound=FlowEvent)


def core_settings(**values: Any) -> CoreSettings:
    """Settings from ``section_name=value``, as ``window_initial=4``; one record a tuple, aiad.

    Without hedging: what a test sees of copies is what it asked for.
    """
    sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    sections["tuple"]["records_max"] = 1
    sections["hedge"]["enabled"] = False
    sections["window"]["policy"] = "aiad"  # the document's rule, whose numbers tests can follow
    for name, value in values.items():
        section, _, field = name.partition("_")
        sections[section][field] = value
    return CoreSettings(**{name: _SECTIONS[name](**given) for name, given in sections.items()})


class Driver:
    """A core, a clock, and short words for what happens to them; checks after each."""

    def __init__(
        self,
        *bolts: str,
        slots: int = 1,
        checkpoint: Checkpoint | None = None,
        has_dead_letter: bool = False,
        **values: Any,
    ) -> None:
        self.core = SpoutCore(
            core_settings(**values), checkpoint=checkpoint, has_dead_letter=has_dead_letter
        )
        self.clock = ManualClock()
        self.log: list[FlowEvent] = []
        self.log_emitted: list[Emission] = []
        self.checks = True
        self._read: dict[str, int] = {}
        for bolt in bolts:
            self.add(bolt, slots=slots)

    def add(self, bolt: str, *, slots: int = 1, epoch: int = 1, in_order: bool = False) -> None:
        self.core.add_bolt(bolt, slots=slots, epoch=epoch, now_s=self.clock(), in_order=in_order)
        self.settle()

    def widen(self, bolt: str, window: float) -> None:
        """Set the bolt's window, as an ack might have."""
        consumer = self.core.bolts[bolt]
        consumer.policy.window = window
        self.core.book.changed(consumer)

    def remove(self, bolt: str, **how: Any) -> None:
        self.core.remove_bolt(bolt, now_s=self.clock(), **how)
        self.settle()

    def offer(self, count: int, partition: str = "p", *, value: Any = None) -> int:
        """Offer the next ``count`` records, with positions 1, 2, …; of ``value``, or these."""
        first = self._read.get(partition, 0) + 1
        records = [Record(n, n if value is None else value) for n in range(first, first + count)]
        taken = self.core.offer(partition, records, now_s=self.clock())
        self._read[partition] = first - 1 + taken
        self.settle()
        return taken

    def emit(self, most: int = 10_000) -> list[Emission]:
        """All that may go now."""
        emissions: list[Emission] = []
        while len(emissions) < most:
            emission = self.core.poll_emit(now_s=self.clock())
            if emission is None:
                break
            emissions.append(emission)
        self.log_emitted += emissions
        self.settle()
        return emissions

    def ack(
        self, emission: Emission, *, epoch: int = 1, bolt: str | None = None, **durations: float
    ) -> AckOutcome:
        ack = Ack(emission.tuple_id, emission.attempt, **durations)
        outcome = self.core.on_ack(bolt or emission.bolt, epoch, ack, now_s=self.clock())
        self.settle()
        return outcome

    def fail(self, emission: Emission, *, epoch: int = 1, **how: Any) -> AckOutcome:
        fail = Fail(emission.tuple_id, emission.attempt, **{"error": "boom", **how})
        outcome = self.core.on_fail(emission.bolt, epoch, fail, now_s=self.clock())
        self.settle()
        return outcome

    def beat(
        self,
        bolt: str,
        *,
        busy: int = 0,
        queued: int = 0,
        epoch: int = 1,
        begun: Ids = (),
        arrived: int | None = None,
    ) -> None:
        beat = Heartbeat(busy, queued, begun, arrived)
        self.core.on_heartbeat(bolt, epoch, beat, now_s=self.clock())
        self.settle()

    def give_back(self, bolt: str, *tuple_ids: int, epoch: int = 1) -> None:
        self.core.on_revoked(bolt, epoch, Revoked(tuple_ids), now_s=self.clock())
        self.settle()

    def orders(self) -> list[Order]:
        orders: list[Order] = []
        while (order := self.core.poll_order()) is not None:
            orders.append(order)
        return orders

    def end(self) -> None:
        self.core.end_of_input(now_s=self.clock())
        self.settle()

    def wait(self, by_s: float) -> None:
        self.clock.advance(by_s)
        self.core.on_deadline(now_s=self.clock())
        self.settle()

    def wait_for_deadline(self) -> None:
        deadline_s = self.core.next_deadline_s()
        assert deadline_s is not None
        self.clock.advance_to(deadline_s)
        self.wait(0)

    def window(self, bolt: str) -> int:
        return self.core.bolts[bolt].window

    def events(self, kind: type[E]) -> list[E]:
        return [event for event in self.log if isinstance(event, kind)]

    def position(self, partition: str = "p") -> Any:
        return self.core.checkpoint().partitions[partition].position

    def acked_above(self, partition: str = "p") -> list[tuple[Any, Any, int]]:
        spans = self.core.checkpoint().partitions[partition].acked
        return [(span.first, span.last, span.records) for span in spans]

    def settle(self) -> None:
        while (event := self.core.poll_event()) is not None:
            self.log.append(event)
        if self.checks:
            check(self.core)


class FifoBolts:
    """Bolts that work on one tuple at a time, in order, each for ``service_s[bolt](now_s)``."""

    def __init__(
        self, driver: Driver, service_s: dict[str, Callable[[float], float]], *, tells: bool = True
    ) -> None:
        self.driver = driver
        driver.checks = False  # O(all it holds) at each of thousands of steps
        self.tells = tells  # acks carry wait and service times
        self.windows: dict[str, list[tuple[float, int]]] = {bolt: [] for bolt in service_s}
        self._service_s = service_s
        self._free_at_s = dict.fromkeys(service_s, 0.0)
        self._due: list[tuple[float, int, Emission, float, float]] = []

    def run(self, acks: int) -> None:
        """Send all that may go, ack what is done, ``acks`` times."""
        for _ in range(acks):
            self._send()
            if not self._due:
                return
            at_s, _, emission, wait_s, service_s = heappop(self._due)
            self.driver.clock.advance_to(at_s)
            durations = {"wait_s": wait_s, "service_s": service_s} if self.tells else {}
            self.driver.ack(emission, **durations)
            bolt = emission.bolt
            self.windows[bolt].append((at_s, self.driver.window(bolt)))

    def _send(self) -> None:
        now_s = self.driver.clock()
        for emission in self.driver.emit():
            bolt = emission.bolt
            begin_s = max(now_s, self._free_at_s[bolt])
            service_s = self._service_s[bolt](begin_s)
            self._free_at_s[bolt] = begin_s + service_s
            heappush(
                self._due,
                (begin_s + service_s, emission.tuple_id, emission, begin_s - now_s, service_s),
            )
