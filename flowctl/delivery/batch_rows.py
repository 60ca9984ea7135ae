"""How many rows the next batch of a stream should have, so that it takes about as long as wanted.

A batch of n rows takes a + b n seconds: a is Spark's own work, b the target's.  Where a alone is
longer than wanted, no number of rows would do: then rows get a part of the time beside it, instead
of ever smaller batches that take as long.

Pure.  Only the time from a batch's plan to the next question is known, not when it ended: where a
trigger waits for its tick, that is a bound and no measurement.  Nor is it known how far a batch has
come while it runs, so one that turns out too large ends when it ends.
"""

from __future__ import annotations

from flowctl.delivery.batch_time import BatchTime
from flowctl.delivery.row_trials import RowTrials

# A stream begins with this many rows: a record may take a second.
START_ROWS = 200
# At most so many times as many as before, and so few.  A target that becomes five times slower or
# quicker is met by the third batch after; one wrong guess costs the time of four batches.
_GROWTH, _SHRINK = 4.0, 0.1
# Where nothing was measured, because a trigger waited for its tick: a guess is all there is.
_GUESSED_GROWTH = 2.0
# Rows get at least this part of a: batches are then at most half as long again as Spark's own work.
_ROWS_PER_FIXED = 0.5
# So many batches in a row that took so much longer than wanted, though none had more rows than the
# one before: then it is not the rows that take the time.  By accident that is one batch in 1,000
# if their times differ by 15 %.
_LONG, _LONG_BATCHES = 1.1, 5
# The next one has so many times as many rows, which tells.  Fewer would not be told from noise.
_PROBE = 2.0
# Sizes differ by a twentieth for nothing.
_AS_MANY = 1.05
# What was once too much may be tried again, so much more with each batch that was not measured.
_FORGET = 1.05


class BatchRows:
    """Sizes of the batches of one query.  Not thread-safe.

    ``rows``: of the next batch.  ``rows_max`` bounds it, and so the memory that a batch takes.
    """

    def __init__(self, *, target_s: float, rows: int, rows_max: int) -> None:
        self.rows: int = max(1, min(rows, rows_max))
        self._target_s = target_s
        self._rows_max = rows_max
        self._time: BatchTime | None = None
        self._ceiling = float(rows_max)
        self._last_rows = 0
        self._trials = RowTrials(self.rows)
        self._long = 0  # batches in a row

    def took(self, rows: int, batch_s: float, *, is_bound: bool = False) -> None:
        """A batch of ``rows`` took ``batch_s`` seconds, or at most that (``is_bound``)."""
        if rows <= 0 or batch_s <= 0:
            return
        if is_bound:
            self._ceiling = min(self._ceiling * _FORGET, self._rows_max)
            wanted = min(_GUESSED_GROWTH * rows, self._ceiling)
            self._set(max(wanted, float(self.rows)) if rows < self.rows else wanted)
            return
        if self._time is None:
            self._time = BatchTime(rows, batch_s)
        else:
            self._time.took(rows, batch_s)
        if self._is_long_for_nothing(rows, batch_s):
            self._time.forget_split(rows, batch_s)
            self._ceiling = _PROBE * rows
        else:
            wanted = self._wanted(self._time)
            self._ceiling = self._trials.next_rows(rows, batch_s, wanted, self._time)
        self._set(min(max(self._ceiling, _SHRINK * rows), _GROWTH * rows))

    def _wanted(self, time: BatchTime) -> float:
        rows_s = max(self._target_s - time.fixed_s, _ROWS_PER_FIXED * time.fixed_s)
        return rows_s / time.row_s

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
