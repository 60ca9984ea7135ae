"""How the rest of the input is shared out, so that all bolts finish together."""

from __future__ import annotations

from collections.abc import Mapping

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.sizing import fixed_s
from flowctl.core.state import Liveness

# Guided self-scheduling (Polychronopoulos & Kuck 1987): half of a bolt's share at a time, so that
# the last tuples are small.
_SHARE_PART = 0.5
# A bolt that would be done later than this many times what the rest needs must not begin: others
# would wait for it.  2 % is about what hedging may cost, and above the noise of the estimate.
_LATE_RATIO = 1.02
# Bolts that count: one that rests works on when its rest is over.
_WORKING = (Liveness.ALIVE, Liveness.RESTING)


class Shares:
    """Shares and lateness of bolts once the input has ended.  Not thread-safe.

    The speeds are added up anew after as many questions as there are bolts: O(1) amortised.
    ``least_s``: less work is not worth a tuple, whatever that costs by itself.
    """

    __slots__ = ("_bolts", "_fastest_s", "_questions_left", "_records_per_s", "least_s")

    def __init__(self, bolts: Mapping[str, AdaptiveFlowConsumer]) -> None:
        self._bolts = bolts
        self.least_s = 0.0
        self._questions_left = 0
        self._records_per_s = 0.0  # of all bolts that are heard of
        self._fastest_s = 0.0  # the shortest time that any of them needs for a tuple

    def records_for(
        self, consumer: AdaptiveFlowConsumer, records: int, left: int, pending: int
    ) -> int:
        """Cut ``records`` down to a part of what the bolt should still do until the end.

        ``left`` records are not sent, ``pending`` are sent and not acked.
        """
        self._refresh()
        share = 1.0 / max(1, len(self._bolts))  # of a bolt that has not answered yet
        own = speed(consumer)
        if own and self._records_per_s:
            share = own / self._records_per_s
        # As much for the records as for the tuple: smaller ones would cost more than they spread.
        fewest = self._fewest(consumer)
        own = share * (left + pending) - consumer.records_held
        return max(1, min(records, int(max(fewest, _SHARE_PART * own))))

    def fitting(self, consumer: AdaptiveFlowConsumer, records: int, pending: int) -> int:
        """How many of the ``records`` that the bolt was just given it should do.

        More, and others would wait for it.  All ``pending`` records are sent and not acked.
        """
        if not self._records_per_s:
            self._questions_left = 0  # by now somebody may have answered
        self._refresh()
        if not (consumer.service.samples and self._records_per_s):
            return records
        own = speed(consumer) / self._records_per_s * pending - (consumer.records_held - records)
        return max(1, min(records, int(max(self._fewest(consumer), own))))

    def _fewest(self, consumer: AdaptiveFlowConsumer) -> float:
        per_record_s = consumer.service.record_s
        least_s = max(fixed_s(consumer, len(self._bolts)), self.least_s)
        return least_s / per_record_s if per_record_s else 1

    def is_late(self, consumer: AdaptiveFlowConsumer, left: int, pending: int) -> bool:
        """Whether the others would have to wait for ``consumer``, were it given a tuple.

        ``left`` and ``pending`` as above.
        """
        service = consumer.service
        if not service.samples:
            return False
        self._refresh()
        if not self._records_per_s:
            return False
        rest_s = (left + pending) / self._records_per_s + self._fastest_s
        records = self.records_for(consumer, round(service.mean_records), left, pending)
        at_s = consumer.work_s() / consumer.slots + service.of(records) + service.path_s
        return at_s > _LATE_RATIO * rest_s

    def _refresh(self) -> None:
        self._questions_left -= 1
        if self._questions_left > 0:
            return
        there = [c for c in self._bolts.values() if c.liveness in _WORKING]
        known = [c for c in there if c.service.samples]
        self._questions_left = len(there)
        self._records_per_s = sum(map(speed, known))
        if known:
            # Those that have not answered yet are as fast as the mean.
            self._records_per_s *= len(there) / len(known)
            self._fastest_s = min(c.service.mean_s + c.service.path_s for c in known)


def speed(consumer: AdaptiveFlowConsumer) -> float:
    """Records that the bolt does in a second, all slots together; 0 while unknown."""
    service = consumer.service
    return consumer.slots * service.mean_records / service.mean_s if service.mean_s else 0.0
