"""How many rows the next call takes: the law by which bolts get tuples (core/sizing.py)."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowctl.core.service import ServiceModel, ServicePool
from flowctl.core.settings import TupleSettings
from flowctl.core.sizing import records_for


class RowsPerCall:
    """Sizes of calls of one partition.  Not thread-safe.

    As few rows as keep the fixed cost of a call small, and no more than take ``settings.
    service_max_s``; the first two calls are small, as nothing is known of the target.
    """

    def __init__(
        self, settings: TupleSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.service: ServiceModel = ServiceModel(ServicePool())
        self.sent: int = 0
        self._settings = settings
        self._clock = clock

    def next(self) -> int:
        """Return how many rows the next call should have at most."""
        rows = records_for(self, self._settings, 1, self.service.pool)
        service, most_s = self.service, self._settings.service_max_s
        # Ten times a call's cost may be more than the user allows: there, only where the call alone
        # takes over a fifth of that.  As sizes vary by 15 %, what is measured may be 10 % off.
        if service.record_s > 0 and 5 * service.tuple_s <= 1.1 * most_s:
            rows = min(rows, max(1, int(1.15 * (most_s - service.tuple_s) / service.record_s)))
        self.sent += 1
        return rows

    def took(self, service_s: float, rows: int) -> None:
        """A call of ``rows`` succeeded in ``service_s`` seconds."""
        self.service.on_sample(self._clock(), service_s, 0.0, rows)
        self.service.is_told = True
