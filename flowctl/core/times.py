"""Distributions of what acks take: counts in buckets, cheap enough to be kept all the time."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from statistics import median
from typing import Final

# Upper bounds [s]: three a decade, from half a millisecond, which is a fast ack on loopback, to a
# minute, which is longer than any tuple should take.  The last bucket has no bound.
BOUNDS_S: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)

_KEPT: Final = 32


class Histogram:
    """How many values fell into each bucket of :data:`BOUNDS_S`, and their sum [s].

    ``counts`` has one more entry than there are bounds.  A value on a bound belongs to its bucket;
    one below 0 (two clocks differ by a little) to the first.  Not thread-safe.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BOUNDS_S) + 1)
        self.total_s: float = 0.0

    def observe(self, value_s: float) -> None:
        """Count ``value_s``."""
        self.total_s += value_s
        self.counts[bisect_left(BOUNDS_S, value_s)] += 1


class AckTimes:
    """Round trip, time in a bolt's queue and time of service of acked tuples.  Not thread-safe.

    ``sink_s``: the part of all service in which a sink was waited for.
    """

    __slots__ = ("rtt", "service", "sink_s", "wait")

    def __init__(self) -> None:
        self.rtt: Histogram = Histogram()
        self.wait: Histogram = Histogram()
        self.service: Histogram = Histogram()
        self.sink_s: float = 0.0

    def observe(
        self,
        rtt_s: float,
        wait_s: float | None,
        service_s: float | None,
        sink_s: float | None = None,
    ) -> None:
        """Count one ack; a bolt that reports no times (None) counts for the round trip only."""
        self.rtt.observe(rtt_s)
        if wait_s is not None and service_s is not None:
            self.wait.observe(wait_s)
            self.service.observe(service_s)
            if sink_s is not None:
                self.sink_s += sink_s


class RecentTimes:
    """The last 32 values [s], for a median on a screen: enough to be steady, few enough to cost
    nothing.

    In an array: reading 32 scattered objects for each of 1,000 bolts four times a second took a
    tenth of the driver's time.  Not thread-safe.
    """

    __slots__ = ("_place", "_values")

    def __init__(self) -> None:
        self._values: array[float] = array("d")
        self._place = 0  # the index of the oldest value, once all are there

    def add(self, value_s: float) -> None:
        """Put ``value_s`` in the place of the oldest value."""
        values = self._values
        if len(values) < _KEPT:
            values.append(value_s)
        else:
            values[self._place] = value_s
            self._place = (self._place + 1) % _KEPT

    def median_s(self) -> float | None:
        """The median [s]; None before the first value."""
        return median(self._values) if self._values else None


class BoltTimes:
    """The last times of one bolt, for display: no decision depends on them.  Not thread-safe."""

    __slots__ = ("_of_all", "rtts", "services")

    def __init__(self, of_all: AckTimes) -> None:
        self.rtts: RecentTimes = RecentTimes()
        self.services: RecentTimes = RecentTimes()
        self._of_all = of_all

    def keep(
        self, rtt_s: float, wait_s: float | None, service_s: float | None, sink_s: float | None
    ) -> None:
        """Take the times of one ack, here and for all bolts together; None: the bolt reports no
        times.
        """
        self.rtts.add(rtt_s)
        if wait_s is not None and service_s is not None:
            self.services.add(service_s)
        self._of_all.observe(rtt_s, wait_s, service_s, sink_s)
