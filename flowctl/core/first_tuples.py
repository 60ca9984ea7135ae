"""What the first tuples of several bolts tell of a call's cost, before any bolt has acked two."""

from __future__ import annotations

from math import log, sqrt
from typing import Final

# With two bolts their speeds may be what differs.
BOLTS_MIN: Final = 3
# The times of tuples must vary this many times less than their times a record (variances of
# logarithms): then calls cost what they cost, whatever they hold and however fast the bolts are.
_VARIES_LESS = 4.0
# While little is known, times are off the line by a third, as if two tuples had shown that: the
# first bolts to answer may be alike by chance, or because they are the quickest.
_NOISE = 0.1
_NOISE_POINTS = 2
# The speeds of a job's bolts vary by about a factor of two: the variance of their logarithms.
SPEEDS_VARY: Final = 0.5


def slope_error(off: float, spread: float, points: float) -> float:
    """The standard error of what a record costs, as a share of a mean tuple's time.

    Sums of squares: ``off``, by how much times are off their line, as shares of their time;
    ``spread``, by how much sizes are off their mean.  ``points``: tuples that tell it.
    """
    return scatter_of(off, points) / sqrt(spread)


def scatter_of(off: float, points: float) -> float:
    """By which share of its time a tuple is off the line; arguments as above."""
    return sqrt((_NOISE * _NOISE_POINTS + max(0.0, off)) / (_NOISE_POINTS + points))


def slope_doubt(off: float, spread: float, free: float) -> float:
    """As :func:`slope_error`, from the scatter of the tuples alone.

    ``free``: how many tuples there are beyond those that fix the line; with none, a guess.
    """
    noise = max(0.0, off) / free if free >= 1 else _NOISE
    return sqrt(noise / spread)


class FirstTuples:
    """A line through the times of first tuples, S = a + b n.  Not thread-safe.

    Bolts differ in speed, so it counts only where calls are clearly what costs.
    """

    __slots__ = ("_m", "_mm", "_n", "_nn", "_ns", "_r", "_rr", "_s", "_w")

    def __init__(self) -> None:
        self._w = self._n = self._nn = self._s = self._ns = 0.0
        self._m = self._mm = self._r = self._rr = 0.0  # logarithms of times, and per record

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
        """By how much times are off, beyond what bolts differ in speed: the sum of squares."""
        w = self._w
        if w < BOLTS_MIN:
            return 0.0
        of_calls, of_records = self._mm - self._m * self._m / w, self._rr - self._r * self._r / w
        return max(0.0, min(of_calls, of_records) - SPEEDS_VARY * (w - 1))

    @property
    def bolts(self) -> float:
        """How many are counted in."""
        return self._w

    @property
    def spread(self) -> float:
        """How much sizes are off their mean, as shares of it: the sum of squares."""
        w, n = self._w, self._n
        return w * (w * self._nn - n * n) / (n * n) if n else 0.0

    def fixed_records(self) -> float | None:
        """A call's cost in records, a / b; None while calls may not be what costs."""
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
