"""What the shared sink guard measures: goodput over an epoch, and the shortest time in the sink."""

from __future__ import annotations

from math import inf, pi, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowctl.core.pacing.sample import Sample

# An epoch lasts at least this long (several round trips of a quick sink) and has at least so many
# blocks, however long they take.
_EPOCH_S = 0.25
_BLOCKS_MIN = 4
# If a cap depends on it, the epoch goes on until the standard error of its goodput is this share:
# half of what a cap may lose.  Uneven goodput may never get there, so an epoch has an end.
_ERROR_SHARE = 0.007
_EPOCH_MAX_S = 4.0
# A block is so many acks, and so many round trips of all that is in flight; the goodputs of blocks
# tell how uneven it is.  Two round trips, as in one alone tuples that travel together look uneven.
_BLOCK_ACKS, _BLOCK_ROUNDS = 16, 2
_BLOCKS_TELLING = 3  # enough to see that a cap is hopeless
# Sink times are averaged over so many calls: one alone may have nothing to write, or hit a cache.
_GROUP = 4
# The sums of many callers are averaged until the mean is known to this share: the least of a
# hundred means of ten lognormal calls is half of their mean, which looks like a queue.
_KNOWN_TO = 0.1
# Samples have this many calls or more, as a rule, which is enough where calls differ little.  A
# group that takes longer than the shortest time lives would leave none.
_GROUP_ALWAYS, _GROUP_MOST = 16, 256
# The weight of a sample.
_SCATTER_GAIN = 1 / 16
# The shortest sink time is forgotten after this, as the sink may have changed; where calls take
# seconds, not before so many calls.
_LIFE_S = 30.0
_LIFE_CALLS = 1024


class Scatter:
    """How widely calls differ: ``variance`` of a call's time, over the square of its mean.

    Two means of n and m calls differ by 1/n + 1/m of that by chance.  Those that follow each other
    are compared, by their mean deviation: neither a load that moves slowly nor a limit that doubles
    counts for much.  0 while unknown.
    """

    __slots__ = ("_calls", "_deviation", "_mean_s", "_seen")

    def __init__(self) -> None:
        self._deviation = 0.0
        self._mean_s, self._calls, self._seen = 0.0, 0, 0

    def add(self, mean_s: float, calls: int) -> None:
        """Take the mean time of some calls."""
        before_s, before = self._mean_s, self._calls
        self._mean_s, self._calls = mean_s, calls
        if not before or before_s + mean_s <= 0:
            return
        off = 2 * abs(mean_s - before_s) / (mean_s + before_s)
        self._seen += 1
        gain = max(1 / self._seen, _SCATTER_GAIN)
        self._deviation += gain * (off / sqrt(1 / before + 1 / calls) - self._deviation)

    @property
    def variance(self) -> float:
        """As of a normal distribution with that mean deviation."""
        return pi / 2 * self._deviation * self._deviation


class WindowedMinimum:
    """The shortest sink time per record [s], among averages of :data:`_GROUP` calls.

    Of the last 15 to 30 s, or of the last 512 to 1,024 calls if those take longer.
    """

    __slots__ = (
        "_before", "_calls", "_groups", "_least_of", "_now", "_records", "_since_s", "_sink_s",
        "scatter",
    )  # fmt: skip

    def __init__(self) -> None:
        self._now = self._before = inf
        self.scatter = Scatter()
        self._least_of: float = _GROUP_ALWAYS  # of how many calls the shortest times are means
        self._since_s = -inf
        self._groups = 0
        self._begin()

    def _begin(self) -> None:
        self._calls = 0
        self._records: float = 0
        self._sink_s = 0.0

    def add(self, now_s: float, sink_s: float, records: int) -> None:
        """Take one call."""
        self._calls += 1
        self._sink_s += sink_s
        self._records += records
        if self._calls < _GROUP:
            return
        self._end_group(now_s)

    def add_many(self, now_s: float, sink_s: float, records: float, calls: int) -> None:
        """Take the sums of several calls."""
        self.scatter.add(sink_s / records, calls)
        enough = min(_GROUP_MOST, self.scatter.variance / _KNOWN_TO**2)
        if enough > 2 * self._least_of:  # the least of so few calls was so by chance
            self._least_of = enough
            self._now = self._before = inf
        self._calls += calls
        self._sink_s += sink_s
        self._records += records
        if self._calls >= max(_GROUP, enough):
            self._end_group(now_s)

    def _end_group(self, now_s: float) -> None:
        self._groups += 1
        if now_s - self._since_s > _LIFE_S / 2 and self._groups > _LIFE_CALLS / 2 / _GROUP:
            self._since_s, self._groups = now_s, 0
            self._before, self._now = self._now, inf
        self._now = min(self._now, self._sink_s / self._records)
        self._begin()

    @property
    def value(self) -> float:
        """The shortest time; infinite before the first group is complete."""
        return min(self._now, self._before)


class Epoch:
    """Sums over acks, by which a cap is judged.

    After the cap changed, an epoch begins with the first ack of a tuple that was sent since.  That
    ack starts the clock and is not counted itself, so rates are exact.
    """

    __slots__ = (
        "_begun_at_s", "_block_acks", "_block_at_s", "_block_records", "_blocks", "_bound",
        "_changed_at_s", "_last_at_s", "_own_s", "_sink_records", "_sink_s", "_squares", "_sums",
        "acks", "in_flight", "records",
    )  # fmt: skip

    def __init__(self) -> None:
        self.begin(-inf)

    def begin(self, changed_at_s: float) -> None:
        """Begin anew: only tuples sent at ``changed_at_s`` or later count."""
        self._changed_at_s = changed_at_s
        self._clear(inf)

    def restart(self, now_s: float) -> None:
        """Begin anew with the ack that was just taken: nothing changed."""
        self._clear(now_s)

    def _clear(self, begun_at_s: float) -> None:
        self._begun_at_s = self._last_at_s = self._block_at_s = begun_at_s
        self._blocks = self._block_acks = 0
        self._block_records: float = 0
        self._sums = self._squares = 0.0  # of the blocks' times per record
        self.acks: int = 0
        self.in_flight: int = 0
        self.records: float = 0
        self._bound = 0
        self._sink_records: float = 0
        self._sink_s = self._own_s = 0.0

    def add(
        self,
        now_s: float,
        records: int,
        *,
        sent_at_s: float,
        sink_s: float | None,
        wait_s: float | None,
        in_flight: int,
        is_bound: bool,
    ) -> None:
        """Take one ack."""
        if self._begun_at_s == inf:
            if sent_at_s >= self._changed_at_s:
                self._begun_at_s = self._last_at_s = self._block_at_s = now_s
            return
        self._last_at_s = now_s
        self.acks += 1
        self.records += records
        self._bound += is_bound
        self.in_flight = max(self.in_flight, in_flight)
        self._own_s += now_s - sent_at_s - (wait_s or 0.0)
        if sink_s is not None:
            self._sink_s += sink_s
            self._sink_records += records
            self._own_s -= sink_s
        self._block_acks += 1
        self._block_records += records
        self._note_block(now_s)

    def add_many(self, now_s: float, sample: Sample, *, sent_at_s: float) -> None:
        """Take the calls of a sample, whose whole time counts as spent in the sink.

        All of them began at ``sent_at_s`` or later.
        """
        if self._begun_at_s == inf:
            if sent_at_s >= self._changed_at_s:
                self._begun_at_s = self._last_at_s = self._block_at_s = now_s
            return
        if not sample.calls:
            return
        self._last_at_s = now_s
        self.acks += sample.calls
        self.records += sample.cost
        self._bound += sample.calls * sample.is_bound
        self.in_flight = max(self.in_flight, sample.in_flight)
        self._sink_s += sample.call_s
        self._sink_records += sample.cost
        self._block_acks += sample.calls
        self._block_records += sample.cost
        self._note_block(now_s)

    def _note_block(self, now_s: float) -> None:
        if self._block_acks >= _BLOCK_ACKS and self._block_acks >= _BLOCK_ROUNDS * self.in_flight:
            self._end_block(now_s)

    def _end_block(self, now_s: float) -> None:
        per_record_s = (now_s - self._block_at_s) / self._block_records
        self._blocks += 1
        self._sums += per_record_s
        self._squares += per_record_s * per_record_s
        self._block_at_s = now_s
        self._block_acks = 0
        self._block_records = 0

    @property
    def error(self) -> float:
        """The standard error of :attr:`goodput`, as a share of it; 1 while unknown."""
        blocks = self._blocks
        if blocks < 2 or not self._sums:
            return 1.0
        mean = self._sums / blocks
        variance = max(0.0, self._squares / blocks - mean * mean) / (blocks - 1)
        return sqrt(variance) / mean

    @property
    def is_over(self) -> bool:
        """Whether it has enough acks to show a change."""
        return (
            self._block_acks == 0
            and self._blocks >= _BLOCKS_MIN
            and self._last_at_s - self._begun_at_s >= _EPOCH_S
        )

    @property
    def is_certain(self) -> bool:
        """Whether it has enough acks to choose a cap by; asked when :attr:`is_over`."""
        long_enough = self._last_at_s - self._begun_at_s >= _EPOCH_MAX_S
        return long_enough or self.error <= _ERROR_SHARE

    @property
    def is_telling(self) -> bool:
        """Whether it has enough acks to show a large loss."""
        return self._block_acks == 0 and self._blocks >= _BLOCKS_TELLING

    @property
    def is_bound(self) -> bool:
        """Whether the cap or windows, not the source, limited most of its tuples."""
        return 2 * self._bound > self.acks

    @property
    def per_tuple(self) -> float:
        """Records of the mean tuple."""
        return self.records / self.acks

    @property
    def spent_s(self) -> float:
        """How long it is."""
        return self._last_at_s - self._begun_at_s

    @property
    def goodput(self) -> float:
        """Records a second."""
        spent_s = self.spent_s
        return self.records / spent_s if spent_s > 0 else 0.0

    @property
    def sink(self) -> float:
        """Mean time in the sink per record [s]; 0 if no call told it."""
        return self._sink_s / self._sink_records if self._sink_records else 0.0

    def needed(self, least: float) -> float:
        """Return how many tuples in flight give this goodput if a record takes ``least`` [s].

        By Little's law, from the rate and the time of a tuple without its waits at a bolt.
        """
        spent_s = self._last_at_s - self._begun_at_s
        if spent_s <= 0:
            return inf
        return (self._own_s + self._sink_records * least) / spent_s
