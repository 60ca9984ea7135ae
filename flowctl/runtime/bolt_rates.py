"""Each bolt's rate over the last few seconds, from the counts of snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from flowctl.instrumentation.snapshot import BoltView

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
        self._past: dict[str, deque[tuple[float, int]]] = {}

    def added(self, bolts: Sequence[BoltView], now_s: float) -> tuple[BoltView, ...]:
        """Return ``bolts`` with their rates, and remember their counts."""
        return tuple(
            msgspec.structs.replace(bolt, records_per_s=self._rate(bolt, now_s)) for bolt in bolts
        )

    def _rate(self, bolt: BoltView, now_s: float) -> float:
        past = self._past.setdefault(bolt.name, deque())
        past.append((now_s, bolt.records_acked))
        while now_s - past[0][0] > RATE_OVER_S and len(past) > 2:
            past.popleft()
        since_s, before = past[0]
        if now_s - since_s < _SINCE_MIN_S:
            return 0.0
        return (bolt.records_acked - before) / (now_s - since_s)
