"""A root, the partition that it is from, and the events that report what became of it."""

from __future__ import annotations

from flowctl.core.events import TupleDeadLettered, TupleDropped, TupleFailed, TupleGaveUp
from flowctl.core.ledger import PartitionLedger
from flowctl.core.records import Record
from flowctl.core.tuples import NEVER_JUDGED


class Part:
    """A source partition while it is read here: what its roots share.

    ``ledger``: where their acks are counted; None where the guarantee counts what was read.
    ``pending``: its roots that are not done.  ``is_gone``: another driver reads it, and results of
    its roots do not count here.  If it is assigned again it becomes another Part, with another
    ledger.
    """

    __slots__ = ("is_gone", "ledger", "name", "pending", "spout")

    def __init__(self, name: str, ledger: PartitionLedger | None) -> None:
        self.name: str = name
        self.spout: str = name.partition(":")[0]  # partitions carry the name of their spout
        self.ledger: PartitionLedger | None = ledger
        self.pending: int = 0
        self.is_gone: bool = False


class Root:
    """One source record that is not done.

    ``faults``: how often its tree has failed, ``judged_at_s``: when it did last, ``refusals``: how
    often it did beside, perhaps not by its fault.  ``replays``: how often it was sent again.
    ``number`` identifies it in reports, from 1; 0: it was not reported yet.  ``failed_at``: the
    bolts that failed it, the last one last.
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
        """Name of its partition, with that of its spout before it."""
        return self.part.name

    @property
    def spout(self) -> str:
        """Name of its spout."""
        return self.part.spout

    def note_failed_at(self, bolt: str) -> None:
        """It failed at ``bolt``; "": at none, as it expired or could not be planted."""
        if bolt:
            self.failed_at = (*(each for each in self.failed_at if each != bolt), bolt)


def failed(root: Root, reason: str, *, bolt: str, retry_at_s: float, at_s: float) -> TupleFailed:
    """Its tree failed at ``bolt``, or expired (""), and it is sent again."""
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
    """Its attempts ran out."""
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
    """It is safe in the dead letter store."""
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
    """Roots that were dropped and not reported yet: neighbours with one reason are reported
    together.

    A bolt that dies drops thousands at once, and nobody reads that many lines.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[Root, Root, str, float]] = []  # first and last, why, when

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, root: Root, reason: str, at_s: float) -> None:
        """``root`` failed or expired in a mode without retries."""
        if self._runs:
            first, last, why, since_s = self._runs[-1]
            if last.part is root.part and last.seq + 1 == root.seq and why == reason:
                self._runs[-1] = (first, root, why, since_s)
                return
        self._runs.append((root, root, reason, at_s))

    def take(self) -> list[TupleDropped]:
        """Return what to report, in order, and start over."""
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
