"""One range at its bolt: what is claimed, what is settled, what is reported.  Pure.

``start <= reported <= settled <= claimed <= stop``, and nothing ever goes back except ``stop``,
which a split may lower, but never below ``claimed``.  So a record is either the bolt's or the
spout's: a batch is claimed before it is begun, and what is claimed is never given away.  What was
read ahead is not claimed.
"""

from __future__ import annotations

import math

from flowctl.core.messages import Processed

# Progress is told this often [s]: ten reports a second and bolt cost the driver less than 1 % of a
# core with a hundred bolts, and a split that follows is late by at most this.
PROGRESS_EVERY_S = 0.1
# … in the mean: so many reports may come early.  What is done and not reported is done again after
# a kill.  A bolt begins with batches of 8, 32 and 128 records, some milliseconds each, and the last
# batch of a block is a short one.
PROGRESS_EARLY = 3


class RangeClaims:
    """The claims of one range.  Not thread-safe: the caller holds the bolt's lock.

    ``stop`` is the end of what is the bolt's by now.
    """

    __slots__ = (
        "_answers", "_did", "_report_at_s", "claimed", "reported", "settled", "start", "stop",
    )  # fmt: skip

    def __init__(self, start: int, stop: int) -> None:
        self.start: int = start
        self.stop: int = stop
        self.claimed: int = start
        self.settled: int = start
        self.reported: int = start
        self._did = Processed()
        self._report_at_s = -math.inf
        self._answers: dict[int, int] = {}

    @property
    def is_finished(self) -> bool:
        """Whether everything that is the bolt's is settled: processed or failed."""
        return self.settled >= self.stop

    def follows(self, now_s: float) -> None:
        """Another range was reported just now: the first progress of this one is not urgent."""
        self._report_at_s = now_s + (1 + PROGRESS_EARLY) * PROGRESS_EVERY_S

    def claim(self, through: int) -> int:
        """Claim what begins below ``through``, as far as it is still the bolt's.

        Returns up to where it is claimed: at most ``through``.
        """
        self.claimed = max(self.claimed, min(through, self.stop))
        return self.claimed

    def split(self, request: int, keep: float) -> int:
        """Give the end of the range back; return where it now ends.

        The bolt keeps the share ``keep`` of what it has not claimed.  The same ``request`` always
        gets the same answer.
        """
        answer = self._answers.get(request)
        if answer is None:
            kept = self.claimed + math.ceil(max(keep, 0.0) * (self.stop - self.claimed))
            answer = self.stop = min(kept, self.stop)
            self._answers[request] = answer
        return answer

    def done(self, did: Processed) -> None:
        """What was claimed is processed."""
        self.settled = self.claimed
        self._did = self._did.plus(did)

    def failed(self) -> None:
        """What was claimed failed, and :meth:`progress` was taken before: it is reported apart."""
        self.settled = self.reported = self.claimed

    def progress(self, now_s: float, *, at_once: bool = False) -> tuple[int, int, Processed] | None:
        """Return what has not been reported, if it is time to or ``at_once``.

        That is from where to where, and what came of it.  None: there is nothing to report.
        """
        is_due = at_once or now_s >= self._report_at_s - PROGRESS_EARLY * PROGRESS_EVERY_S
        if self.reported == self.settled or not is_due:
            return None
        told = (self.reported, self.settled, self._did)
        self.reported = self.settled
        self._did = Processed()
        self._report_at_s = max(self._report_at_s, now_s) + PROGRESS_EVERY_S
        return told
