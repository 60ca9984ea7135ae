"""What a core counts: each number is defined here, and nowhere else.

What a run counts itself (saves, bytes, rates) is ``RunNumbers`` in ``instrumentation/snapshot.py``.
Snapshots and the report are :class:`Counters` too, so ``--report``, ``/metrics`` and the event
``run_finished`` have every number by the name that it has here.
"""

from __future__ import annotations

from typing import Annotated, get_type_hints

import msgspec


class Numbers(msgspec.Struct):
    """Numbers that are added up; what each of them means is said where it is defined."""

    def add(self, other: Numbers) -> None:
        """Add all numbers of ``other``, which is of the same class."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Return what is said of each number, by its name."""
        hints = get_type_hints(cls, include_extras=True)
        said = {name: getattr(hints[name], "__metadata__", ()) for name in cls.__struct_fields__}
        return {name: words[0] for name, words in said.items() if words}


class Counters(Numbers, kw_only=True, gc=False):
    """Counts of this run, which only rise, except ``*_now``; ``*_s`` are seconds.

    A number is one line here, with what it counts, and one where it is counted.
    """

    tuples_emitted: Annotated[int, "Tuples sent for the first time."] = 0
    tuples_acked: Annotated[int, "Tuples acked, without the records that process rejected."] = 0
    records_acked: Annotated[int, "Records acked by this run."] = 0
    tuples_expired: Annotated[int, "Tuples whose ack did not come in time."] = 0
    tuples_lost: Annotated[int, "Tuples proved lost on the way to a bolt."] = 0
    tuples_moved: Annotated[int, "Tuples sent again, to whichever bolt."] = 0
    tuples_failed: Annotated[int, "Tuples for which process raised."] = 0
    calls_refused: Annotated[
        int, "Tuples that the target refused, as it had no room or was away."
    ] = 0
    tuples_revoked: Annotated[int, "Tuples that a bolt gave back before it had begun them."] = 0
    tuples_hedged: Annotated[int, "Tuples given to a second bolt at the end of the input."] = 0
    acks_late: Annotated[int, "Acks that came after their tuple had expired."] = 0
    acks_duplicate: Annotated[int, "Acks of tuples that were already done."] = 0
    acks_unknown: Annotated[int, "Reports of tuples, or from connections, that do not exist."] = 0
    bolts_lost: Annotated[int, "Connections of bolts that ended before the run did."] = 0
    peers_dropped: Annotated[int, "Connections ended because they broke the protocol."] = 0
    tuples_dead_lettered: Annotated[int, "Tuples given up and kept elsewhere; acked too."] = 0
    records_dead_lettered: Annotated[int, "Records given up and kept elsewhere."] = 0
    records_rejected: Annotated[int, "Records that process rejected, one by one."] = 0
    records_rejected_kept: Annotated[int, "Rejected records that are in the dead letter."] = 0
    records_left_out: Annotated[int, "Records whose effect the sink had already."] = 0
    tuples_dropped: Annotated[int, "Tuples given up in a mode that sends nothing again."] = 0
    records_dropped: Annotated[int, "Records given up in a mode that sends nothing again."] = 0
    tuples_cut: Annotated[int, "Tuples that failed as a whole and went on in pieces."] = 0
    pieces: Annotated[int, "Tuples made of parts of others, or of one record."] = 0
    ranges_split: Annotated[int, "Ranges whose end a bolt gave back; that is a piece."] = 0
    target_down_total_s: Annotated[float, "How long (nearly) nothing succeeded."] = 0.0
    tuples_handed_over: Annotated[
        int, "Tuples whose partition was taken away: another driver does them."
    ] = 0
    records_pending_now: Annotated[int, "Records sent at least once and not acked."] = 0
    max_in_flight_records: Annotated[int, "The most of those at one moment."] = 0

    @property
    def records_lost(self) -> int:
        """Records without their effect: rejected or given up, wherever they are kept."""
        return self.records_rejected + self.records_dead_lettered
