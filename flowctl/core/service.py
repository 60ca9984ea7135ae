"""How long a bolt takes for a tuple, and how long the path to it: what acks tell, smoothed."""

from __future__ import annotations

from collections.abc import Sequence

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
_POINTS_MAX = 1 / (1 - _SPLIT_DECAY)
# As if so much had been seen (a tuple whose time is a third off its bolt's mean counts a tenth) of
# calls that cost nothing.  Few tuples would else make records look free, and the next ones huge.
_DOUBT = 0.1
# A line through few tuples tells less than the first ones of all bolts, where those tell anything.
_FITTED_MIN = 8
# Of the time of a tuple of mean size, the part of the records that is still told from none.
_RECORDS_SHARE_MIN = 0.01
# A bolt tells the pool every so many acks, the first ones excepted: it moves slowly.
_TELL_EVERY = 8
# The mean of all bolts moves by 1/64 of the difference per ack: five tuples of each of twelve.
_MEAN_GAIN = 1 / 64

_NOTHING = (0.0,) * 6


class ServicePool:
    """What the bolts of one spout have in common: they do the same work, at speeds of their own.

    ``mean_s`` is the mean service time of a tuple at any bolt of late, 0 before the first, and
    ``mean_records`` its size.
    ``fixed_records`` is what a tuple costs beside its records, counted in records: r in
    S(n) = b (r + n).  It is the same at every speed.  0 until sizes have varied (``is_split``):
    at one bolt, or in the first tuples of several where calls are clearly what costs.
    ``bytes_held`` counts what is in flight at all bolts; they count it themselves.
    ``first_calls`` counts the bolts that were sent something and have acked nothing yet, and
    ``first_calls_most`` is the most since there was none.  ``times`` is for people: of every fourth
    ack, and nothing is decided by it.

    r comes from a line through s over n within each bolt, weighted least squares: the noise of
    service times is relative, so a tuple weighs 1 / (r + n)^2, by what r is known to be then.  All
    bolts' lines together give the one r that fits them best.  Not thread-safe.
    """

    __slots__ = (
        "_firsts", "_is_fitted", "_is_free", "_is_shown", "_n", "_nn", "_ns", "_nsn", "_points",
        "_w", "bytes_held", "first_calls", "first_calls_most", "fixed_records", "is_split",
        "mean_records", "mean_s", "times",
    )  # fmt: skip

    def __init__(self) -> None:
        self.mean_s: float = 0.0
        self.mean_records: float = 0.0
        self._firsts = FirstTuples()
        self._is_free = False  # calls cost nothing, whatever it looks like
        self._is_shown = False  # the first tuples tell what a call costs
        self._is_fitted = False  # later ones tell it better
        self.fixed_records: float = 0.0
        self.is_split: bool = False
        self.bytes_held: int = 0
        self.first_calls: int = 0
        self.first_calls_most: int = 0
        self.times: AckTimes = AckTimes()
        self._points = self._w = self._n = 0.0  # sums over the bolts
        self._nn = self._ns = self._nsn = 0.0

    def take_calls_as_free(self) -> None:
        """Look for no cost of a call: where a report comes every so many seconds, with as much as
        was done, its time says nothing of its size."""
        self._is_free = self.is_split = True

    def add(self, told: Sequence[float]) -> None:
        """Count in what a bolt has; see ``ServiceModel._tell``."""
        if self._is_free:
            return
        points, w, n, nn, ns, nsn = told
        self._points += points
        self._w += w
        self._n += n
        self._nn += nn
        self._ns += ns
        self._nsn += nsn
        if self._w <= 0 or self._nn <= _SPREAD_MIN**2 * self._points:
            return
        self._is_fitted = self._points >= _FITTED_MIN
        if self.is_split and self._is_shown and not self._is_fitted:
            return
        self.is_split = True
        per_record = self._ns + _DOUBT * self._w / (self.fixed_records * self._w + self._n)
        # Where records seem to cost nothing, or less, they cost this little.
        most = self.mean_records / _RECORDS_SHARE_MIN
        fixed = (self._nn - self._nsn) / per_record if per_record > 0 else most
        self.fixed_records = min(max(fixed, 0.0), most)

    def on_first(self, service_s: float, records: int) -> None:
        """A bolt acked its first tuple."""
        if self._is_free:
            return
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

    @property
    def call_s(self) -> float:
        """What a call costs at the mean bolt, whatever its size; 0 while that is not known."""
        return self.record_s * self.fixed_records


class ServiceModel:
    """The service time of a tuple of n records, S(n) = a + b n, and the path's times.

    The path is all of an RTT that is neither wait nor service: network, both ends' queues of
    frames.  Seconds throughout.  Read the attributes; only :meth:`on_sample` writes them:
    ``samples`` acks so far; ``is_told``: the bolt tells its times, else they are guessed;
    ``records_most`` the most records of any tuple; ``mean_s`` and ``mean_records`` of a tuple of
    late; ``path_s`` the shortest path of the last ten to twenty seconds and ``path_peak_s`` the
    longest of late: what has to be bridged so that the bolt never runs dry.  ``pool`` is shared
    with the other bolts, ``fixed_records`` the pool's at this bolt's last ack.
    ``is_in_first_call``: it was sent something and has acked nothing yet.  Not thread-safe.

    Each number that an ack changes is an object somewhere in memory: with 10,000 bolts these are
    most of what an ack costs, so what can be worked out from others is not kept.
    """

    __slots__ = (
        "_last_records",
        "_n",
        "_nn",
        "_ns",
        "_path_before_s",
        "_path_now_s",
        "_path_since_s",
        "_points",
        "_s",
        "_told",
        "_w",
        "fixed_records",
        "is_in_first_call",
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
        self.pool: ServicePool = pool or ServicePool()
        self.samples: int = 0
        self.is_told: bool = False
        self.is_in_first_call: bool = False
        self.records_most: int = 0
        self.mean_s: float = 0.0
        self.mean_records: float = 0.0
        self.fixed_records: float = 0.0
        self.path_s: float = 0.0
        self.path_peak_s: float = 0.0
        self._w = self._n = self._s = self._nn = self._ns = 0.0  # of the line, weighted
        self._points = self._last_records = 0
        self._told = _NOTHING
        self._path_now_s = self._path_before_s = float("inf")
        self._path_since_s = float("-inf")

    def begin_first_call(self) -> None:
        """The bolt is sent something for the first time."""
        if not self.is_in_first_call:
            self.is_in_first_call = True
            pool = self.pool
            pool.first_calls += 1
            pool.first_calls_most = max(pool.first_calls_most, pool.first_calls)

    def end_first_call(self) -> None:
        """The bolt has acked something, or went."""
        if self.is_in_first_call:
            self.is_in_first_call = False
            pool = self.pool
            pool.first_calls -= 1
            if not pool.first_calls:
                pool.first_calls_most = 0

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
            self.end_first_call()
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
        w = 1.0 / (self.pool.fixed_records + records) ** 2
        wn = w * records
        self._w = _SPLIT_DECAY * self._w + w
        self._n = _SPLIT_DECAY * self._n + wn
        self._s = _SPLIT_DECAY * self._s + w * service_s
        self._nn = _SPLIT_DECAY * self._nn + wn * records
        self._ns = _SPLIT_DECAY * self._ns + wn * service_s
        self._points += 1
        if self._points % _TELL_EVERY == 0 or self._points < _TELL_EVERY:
            self._tell()

    def _tell(self) -> None:
        w, n, s = self._w, self._n, self._s
        if s <= 0:
            return
        # The centred sums; those of times relative to the bolt's mean time.
        mean = n / w
        ns = (self._ns - s * mean) * w / s
        told = (float(min(self._points, _POINTS_MAX)), w, n, self._nn - n * mean, ns, ns * mean)
        before, self._told = self._told, told
        self.pool.add([new - old for new, old in zip(told, before, strict=True)])

    def leave(self) -> None:
        """The bolt went: the pool forgets it."""
        self.end_first_call()
        before, self._told = self._told, _NOTHING
        self.pool.add([-old for old in before])

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
