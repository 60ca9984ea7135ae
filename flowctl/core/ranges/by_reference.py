"""Methods that a core of ranges shares with a core of records by name only."""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.core.driver import PartitionHandover
from flowctl.core.keeping_core import KeepingCore
from flowctl.core.messages import Ack
from flowctl.core.records import AckOutcome, Record
from flowctl.errors import InternalError


class ByReference(KeepingCore):
    """Refuses what is for records by value.  Pure; not thread-safe."""

    def offer(
        self,
        partition: str,
        records: Sequence[Record],
        *,
        now_s: float,
        sizes: Sequence[int] | None = None,
    ) -> int:
        """Not for ranges: see ``offer_extents``."""
        raise InternalError("records were offered to a core of ranges.")

    def set_aside(self, partition: str, record: Record, *, reason: str, now_s: float) -> bool:
        """Not for ranges: nothing is read here."""
        raise InternalError("a record was offered to a core of ranges.")

    @property
    def handover(self) -> PartitionHandover:
        """Not for ranges: their partitions are not shared with other drivers."""
        raise InternalError("partitions of ranges are not handed over.")

    def on_committed(self) -> None:
        """Not needed: nothing has to be saved before it is sent."""

    def on_ack(self, bolt: str, epoch: int, ack: Ack, *, now_s: float) -> AckOutcome:
        """Not for ranges, and so ignored: see ``on_progress``."""
        del bolt, epoch, ack, now_s
        return self._count_unknown()
