"""How many records make a batch of a range.  Pure."""

from __future__ import annotations

from math import inf
from typing import Final

from flowctl.bolts.range_claims import PROGRESS_EVERY_S
from flowctl.core.cost import CallCost

# -- When the next batch has another size, to tell what a call costs ---------------------------
#
# Most sizes follow costs: a batch has as many records as take .15 s. Through those, any change of
# costs looks like a call that takes .15 s. So now and then one has far fewer.


# Sizes that differ by this factor or more show what calls and what records cost.  Single records
# can only be compared with two.
_APART_RATIO: Final = 2
# A trial has a sixteenth of the records, so its time is nearly that of an empty call if calls are
# expensive, and next to nothing if they are not.
_TRIAL_PART: Final = 16
# The more is known, the rarer are trials: each follows after as many batches as the last two sizes
# were apart, from two to twenty.
_TRIAL_AFTER_MIN: Final = 2
_TRIAL_AFTER_MAX: Final = 20
# If a recent batch was so short that calls can't be expensive, a trial shows nothing new, but costs
# a save: then one each half a minute.  If calls become expensive, batches take longer, and so get
# smaller, which shows it anyway.
_TRIAL_AFTER_CHEAP: Final = 200
# The last four batches of about the same size make the mean size.
_ALIKE_MAX: Final = 4


class Trials:
    """Decides when a batch gets another size, to show what a call costs.

    Not thread-safe.  ``cheap_s``: a call that costs less than this [s] makes no difference.
    """

    __slots__ = ("_alike", "_apart", "_cheap_s", "_least_s", "_mean_records")

    def __init__(self, cheap_s: float) -> None:
        self._cheap_s = cheap_s
        self._least_s = inf  # shortest time since the last batch of another size
        self._alike = 0  # batches since then, of like size
        self._mean_records = 0.0  # mean size of those
        self._apart = 0  # batches of another size so far

    @property
    def next(self) -> int | None:
        """How many records the next batch should have for a trial; None: as many as before."""
        is_cheap = self._least_s < self._cheap_s
        known = max(_TRIAL_AFTER_MIN, min(self._apart, _TRIAL_AFTER_MAX))
        if self._alike < (_TRIAL_AFTER_CHEAP if is_cheap else known):
            return None
        if self._mean_records < _APART_RATIO:
            return _APART_RATIO  # at most twice what it would have
        return max(1, int(self._mean_records / _TRIAL_PART))

    def took(self, records: int, service_s: float) -> None:
        """Note that a batch of ``records`` took ``service_s``."""
        least, most = sorted((float(records), self._mean_records))
        if self._alike and most >= _APART_RATIO * least:
            self._apart += 1
            self._alike = 0
            self._least_s = service_s
            return
        self._least_s = min(self._least_s, service_s)
        self._alike += 1
        gain = 1 / min(self._alike, _ALIKE_MAX)
        self._mean_records += gain * (records - self._mean_records)


# -- How many records make a batch of a range. Pure --------------------------------------------


# A batch should take this long [s]: a kill repeats at most one per slot, and a call, a claim and a
# report cost some 0.1 ms.
TARGET_S: Final = 0.15
# A batch with an expensive end, because each is a file, may take longer: this share of all that its
# slot has done, up to the slot's own limit.  So a kill repeats at most 3 % of the work, and the
# batches below the limit are 80 to 130 for each slot, however long the job is.
SHARE: Final = 0.03
# If a call costs more than a tenth of that whatever its size, a batch takes ten calls' time: nine
# tenths of the time are then work, as for tuples by value (core/sizing.py).
DEAR_CALLS: Final = 10
# The cost of a call depends on the target, and changes by this share from batch to batch.
_CALL_DRIFT: Final = 0.01
# The weight of the earlier estimate of a record's cost: a change shows within two batches.
_KEPT: Final = 0.2
# Records of a bolt's first batch: nothing is known yet, and one record may take seconds.
FIRST_RECORDS: Final = 8
# A batch is at most this many times the last one: one cheap batch says little about the next.
_GROWTH_MAX: Final = 4
# A batch that takes longer because calls are expensive is at most twice the last one: that makes a
# pair of sizes, which shows at once if it is the records after all.
_GROWTH_DEAR_MAX: Final = 2
# A size this close below a whole number of records counts as that number.
_NEARLY: Final = 0.05
# Records as dicts take some 1 KB each: a batch stays below 32 MB.
RECORDS_MAX: Final = 1 << 15
# The rest of a block is divided so that no batch is shorter than this share of the wanted size, nor
# longer than twice that: so no two batches end closer together than reports may follow each other,
# and when one ends, the one before it is reported and saved.
_SHARE_LEAST: Final = PROGRESS_EVERY_S / TARGET_S


class BatchPace:
    """Learns what records and calls cost.  For one slot; not thread-safe.

    ``longest_s``: how long a batch should take [s] once much is done; before that, it takes less.
    ``records``: how many records a batch should have; ``call_s``: what a call costs at least [s],
    whatever its size; ``dear_s``: the same if it makes batches longer, else 0.
    """

    __slots__ = (
        "_batches", "_cost", "_done", "_grows", "_longest_s", "_record_s", "_trials", "call_s",
        "dear_s", "records",
    )  # fmt: skip

    def __init__(self, longest_s: float = TARGET_S) -> None:
        self._longest_s = longest_s
        self._done = 0
        self._grows = True  # the next batch has fewer records than fit, as little is known
        self.records: int = FIRST_RECORDS
        self.call_s: float = 0.0
        self.dear_s: float = 0.0
        self._record_s: float | None = None
        self._batches = 0
        self._cost: CallCost | None = None
        self._trials = Trials(TARGET_S / DEAR_CALLS)

    @property
    def next_records(self) -> int:
        """How many records the next batch has: now and then far fewer than ``records``.

        The time of such a batch shows what a call costs.  If batches are single records, it has
        two.
        """
        trial = self._trials.next
        return self.records if trial is None else trial

    def next_of(self, left: int) -> int:
        """Return how many of the ``left`` records of a block the next batch takes.

        Like :attr:`next_records`, but the end of a block is divided evenly.
        """
        wanted = self.next_records
        if self._grows or wanted != self.records:  # a trial, or an unknown time for more
            return min(wanted, left)
        if left // 2 < _SHARE_LEAST * wanted and left <= RECORDS_MAX:
            return left  # half of it would be too short
        return min(wanted, (left + 1) // 2)

    def is_next_short(self, left: int) -> bool:
        """Whether the next batch takes less time than the interval of reports, but most take more.

        ``left``: how many records of the block are left.
        """
        record_s = self._record_s or 0.0
        usual_s = self.call_s + self.records * record_s
        next_s = self.call_s + (self.next_of(left) if left else self.next_records) * record_s
        return next_s < PROGRESS_EVERY_S and (self._grows or usual_s >= PROGRESS_EVERY_S)

    def is_long_in(self, block: int) -> bool:
        """Whether batches from blocks of this many records take at least the interval of reports.

        If not, it is impossible to save each of them in time.
        """
        work_s = min(block, RECORDS_MAX) * (self._record_s or inf)
        return self.call_s + work_s >= PROGRESS_EVERY_S

    def took(self, records: int, service_s: float) -> None:
        """Note that a batch of ``records`` took ``service_s`` in ``process``."""
        if records < 1:
            return
        was_small_trial = self._trials.next is not None and 2 * records < self.records
        self._done += records
        self._learn(records, service_s)
        if not was_small_trial:  # so few records say little about the cost of others
            self._resize(records)

    def _learn(self, records: int, service_s: float) -> None:
        self._batches += 1
        if self._batches > 1:
            self._trials.took(records, service_s)
        if self._cost is None or self._batches == 2:  # the first call may import, or connect
            self._cost = CallCost(records, service_s, drift=_CALL_DRIFT)
        else:
            self._cost.took(records, service_s)
        self.call_s = self._cost.sure_call_s

    def _resize(self, records: int) -> None:
        assert self._cost is not None
        record_s = self._cost.most_record_s(records)
        before = self._record_s
        self._record_s = record_s if before is None else record_s + _KEPT * (before - record_s)
        # By their cost at the current rate: the first call may have imported for seconds.
        done_s = self._done * self._record_s
        target_s = min(self._longest_s, max(TARGET_S, SHARE * done_s))
        self.dear_s = self.call_s if DEAR_CALLS * self.call_s > target_s else 0.0
        growth = _GROWTH_DEAR_MAX if self.dear_s else _GROWTH_MAX
        work_s = max(target_s, DEAR_CALLS * self.dear_s) - self.call_s
        wanted = work_s / self._record_s if self._record_s > 0 else RECORDS_MAX
        # A short batch (the end of a block) must not hold back the next one.
        most = max(self.records, records * growth)
        # Not if the block ended: the next batch has as few.
        self._grows = wanted > most and records >= _SHARE_LEAST * self.records
        self.records = int(min(max(wanted + _NEARLY, 1), most, RECORDS_MAX))
