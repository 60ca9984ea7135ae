"""How many records make a batch of a range.  Pure."""

from __future__ import annotations

from typing import Final

# A batch should take this long [s]: a kill repeats at most one per slot, and a call, a claim and a
# report cost some 0.1 ms.
TARGET_S: Final = 0.15
# Nothing is known about a bolt's first batch, and one record may take seconds.
FIRST_RECORDS: Final = 8
# One cheap batch says little about the next.
_GROWTH_MAX: Final = 4
# Records as dicts take some 1 KB each: a batch stays below 32 MB.
RECORDS_MAX: Final = 1 << 15


class Pace:
    """Learns what records cost.  For one slot; not thread-safe.

    ``target_s``: how long a batch should take [s].
    """

    __slots__ = ("_record_s", "_target_s", "records")

    def __init__(self, target_s: float = TARGET_S) -> None:
        self._target_s = target_s
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
        wanted = self._target_s / self._record_s if self._record_s > 0 else RECORDS_MAX
        # A short batch (the end of a block) must not hold back the next one.
        most = max(self.records, records * _GROWTH_MAX)
        self.records = int(min(max(wanted, 1), most, RECORDS_MAX))
