"""What the first tuples of several bolts tell of a call's cost, before any bolt has acked two."""

from __future__ import annotations

from math import log

# With two bolts their speeds may be what differs.
_BOLTS_MIN = 3
# The times of tuples must vary this many times less than their times a record (variances of
# logarithms): then calls cost what they cost, whatever they hold and however fast the bolts are.
_VARIES_LESS = 4.0
# Of the time of all of them, the part of the records that is still told from none.
_RECORDS_SHARE_MIN = 0.01


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

    def fixed_records(self) -> float | None:
        """A call's cost in records, a / b; None while calls may not be what costs."""
        w, spread = self._w, self._w * self._nn - self._n * self._n
        if w < _BOLTS_MIN or spread <= 0:
            return None
        of_calls = w * self._mm - self._m * self._m
        of_records = w * self._rr - self._r * self._r
        if _VARIES_LESS * of_calls > of_records:
            return None
        slope = (w * self._ns - self._n * self._s) / spread
        per_record_s = max(slope, _RECORDS_SHARE_MIN * self._s / self._n)
        return max(0.0, (self._s / per_record_s - self._n) / w)
