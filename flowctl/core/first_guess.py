"""What is known of costs before bolts have acked two tuples: what the job's last run learned, and
what the first tuples of several bolts tell.

Neither binds: later acks decide (:class:`flowctl.core.cost.ServicePool`).
"""

from __future__ import annotations

from math import log, sqrt
from typing import Final

import msgspec

# -- The last run (ADR 32) ---------------------------------------------------------------------

# It counts like two tuples of one bolt whose sizes are as 1 to 3 (as a sum of squares: .5), so the
# first bolts that were sent different sizes overrule it.
_POINTS: Final = 2.0
_SPREAD: Final = 0.5
# Of the scatter it tells as much as eight tuples: with fewer, chance decides.
SCATTER_POINTS: Final = 8.0


class Learned(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a run learned, and the job's next run begins with.  All at the mean bolt.

    ``call_s``: what a call costs whatever its size [s], ``record_s`` what a record does [s];
    ``scatter``: by which share of its time a tuple is off that; ``path_s``: from the spout to
    a bolt and back [s]; ``records``: size of a recent tuple; ``tuples``: on how many acks it rests.
    """

    call_s: float
    record_s: float
    scatter: float
    path_s: float
    records: float
    tuples: int

    def __post_init__(self) -> None:
        least = min(self.call_s, self.scatter, self.path_s, self.tuples)
        most = self.tuple_s + self.scatter + self.path_s
        if least < 0 or self.record_s <= 0 or self.records < 1 or most > _MOST_S:
            raise ValueError("no run can have learned that")

    @property
    def call_records(self) -> float:
        """What a call costs, counted in records: r in S(n) = b (r + n)."""
        return self.call_s / self.record_s

    @property
    def tuple_s(self) -> float:
        """The time of a tuple of ``records`` [s]."""
        return self.call_s + self.record_s * self.records

    def sums(self) -> tuple[float, ...]:
        """Return it as a bolt's sums, for :meth:`flowctl.core.cost.ServicePool.add`."""
        of_records = _SPREAD * self.record_s * self.records / self.tuple_s
        calls = self.records * (_SPREAD - of_records)
        return (_POINTS, 1.0, _SPREAD, of_records, of_records**2 / _SPREAD, calls)


# Numbers beyond this are damage: no tuple takes ten thousand years.
_MOST_S: Final = 3e11


# -- First tuples: what they tell before any bolt has acked two ---------------------------------

# With only two bolts, it may be their speeds that differ.
BOLTS_MIN: Final = 3
# Calls are what costs if times of tuples vary this many times less than their times per record, as
# variances of logarithms.
_VARIES_LESS = 4.0
# While little is known, times are assumed to be off the line by a third (squared: .1), with the
# weight of two tuples: the first bolts to answer may be alike by chance.
_NOISE = 0.1
_NOISE_POINTS = 2
# Speeds of a job's bolts differ by about a factor of two: this is the variance of their logarithms.
SPEEDS_VARY: Final = 0.5


def slope_error(off: float, spread: float, points: float) -> float:
    """Return the standard error of what a record costs, as a share of a mean tuple's time.

    ``off`` and ``spread`` are sums of squares: of the times' distances to the line, as shares of
    them, and of the sizes' distances to their mean.  ``points``: how many tuples that is.
    """
    return scatter_of(off, points) / sqrt(spread)


def scatter_of(off: float, points: float) -> float:
    """Return by which share of its time a tuple is off the line; arguments as above."""
    return sqrt((_NOISE * _NOISE_POINTS + max(0.0, off)) / (_NOISE_POINTS + points))


def slope_doubt(off: float, spread: float, free: float) -> float:
    """As :func:`slope_error`, but without an assumption of how far times are off.

    ``free``: tuples beyond those that fix the line; the result is a guess if there are none.
    """
    noise = max(0.0, off) / free if free >= 1 else _NOISE
    return sqrt(noise / spread)


class FirstTuples:
    """A line through the times of first tuples, believed only if calls are clearly what costs."""

    __slots__ = ("_m", "_mm", "_n", "_nn", "_ns", "_r", "_rr", "_s", "_w")

    def __init__(self) -> None:
        self._w = self._n = self._nn = self._s = self._ns = 0.0
        self._m = self._mm = self._r = self._rr = 0.0  # logarithms of times, and of those a record

    def add(self, service_s: float, records: int) -> None:
        """Count one in."""
        if service_s <= 0:
            return
        log_s, log_record_s = log(service_s), log(service_s / records)
        self._w += 1
        self._n += records
        self._nn += records * records
        self._s += service_s
        self._ns += service_s * records
        self._m += log_s
        self._mm += log_s * log_s
        self._r += log_record_s
        self._rr += log_record_s * log_record_s

    @property
    def off(self) -> float:
        """How far times are off beyond what differences in speed explain: a sum of squares."""
        w = self._w
        if w < BOLTS_MIN:
            return 0.0
        of_calls, of_records = self._mm - self._m * self._m / w, self._rr - self._r * self._r / w
        return max(0.0, min(of_calls, of_records) - SPEEDS_VARY * (w - 1))

    @property
    def bolts(self) -> float:
        """How many bolts have told a first tuple."""
        return self._w

    @property
    def spread(self) -> float:
        """How far sizes are off their mean, as shares of it: a sum of squares."""
        w, n = self._w, self._n
        return w * (w * self._nn - n * n) / (n * n) if n else 0.0

    def fixed_records(self) -> float | None:
        """Return a call's cost in records, a / b; None unless calls clearly are what costs."""
        w, spread = self._w, self._w * self._nn - self._n * self._n
        if w < BOLTS_MIN or spread <= 0:
            return None
        of_calls = w * self._mm - self._m * self._m
        of_records = w * self._rr - self._r * self._r
        if _VARIES_LESS * of_calls > of_records:
            return None
        slope = (w * self._ns - self._n * self._s) / spread
        error = slope_error(of_calls / w, spread / w, w)
        per_record_s = max(slope, 0.0) + error * self._s / w
        return max(0.0, (self._s / per_record_s - self._n) / w)
