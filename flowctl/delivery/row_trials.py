"""Whether rows are what takes the time of a small batch: now and then one has twice as many.

Batches that take the time wanted do not tell what takes it.  Where Spark's own work alone is as
long as a batch should take, one row looks as good as 400, and every batch that takes longer by
chance makes the next one smaller.  In a model with 2 s of Spark's in the 2 s wanted, ± 15 %, such a
stream went on with one row a batch for ever.

Pure.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from flowctl.delivery.batch_time import BatchTime

# After so many batches; if the rows did take the time, after twice as many, up to 160: then one
# batch in 160 takes twice as long as wanted.  Less often where batches are not small.
_EVERY, _EVERY_LARGE, _EVERY_MOST = 30, 60, 160
# A query that begins with few rows was started again: it may have been like this for long.
_FIRST = 8
_TIMES: Final = 2.0
# The first batch has as many by default.
_SMALL_ROWS = 200
# A stream that has grown so much by itself knows that rows are cheap.
_GROWN = 10
# Twice as many rows, in less than this of the usual time: the rows are not what takes it.  More
# than half way between once and twice, as the next trial, with four times as many, corrects it.
_SAME = 1.8
_USUAL_OF = 5  # batches: their median
# Half as many as were shown to take no longer are the fewest, until a batch of so few takes so many
# times as long: the target changed.  The proof gets old by a fiftieth with each batch.
_KEPT, _UNTIL, _AGES = 0.5, 3.0, 0.98


class RowTrials:
    """Sizes of batches that tell whether rows count; most of the time those that are wanted.

    Not thread-safe.
    """

    def __init__(self, rows: int) -> None:
        """``rows``: of the first batch."""
        self._recent_s: deque[float] = deque(maxlen=_USUAL_OF)
        first = _EVERY if rows >= _SMALL_ROWS else _FIRST
        self._every = {True: first, False: _EVERY_LARGE}  # by whether they are small
        self._since = 0
        self._rows_most = max(_SMALL_ROWS, _GROWN * rows)
        self._usual: tuple[int, float] | None = None  # rows and time before the trial that runs
        self._fewest, self._fewest_s = 1.0, 0.0

    def next_rows(self, rows: int, batch_s: float, wanted: float, time: BatchTime) -> float:
        """Return how many rows the next batch should have.

        The last one had ``rows`` and took ``batch_s`` seconds; ``time``, to which a trial tells
        what it shows, would take ``wanted``.
        """
        if self._usual is not None:
            return self._tried(rows, batch_s, wanted, time)
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

    def _tried(self, rows: int, batch_s: float, wanted: float, time: BatchTime) -> float:
        """A trial ran; while more rows take no longer, the next one has twice as many again."""
        assert self._usual is not None
        before, usual_s = self._usual
        if rows > before and batch_s < _SAME * usual_s:
            self._every = {True: _EVERY, False: _EVERY_LARGE}
            self._fewest, self._fewest_s = _KEPT * rows, usual_s
            time.learn_split(rows, usual_s, 0.0)
            return _TIMES * rows
        if rows > _TIMES * before:
            time.learn_split(rows, batch_s, (batch_s - usual_s) / (rows - before))
            wanted = rows / _TIMES
        else:
            is_small = before <= _SMALL_ROWS
            self._every[is_small] = min(2 * self._every[is_small], _EVERY_MOST)
        self._usual, self._since = None, 0
        self._recent_s.clear()
        return wanted
