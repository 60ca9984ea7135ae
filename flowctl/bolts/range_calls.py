"""What a call of ``process`` costs, whatever its size, as far as that is sure.  Pure.

Two consecutive batches of different sizes show it: the line through their times reaches zero
records at the time of a call.  Some standard errors are subtracted from the mean over many pairs,
so records whose costs vary, however much, are not mistaken for calls.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Final

# Sizes that differ by this or more are a pair.  Single records can only be told from two.
_PAIR_RATIO: Final = 2
# Sizes that differ by less than this are alike, and their mean is one side of a pair.  In between
# they are neither: what they were in the mean would depend on what each of them took.
_ALIKE_RATIO: Final = 1.5
# So many batches make the mean: the costs of records drift, so the last ones count.
_ALIKE_MAX: Final = 4
# The last twenty pairs decide, or all while there are fewer.
_MEMORY: Final = 20
# The standard error itself is known by a few pairs only.  Of 1,000 runs of 300 records each, whose
# costs vary three times as much as their mean, 29 got a batch of more than four records with three
# errors, nine with three and a half.  More would hide calls whose times vary by a fifth.
_ERRORS: Final = 3.5
# A pair weighs as much as the share of the larger batch that the smaller one lacks, squared: of
# single records and twos a quarter.  At least four such pairs tell anything.
_WEIGHT_MIN: Final = 1.0
# A few pairs may agree by chance: as if two more had shown that they are off by a fifth.
_NOISE: Final = 0.2**2
_NOISE_PAIRS: Final = 2
# A trial has a sixteenth of the records, so its time is nearly a call's where those are dear, and
# it costs next to nothing where they are not.
_TRIAL_PART: Final = 16
# The more is known the rarer are trials: after as many batches as pairs are remembered.
_TRIAL_AFTER_MIN: Final = 2
# Where one of late was so short that calls can't be dear, a trial tells nothing new, but costs a
# save: then one each half a minute.  Calls that become dear make batches longer, and so smaller,
# which tells by itself.
_TRIAL_AFTER_CHEAP: Final = 200


class CallCost:
    """Learns the cost of a call from the sizes and times of batches.  Not thread-safe.

    ``cheap_s``: what costs less [s] makes no difference to anybody.  ``call_s``: what a call surely
    costs [s]; 0: nothing that is sure.
    """

    __slots__ = (
        "_alike", "_began", "_cheap_s", "_least_s", "_mean_records", "_mean_s", "_pairs", "_spread",
        "_weight", "_weights", "_whole_s", "call_s",
    )  # fmt: skip

    def __init__(self, cheap_s: float) -> None:
        self.call_s: float = 0.0
        self._cheap_s = cheap_s
        self._least_s = inf  # of the last pair, and since
        self._began = False
        self._alike = 0  # batches of like sizes since the last pair, and their means
        self._mean_records = self._mean_s = 0.0
        # Sums over pairs, older ones decayed: how many, weights, their squares, squared deviations.
        self._pairs = self._weight = self._weights = self._spread = 0.0
        self._whole_s = 0.0  # the weighted mean of what pairs tell of a call

    @property
    def trial(self) -> int | None:
        """How many records the next batch should have to make a pair; None: as many as before."""
        is_cheap = self._least_s < self._cheap_s
        after = _TRIAL_AFTER_CHEAP if is_cheap else max(_TRIAL_AFTER_MIN, self._pairs)
        if self._alike < after:
            return None
        if self._mean_records < _PAIR_RATIO:
            return _PAIR_RATIO  # at most twice what it would have
        return max(1, int(self._mean_records / _TRIAL_PART))

    def add(self, records: int, service_s: float) -> None:
        """A batch of ``records`` (at least one) took ``service_s``."""
        self._least_s = min(self._least_s, service_s)
        if not self._began:
            self._began = True  # the first call may import, or connect
            return
        least, most = sorted((float(records), self._mean_records))
        if self._alike and most >= _PAIR_RATIO * least:
            self._pair(records, service_s)
            self._alike = 0  # each batch is in one pair, so that pairs don't share their noise
            return
        if most >= _ALIKE_RATIO * least:
            self._alike = 0
        self._alike += 1
        gain = 1 / min(self._alike, _ALIKE_MAX)
        self._mean_records += gain * (records - self._mean_records)
        self._mean_s += gain * (service_s - self._mean_s)

    def _pair(self, records: int, service_s: float) -> None:
        before, before_s = self._mean_records, self._mean_s
        self._least_s = min(service_s, before_s)
        call_s = (records * before_s - before * service_s) / (records - before)
        weight = (1 - min(records, before) / max(records, before)) ** 2
        kept = 1 - 1 / _MEMORY
        self._pairs = kept * self._pairs + 1
        self._weight = kept * self._weight + weight
        self._weights = kept * kept * self._weights + weight * weight
        off_s = call_s - self._whole_s
        self._whole_s += off_s * weight / self._weight
        self._spread = kept * self._spread + weight * off_s * (call_s - self._whole_s)
        # No call costs more than all of a batch: so one that becomes cheap is seen by one trial.
        self.call_s = min(self._sure_s(), service_s, before_s)

    def _sure_s(self) -> float:
        if self._weight < _WEIGHT_MIN:
            return 0.0
        pairs = self._weight**2 / self._weights  # as many of equal weight are as good
        noise = _NOISE * self._whole_s**2
        off = (_NOISE_PAIRS * noise + pairs * self._spread / self._weight) / (_NOISE_PAIRS + pairs)
        return max(0.0, self._whole_s - _ERRORS * sqrt(off / pairs))
