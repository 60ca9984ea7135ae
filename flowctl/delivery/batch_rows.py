"""How many rows the next batch of a stream should have to take about the wanted time.

A batch of n rows takes a + b n seconds: a is Spark's own work, b the target's.  If a alone exceeds
the wanted time, no number of rows is small enough: then rows get a fixed share of time beside it,
instead of ever smaller batches that take as long.

Pure.  Only the time from a batch's plan to the next question is known, not when it ended: where a
trigger waits for its tick, that is a bound and no measurement.  Nor is it known how far a batch has
come while it runs, so one that turns out too large ends when it ends.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from flowctl.core.cost import CallCost

# -- Whether rows are what takes the time of a small batch: now and then one has twice as many -
#
# Batches that take the time wanted do not tell what takes it. Where Spark's own work alone is as
# long as a batch should take, one row looks as good as 400, and every batch that takes longer by
# chance makes the next one smaller. In a model with 2 s of Spark's in the 2 s wanted, ± 15 %,
# such a stream went on with one row a batch for ever.
#
# Pure.


# A trial follows after this many batches; if the rows did take the time, after twice as many, up to
# 160: then one batch in 160 takes twice as long as wanted.  Less often if batches are not small.
_EVERY, _EVERY_LARGE, _EVERY_MOST = 30, 60, 160
# A query that begins with few rows was restarted: its batches may have been small for long.
_FIRST = 8
_TIMES: Final = 2.0
# Rows of the first batch by default.
_SMALL_ROWS = 200
# A stream that has grown to this size by itself shows that rows are cheap.
_GROWN = 10
# If twice as many rows take less than this many times the usual time, the rows are not what takes
# it.  More than half way between once and twice, as the next trial, with four times as many,
# corrects it.
_SAME = 1.8
_USUAL_OF = 5  # the usual time is the median of this many batches
# The fewest rows are this share of the rows that were shown to take no longer, until a batch of
# that few takes this many times as long: then the target has changed.  The proof loses a fiftieth
# with each batch.
_KEPT, _UNTIL, _AGES = 0.5, 3.0, 0.98


class RowTrials:
    """Sizes of batches that show whether rows matter; most of the time the wanted sizes.

    Not thread-safe.
    """

    def __init__(self, rows: int) -> None:
        """``rows``: the number of the first batch."""
        self._recent_s: deque[float] = deque(maxlen=_USUAL_OF)
        first = _EVERY if rows >= _SMALL_ROWS else _FIRST
        self._every = {True: first, False: _EVERY_LARGE}  # by whether batches are small
        self._since = 0
        self._rows_most = max(_SMALL_ROWS, _GROWN * rows)
        self._usual: tuple[int, float] | None = None  # rows and time before the current trial
        self._fewest, self._fewest_s = 1.0, 0.0

    def next_rows(self, rows: int, batch_s: float, wanted: float, cost: CallCost) -> float:
        """Return how many rows the next batch should have.

        The last one had ``rows`` and took ``batch_s`` seconds; by ``cost``, which learns from
        trials, the next would have ``wanted``.
        """
        if self._usual is not None:
            return self._tried(rows, batch_s, wanted, cost)
        self._recent_s.append(batch_s)
        self._since += 1
        wanted = max(wanted, self._kept(rows, batch_s))
        if (
            self._since < self._every[rows <= _SMALL_ROWS]
            or rows > self._rows_most
            or wanted >= _TIMES * rows
        ):
            return wanted
        self._usual = rows, median(self._recent_s)
        return _TIMES * rows

    def _kept(self, rows: int, batch_s: float) -> float:
        is_long = batch_s > _UNTIL * self._fewest_s and rows <= 2 * self._fewest
        self._fewest = 1.0 if is_long else max(1.0, _AGES * self._fewest)
        return self._fewest

    def _tried(self, rows: int, batch_s: float, wanted: float, cost: CallCost) -> float:
        """Take the result of a trial; while more rows take no longer, the next one doubles them
        again.
        """
        assert self._usual is not None
        before, usual_s = self._usual
        if rows > before and batch_s < _SAME * usual_s:
            self._every = {True: _EVERY, False: _EVERY_LARGE}
            self._fewest, self._fewest_s = _KEPT * rows, usual_s
            cost.learn_split((before, usual_s), (rows, usual_s))  # rows cost next to nothing
            return _TIMES * rows
        if rows > _TIMES * before:
            cost.learn_split((before, usual_s), (rows, batch_s))
            wanted = rows / _TIMES
        else:
            is_small = before <= _SMALL_ROWS
            self._every[is_small] = min(2 * self._every[is_small], _EVERY_MOST)
        self._usual, self._since = None, 0
        self._recent_s.clear()
        return wanted


# -- How many rows the next batch of a stream should have, so that it takes about as long as  --


# A stream begins with this many rows: a record may take a second.
START_ROWS = 200
# A batch has at most this many times the rows of the one before, and at least as small a share of
# them.  If a target becomes five times slower or faster, the third batch after that fits; one wrong
# guess costs the time of four batches.
_GROWTH, _SHRINK = 4.0, 0.1
# The guess if nothing was measured, because a trigger waited for its tick.
_GUESSED_GROWTH = 2.0
# Spark's own work [s] on an idle machine, before anything is known.
_USUAL_S = 0.5
# Spark's own work depends on the machine, and changes by this share from batch to batch.
_SPARK_DRIFT = 0.02
# Equal batches take this much more or less time.  With a larger share, changes of the target would
# be taken for noise longer.
_NOISE = 0.15
# Rows get at least this share of a: batches are then at most half as long again as Spark's own
# work.
_ROWS_PER_FIXED = 0.5
# If this many batches in a row take this many times the wanted time, though none has more rows than
# the one before, it is not the rows that take the time.  By accident that is one batch in 1,000 if
# their times differ by 15 %.
_LONG, _LONG_BATCHES = 1.1, 5
# The next batch has this many times as many rows, which shows the difference.  A smaller factor
# could not be told from noise.
_PROBE = 2.0
# Differences in size of up to a twentieth do not matter.
_AS_MANY = 1.05
# A size that was once too large may be tried again: this much more with each batch that was not
# measured.
_FORGET = 1.05


class BatchRows:
    """Sizes of the batches of one query.  Not thread-safe.

    ``rows``: of the next batch.  ``rows_max`` bounds it, and so the memory that a batch takes.
    """

    def __init__(self, *, target_s: float, rows: int, rows_max: int) -> None:
        self.rows: int = max(1, min(rows, rows_max))
        self._target_s = target_s
        self._rows_max = rows_max
        self._cost: CallCost | None = None
        self._ceiling = float(rows_max)
        self._last_rows = 0
        self._trials = RowTrials(self.rows)
        self._long = 0  # long batches in a row

    def took(self, rows: int, batch_s: float, *, is_bound: bool = False) -> None:
        """Note that a batch of ``rows`` took ``batch_s`` seconds, or at most that
        (``is_bound``).
        """
        if rows <= 0 or batch_s <= 0:
            return
        if is_bound:
            self._ceiling = min(self._ceiling * _FORGET, self._rows_max)
            wanted = min(_GUESSED_GROWTH * rows, self._ceiling)
            self._set(max(wanted, float(self.rows)) if rows < self.rows else wanted)
            return
        if (cost := self._cost) is None:
            spark_s = min(batch_s / 2, _USUAL_S)
            cost = CallCost(rows, batch_s, call_s=spark_s, drift=_SPARK_DRIFT, noise=_NOISE)
            self._cost = cost
        else:
            cost.took(rows, batch_s)
        if self._is_long_for_nothing(rows, batch_s):
            cost.forget_split(rows, batch_s)
            self._ceiling = _PROBE * rows
        else:
            wanted = self._wanted(cost)
            self._ceiling = self._trials.next_rows(rows, batch_s, wanted, cost)
        self._set(min(max(self._ceiling, _SHRINK * rows), _GROWTH * rows))

    def _wanted(self, cost: CallCost) -> float:
        rows_s = max(self._target_s - cost.call_s, _ROWS_PER_FIXED * cost.call_s)
        return rows_s / cost.record_s

    def _is_long_for_nothing(self, rows: int, batch_s: float) -> bool:
        """Whether batches have been too long for some time, and fewer rows did not help."""
        is_long = batch_s > _LONG * self._target_s and rows <= _AS_MANY * self._last_rows
        self._last_rows = rows
        self._long = self._long + 1 if is_long else 0
        if self._long < _LONG_BATCHES:
            return False
        self._long = 0
        return True

    def _set(self, rows: float) -> None:
        self.rows = max(1, min(int(rows), self._rows_max))
