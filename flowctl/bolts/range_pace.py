"""How many records make a batch of a range.  Pure."""

from __future__ import annotations

from math import inf
from typing import Final

from flowctl.bolts.range_calls import CallCost
from flowctl.bolts.range_claims import PROGRESS_EVERY_S

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
