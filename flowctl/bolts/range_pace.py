"""How many records make a batch of a range.  Pure."""

from __future__ import annotations

from math import inf, sqrt
from typing import Final

from flowctl.bolts.range_claims import PROGRESS_EVERY_S

# -- What a call of ``process`` costs, whatever its size, as far as that is sure. Pure ---------
#
# Two consecutive batches of different sizes show it: the line through their times reaches zero
# records at the time of a call. Some standard errors are subtracted from the mean over many
# pairs, so records whose costs vary, however much, are not mistaken for calls.


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


# -- How many records make a batch of a range. Pure --------------------------------------------


# A batch should take this long [s]: a kill repeats at most one per slot, and a call, a claim and a
# report cost some 0.1 ms.
TARGET_S: Final = 0.15
# A batch whose end is dear, as each is a file, may take longer: this share of all that its slot has
# done, up to the slot's own limit.  So a kill repeats at most 3 % of what was done, and the batches
# below the limit are 80 to 130 for each slot, however long the job is.
SHARE: Final = 0.03
# Where a call costs more than a tenth of that whatever its size, a batch takes ten calls' time:
# nine tenths of the time are work then, as for tuples by value (core/sizing.py).
DEAR_CALLS: Final = 10
# Nothing is known about a bolt's first batch, and one record may take seconds.
FIRST_RECORDS: Final = 8
# One cheap batch says little about the next.
_GROWTH_MAX: Final = 4
# A batch that takes longer because calls are dear is at most twice the last one: that makes a pair
# of sizes, which tells at once if it is the records after all.
_GROWTH_DEAR_MAX: Final = 2
# Records as dicts take some 1 KB each: a batch stays below 32 MB.
RECORDS_MAX: Final = 1 << 15
# What is left of a block is divided so that no batch is shorter than this share of what is wanted,
# nor longer than twice that: so no two batches end closer together than reports may follow each
# other, and by the time that one ends, the one before it is reported and saved.
_SHARE_LEAST: Final = PROGRESS_EVERY_S / TARGET_S


class BatchPace:
    """Learns what records and calls cost.  For one slot; not thread-safe.

    ``longest_s``: how long a batch should take [s] once much is done; before, it takes less.
    ``records``: how many a batch should have; ``dear_s``: what a call costs [s], where that makes
    batches longer, else 0.
    """

    __slots__ = ("_calls", "_done", "_grows", "_longest_s", "_record_s", "dear_s", "records")

    def __init__(self, longest_s: float = TARGET_S) -> None:
        self._longest_s = longest_s
        self._done = 0
        self._grows = True  # the next batch has fewer records than fit, as little is known
        self.records: int = FIRST_RECORDS
        self.dear_s: float = 0.0
        self._record_s: float | None = None
        self._calls = CallCost(TARGET_S / DEAR_CALLS)

    @property
    def call_s(self) -> float:
        """What a call surely costs [s], whatever its size; 0: nothing that is known."""
        return self._calls.call_s

    @property
    def next_records(self) -> int:
        """How many records the next batch has: now and then far fewer than ``records``.

        What such a batch takes tells what a call costs.  Of single records it has two.
        """
        trial = self._calls.trial
        return self.records if trial is None else trial

    def next_of(self, left: int) -> int:
        """How many of the ``left`` records of a block the next batch takes.

        As :attr:`next_records`, but the end of a block is divided evenly.
        """
        wanted = self.next_records
        if self._grows or wanted != self.records:  # more would take who knows how long; or a trial
            return min(wanted, left)
        if left // 2 < _SHARE_LEAST * wanted and left <= RECORDS_MAX:
            return left  # half of it would be too short
        return min(wanted, (left + 1) // 2)

    def is_next_short(self, left: int) -> bool:
        """Whether the next batch takes less time than reports are apart, but most take more.

        ``left``: how many records of the block are left.
        """
        record_s = self._record_s or 0.0
        usual_s = self.call_s + self.records * record_s
        next_s = self.call_s + (self.next_of(left) if left else self.next_records) * record_s
        return next_s < PROGRESS_EVERY_S and (self._grows or usual_s >= PROGRESS_EVERY_S)

    def is_long_in(self, block: int) -> bool:
        """Whether batches from blocks of so many records take as long as reports are apart.

        Where they can't, nobody can save each of them in time.
        """
        work_s = min(block, RECORDS_MAX) * (self._record_s or inf)
        return self.call_s + work_s >= PROGRESS_EVERY_S

    def took(self, records: int, service_s: float) -> None:
        """A batch of ``records`` took ``service_s`` in ``process``."""
        if records < 1:
            return
        was_small_trial = self._calls.trial is not None and 2 * records < self.records
        self._calls.add(records, service_s)
        self._done += records
        if not was_small_trial:  # so few records tell little of what others cost
            self._learn(records, service_s)

    def _learn(self, records: int, service_s: float) -> None:
        call_s = self.call_s
        # Times vary, and that of a short batch may be below a call's: some of it was its records'.
        record_s = max(service_s - call_s, service_s / DEAR_CALLS) / records
        # The mean of old and new: a change shows within two batches.
        before = self._record_s
        self._record_s = record_s if before is None else (before + record_s) / 2
        # By what they would cost now: the first call may have imported for seconds.
        done_s = self._done * self._record_s
        target_s = min(self._longest_s, max(TARGET_S, SHARE * done_s))
        self.dear_s = call_s if DEAR_CALLS * call_s > target_s else 0.0
        growth = _GROWTH_DEAR_MAX if self.dear_s else _GROWTH_MAX
        work_s = max(target_s, DEAR_CALLS * self.dear_s) - call_s
        wanted = work_s / self._record_s if self._record_s > 0 else RECORDS_MAX
        # A short batch (the end of a block) must not hold back the next one.
        most = max(self.records, records * growth)
        # Not where it was the block that ended: the next one has as few.
        self._grows = wanted > most and records >= _SHARE_LEAST * self.records
        self.records = int(min(max(wanted, 1), most, RECORDS_MAX))
