"""Each bolt's rate over the last few seconds, from the counts of snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

# Short enough that a bolt that has become slow shows soon, long enough for a dozen tuples of 0.25
# s: then rates of equal bolts differ by a twelfth.
RATE_OVER_S: Final = 3.0
# A rate over a shorter time would be that of a tuple or two.
_SINCE_MIN_S: Final = 1.0


class BoltRates:
    """Counts of acked records at past snapshots.  For one thread.

    A bolt is measured from when it was first seen; its rate is 0 for the first second.
    """

    def __init__(self) -> None:
        # One dictionary for each snapshot, not one list for each bolt: with 1,000 bolts those cost
        # more than all else here.
        self._past: deque[tuple[float, Mapping[str, int]]] = deque()

    def take(self, counts: Mapping[str, int], now_s: float) -> dict[str, float]:
        """Remember ``counts``, of acked records by bolt, and return each bolt's rate."""
        past = self._past
        past.append((now_s, counts))
        while now_s - past[0][0] > RATE_OVER_S and len(past) > 2:
            past.popleft()
        rates = dict.fromkeys(counts, 0.0)
        to_find = list(counts)
        for since_s, before in past:
            if not to_find or now_s - since_s < _SINCE_MIN_S:
                break
            passed_s = now_s - since_s
            missing: list[str] = []
            for bolt in to_find:
                if bolt in before:
                    rates[bolt] = (counts[bolt] - before[bolt]) / passed_s
                else:  # it came later
                    missing.append(bolt)
            to_find = missing
        return rates
