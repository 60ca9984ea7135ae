"""One range at its bolt: what is claimed, what is settled, what is reported.  Pure.

``start <= reported <= settled <= claimed <= stop``, and nothing ever goes back except ``stop``,
which a split may lower, but never below ``claimed``.  So a record is either the bolt's or the
spout's: a batch is claimed before it is begun, and what is claimed is never given away.  What was
read ahead is not claimed.
"""

from __future__ import annotations

import math

from flowctl.core.messages import Processed

# Progress is reported this often [s] unless there are very many bolts (core/settings.py): ten
# reports a second and bolt cost the driver less than 1 % of a core with a hundred bolts, and a
# split that follows is late by at most this.
PROGRESS_EVERY_S = 0.1
# … on average: this many reports may come early.  Work that is not reported is repeated after a
# kill.  A bolt begins with batches of 8, 32 and 128 records, some milliseconds each, and the last
# batch of a block is short.
PROGRESS_EARLY = 3


class RangeClaims:
    """The claims of one range.  Not thread-safe: the caller holds the bolt's lock.

    ``stop`` is the current end of the bolt's range, ``report_s`` how often it is reported on [s].
    """

    __slots__ = (
        "_answers", "_did", "_report_at_s", "_report_s", "claimed", "reported", "settled", "start",
        "stop",
    )  # fmt: skip

    def __init__(self, start: int, stop: int, report_s: float = PROGRESS_EVERY_S) -> None:
        self.start: int = start
        self.stop: int = stop
        self.claimed: int = start
        self.settled: int = start
        self.reported: int = start
        self._did = Processed()
        self._report_s = report_s
        self._report_at_s = -math.inf
        self._answers: dict[int, int] = {}

    @property
    def is_finished(self) -> bool:
        """Whether all that belongs to the bolt is settled: processed or failed."""
        return self.settled >= self.stop

    def follows(self, now_s: float) -> None:
        """Note that another range was reported just now: the first progress of this one is not
        urgent.
        """
        self._report_at_s = now_s + (1 + PROGRESS_EARLY) * self._report_s

    def claim(self, through: int) -> int:
        """Claim the records that begin below ``through``, as far as they still belong to the bolt.

        Returns the end of the claim, at most ``through``.
        """
        self.claimed = max(self.claimed, min(through, self.stop))
        return self.claimed

    def split(self, request: int, keep: float) -> int:
        """Give back the end of the range; return where it ends now.

        The bolt keeps the share ``keep`` of its unclaimed part.  The same ``request`` always gets
        the same answer.
        """
        answer = self._answers.get(request)
        if answer is None:
            kept = self.claimed + math.ceil(max(keep, 0.0) * (self.stop - self.claimed))
            answer = self.stop = min(kept, self.stop)
            self._answers[request] = answer
        return answer

    def done(self, did: Processed) -> None:
        """Note that the claimed part is processed."""
        self.settled = self.claimed
        self._did = self._did.plus(did)

    def failed(self) -> None:
        """Note that the claimed part failed.

        Call :meth:`progress` before: failures are reported separately.
        """
        self.settled = self.reported = self.claimed

    def progress(self, now_s: float, *, at_once: bool = False) -> tuple[int, int, Processed] | None:
        """Return the progress since the last report, if a report is due or ``at_once``: its start,
        its end and its outcome.

        None: there is nothing to report.
        """
        is_due = at_once or now_s >= self._report_at_s - PROGRESS_EARLY * self._report_s
        if self.reported == self.settled or not is_due:
            return None
        told = (self.reported, self.settled, self._did)
        self.reported = self.settled
        self._did = Processed()
        self._report_at_s = max(self._report_at_s, now_s) + self._report_s
        return told
