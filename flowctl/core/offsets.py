"""Which offsets of a partition may be committed, where single offsets are emitted and acked.

For whoever tracks records one by one, in a loop of their own.  No run does: it tracks whole tuples
and uses :mod:`flowctl.core.ledger` itself.  Both are the same account: the ledger numbers
densely what is emitted, so offsets that do not exist have no number and are jumped (S99).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Container
from itertools import takewhile

from flowctl.core.ledger import PartitionLedger
from flowctl.core.records import PartitionCheckpoint, Position, Record
from flowctl.errors import InternalError


class Next(enum.Enum):
    """What to do with a record that was read (S102, S104)."""

    EMIT = "emit"
    SKIP_ACKED = "acked and not committed yet"
    SKIP_PENDING = "emitted and waited for"
    WAIT = "failed, and its time has not come"


class OffsetManager:
    """Offsets of one partition that are emitted and not committed (S99–S102).  Not thread-safe.

    ``committed`` is the last offset that is done and committed (None: none yet), *inclusive*; what
    Kafka stores is the one after it.  Offsets may have gaps, and vanish between two readings.
    """

    __slots__ = ("_acked", "_ledger", "_order", "_seqs", "committed", "partition")

    def __init__(self, partition: str, committed: Position | None = None) -> None:
        self.partition: str = partition
        self.committed = committed
        self._ledger = PartitionLedger(partition, PartitionCheckpoint(committed))
        self._seqs: dict[Position, int] = {}  # emitted, not acked; in order, as offsets rise
        self._acked: set[Position] = set()  # acked, not committed
        self._order: deque[Position] = deque()  # emitted, not committed: sorted

    @property
    def uncommitted(self) -> int:
        """Offsets that were emitted and are not committed."""
        return len(self._order)

    def is_pending(self, offset: Position) -> bool:
        """Emitted, not acked; also while it waits to go again."""
        return offset in self._seqs

    def add(self, offset: Position) -> bool:
        """``offset`` is emitted; False if it was before (it goes again).

        Raises :class:`InternalError` at or below the commit: its tuple was reported done (S102).
        """
        self._check_not_committed(offset)
        if offset in self._seqs or offset in self._acked:
            return False
        [(seq, _)] = self._ledger.admit([Record(offset, None)])
        self._seqs[offset] = seq
        self._order.append(offset)
        return True

    def ack(self, offset: Position) -> bool:
        """``offset`` is done; False if it is not known or was done before (S108)."""
        seq = self._seqs.pop(offset, None)
        if seq is None:
            return False
        self._ledger.ack(seq, seq + 1, offset, offset)
        self._acked.add(offset)
        return True

    def next_commit(self) -> Position | None:
        """The last offset up to which all is acked, or None if that is committed (S99)."""
        cumulative = self._ledger.cumulative
        return None if cumulative == self.committed else cumulative

    def commit(self, offset: Position) -> int:
        """Everything up to ``offset`` is committed and forgotten; return how many (S101).

        Raises :class:`InternalError` beyond the first hole.
        """
        done = self._ledger.cumulative
        if done is None or offset > done:  # type: ignore[operator]
            raise InternalError(f"{self.partition}: {offset!r} is committed and not all acked.")
        dropped = 0
        while self._order and self._order[0] <= offset:  # type: ignore[operator]
            self._acked.discard(self._order.popleft())
            dropped += 1
        self.committed = offset
        return dropped

    def decide(self, offset: Position, *, has_failed: bool, is_ready: bool) -> Next:
        """What to do with ``offset``, which was read (again): emit it or not (S102, S104)."""
        if offset in self._acked:
            return Next.SKIP_ACKED
        self._check_not_committed(offset)
        if has_failed:
            return Next.EMIT if is_ready else Next.WAIT
        return Next.SKIP_PENDING if offset in self._seqs else Next.EMIT

    def may_poll(self, uncommitted_max: int, earliest_retriable: Position | None) -> bool:
        """Whether more may be read: below the limit, or for a retry at or below it (S94).

        The limit never starves a retry that is due among the first ``uncommitted_max``.
        """
        if len(self._order) < uncommitted_max:
            return True
        if earliest_retriable is None:
            return False
        return earliest_retriable <= self._order[uncommitted_max - 1]  # type: ignore[operator]

    def vanish(
        self, sought: Position, found: Position, in_flight: Container[Position]
    ) -> list[Position]:
        """Reading from ``sought`` gave ``found`` first: what lies between exists no more (S97).

        What of it waited to go again is acked and returned, for the caller to take it off the
        retry schedule.  What is in flight may still be acked by its bolt.
        """
        gone = [
            offset
            for offset in takewhile(lambda o: o < found, self._seqs)  # type: ignore[operator]
            if not offset < sought and offset not in in_flight  # type: ignore[operator]
        ]
        for offset in gone:
            self.ack(offset)
        return gone

    def _check_not_committed(self, offset: Position) -> None:
        if self.committed is not None and offset <= self.committed:  # type: ignore[operator]
            raise InternalError(
                f"{self.partition}: {offset!r} would be emitted again, though all up to"
                f" {self.committed!r} is committed.",
                remedy="Seek to just after the commit.",
            )
