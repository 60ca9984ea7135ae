"""What a spout knows of its tuples and bolts: who holds what, and the moves between them.

The parts of the core share one book in place of references to each other's dictionaries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

import msgspec

from flowctl.core.consumer import NEVER, AdaptiveFlowConsumer
from flowctl.core.cost import ServicePool
from flowctl.core.counters import Counters
from flowctl.core.dispatch import (
    EXACT_MAX,
    Dispatcher,
    LeastCompletion,
    dispatcher_for,
    make_dispatcher,
)
from flowctl.core.events import FlowEvent
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.messages import Order, Revoke
from flowctl.core.records import Record
from flowctl.core.settings import CoreSettings
from flowctl.core.state import Liveness
from flowctl.core.supply import Supply
from flowctl.core.tuples import FlowTuple, TupleIds

# -- One timer per bolt, however many tuples it holds ------------------------------------------
#
# The heap has at most one live entry per bolt. An ack does not touch it: an alarm that rings too
# early is reset, which costs one wake-up per time-out instead of one heap operation per tuple; or
# the driver puts it off before.


_GONE: Final = Liveness.GONE  # asked for each turn: a member of an enum costs .2 us


class Alarms:
    """When to look at each bolt next.  Not thread-safe."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, AdaptiveFlowConsumer]] = []
        self._order = 0  # breaks ties: consumers do not compare

    def set(self, consumer: AdaptiveFlowConsumer, at_s: float) -> None:
        """Ring for ``consumer`` at ``at_s``, or earlier if that is already set."""
        if at_s < consumer.alarm_s:
            consumer.alarm_s = at_s
            self._order += 1
            heappush(self._heap, (at_s, self._order, consumer))

    def next_s(self) -> float | None:
        """Return when the next alarm rings, or None."""
        heap = self._heap
        while heap and self._is_stale(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def put_off(self, due_s: Callable[[AdaptiveFlowConsumer], float]) -> None:
        """Reset the first alarms if they would ring too early, by ``due_s``.

        For drivers that get a few messages a second from each bolt: without this, alarms would wake
        them more often than messages do.  Costs a heap operation for each bolt that sent something.
        """
        heap = self._heap
        while heap:
            at_s, _, consumer = heap[0]
            is_stale = self._is_stale(heap[0])
            if not is_stale and (later_s := due_s(consumer)) <= at_s:
                return
            heappop(heap)
            if not is_stale:
                consumer.alarm_s = NEVER
                self.set(consumer, later_s)

    def ring(
        self, now_s: float, due_s: Callable[[AdaptiveFlowConsumer], float]
    ) -> Iterator[AdaptiveFlowConsumer]:
        """Yield the bolts whose time has come by ``due_s``; set the others' alarms again."""
        heap = self._heap
        rung: list[AdaptiveFlowConsumer] = []
        while heap and heap[0][0] <= now_s:
            entry = heappop(heap)
            if not self._is_stale(entry):
                entry[2].alarm_s = NEVER
                rung.append(entry[2])
        for consumer in rung:  # each bolt once, even if it is due again at once
            at_s = due_s(consumer)
            if at_s <= now_s:
                yield consumer
                at_s = due_s(consumer)
            self.set(consumer, at_s)

    @staticmethod
    def _is_stale(entry: tuple[float, int, AdaptiveFlowConsumer]) -> bool:
        at_s, _, consumer = entry
        return consumer.liveness is _GONE or consumer.alarm_s != at_s


# -- What a spout knows of its tuples and bolts ------------------------------------------------


_ALIVE: Final = Liveness.ALIVE  # a name, as a member of an enum costs .1 us for each tuple


class IdleListener(Protocol):
    """Called with the bolts that have nothing to do."""

    def note_idle(self, consumer: AdaptiveFlowConsumer) -> None: ...


class SizeFor(Protocol):
    """Returns the most records that the next tuple for a bolt should have, at least 1."""

    def __call__(self, consumer: AdaptiveFlowConsumer) -> int: ...


class Lost(msgspec.Struct, frozen=True, gc=False):
    """Records of a tuple that was given up or dropped, with the bolts to blame, or the last
    bolt.
    """

    records: Sequence[Record]
    bolt: str
    reason: str


class Book:
    """Part of ``TupleCore``; not thread-safe.

    ``bolts``: the connected bolts, by name; ``slots``: their slots together.  ``to_come``: bolts
    that are expected to connect, as far as is known.  ``pending``: tuples that were sent at least
    once and are not settled, by id.  ``out``: bolts that no tuple should wait for (suspect, or full
    of strays).  ``events`` and ``orders`` wait for the driver.  ``is_all_out``: as far as is known,
    nothing is left that was never sent.  ``lost`` are tuples that the caller has to handle.
    ``records_share``: records for each record that a tuple counts; less than 1 if it counts
    positions of a source by reference.
    """

    def __init__(
        self, settings: CoreSettings, supply: Supply, events: deque[FlowEvent] | None = None
    ) -> None:
        self.settings = settings
        self.supply = supply
        self.guarantee: ProcessingGuarantee = settings.guarantee.processing
        self.counters: Counters = Counters()
        self.events: deque[FlowEvent] = deque() if events is None else events
        self.orders: deque[Order] = deque()
        self.bolts: dict[str, AdaptiveFlowConsumer] = {}
        self.slots: int = 0
        self.pool: ServicePool = ServicePool()
        self.pending: dict[int, FlowTuple] = {}
        self.ids: TupleIds = TupleIds()
        self.out: set[str] = set()
        self.lost: deque[Lost] = deque()
        self.dispatcher: Dispatcher = make_dispatcher(settings)
        self.alarms: Alarms = Alarms()
        self.input_ended = False
        self.is_all_out = False
        self.to_come: int = 0
        self.idle_listener: IdleListener | None = None
        # What is different if tuples are ranges.
        self.consumer_type: type[AdaptiveFlowConsumer] = AdaptiveFlowConsumer
        self.size_for: SizeFor | None = None
        self.records_share: Callable[[], float] = lambda: 1.0

    def add_bolt(self, consumer: AdaptiveFlowConsumer) -> None:
        """Add a bolt that connected.

        If there are very many, switch to a dispatcher that does not look for the best.
        """
        self.bolts[consumer.bolt] = consumer
        self.slots += consumer.slots
        if self.to_come:
            self.to_come -= 1
        if len(self.bolts) > EXACT_MAX and isinstance(self.dispatcher, LeastCompletion):
            self.dispatcher = dispatcher_for(self.bolts.values())

    @property
    def slots_expected(self) -> float:
        """Slots in all, including bolts that have not connected yet: each counts as an average
        bolt.
        """
        here = len(self.bolts)
        return self.slots * (here + self.to_come) / here if here else self.to_come

    def remove_bolt(self, bolt: str) -> AdaptiveFlowConsumer:
        """Remove a bolt; the tuples that it held are the caller's to move."""
        consumer = self.bolts.pop(bolt)
        self.slots -= consumer.slots
        self.out.discard(bolt)
        consumer.leave()
        self.dispatcher.forget(consumer)
        return consumer

    def revoke(self, consumer: AdaptiveFlowConsumer, tuple_ids: list[int]) -> None:
        """Ask a bolt to give back those of the tuples that it has not begun."""
        self.orders.append(Revoke(consumer.bolt, tuple_ids))

    def take_back(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """Stop waiting for the bolt that holds ``flow_tuple``, if one does."""
        holder = self.bolts.get(flow_tuple.held_by or "")
        if holder is not None and holder.let_stray(flow_tuple.tuple_id, now_s) is not None:
            self.changed(holder)
            self.revoke(holder, [flow_tuple.tuple_id])

    def has_other(self, avoid: Collection[str], flow_tuple: FlowTuple) -> bool:
        """Whether ``flow_tuple`` has a bolt to go to that is not in ``avoid``.

        If tuples are ranges, a range that never failed does not wait for a stalled bolt: it avoids
        bolts that could not finish it in time.
        """
        waits = self.size_for is None or flow_tuple.faults > 0
        return any(
            bolt not in avoid
            and bolt not in self.out
            and (waits or consumer.liveness is not Liveness.STALLED)
            for bolt, consumer in self.bolts.items()
        )

    def let_go(self, flow_tuple: FlowTuple) -> None:
        """Forget ``flow_tuple``, which is not done and is not to be done here."""
        del self.pending[flow_tuple.tuple_id]
        self.counters.records_pending_now -= len(flow_tuple.cut.records)

    def changed(self, consumer: AdaptiveFlowConsumer) -> None:
        """Note that ``consumer`` changed: it may have room now, be idle, or be out."""
        consumer.refresh()
        if consumer.has_room:
            self.dispatcher.note_room(consumer)
        # A bolt with strays may be working on them.
        if self.is_all_out and not (consumer.flight or consumer.strays):
            assert self.idle_listener is not None
            self.idle_listener.note_idle(consumer)
        if consumer.strays or self.out or consumer.liveness is not _ALIVE:
            if consumer.strays and not consumer.flight:
                # It has strays, and nothing else that a timer would watch.
                self.alarms.set(consumer, consumer.strays.due_s(consumer.rtt.rto_s))
            if consumer.is_out:
                self.out.add(consumer.bolt)
            else:
                self.out.discard(consumer.bolt)
