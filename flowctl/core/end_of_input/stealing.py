"""At the end of the input idle bolts take what slow ones have not begun (revoke before hedge).

A revoked tuple is processed once, wherever that is: taking it back costs a message, no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Final

from flowctl.core.consumer import AdaptiveFlowConsumer

# Idle bolts looked at at once, the longest idle first: all would be O(N) for each of N.
IDLE_LOOKED_AT: Final = 64


class WorkStealing:
    """Asks the bolts with most work left for their newest tuples, one for each idle bolt.

    Does nothing until :meth:`start`, when there is nothing left to send.  Each question
    costs O(log N) amortised: the heap holds a bolt's work as it was, and is refreshed lazily.
    Not thread-safe.
    """

    def __init__(
        self,
        bolts: Mapping[str, AdaptiveFlowConsumer],
        revoke: Callable[[AdaptiveFlowConsumer, list[int]], None],
    ) -> None:
        self._bolts = bolts
        self._revoke = revoke
        self._is_started = False
        self._idle: dict[str, None] = {}  # in the order in which they became so
        self._donors: list[tuple[float, str]] = []  # (-seconds of work left, bolt)
        self._asked: set[str] = set()  # bolts that have not answered yet

    def steal(self) -> None:
        """There is nothing that could be sent now: ask on behalf of those that are idle."""
        needs_s: list[float] | None = None
        while len(self._asked) < len(self._idle):
            donor = self._next_donor()
            if donor is None:
                return
            if needs_s is None:
                needs_s = sorted(map(_needs_s, self._looked_at()))
            # One idle bolt for each that is asked, the fastest first.
            needed_s = needs_s[min(len(self._asked), len(needs_s) - 1)]
            if donor.service.samples and needed_s > donor.work_s() / donor.slots:
                self._push(donor)  # done there before it would be done elsewhere
                return
            tuple_id = self._newest(donor)
            if tuple_id is None:
                continue  # until it is given more
            self._asked.add(donor.bolt)
            self._revoke(donor, [tuple_id])

    def _newest(self, donor: AdaptiveFlowConsumer) -> int | None:
        """The newest tuple that ``donor`` has hardly begun and that an idle bolt may have.

        One that all idle bolts have to avoid would only come back to ``donor``, again and again.
        """
        flight = donor.flight
        for tuple_id in islice(reversed(flight), len(flight) - donor.slots):
            avoid = flight[tuple_id].avoided
            if not avoid or any(idle.bolt not in avoid for idle in self._looked_at()):
                return tuple_id
        return None

    def start(self) -> None:
        """From now on it is noted who is idle; O(N), once."""
        self._is_started = True
        self._donors = [(-c.work_s() / c.slots, c.bolt) for c in self._bolts.values()]
        heapify(self._donors)
        self._idle = {c.bolt: None for c in self._bolts.values() if not c.held and c.has_room}

    def stop(self) -> None:
        """There is something to send again."""
        self._is_started = False
        self._donors.clear()
        self._idle.clear()

    def _next_donor(self) -> AdaptiveFlowConsumer | None:
        while self._donors:
            recorded_s, name = self._donors[0]
            donor = self._bolts.get(name)
            if donor is None or name in self._asked or len(donor.flight) <= donor.slots:
                heappop(self._donors)
                continue
            left_s = donor.work_s() / donor.slots
            if left_s < -recorded_s:
                heapreplace(self._donors, (-left_s, name))
                continue
            heappop(self._donors)  # comes back when it gave something, or is given more
            return donor
        return None

    @property
    def idle(self) -> dict[str, None]:
        """The bolts that have nothing to do, the longest idle first."""
        return self._idle

    @property
    def questions(self) -> int:
        """How many bolts were asked and have not answered yet."""
        return len(self._asked)

    def note_idle(self, consumer: AdaptiveFlowConsumer) -> None:
        """``consumer`` has nothing to do."""
        if self._is_started and consumer.has_room:
            self._idle[consumer.bolt] = None

    def note_given(self, consumer: AdaptiveFlowConsumer) -> None:
        """``consumer`` was sent a tuple."""
        if self._is_started:
            self._idle.pop(consumer.bolt, None)
            self._push(consumer)

    def pick_idle(self, avoid: Set[str]) -> AdaptiveFlowConsumer | None:
        """Return the idle bolt that would be done first and is not in ``avoid``."""
        fits = (c for c in self._looked_at() if c.bolt not in avoid and c.has_room)
        return min(fits, key=_needs_s, default=None)

    def _looked_at(self) -> Iterable[AdaptiveFlowConsumer]:
        return (self._bolts[bolt] for bolt in islice(self._idle, IDLE_LOOKED_AT))

    def on_answer(self, donor: AdaptiveFlowConsumer, *, given: bool) -> None:
        """``donor`` gave back what it could; if that was nothing, it is left alone."""
        if donor.bolt in self._asked:
            self._asked.remove(donor.bolt)
            if given:
                self._push(donor)

    def forget(self, bolt: str) -> None:
        """``bolt`` went; it will not answer."""
        self._idle.pop(bolt, None)
        self._asked.discard(bolt)

    def _push(self, donor: AdaptiveFlowConsumer) -> None:
        if len(donor.flight) > donor.slots:
            heappush(self._donors, (-donor.work_s() / donor.slots, donor.bolt))


def _needs_s(consumer: AdaptiveFlowConsumer) -> float:
    """How long an idle bolt should need for a tuple; a new one as long as the others."""
    service = consumer.service
    return (service.mean_s or service.pool.mean_s) + service.path_s
