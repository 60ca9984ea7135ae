"""How many rows the next batch of a stream should have, so that it takes about as long as wanted.

Pure.  Only the time from a batch's plan to the next question is known, not when it ended: where a
trigger waits for its tick, that is a bound and no measurement.
"""

from __future__ import annotations

# A stream begins with this many rows: a record may take a second.
START_ROWS = 200
# At most twice as many as before: one wrong guess must not cost minutes.
_GROWTH = 2.0
# A target that became slower is answered at once, but one slow batch may be an accident.
_SHRINK = 0.2
# Below this share of what was known a row has become cheaper, and it is believed at once; above, it
# may be noise, and the mean moves by half of it.
_CHEAPER_SHARE = 0.75
_GAIN = 0.5
# So many fewer rows that took nearly as long: the batch itself costs the time, not its rows, and
# still fewer would only make more batches; more are tried, until they cost something.
_FEWER_SHARE, _AS_LONG_SHARE = 0.7, 0.7
# The same, step by step: each batch is a little smaller and takes as long.  A target that becomes
# slower looks alike, so only as many are tried again as there were.
_FEWER_BY_STEPS = 0.5
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
        self._row_s = 0.0
        self._ceiling = float(rows_max)
        self._last = (0, 0.0)  # rows and seconds of the batch that was measured last
        self._most = (0, 0.0)  # of the largest since fewer rows last took less time

    def took(self, rows: int, batch_s: float, *, is_bound: bool = False) -> None:
        """A batch of ``rows`` took ``batch_s`` seconds, or at most that (``is_bound``)."""
        if rows <= 0 or batch_s <= 0:
            return
        if is_bound:
            self._ceiling = min(self._ceiling * _FORGET, self._rows_max)
            wanted = min(_GROWTH * rows, self._ceiling)
            self._set(max(wanted, float(self.rows)) if rows < self.rows else wanted)
            return
        (last_rows, last_s), self._last = self._last, (rows, batch_s)
        if rows < _FEWER_SHARE * last_rows and batch_s > _AS_LONG_SHARE * last_s:
            self._try_again(_GROWTH * last_rows)
            return
        if self._shrank_for_nothing(rows, batch_s):
            self._try_again(self._most[0])
            return
        row_s = batch_s / rows
        if row_s > self._row_s or row_s < _CHEAPER_SHARE * self._row_s:
            self._row_s = row_s  # slower, or another regime
        else:
            self._row_s += _GAIN * (row_s - self._row_s)
        wanted = self._target_s / self._row_s
        self._ceiling = wanted
        self._set(min(wanted, _GROWTH * rows) if wanted > rows else max(wanted, _SHRINK * rows))

    def _shrank_for_nothing(self, rows: int, batch_s: float) -> bool:
        """Whether this batch is the last of several, each smaller, that took as long."""
        most_rows, most_s = self._most
        if rows >= most_rows or batch_s < _AS_LONG_SHARE * most_s:
            self._most = rows, batch_s
            return False
        return rows < _FEWER_BY_STEPS * most_rows

    def _try_again(self, rows: float) -> None:
        """Forget what a row costs, and try ``rows``."""
        self._row_s, self._most = 0.0, (0, 0.0)
        self._set(rows)

    def _set(self, rows: float) -> None:
        self.rows = max(1, min(int(rows), self._rows_max))
