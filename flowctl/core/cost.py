"""What a call costs, whatever its size, and what a record: S(n) = a + b n, from sizes and times.

Two ways to learn it (ADR 21).  :class:`CallCost` is for one caller, whose calls come one after the
other: a batch of a range or a stream, rows of a partition.  :class:`ServicePool` is for all bolts
of a spout at once, whose tuples come in any order, at speeds of their own.  Those who ask decide
on sizes: :mod:`flowctl.core.sizing`, ``bolts/range_pace.py``, ``delivery/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from typing import Final

from flowctl.core.times import AckTimes

# -- One caller: a Kalman filter of two states -------------------------------------------------
#
# A line through two calls would tell a from b only if nothing but the size had changed: with a
# noise of 10 %, sizes that differ by half give an a that is wrong by half of the call. So all
# calls count, each by what it can tell, and a jump is taken for b's, as a seldom jumps.
# Equal calls differ by so much of their time at least: 10 to 25 %, measured on busy machines.
_NOISE_LEAST: Final = 0.15
# At most, where records differ: with more, no call would be a surprise.
NOISE: Final = 0.45
# The last twenty calls decide; one counts as three standard deviations at most, squared.
_NOISE_GAIN: Final = 1 / 20
_NOISE_OFF_MAX: Final = 3.0**2
# From call to call b drifts by so much: the cost of records is uneven.  a drifts by what its
# caller says, as if it were what a record costs at least: else it could not become anything from 0.
_RECORD_DRIFT: Final = 0.1
# So many standard deviations (squared) from what was expected show that b has changed.  One call in
# 20 does so by accident, and the one after it corrects that.
_SURPRISE: Final = 2.0**2
# A record may then cost anything from nothing to so many times what this call says.
_JUMP: Final = 2.0
# Of a call's time, the part of the records that is still told from none.
_RECORDS_SHARE_MIN: Final = 0.01
# So many standard errors less are sure: then records whose costs vary three times as much as their
# mean are taken for dear calls in one run of a hundred (``tests/property/test_range_pace.py``).
_SURE_ERRORS: Final = 2.0


class CallCost:
    """``call_s`` is what a call costs whatever its size (a), ``record_s`` what a record does (b).

    Begins with one call of ``records`` that took ``service_s``, of which ``call_s`` is taken for
    a.  ``drift``: by this share of itself a changes from call to call.  ``noise``: equal calls
    differ by this share of their time at most.  Not thread-safe.
    """

    __slots__ = (
        "_both_var", "_call_var", "_drift", "_has_jumped", "_is_split_unknown", "_noise_most",
        "_noise_var", "_record_var", "call_s", "record_s",
    )  # fmt: skip

    def __init__(
        self,
        records: int,
        service_s: float,
        *,
        call_s: float = 0,
        drift: float,
        noise: float = NOISE,
    ) -> None:
        self.call_s: float = call_s
        self.record_s: float = (service_s - call_s) / records
        self._drift = drift
        self._noise_var, self._noise_most = _NOISE_LEAST**2, noise
        self._doubt(records, service_s / 2)  # of which half may be a, give or take all of it
        self._is_split_unknown = False

    def of(self, records: float) -> float:
        """Return how long a call of ``records`` should take, in seconds."""
        return self.call_s + self.record_s * records

    @property
    def call_error_s(self) -> float:
        """By how much ``call_s`` may be wrong."""
        return _SURE_ERRORS * sqrt(self._call_var)

    @property
    def sure_call_s(self) -> float:
        """As much of ``call_s`` as is sure; 0: none."""
        return max(0.0, self.call_s - self.call_error_s)

    def most_record_s(self, records: int) -> float:
        """What a record of so many costs, if all that is not surely the call's is theirs."""
        return (self.of(records) - self.sure_call_s) / records

    def forget_split(self, records: int, service_s: float) -> None:
        """Only the sum is known, for calls of ``records``: the next one tells a from b."""
        self._doubt(records, service_s / 2)

    def learn_split(self, before: tuple[int, float], now: tuple[int, float]) -> None:
        """A trial showed what calls of two sizes take: (records, seconds) of each."""
        records, service_s = now
        record_s = (service_s - before[1]) / (records - before[0])
        self.record_s = max(record_s, _RECORDS_SHARE_MIN * service_s / records)
        self.call_s = service_s - self.record_s * records
        self._doubt(records, _NOISE_LEAST * service_s)  # as good as the noise allows

    def _doubt(self, records: int, split_s: float) -> None:
        """The sum is known for calls of ``records``, the parts give or take ``split_s``."""
        self._call_var = split_s**2
        self._both_var = -self._call_var / records
        self._record_var = self._call_var / records**2
        self._has_jumped = False
        self._is_split_unknown = True

    def took(self, records: int, service_s: float) -> None:
        """A call of ``records`` took ``service_s``."""
        expected_s = self.of(records)
        longer_s = max(service_s, expected_s)
        if longer_s <= 0:
            return
        wrong_s = service_s - expected_s
        self._call_var += (self._drift * max(self.call_s, self.record_s)) ** 2
        self._record_var += (_RECORD_DRIFT * self.record_s) ** 2
        noise_var = self._noise_var * longer_s**2
        self._admit_a_jump(records, service_s, wrong_s**2 / (self._var(records) + noise_var))
        call_gain = self._call_var + records * self._both_var
        record_gain = self._both_var + records * self._record_var
        var = self._var(records) + noise_var
        self.call_s += call_gain / var * wrong_s
        self.record_s += record_gain / var * wrong_s
        self._call_var -= call_gain**2 / var
        self._both_var -= call_gain * record_gain / var
        self._record_var -= record_gain**2 / var
        self._bound(records, service_s)

    def _var(self, records: int) -> float:
        var = self._call_var + 2 * records * self._both_var + records**2 * self._record_var
        return max(0.0, var)

    def _admit_a_jump(self, records: int, service_s: float, off: float) -> None:
        """If this call is a surprise, a record costs something else now.

        That changed in the middle of this call, so it counts as little as those before: the call
        after it is believed as well.  ``off``: in standard deviations, squared.
        """
        noise_var = self._noise_var * (1 + _NOISE_GAIN * (min(off, _NOISE_OFF_MAX) - 1))
        self._noise_var = min(max(noise_var, _NOISE_LEAST**2), self._noise_most**2)
        is_surprise = off > _SURPRISE and not self._is_split_unknown
        self._is_split_unknown = False
        if is_surprise or self._has_jumped:
            record_s = max(self.record_s, abs(service_s - self.call_s) / records)
            self._record_var += (_JUMP * record_s) ** 2
        self._has_jumped = is_surprise and not self._has_jumped

    def _bound(self, records: int, service_s: float) -> None:
        """Neither is negative, a is not more than this call took, nor b far more."""
        if self.call_s < 0:
            self.record_s += self.call_s / records
            self.call_s = 0.0
        self.call_s = min(self.call_s, service_s)
        b_s, share = service_s / records, _RECORDS_SHARE_MIN
        self.record_s = min(max(self.record_s, share * b_s), b_s / share)
        # Rounding, after costs that fell a thousandfold, may leave variances that none can have.
        self._call_var, self._record_var = max(0.0, self._call_var), max(0.0, self._record_var)
        most = sqrt(self._call_var * self._record_var)
        self._both_var = min(max(self._both_var, -most), most)


# -- Many bolts: what their first tuples tell, before any of them has acked two ----------------

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

    Sums of squares: ``off``, of times to their line, as shares of them; ``spread``, of sizes to
    their mean.  ``points``: tuples that tell it.
    """
    return scatter_of(off, points) / sqrt(spread)


def scatter_of(off: float, points: float) -> float:
    """By which share of its time a tuple is off the line; arguments as above."""
    return sqrt((_NOISE * _NOISE_POINTS + max(0.0, off)) / (_NOISE_POINTS + points))


def slope_doubt(off: float, spread: float, free: float) -> float:
    """As :func:`slope_error`, from the scatter of ``free`` tuples alone; of none, a guess."""
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


# -- Many bolts: how long each takes for a tuple, and how long the path to it takes ------------

# The last twenty tuples of a bolt decide, or all while there are fewer (control law: decay .95).
_MEMORY = 20
# A shortest path is forgotten after this long, as BBR forgets its smallest RTT.
_PATH_LIFE_S = 10.0
# A longest path is forgotten by 2 % of the excess per ack: a jitter of 4 ms in some 70 acks.
_PEAK_DECAY = 0.02
# What a tuple costs beside its records rests on differences: the last hundred of each bolt decide.
_SPLIT_DECAY = 0.99
# What a call is known to cost has changed by so much that older tuples need other weights.
_WEIGHT_CHANGE = 2.0
# Sizes that spread less tell nothing: a thousand tuples give a fixed cost of 3 % to as much again.
_SPREAD_MIN = 0.05
_POINTS_MAX = 1 / (1 - _SPLIT_DECAY)
# As if so much had been seen (a tuple whose time is a third off its bolt's mean counts a tenth) of
# calls that cost nothing.  Few tuples would else make records look free, and the next ones huge.
_DOUBT = 0.1
# A line through fewer tuples tells less than the first of all bolts of sizes as far apart.
_FITTED_MIN = 8
# So many tuples tell it to a thirtieth of what single ones are off by: that is sure.
_SURE = 1_000
# A bolt tells the pool every so many acks, the first ones excepted: it moves slowly.
_TELL_EVERY = 8
# The mean of all bolts moves by 1/64 of the difference per ack (five tuples of each of twelve); by
# more while there are fewer, as the first to come is of the quickest.
_MEAN_GAIN = 1 / 64
# Where few times scatter widely, records may seem to cost nothing.  They count as an eighth of what
# they may cost at least (a standard error more), so a tuple gets eight times the records that are
# sure to be right at most.
_RECORDS_LEAST = 1 / 8
# Of the times of two tuples, half of the mean may be noise.
_DOUBT_OF_TWO = 1 / 4
_NOTHING = (0.0,) * 6


class ServicePool:
    """What the bolts of one spout have in common: they do the same work, at speeds of their own.

    ``mean_s`` is the mean service time of a tuple at any bolt of late, 0 before the first, and
    ``mean_records`` its size.  ``path_s`` is the mean of the paths of the bolts' first acks.
    ``fixed_records`` is what a tuple costs beside its records, counted in records: r in
    S(n) = b (r + n).  It is the same at every speed.  0 until sizes have varied (``is_split``):
    at one bolt, or in the first tuples of several where calls are clearly what costs.
    ``fixed_least`` is as much of it as is sure: a record costs a standard error more than it seems;
    ``fixed_most`` what it may be: a record costs a standard error less.  ``bytes_held``: in flight
    at all bolts; they count it themselves.  ``first_calls`` counts the bolts that were sent
    something and have acked nothing yet, and ``first_calls_most`` is the most since there was none.
    ``times`` is for people: of every fourth ack, and nothing is decided by it.

    r comes from a line through s over n within each bolt, weighted least squares: the noise of
    service times is relative, so a tuple weighs 1 / (r + n)^2, by the r that the bolt's line was
    begun with, and all of its tuples get another weight once r is far from that.  Sizes and times
    relative to their means at each bolt make one sum of all, so that no bolt counts more than its
    tuples.  Together they give the one r that fits them best.  Not thread-safe.
    """

    __slots__ = (
        "_bolts", "_calls", "_firsts", "_is_fitted", "_is_free", "_is_shown", "_paths", "_points",
        "_xx", "_xy", "_yy", "bytes_held", "first_calls", "first_calls_most", "fixed_least",
        "fixed_most", "fixed_records", "gain", "is_split", "mean_records", "mean_s", "path_s",
        "times",
    )  # fmt: skip

    def __init__(self) -> None:
        self.mean_s: float = 0.0
        self.mean_records: float = 0.0
        self.gain: float = 1.0  # of the next ack, in the two above; the bolts' to lower
        self.path_s: float = 0.0
        self._paths = 0
        self._firsts = FirstTuples()
        self._is_free = False  # calls cost nothing, whatever it looks like
        self._is_shown = False  # the first tuples tell what a call costs
        self._is_fitted = False  # later ones tell it better
        self.fixed_records: float = 0.0
        self.fixed_least: float = 0.0
        self.fixed_most: float = 0.0
        self.is_split: bool = False
        self.bytes_held: int = 0
        self.first_calls: int = 0
        self.first_calls_most: int = 0
        self.times: AckTimes = AckTimes()
        self._points = self._bolts = 0.0  # tuples, and the bolts that they are of
        # Sums over them, of sizes (x) and times (y) relative to their means: xx, xy, yy, and
        # xx - xy in records, which is what calls cost.
        self._xx = self._xy = self._yy = self._calls = 0.0

    def take_calls_as_free(self) -> None:
        """Look for no cost of a call: reports that come every so often tell nothing of it."""
        self._is_free = self.is_split = True

    def add(self, told: Sequence[float]) -> None:
        """Count in what a bolt has; see ``ServiceModel._tell``."""
        if self._is_free:
            return
        points, bolts, xx, xy, yy, calls = told
        self._points += points
        self._bolts += bolts
        self._xx += xx
        self._xy += xy
        self._yy += yy
        self._calls += calls
        if self._xx <= 0 or self._xx <= _SPREAD_MIN**2 * self._points:
            return
        self._is_fitted = self._points >= _FITTED_MIN or self._xx > self._firsts.spread
        if self.is_split and self._is_shown and not self._is_fitted:
            return
        self.is_split = True
        of_records = max(0.0, self._xy) + _DOUBT
        if self._points > _SURE:
            self.fixed_records = self.fixed_least = self.fixed_most = self._fixed(of_records)
            return
        free = max(0.0, self._points - self._bolts - 1)  # each line takes one, their slope one
        off = self._off
        most = of_records + slope_error(off, self._xx, free) * self._xx
        self.fixed_records = self._fixed(max(of_records, _RECORDS_LEAST * most))
        self.fixed_least = self._fixed(most)
        doubt = slope_doubt(off, self._xx, free) * self._xx
        calls = self._calls + doubt * self.mean_records
        self.fixed_most = self._fixed(of_records - doubt, calls)

    def _fixed(self, of_records: float, calls: float | None = None) -> float:
        """What a call costs, in records, where that much of the time is the records'."""
        calls = self._calls if calls is None else calls
        # Where records seem to cost nothing, or less, they cost this little.
        most = self.mean_records / _RECORDS_SHARE_MIN
        if calls >= most * of_records:
            return most
        return calls / of_records if calls > 0 else 0.0

    def on_first(self, service_s: float, path_s: float, records: int) -> None:
        """A bolt acked its first tuple."""
        self._paths += 1
        self.path_s += (max(0.0, path_s) - self.path_s) / self._paths
        if self._is_free:
            return
        self._firsts.add(service_s, records)
        if self._is_fitted:
            return
        fixed = self._firsts.fixed_records()
        self._is_shown = fixed is not None
        if fixed is not None:
            self.is_split = True
            self.fixed_records = self.fixed_least = self.fixed_most = fixed

    @property
    def scatter(self) -> float:
        """By which share a tuple's time is off what is expected of its bolt and size."""
        firsts, free = self._firsts, max(0.0, self._points - self._bolts - 1)
        return scatter_of(self._off + firsts.off, free + firsts.bolts)

    @property
    def _off(self) -> float:
        """The sum of squares of what times are off by, as shares of them."""
        # More records never take less time: if it seems so, that is noise as well.
        is_line = self._xx > 0 and self._xy > 0
        return self._yy - self._xy * self._xy / self._xx if is_line else self._yy

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

    What follows from other numbers is not kept: with 10,000 bolts they are most of an ack's cost.
    """

    __slots__ = (
        "_last_records", "_n", "_nn", "_ns", "_path_before_s", "_path_now_s", "_path_since_s",
        "_points", "_s", "_ss", "_told", "_w", "_weighed", "fixed_records", "is_in_first_call",
        "is_told", "mean_records", "mean_s", "path_peak_s", "path_s", "pool", "records_most",
        "samples",
    )  # fmt: skip

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
        self._w = self._n = self._s = self._nn = self._ns = self._ss = 0.0  # of the line, weighted
        self._weighed = 0.0  # what a call costs, in records, where weights are concerned
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
        gain = pool.gain
        pool.mean_s += gain * (service_s - pool.mean_s)
        if records != pool.mean_records:
            pool.mean_records += gain * (records - pool.mean_records)
        if gain > _MEAN_GAIN:
            pool.gain = gain / (1.0 + gain)
        if samples == 1:
            self.end_first_call()
            pool.on_first(service_s, path_s, records)
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
        if self._points == 1:
            self._weigh_first_two(service_s, records)
        w = 1.0 / (self._weighed + records) ** 2
        wn, ws = w * records, w * service_s
        self._w = _SPLIT_DECAY * self._w + w
        self._n = _SPLIT_DECAY * self._n + wn
        self._s = _SPLIT_DECAY * self._s + ws
        self._nn = _SPLIT_DECAY * self._nn + wn * records
        self._ns = _SPLIT_DECAY * self._ns + wn * service_s
        self._ss = _SPLIT_DECAY * self._ss + ws * service_s
        self._points = points = self._points + 1
        if not points % _TELL_EVERY or points < _TELL_EVERY:
            self._tell()

    def _weigh_first_two(self, service_s: float, records: int) -> None:
        """Tuples weigh by what the first two sizes say that a call costs.

        By their sizes alone a tuple of 25 records would weigh 256 times as much as one of 400,
        also where both took as long.
        """
        n, s = self._n / self._w, self._s / self._w
        apart = abs(records - n)
        if not apart or not s + service_s:
            return
        slope = max(0.0, (service_s - s) / (records - n))
        slope += _DOUBT_OF_TWO * (s + service_s) / apart
        fixed = max(0.0, s / slope - n)
        w = 1.0 / (fixed + n) ** 2
        self._weighed, self._w, self._n, self._s = fixed, w, w * n, w * s
        self._nn, self._ns, self._ss = w * n * n, w * n * s, w * s * s

    def _tell(self) -> None:
        w, n, s = self._w, self._n, self._s
        if s <= 0:
            return
        mean, mean_s = n / w, s / w
        unit = (self._weighed + mean) ** 2  # a tuple of mean size weighs one
        xx = unit * (self._nn - n * mean) / mean**2
        xy = unit * (self._ns - s * mean) / (mean * mean_s)
        yy = unit * (self._ss - s * mean_s) / mean_s**2
        told = (float(min(self._points, _POINTS_MAX)), 1.0, xx, xy, yy, mean * (xx - xy))
        before, self._told = self._told, told
        self.pool.add([new - old for new, old in zip(told, before, strict=True)])
        change = (self.pool.fixed_records + mean) ** 2 / unit
        if not 1 / _WEIGHT_CHANGE <= change <= _WEIGHT_CHANGE:
            self._weigh(1 / change)

    def _weigh(self, scale: float) -> None:
        """A call costs much more, or less, than was known: tuples so far weigh by that too."""
        self._weighed = self.pool.fixed_records
        line = self._w, self._n, self._s, self._nn, self._ns, self._ss
        self._w, self._n, self._s, self._nn, self._ns, self._ss = (scale * sum_ for sum_ in line)

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
