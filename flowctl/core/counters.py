"""What happened in a run, in numbers."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct, gc=False):
    """Counts of this run, which only rise, except ``*_now``.  Tuples unless named records."""

    emitted: int = 0
    acked: int = 0
    records_acked: int = 0
    expired: int = 0
    lost: int = 0  # proved lost on the way to a bolt
    moved: int = 0  # sent again, to whichever bolt
    failed: int = 0
    refused: int = 0  # the target had no room or was away; no attempt counted
    revoked: int = 0
    hedged: int = 0
    late: int = 0
    duplicate: int = 0
    unknown: int = 0
    bolts_lost: int = 0
    peers_dropped: int = 0  # connections that were ended because they broke the protocol
    dead_lettered: int = 0  # given up and kept elsewhere; counted as acked too
    records_dead_lettered: int = 0
    records_rejected: int = 0  # by process, one by one; acked too
    rejected_kept: int = 0  # of these, in the dead letter; each was a tuple, counted as acked
    records_left_out: int = 0  # acked; the sink had their effect from an earlier attempt or run
    dropped: int = 0  # failed, expired or lost in a mode that sends nothing again
    records_dropped: int = 0
    cut: int = 0  # failed as a whole, and went on in pieces
    pieces: int = 0  # that were made of those; tuples of their own
    splits: int = 0  # ranges whose end a bolt gave back; that is a piece
    target_down_s: float = 0.0  # how long (nearly) nothing succeeded, stretches that are over
    handed_over: int = 0  # their partition was taken away; another driver does them
    records_pending_now: int = 0  # sent at least once, not acked
    records_pending_max: int = 0

    @property
    def tuples_acked(self) -> int:
        """How many tuples are done that a bolt was sent: no single record that was rejected."""
        return self.acked - self.rejected_kept
