"""What a call costs, whatever its size, and what a record: S(n) = a + b n, from sizes and times.

Two ways to learn it (ADR 21).  :class:`CallCost` is for one caller, whose calls come one after the
other: batches of a range or a stream, rows of a partition.  :class:`ServicePool` is for all bolts
of a spout, which have speeds of their own, and whose acks come in any order.  Those who ask decide
on the size of the next call: :mod:`flowctl.core.sizing`, ``bolts/range_pace.py``, ``delivery/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

from flowctl.core.first_guess import (
    SCATTER_POINTS,
    FirstTuples,
    Learned,
    scatter_of,
    slope_doubt,
    slope_error,
)
from flowctl.core.times import AckTimes

# -- One caller: a Kalman filter of two states -------------------------------------------------
#
# A line through two calls is not enough: with a noise of 10 %, two sizes that differ by half give
# an a that is off by half of the call's time. So every call counts, by how much it can tell. A jump
# is taken to be in b, as a seldom jumps.
# Times of equal calls scatter by at least this share: 10 to 25 %, measured on busy machines.
_NOISE_LEAST: Final = 0.15
# And by at most this share, where records differ: with more, no call would ever be a surprise.
NOISE: Final = 0.45
# The noise is that of about the last twenty calls; one counts as three standard deviations at most.
_NOISE_GAIN: Final = 1 / 20
_NOISE_OFF_MAX: Final = 3.0**2
# b drifts by this share from call to call, as the cost of records is uneven.  a drifts by the share
# that the caller gives, of a or b, whichever is larger: otherwise it could never leave 0.
_RECORD_DRIFT: Final = 0.1
# A call that is off by this many standard deviations (squared) shows that b has changed.  One call
# in 20 is by accident, and the next one corrects it.
_SURPRISE: Final = 2.0**2
# After that a record may cost up to this many times what the call says.
_JUMP: Final = 2.0
# A smaller share of a call's time can't be told from none.
_RECORDS_SHARE_MIN: Final = 0.01
# What is left of a after subtracting this many standard errors counts as sure.  Then records whose
# costs vary by three times their mean are mistaken for dear calls in one run of a hundred
# (``tests/property/test_range_pace.py``).
_SURE_ERRORS: Final = 2.0


class CallCost:
    """``call_s`` is what a call costs whatever its size (a), ``record_s`` what a record does (b).

    Begins with one call of ``records`` that took ``service_s``, of which ``call_s`` is a first
    guess of a.  ``drift``: the share by which a changes from call to call.  ``noise``: times of
    equal calls scatter by this share at most.  Not thread-safe.
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
        self._doubt(records, service_s / 2)  # a may be anything from 0 to all of it
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
        """The part of ``call_s`` that is sure [s]; 0: none."""
        return max(0.0, self.call_s - self.call_error_s)

    def most_record_s(self, records: int) -> float:
        """Return what a record costs at most: if all but the sure part of a is the records'."""
        return (self.of(records) - self.sure_call_s) / records

    def forget_split(self, records: int, service_s: float) -> None:
        """Keep the time of a call of ``records``, and learn anew how it divides into a and b."""
        self._doubt(records, service_s / 2)

    def learn_split(self, before: tuple[int, float], now: tuple[int, float]) -> None:
        """Take the result of a trial: (records, seconds) of two calls of different sizes."""
        records, service_s = now
        record_s = (service_s - before[1]) / (records - before[0])
        self.record_s = max(record_s, _RECORDS_SHARE_MIN * service_s / records)
        self.call_s = service_s - self.record_s * records
        self._doubt(records, _NOISE_LEAST * service_s)  # as sure as the noise allows

    def _doubt(self, records: int, split_s: float) -> None:
        """Hold the time of calls of ``records`` for known, and a for known to ``split_s``."""
        self._call_var = split_s**2
        self._both_var = -self._call_var / records
        self._record_var = self._call_var / records**2
        self._has_jumped = False
        self._is_split_unknown = True

    def took(self, records: int, service_s: float) -> None:
        """Take the time of a call of ``records`` [s]."""
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

        The change may have come in the middle of this call, so the next one is believed as much.
        ``off``: how far the call is off, in squared standard deviations.
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
        """Keep a and b within what this call allows, and the variances within what is possible."""
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


# -- Many bolts: how long each takes for a tuple, and how long the path to it takes ------------

# Means are over about the last twenty tuples of a bolt, or all if there are fewer (a decay of .95).
_MEMORY = 20
# The shortest path is forgotten after this long, as BBR forgets its smallest RTT.
_PATH_LIFE_S = 10.0
# The longest path shrinks by 2 % of its excess per ack: a jitter of 4 ms is gone after some 70.
_PEAK_DECAY = 0.02
# What a call costs rests on differences, which are noisy: a bolt's last hundred or so count.
_SPLIT_DECAY = 0.99
# Earlier tuples are weighed anew if their weights, which depend on r, change by this factor.
_WEIGHT_CHANGE = 2.0
# Sizes that spread less tell nothing: a thousand tuples give a fixed cost of 3 % to within 3 %.
_SPREAD_MIN = 0.05
_POINTS_MAX = 1 / (1 - _SPLIT_DECAY)
# The weight of the assumption that calls cost nothing: one tuple whose time is off by a third.
# Without it a few tuples could make records look free, and the next tuples huge.
_DOUBT = 0.1
# A line through fewer tuples than this tells less than the first tuples of all bolts do.
_FITTED_MIN = 8
# From so many tuples on the line is sure: its error is a thirtieth of a single tuple's.
_SURE = 1_000
# After its first acks a bolt tells the pool only every eighth time: the sums move slowly.
_TELL_EVERY = 8
# The mean of all bolts moves by 1/64 of the difference per ack, which is five tuples of each of
# twelve bolts; at first by more, as the first acks come from the fastest bolts.
_MEAN_GAIN = 1 / 64
# If few times scatter widely, records may seem free.  They count as at least an eighth of what they
# may cost (one standard error above the line): a tuple is at most eight times as large as is sure.
_RECORDS_LEAST = 1 / 8
# Half of the mean of two times may be noise.
_DOUBT_OF_TWO = 1 / 4
_NOTHING = (0.0,) * 6


class ServicePool:
    """What the bolts of one spout have in common: they do the same work, each at its own speed.

    ``mean_s`` and ``mean_records``: service time and size of a recent tuple at the mean bolt; 0
    before the first ack.  ``path_s``: mean path of the bolts' first acks [s].  ``fixed_records``:
    what a call costs, counted in records: r in S(n) = b (r + n), which is the same at every speed.
    It is 0 until ``is_split``: sizes have varied at one bolt, or the first tuples of several show
    that calls are what costs.  ``fixed_least`` and ``fixed_most`` bound it: by a record that costs
    a standard error more, or less, than it seems.  ``bytes_held``: in flight at all bolts, which
    count it themselves.  ``learned``: what the last run learned; None: nothing is known of one.
    ``first_calls``: how many bolts were sent something and have acked nothing
    yet; ``first_calls_most``: the most since there was none.  ``times`` is for people: times of
    every fourth ack, by which nothing is decided.

    r comes from lines through s over n, one for each bolt, by weighted least squares.  As the noise
    of service times is relative, a tuple weighs 1 / (r + n)^2, with the r that was known when the
    bolt's line was begun; if r moves far from that, the bolt's tuples are weighed anew.  Sizes and
    times are taken relative to their means at each bolt, so that their sums can be added up over
    bolts; the one r that fits all of them best results.  Not thread-safe.
    """

    __slots__ = (
        "_bolts", "_calls", "_firsts", "_is_fitted", "_is_free", "_is_shown", "_paths", "_points",
        "_xx", "_xy", "_yy", "bytes_held", "first_calls", "first_calls_most", "fixed_least",
        "fixed_most", "fixed_records", "gain", "is_split", "learned", "mean_records", "mean_s",
        "path_s", "times",
    )  # fmt: skip

    def __init__(self) -> None:
        self.mean_s: float = 0.0
        self.mean_records: float = 0.0
        self.gain: float = 1.0  # weight of the next ack in the two above; bolts lower it
        self.path_s: float = 0.0
        self._paths = 0
        self._firsts = FirstTuples()
        self._is_free = False  # calls count as free, whatever their times say
        self._is_shown = False  # first tuples show what a call costs
        self._is_fitted = False  # later tuples show it better
        self.fixed_records: float = 0.0
        self.fixed_least: float = 0.0
        self.fixed_most: float = 0.0
        self.is_split: bool = False
        self.bytes_held: int = 0
        self.first_calls: int = 0
        self.first_calls_most: int = 0
        self.times: AckTimes = AckTimes()
        self.learned: Learned | None = None
        self._points = self._bolts = 0.0  # how many tuples the sums are over, of how many bolts
        # Sums of products of sizes (x) and times (y), relative to their means; _calls is
        # xx - xy in records, which is what calls cost.
        self._xx = self._xy = self._yy = self._calls = 0.0

    def take_calls_as_free(self) -> None:
        """Let calls count as free: reports that come at intervals can't tell what calls cost."""
        self._is_free = self.is_split = True

    def recall(self, learned: Learned) -> None:
        """Begin with what the last run ``learned``: before any ack, which would overrule it."""
        self.learned = learned
        self.path_s = learned.path_s
        self.mean_s, self.mean_records = learned.tuple_s, learned.records
        if self._is_free:
            return
        self.is_split = True
        self.fixed_records = self.fixed_least = self.fixed_most = learned.call_records
        # Not by add(): first tuples may still show better what a call costs.
        self._points, self._bolts, self._xx, self._xy, self._yy, self._calls = learned.sums()

    def add(self, told: Sequence[float]) -> None:
        """Add a bolt's sums; see ``ServiceModel._tell``."""
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
        """Return a call's cost in records, if ``of_records`` of the time is spent on records."""
        calls = self._calls if calls is None else calls
        # If records seem to cost nothing, or less, this little is assumed.
        most = self.mean_records / _RECORDS_SHARE_MIN
        if calls >= most * of_records:
            return most
        return calls / of_records if calls > 0 else 0.0

    def on_first(self, service_s: float, path_s: float, records: int) -> None:
        """Take a bolt's first ack."""
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
        """By which share a tuple's time is off what its bolt and size let expect."""
        firsts, free = self._firsts, max(0.0, self._points - self._bolts - 1)
        points, learned = free + firsts.bolts, self.learned
        scatter = scatter_of(self._off + firsts.off, points)
        if learned is None:
            return scatter
        of_both = SCATTER_POINTS * learned.scatter**2 + points * scatter**2
        return sqrt(of_both / (SCATTER_POINTS + points))

    def learn(self, tuples: int) -> Learned | None:
        """Return what is known after ``tuples`` acks; None while that is too little to keep."""
        if tuples < _FITTED_MIN or not (self.is_split and self.record_s):
            return None
        return Learned(
            call_s=self.call_s,
            record_s=self.record_s,
            scatter=self.scatter,
            path_s=self.path_s,
            records=max(1.0, self.mean_records),
            tuples=tuples,
        )

    @property
    def _off(self) -> float:
        """How far times are off the line, as shares of them: a sum of squares."""
        # More records never take less time; if they seem to, that is noise.
        is_line = self._xx > 0 and self._xy > 0
        return self._yy - self._xy * self._xy / self._xx if is_line else self._yy

    @property
    def record_s(self) -> float:
        """The time of a record at the mean bolt [s]; 0 while nothing is known."""
        records = self.fixed_records + self.mean_records
        return self.mean_s / records if records else 0.0

    @property
    def call_s(self) -> float:
        """What a call costs at the mean bolt, whatever its size [s]; 0 while unknown."""
        return self.record_s * self.fixed_records


class ServiceModel:
    """One bolt: the service time of a tuple of n records, S(n) = a + b n, and its path.

    The path is what remains of an RTT without wait and service: network, and the queues of frames
    at both ends.  All times in seconds.  Read the attributes; only :meth:`on_sample` writes them.
    ``samples``: acks so far.  ``is_told``: the bolt reports its times; otherwise they are guessed.
    ``records_most``: records of its largest tuple.  ``mean_s``, ``mean_records``: service time and
    size of a recent tuple.  ``path_s``: the shortest path of the last 10 to 20 s;
    ``path_peak_s``: the longest recent one, which its window has to bridge so that it never runs
    dry.  ``pool``: shared with the other bolts; ``fixed_records``: the pool's at this bolt's last
    ack.  ``is_in_first_call``: it was sent something and has acked nothing yet.  Not thread-safe.

    What follows from other numbers is not stored: with 10,000 bolts that is most of an ack's cost.
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
        self._weighed = 0.0  # the r by which its tuples are weighed
        self._points = self._last_records = 0
        self._told = _NOTHING
        self._path_now_s = self._path_before_s = float("inf")
        self._path_since_s = float("-inf")

    def begin_first_call(self) -> None:
        """Note that the bolt is sent something for the first time."""
        if not self.is_in_first_call:
            self.is_in_first_call = True
            pool = self.pool
            pool.first_calls += 1
            pool.first_calls_most = max(pool.first_calls_most, pool.first_calls)

    def end_first_call(self) -> None:
        """Note that the bolt has acked something, or went."""
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
        if records != self._last_records:  # one of the same size tells nothing new
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
        """Weigh tuples by the cost of a call that the first two of them suggest.

        By size alone, a tuple of 25 records would weigh 256 times as much as one of 400, even if
        both took equally long.
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
        unit = (self._weighed + mean) ** 2  # so that a tuple of mean size weighs one
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
        """Weigh all tuples so far by the r that is known now."""
        self._weighed = self.pool.fixed_records
        line = self._w, self._n, self._s, self._nn, self._ns, self._ss
        self._w, self._n, self._s, self._nn, self._ns, self._ss = (scale * sum_ for sum_ in line)

    def leave(self) -> None:
        """Take the bolt, which went, out of the pool."""
        self.end_first_call()
        before, self._told = self._told, _NOTHING
        self.pool.add([-old for old in before])

    @property
    def record_s(self) -> float:
        """The time of a record (b) by what all bolts know now [s]; 0 while nothing is known."""
        records = self.pool.fixed_records + self.mean_records
        return self.mean_s / records if records else 0.0

    @property
    def tuple_s(self) -> float:
        """What a call costs whatever its size (a) [s]."""
        return self.record_s * self.pool.fixed_records

    def of(self, records: float, *, tuples: int = 1) -> float:
        """Return S(n) for a tuple of ``records``; for several ``tuples``, their sum [s]."""
        if not self.samples:
            return 0.0
        fixed = self.pool.fixed_records
        return self.mean_s * (fixed * tuples + records) / (fixed + self.mean_records)
