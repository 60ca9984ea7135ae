"""How many records make a batch of a range.  Pure."""

from __future__ import annotations

from typing import Final

# A batch should take this long [s]: a kill repeats at most one per slot, and a call, a claim and a
# report cost some 0.1 ms.
TARGET_S: Final = 0.15
# A batch whose end is dear, as each is a file, may take longer: this share of all that its slot has
# done, up to the slot's own limit.  So a kill repeats at most 3 % of what was done, and the batches
# below the limit are 80 to 130 for each slot, however long the job is.
SHARE: Final = 0.03
# Nothing is known about a bolt's first batch, and one record may take seconds.
FIRST_RECORDS: Final = 8
# One cheap batch says little about the next.
_GROWTH_MAX: Final = 4
# Records as dicts take some 1 KB each: a batch stays below 32 MB.
RECORDS_MAX: Final = 1 << 15


class Pace:
    """Learns what records cost.  For one slot; not thread-safe.

    ``longest_s``: how long a batch should take [s] once much is done; before, it takes less.
    """

    __slots__ = ("_done", "_longest_s", "_record_s", "records")

    def __init__(self, longest_s: float = TARGET_S) -> None:
        self._longest_s = longest_s
        self._done = 0
        self.records: int = FIRST_RECORDS
        self._record_s: float | None = None

    def took(self, records: int, service_s: float) -> None:
        """A batch of ``records`` took ``service_s`` in ``process``."""
        if records < 1:
            return
        record_s = service_s / records
        # The mean of old and new: a change shows within two batches.
        before = self._record_s
        self._record_s = record_s if before is None else (before + record_s) / 2
        self._done += records
        # By what they would cost now: the first call may have imported for seconds.
        done_s = self._done * self._record_s
        target_s = min(self._longest_s, max(TARGET_S, SHARE * done_s))
        wanted = target_s / self._record_s if self._record_s > 0 else RECORDS_MAX
        # A short batch (the end of a block) must not hold back the next one.
        most = max(self.records, records * _GROWTH_MAX)
        self.records = int(min(max(wanted, 1), most, RECORDS_MAX))
