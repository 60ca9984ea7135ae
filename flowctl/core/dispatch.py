"""Which bolt gets the next tuple: the one that would finish it first, or in turn (S20)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

from flowctl.core.consumer import NOT_QUEUED, AdaptiveFlowConsumer
from flowctl.core.settings import CoreSettings
from flowctl.core.state import Liveness

_NOBODY: frozenset[str] = frozenset()
# A bolt is worth asking again if its completion time fell or rose by more than rounding.
_ROUNDING = 1 + 1e-9
# The heap may hold this many dead entries for each live one before it is swept.
_DEAD_PER_LIVE = 3
_HEAP_MIN = 64  # below it sweeping saves nothing
# With more bolts than this the better of two is taken: with 10,000 bolts the heap cost 2 us of the
# 13 us for a tuple, and the best of all is hardly better than the better of two.
EXACT_MAX = 256
# Sending to one more bolt costs the driver a system call of some 10 us (benchmarks, crowd).  A bolt
# waits while it sends to all that have room; half of that time is slack.
_SEND_S = 5e-6


class Dispatcher(Protocol):
    """Chooses among bolts with room.  Not thread-safe."""

    def note_room(self, consumer: AdaptiveFlowConsumer) -> None:
        """Note that ``consumer`` may have room now: it came, acked, grew, or is heard again."""

    def forget(self, consumer: AdaptiveFlowConsumer) -> None:
        """Note that ``consumer`` went and does not come back."""

    def pick(self, avoid: Set[str] = _NOBODY) -> AdaptiveFlowConsumer | None:
        """Return a bolt with room that is not in ``avoid``, or None."""


def make_dispatcher(settings: CoreSettings) -> Dispatcher:
    """Return the dispatcher that ``lab.dispatch.choice`` names."""
    if is_by_completion(settings):
        return LeastCompletion()
    return RoundRobin(skips=settings.dispatch.choice != "in_turn")


def is_by_completion(settings: CoreSettings) -> bool:
    """Whether the bolt that would be done first gets the next tuple."""
    choice = settings.dispatch.choice
    if choice == "auto":
        return settings.window.policy == "just_full"
    return choice == "least_completion"


def done_in_s(consumer: AdaptiveFlowConsumer) -> float:
    """Like its ``completion_s``, but from its own acks alone once it has any."""
    service = consumer.service
    if not service.samples:
        return consumer.completion_s
    return consumer.work_s() / consumer.slots + service.mean_s + service.path_s


class RoundRobin:
    """A ring of the bolts that may have room.

    A bolt that is found full leaves the ring and comes back at its next ack, so a pick costs O(1)
    amortised, whatever the number of bolts; with ``avoid``, O(len(avoid)) more.  Without ``skips``
    the ring waits for a full bolt: a blind baseline to compare with.

    Among very many with room, one whose tuples would be done sooner than the driver could send to
    the others gets several, which go out with one system call.
    """

    __slots__ = ("_last", "_ring", "_skips")

    def __init__(self, *, skips: bool = True) -> None:
        self._ring: deque[AdaptiveFlowConsumer] = deque()
        self._last: AdaptiveFlowConsumer | None = None  # picked last
        self._skips = skips

    def note_room(self, consumer: AdaptiveFlowConsumer) -> None:
        if consumer.queued_s == NOT_QUEUED:
            consumer.queued_s = 0.0
            self._ring.append(consumer)

    def forget(self, consumer: AdaptiveFlowConsumer) -> None:
        """Forget a bolt that went; it leaves the ring when its turn comes, as it has no room."""

    def pick(self, avoid: Set[str] = _NOBODY) -> AdaptiveFlowConsumer | None:
        ring = self._ring
        if not avoid and self._skips and self._goes_on():
            return self._last
        for _ in range(len(ring)):
            consumer = ring[0]
            if not consumer.has_room:
                if not (self._skips or consumer.liveness is Liveness.GONE):
                    return None
                consumer.queued_s = NOT_QUEUED
                ring.popleft()
                continue
            ring.rotate(-1)
            if consumer.bolt not in avoid:
                self._last = consumer
                return consumer
        return None

    def _goes_on(self) -> bool:
        """Whether the bolt that was picked last should have one more."""
        last, ring = self._last, self._ring
        if len(ring) <= EXACT_MAX or last is None or not last.has_room:
            return False
        return last.completion_s <= ring[0].completion_s + len(ring) * _SEND_S


class BetterOfTwo(RoundRobin):
    """Of the next two in the ring that have room, the one that would be done first.

    Two choices are most of what many give (Mitzenmacher, The power of two choices, 2001).
    """

    __slots__ = ()

    def pick(self, avoid: Set[str] = _NOBODY) -> AdaptiveFlowConsumer | None:
        if avoid:
            return super().pick(avoid)
        if self._goes_on():
            return self._last
        ring = self._ring
        while ring:
            first = ring.popleft()
            if not first.has_room:
                first.queued_s = NOT_QUEUED
                continue
            second = ring[0] if ring else first
            if second.completion_s < first.completion_s and second.has_room:
                ring[0] = first  # it stays the next
                first = second
            ring.append(first)
            self._last = first
            return first
        return None


class LeastCompletion:
    """A heap of the bolts that may have room, by when a tuple sent now would be done.

    That is :attr:`AdaptiveFlowConsumer.completion_s`: the work it holds, this tuple's service, the
    path.  An ack makes it earlier and adds an entry; a sending makes it later, which is found when
    the entry comes to the top: O(log N) each, amortised.  If times are equal, the bolt that was
    noted first goes first.  With ``avoid``, O(len(avoid) log N).
    """

    __slots__ = ("_heap", "_live", "_members", "_order", "_places")

    def __init__(self) -> None:
        # (when, order, the bolt's place in _members).  An entry is live if it is its bolt's
        # earliest: its time is the bolt's ``queued_s``.  Numbers only, which the garbage collector
        # does not have to follow: with 10,000 bolts that took a fifth of the time.
        self._heap: list[tuple[float, int, int]] = []
        self._members: dict[int, AdaptiveFlowConsumer] = {}
        self._places = 0
        self._order = 0
        self._live = 0

    def note_room(self, consumer: AdaptiveFlowConsumer) -> None:
        if not consumer.has_room:
            return
        at_s = consumer.completion_s
        queued_s = consumer.queued_s
        if at_s * _ROUNDING >= queued_s:
            return
        self._live += queued_s == NOT_QUEUED
        consumer.queued_s = at_s
        if consumer.place < 0:
            self._places += 1
            consumer.place = self._places
            self._members[consumer.place] = consumer
        self._order += 1
        heappush(self._heap, (at_s, self._order, consumer.place))
        if len(self._heap) > _HEAP_MIN + (1 + _DEAD_PER_LIVE) * self._live:
            self._sweep()

    def forget(self, consumer: AdaptiveFlowConsumer) -> None:
        if self._members.pop(consumer.place, None) is not None:
            self._live -= consumer.queued_s != NOT_QUEUED

    def pick(self, avoid: Set[str] = _NOBODY) -> AdaptiveFlowConsumer | None:
        found = self._first()
        if not avoid:
            return found
        avoided: list[tuple[float, int, int]] = []
        while found is not None and found.bolt in avoid:
            avoided.append(heappop(self._heap))
            found = self._first()
        for entry in avoided:
            heappush(self._heap, entry)
        return found

    def _first(self) -> AdaptiveFlowConsumer | None:
        heap, members = self._heap, self._members
        while heap:
            queued_s, _, place = heap[0]
            consumer = members.get(place)
            if consumer is None or queued_s != consumer.queued_s:
                heappop(heap)  # dead: there is a newer entry, or the bolt was taken out, or it went
                continue
            if not consumer.has_room:
                heappop(heap)
                self._live -= 1
                consumer.queued_s = NOT_QUEUED
                continue
            at_s = consumer.completion_s
            if at_s <= queued_s * _ROUNDING:
                return consumer
            self._order += 1
            consumer.queued_s = at_s
            heapreplace(heap, (at_s, self._order, place))
        return None

    def _sweep(self) -> None:
        members = self._members
        self._heap = [
            entry
            for entry in self._heap
            if (consumer := members.get(entry[2])) is not None and entry[0] == consumer.queued_s
        ]
        heapify(self._heap)
        self._live = len(self._heap)


def dispatcher_for(many: Iterable[AdaptiveFlowConsumer]) -> Dispatcher:
    """Return the dispatcher that replaces :class:`LeastCompletion` for more than ``EXACT_MAX``
    bolts.
    """
    dispatcher = BetterOfTwo()
    for consumer in many:
        consumer.queued_s = NOT_QUEUED
        dispatcher.note_room(consumer)
    return dispatcher
