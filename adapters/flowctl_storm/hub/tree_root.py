"""Roots, their source partitions, and the events of a root."""

from __future__ import annotations

from flowctl.core.events import TupleDeadLettered, TupleDropped, TupleFailed, TupleGaveUp
from flowctl.core.ledger import PartitionLedger
from flowctl.core.records import Record
from flowctl.core.tuples import NEVER_JUDGED


class Part:
    """A source partition while it is read here, with the state that its roots share.

    ``ledger`` counts their acks; it is None if the guarantee counts read records.  ``pending`` is
    the number of roots that are not done.  ``is_gone``: another driver reads the partition, and
    results of its roots do not count here.  If it is assigned again, it becomes another Part with
    another ledger.
    """

    __slots__ = ("is_gone", "ledger", "name", "pending", "spout")

    def __init__(self, name: str, ledger: PartitionLedger | None) -> None:
        self.name: str = name
        self.spout: str = name.partition(":")[0]  # partitions have their spout's name as prefix
        self.ledger: PartitionLedger | None = ledger
        self.pending: int = 0
        self.is_gone: bool = False


class Root:
    """One source record that is not done.

    ``faults`` is the number of its tree's failures, ``judged_at_s`` the time of the last one, and
    ``refusals`` the number of failures that may not be its fault.  ``replays`` is how often it was
    sent again.  ``number`` identifies it in reports, from 1; 0 if it was not reported yet.
    ``failed_at`` are the bolts that failed it, in order.
    """

    __slots__ = (
        "failed_at",
        "faults",
        "judged_at_s",
        "number",
        "part",
        "record",
        "refusals",
        "replays",
        "seq",
    )

    def __init__(self, part: Part, seq: int, record: Record) -> None:
        self.part: Part = part
        self.seq: int = seq
        self.record: Record = record
        self.faults: int = 0
        self.judged_at_s: float = NEVER_JUDGED
        self.refusals: int = 0
        self.replays: int = 0
        self.number: int = 0
        self.failed_at: tuple[str, ...] = ()

    @property
    def partition(self) -> str:
        """The name of its partition, with the spout's name as prefix."""
        return self.part.name

    @property
    def spout(self) -> str:
        """Name of its spout."""
        return self.part.spout

    def note_failed_at(self, bolt: str) -> None:
        """Note a failure at ``bolt``; "" if the root expired or could not be planted."""
        if bolt:
            self.failed_at = (*(each for each in self.failed_at if each != bolt), bolt)


def failed(root: Root, reason: str, *, bolt: str, retry_at_s: float, at_s: float) -> TupleFailed:
    """Return the event of a root that failed at ``bolt``, or expired (""), and is sent again."""
    position = root.record.position
    return TupleFailed(
        at_s=at_s,
        bolt=bolt or root.spout,
        tuple_id=root.number,
        attempt=root.replays,
        partition=root.partition,
        first=position,
        last=position,
        reason=reason,
        retry_at_s=retry_at_s,
    )


def gave_up(root: Root, reason: str, *, at_s: float) -> TupleGaveUp:
    """Return the event of a root whose attempts ran out."""
    position = root.record.position
    return TupleGaveUp(
        at_s=at_s,
        tuple_id=root.number,
        partition=root.partition,
        first=position,
        last=position,
        attempts=root.faults,
        bolts=root.failed_at or (root.spout,),
        reason=reason,
    )


def dead_lettered(root: Root, *, at_s: float) -> TupleDeadLettered:
    """Return the event of a root that is safe in the dead letter store."""
    position = root.record.position
    return TupleDeadLettered(
        at_s=at_s,
        tuple_id=root.number,
        partition=root.partition,
        first=position,
        last=position,
        records=1,
    )


class Drops:
    """Dropped roots to be reported: neighbours with the same reason together.

    A bolt that dies drops thousands at once, too many for a line each.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[Root, Root, str, float]] = []  # first, last, reason, time

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, root: Root, reason: str, at_s: float) -> None:
        """Add ``root``, which failed or expired in a mode without retries."""
        if self._runs:
            first, last, why, since_s = self._runs[-1]
            if last.part is root.part and last.seq + 1 == root.seq and why == reason:
                self._runs[-1] = (first, root, why, since_s)
                return
        self._runs.append((root, root, reason, at_s))

    def take(self) -> list[TupleDropped]:
        """Return the events to report, in order, and start over."""
        runs, self._runs = self._runs, []
        return [
            TupleDropped(
                at_s=at_s,
                bolt=first.spout,
                tuple_id=first.number,
                partition=first.partition,
                first=first.record.position,
                last=last.record.position,
                records=last.seq - first.seq + 1,
                reason=reason,
            )
            for first, last, reason, at_s in runs
        ]
