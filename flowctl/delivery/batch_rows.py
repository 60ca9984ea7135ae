"""How many rows the next batch of a stream should have, so that it takes about as long as wanted.

A batch of n rows takes a + b n seconds: a is Spark's own work, b the target's.  Where a alone is
longer than wanted, no number of rows would do: then rows get a part of the time beside it, instead
of ever smaller batches that take as long.

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
# Two batches tell a from b if their sizes differ by this factor: less is noise of some 10 %.  Where
# sizes change slowly the target may have changed meanwhile, so they must differ more.
_SIZES_APART, _SIZES_FAR_APART = 1.4, 2.0
# Rows get at least this part of a: batches are then at most half as long again as Spark's own work.
_ROWS_PER_FIXED = 0.5
# Of a batch's time, the part of the rows that is still told from none.
_ROWS_SHARE_MIN = 0.01
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
        self._fixed_s = self._row_s = 0.0  # a and b
        self._ceiling = float(rows_max)
        # Rows and seconds of the batch that was measured last, and of the last that told a from b.
        self._last = self._told = (0, 0.0)

    def took(self, rows: int, batch_s: float, *, is_bound: bool = False) -> None:
        """A batch of ``rows`` took ``batch_s`` seconds, or at most that (``is_bound``)."""
        if rows <= 0 or batch_s <= 0:
            return
        if is_bound:
            self._ceiling = min(self._ceiling * _FORGET, self._rows_max)
            wanted = min(_GROWTH * rows, self._ceiling)
            self._set(max(wanted, float(self.rows)) if rows < self.rows else wanted)
            return
        self._split(rows, batch_s)
        row_s = max(batch_s - self._fixed_s, _ROWS_SHARE_MIN * batch_s) / rows
        if row_s > self._row_s or row_s < _CHEAPER_SHARE * self._row_s:
            self._row_s = row_s  # slower, or another regime
        else:
            self._row_s += _GAIN * (row_s - self._row_s)
        rows_s = max(self._target_s - self._fixed_s, _ROWS_PER_FIXED * self._fixed_s)
        wanted = rows_s / self._row_s
        self._ceiling = wanted
        self._set(min(wanted, _GROWTH * rows) if wanted > rows else max(wanted, _SHRINK * rows))

    def _split(self, rows: int, batch_s: float) -> None:
        """Tell a from b, if this batch's size differs enough from another's."""
        last, self._last = self._last, (rows, batch_s)
        if not last[0]:
            self._told = rows, batch_s
        elif _apart(rows, last[0]) >= _SIZES_APART:
            self._draw_line(last)
        elif _apart(rows, self._told[0]) >= _SIZES_FAR_APART:
            self._draw_line(self._told)
        # A batch that was quicker shows at once that a is less.
        self._fixed_s = min(self._fixed_s, batch_s)

    def _draw_line(self, other: tuple[int, float]) -> None:
        """Through the batch measured last and ``other``."""
        (least, least_s), (most, most_s) = sorted((other, self._last))
        row_s = max(0.0, (most_s - least_s) / (most - least))
        self._fixed_s = max(0.0, min(least_s, most_s) - row_s * least)
        self._row_s = 0.0  # what a row costs depends on it
        self._told = self._last

    def _set(self, rows: float) -> None:
        self.rows = max(1, min(int(rows), self._rows_max))


def _apart(rows: int, other: int) -> float:
    return max(rows, other) / min(rows, other)
