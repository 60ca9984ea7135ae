"""How long a batch of n rows takes: a + b n seconds, learned from batches whose times are noisy.

a is Spark's own work, b the target's.  A line through two batches would tell them apart only if
nothing but the size had changed: with a noise of 10 %, sizes that differ by half give an a that is
wrong by half of the batch.  So all batches count, each as much as it can tell (a Kalman filter of
two states), and a jump is taken for the target's, as Spark's own work seldom jumps.

Pure.
"""

from __future__ import annotations

import math

# A batch that repeats exactly takes so much more or less time.  Measured on busy machines: 10 to
# 25 %.  With a larger number, changes of the target are taken for noise longer.
_NOISE = 0.15
# From batch to batch a and b drift by so much: a belongs to the machine, b to the target and to the
# records, whose cost is uneven.
_FIXED_DRIFT, _ROW_DRIFT = 0.02, 0.1
# A batch that is so many standard deviations from what was expected shows that the target changed.
# One in 20 does so by accident, and the batch after it corrects that.
_SURPRISE = 2.0
# What a row costs may then be anything from nothing to so many times what this batch says.
_JUMP = 2.0
# Of a batch's time, the part of the rows that is still told from none.
_ROWS_SHARE_MIN = 0.01
# Spark's own work where the machine is not busy, before anything is known.
_USUAL_S = 0.5
# Before anything is told apart, half of a batch is Spark's, and half its rows', each give or take
# all of it.
_HALF = 0.5
# What a trial shows (:mod:`flowctl.delivery.row_trials`) is as good as the noise allows.
_SHOWN = 0.15


class BatchTime:
    """What batches of one query take, ``fixed_s`` and ``row_s`` for each row.

    Begins with one batch of ``rows`` that took ``batch_s``.  Not thread-safe.
    """

    def __init__(self, rows: int, batch_s: float) -> None:
        self.fixed_s = min(_HALF * batch_s, _USUAL_S)
        self.row_s = (batch_s - self.fixed_s) / rows
        # Variances and covariance of the two.
        self._fixed_var = self._row_var = self._both_var = 0.0
        self._has_jumped = False  # with the last batch
        self._is_split_unknown = False
        self.forget_split(rows, batch_s)
        self._is_split_unknown = False

    def of(self, rows: float) -> float:
        """Return how long a batch of ``rows`` should take, in seconds."""
        return self.fixed_s + self.row_s * rows

    def forget_split(self, rows: int, batch_s: float) -> None:
        """Only the sum is known, for batches of ``rows``: the next one tells a from b."""
        self._doubt(rows, _HALF * batch_s)

    def learn_split(self, rows: int, batch_s: float, row_s: float) -> None:
        """A trial showed: batches of ``rows`` take ``batch_s``, and a row ``row_s`` of it."""
        self.row_s = max(row_s, _ROWS_SHARE_MIN * batch_s / rows)
        self.fixed_s = batch_s - self.row_s * rows
        self._doubt(rows, _SHOWN * batch_s)

    def _doubt(self, rows: int, split_s: float) -> None:
        """The sum is known for batches of ``rows``, the parts give or take ``split_s``."""
        self._fixed_var = split_s**2
        self._both_var = -self._fixed_var / rows
        self._row_var = self._fixed_var / rows**2
        self._has_jumped = False
        self._is_split_unknown = True

    def took(self, rows: int, batch_s: float) -> None:
        """A batch of ``rows`` took ``batch_s`` seconds."""
        wrong_s = batch_s - self.of(rows)
        noise_var = (_NOISE * max(batch_s, self.of(rows))) ** 2
        self._fixed_var += (_FIXED_DRIFT * self.fixed_s) ** 2
        self._row_var += (_ROW_DRIFT * self.row_s) ** 2
        self._admit_a_jump(rows, batch_s, noise_var)
        fixed_gain = self._fixed_var + rows * self._both_var
        row_gain = self._both_var + rows * self._row_var
        var = fixed_gain + rows * row_gain + noise_var
        self.fixed_s += fixed_gain / var * wrong_s
        self.row_s += row_gain / var * wrong_s
        self._fixed_var -= fixed_gain**2 / var
        self._both_var -= fixed_gain * row_gain / var
        self._row_var -= row_gain**2 / var
        self._bound(rows, batch_s)

    def _admit_a_jump(self, rows: int, batch_s: float, noise_var: float) -> None:
        """If this batch is a surprise, a row costs something else now.

        The target changed in the middle of that batch, so it counts as little as those before: the
        batch after it is believed as well.
        """
        var = self._fixed_var + 2 * rows * self._both_var + rows**2 * self._row_var + noise_var
        is_surprise = abs(batch_s - self.of(rows)) > _SURPRISE * math.sqrt(var)
        is_surprise = is_surprise and not self._is_split_unknown
        self._is_split_unknown = False
        if is_surprise or self._has_jumped:
            row_s = max(self.row_s, abs(batch_s - self.fixed_s) / rows)
            self._row_var += (_JUMP * row_s) ** 2
        self._has_jumped = is_surprise and not self._has_jumped

    def _bound(self, rows: int, batch_s: float) -> None:
        """Neither is negative, and a is not more than this batch took."""
        if self.fixed_s < 0:
            self.row_s += self.fixed_s / rows
            self.fixed_s = 0.0
        self.fixed_s = min(self.fixed_s, batch_s)
        self.row_s = max(self.row_s, _ROWS_SHARE_MIN * batch_s / rows)
