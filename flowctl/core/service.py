"""How long a bolt takes for a tuple, and how long the path to it: what acks tell, smoothed."""

from __future__ import annotations

from flowctl.core.first_tuples import FirstTuples
from flowctl.core.times import AckTimes

# The last twenty tuples of a bolt decide, or all while there are fewer (control law: decay .95).
_MEMORY = 20
# A shortest path is forgotten after this long, as BBR forgets its smallest RTT.
_PATH_LIFE_S = 10.0
# A longest path is forgotten by 2 % of the excess per ack: after a jitter of 4 ms, within 1 ms of
# the shortest in some 70 acks.
_PEAK_DECAY = 0.02
# What a tuple costs beside its records rests on differences, which noise hides: the last hundred
# tuples of each bolt decide, all bolts together.
_SPLIT_DECAY = 0.99
# Sizes that spread less than this about their mean tell nothing of it: at 5 % and a noise of 10 %,
# a thousand tuples give a fixed cost that is 3 % of the whole only to about as much again.
_SPREAD_MIN = 0.05
# A line through few tuples tells less than the first ones of all bolts, where those tell anything.
_FITTED_MIN = 8
# Of the time of a tuple of mean size, the part of the records that is still told from none.
_RECORDS_SHARE_MIN = 0.01
# A bolt tells the pool every so many acks, the first ones excepted: it moves slowly.
_TELL_EVERY = 8
# The mean of all bolts moves by 1/64 of the difference per ack: five tuples of each of twelve.
_MEAN_GAIN = 1 / 64


class ServicePool:
    """What the bolts of one spout have in common: they do the same work, at speeds of their own.

    ``mean_s`` is the mean service time of a tuple at any bolt of late, 0 before the first, and
    ``mean_records`` its size.
    ``fixed_records`` is what a tuple costs beside its records, counted in records: r in
    S(n) = b (r + n).  It is the same at every speed.  0 until sizes have varied (``is_split``):
    at one bolt, or in the first tuples of several where calls are clearly what costs.
    ``bytes_held`` counts what is in flight at all bolts; they count it themselves.  ``times`` is
    for people: of every fourth ack, and nothing is decided by it.

    r comes from the slope of s / n over 1 / n, least squares within each bolt, each relative to
    its own mean: relative, because the noise of service times is.  Not thread-safe.
    """

    __slots__ = (
        "_firsts", "_is_fitted", "_is_shown", "_w", "_x", "_xx", "_xy", "bytes_held",
        "fixed_records", "is_split", "mean_records", "mean_s", "times",
    )  # fmt: skip

    def __init__(self) -> None:
        self.mean_s = self.mean_records = 0.0
        self._firsts = FirstTuples()
        self._is_shown = False  # the first tuples tell what a call costs
        self._is_fitted = False  # later ones tell it better
        self.fixed_records = 0.0
        self.is_split = False
        self.bytes_held = 0
        self.times = AckTimes()
        self._w = self._x = self._xx = self._xy = 0.0  # sums over the bolts

    def add(self, w: float, x: float, xx: float, xy: float) -> None:
        """Count in what a bolt has: weight, sum of 1/n, and the centred sums of its line."""
        self._w += w
        self._x += x
        self._xx += xx
        self._xy += xy
        if self._w <= 0:
            return
        mean_x = self._x / self._w
        if self._xx / self._w <= (_SPREAD_MIN * mean_x) ** 2:
            return
        slope = max(0.0, self._xy / self._xx)
        # Where records seem to cost nothing, or less, they cost this little.
        per_record = max(_RECORDS_SHARE_MIN, 1.0 - slope * mean_x)
        self._is_fitted = self._w >= _FITTED_MIN
        if not (self.is_split and self._is_shown and not self._is_fitted):
            self.is_split = True
            self.fixed_records = slope / per_record

    def on_first(self, service_s: float, records: int) -> None:
        """A bolt acked its first tuple."""
        self._firsts.add(service_s, records)
        if self._is_fitted:
            return
        fixed = self._firsts.fixed_records()
        self._is_shown = fixed is not None
        if fixed is not None:
            self.is_split = True
            self.fixed_records = fixed

    @property
    def record_s(self) -> float:
        """What a record costs at the mean bolt; 0 while nothing is known."""
        records = self.fixed_records + self.mean_records
        return self.mean_s / records if records else 0.0


class ServiceModel:
    """The service time of a tuple of n records, S(n) = a + b n, and the path's times.

    The path is all of an RTT that is neither wait nor service: network, both ends' queues of
    frames.  Seconds throughout.  Read the attributes; only :meth:`on_sample` writes them:
    ``samples`` acks so far; ``is_told``: the bolt tells its times, else they are guessed;
    ``records_most`` the most records of any tuple; ``mean_s`` and ``mean_records`` of a tuple of
    late; ``path_s`` the shortest path of the last ten to twenty seconds and ``path_peak_s`` the
    longest of late: what has to be bridged so that the bolt never runs dry.  ``pool`` is shared
    with the other bolts, ``fixed_records`` the pool's at this bolt's last ack.  Not thread-safe.

    Each number that an ack changes is an object somewhere in memory: with 10,000 bolts these are
    most of what an ack costs, so what can be worked out from others is not kept.
    """

    __slots__ = (
        "_last_records",
        "_path_before_s",
        "_path_now_s",
        "_path_since_s",
        "_points",
        "_told",
        "_w",
        "_x",
        "_xx",
        "_xy",
        "_y",
        "fixed_records",
        "is_told",
        "mean_records",
        "mean_s",
        "path_peak_s",
        "path_s",
        "pool",
        "records_most",
        "samples",
    )

    def __init__(self, pool: ServicePool | None = None) -> None:
        self.pool = pool or ServicePool()
        self.samples = 0
        self.is_told = False
        self.records_most = 0
        self.mean_s = self.mean_records = self.fixed_records = 0.0
        self.path_s = self.path_peak_s = 0.0
        self._w = self._x = self._y = self._xx = self._xy = 0.0  # of the line, x = 1/n, y = s/n
        self._points = self._last_records = 0
        self._told = (0.0, 0.0, 0.0, 0.0)
        self._path_now_s = self._path_before_s = float("inf")
        self._path_since_s = float("-inf")

    def on_sample(self, now_s: float, service_s: float, path_s: float, records: int) -> None:
        """Take one ack's times."""
        self.samples = samples = self.samples + 1
        if records > self.records_most:
            self.records_most = records
        gain = 1.0 / samples if samples < _MEMORY else 1.0 / _MEMORY
        self.mean_s += gain * (service_s - self.mean_s)
        if records != self.mean_records:
            self.mean_records += gain * (records - self.mean_records)
        pool = self.pool
        pool_s = pool.mean_s
        if pool_s:
            pool.mean_s = pool_s + _MEAN_GAIN * (service_s - pool_s)
            if records != pool.mean_records:
                pool.mean_records += _MEAN_GAIN * (records - pool.mean_records)
        else:
            pool.mean_s, pool.mean_records = service_s, float(records)
        if samples == 1:
            pool.on_first(service_s, records)
        if records != self._last_records:  # another tuple of the same size tells nothing new
            self._last_records = records
            self._draw_line(service_s, records)
        self.fixed_records = pool.fixed_records
        if now_s - self._path_since_s > _PATH_LIFE_S:
            self._path_since_s = now_s
            self._path_before_s, self._path_now_s = self._path_now_s, path_s
        elif path_s < self._path_now_s:
            self._path_now_s = path_s
        least_s = self._path_now_s
        if self._path_before_s < least_s:
            least_s = self._path_before_s
        self.path_s = least_s = least_s if least_s > 0.0 else 0.0
        peak_s = least_s + (self.path_peak_s - least_s) * (1 - _PEAK_DECAY)
        self.path_peak_s = path_s if path_s > peak_s else peak_s

    def _draw_line(self, service_s: float, records: int) -> None:
        x = 1.0 / records
        y = service_s * x
        self._w = _SPLIT_DECAY * self._w + 1.0
        self._x = _SPLIT_DECAY * self._x + x
        self._y = _SPLIT_DECAY * self._y + y
        self._xx = _SPLIT_DECAY * self._xx + x * x
        self._xy = _SPLIT_DECAY * self._xy + x * y
        self._points += 1
        if self._points % _TELL_EVERY == 0 or self._points < _TELL_EVERY:
            self._tell()

    def _tell(self) -> None:
        w, x, y = self._w, self._x, self._y
        if y <= 0:
            return
        xy = (self._xy - x * y / w) / (y / w)
        told = (w, x, self._xx - x * x / w, xy)
        before, self._told = self._told, told
        self.pool.add(*(new - old for new, old in zip(told, before, strict=True)))

    def leave(self) -> None:
        """The bolt went: the pool forgets it."""
        before, self._told = self._told, (0.0, 0.0, 0.0, 0.0)
        self.pool.add(*(-old for old in before))

    @property
    def record_s(self) -> float:
        """What a record costs (b), by what all bolts know now; 0 while nothing is known."""
        records = self.pool.fixed_records + self.mean_records
        return self.mean_s / records if records else 0.0

    @property
    def tuple_s(self) -> float:
        """What a tuple costs beside its records (a)."""
        return self.record_s * self.pool.fixed_records

    def of(self, records: float, *, tuples: int = 1) -> float:
        """S(n) for a tuple of ``records``; for several ``tuples``, their sum."""
        if not self.samples:
            return 0.0
        fixed = self.pool.fixed_records
        return self.mean_s * (fixed * tuples + records) / (fixed + self.mean_records)
