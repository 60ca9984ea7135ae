"""SpoutCore: the core of a run with one stage: a :class:`TupleCore` with a source and a checkpoint.

Which calls there are, and in which order: :mod:`flowctl.core.driver`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from flowctl.core.book import Book
from flowctl.core.events import FlowEvent, RecordsRejected
from flowctl.core.failures import Failures, Keeper
from flowctl.core.handover import Handover, TuplesUnderWay
from flowctl.core.intake import Intake
from flowctl.core.records import Checkpoint, Record
from flowctl.core.settings import CoreSettings
from flowctl.core.tuple_core import KeepingCore
from flowctl.core.tuples import FlowTuple

# -- Records that can't be sent to any bolt: they go to the dead letter and hold nothing up ----


class Aside:
    """Rejects records that cannot be sent.  Part of ``SpoutCore``, not thread-safe."""

    def __init__(self, book: Book, intake: Intake, failures: Failures) -> None:
        self._book = book
        self._intake = intake
        self._failures = failures

    def take(self, partition: str, record: Record, reason: str, now_s: float) -> bool:
        """Number ``record`` like one that was read, and reject it as ``process`` could have.

        False: there is no room for it now.
        """
        book, buffer = self._book, self._intake.buffer
        before = buffer.records
        if not self._intake.offer(partition, [record], now_s, [0]):
            return False
        if buffer.records == before:
            return True  # an earlier run was done with it
        flow_tuple = FlowTuple(book.ids.next(), buffer.take_last())
        book.pending[flow_tuple.tuple_id] = flow_tuple
        book.counters.pieces += 1
        book.counters.records_pending_now += 1
        book.counters.records_rejected += 1
        book.events.append(
            RecordsRejected(
                at_s=now_s,
                tuple_id=flow_tuple.tuple_id,
                bolt="",
                partition=partition,
                positions=(record.position,),
                reasons=(reason,),
            )
        )
        self._failures.reject(flow_tuple, reason, now_s)
        return True


# -- SpoutCore ---------------------------------------------------------------------------------


class SpoutCore(KeepingCore):
    """Decides which tuple goes to which bolt when, and what is done.  Pure; not thread-safe."""

    def __init__(
        self,
        settings: CoreSettings | None = None,
        *,
        checkpoint: Checkpoint | None = None,
        has_dead_letter: bool = False,
        chance: Callable[[], float] | None = None,
    ) -> None:
        """``has_dead_letter``: the driver keeps what ``poll_dead_letter`` gives.

        ``chance`` gives numbers from 0 to 1 for the jitter of back-offs; None: none.
        """
        settings = settings or CoreSettings()
        events: deque[FlowEvent] = deque()
        guarantee = settings.guarantee.processing
        self.intake: Intake = Intake(settings.buffer, checkpoint or Checkpoint(), events, guarantee)
        keeper = Keeper.DEAD_LETTER if has_dead_letter else Keeper.NOBODY
        super().__init__(settings, self.intake, keeper=keeper, chance=chance, events=events)
        self._failures.done_before = checkpoint.records if checkpoint is not None else 0
        under_way = TuplesUnderWay(self.book, self._failures)
        self.handover: Handover = Handover(self.intake, under_way, events)
        self._aside = Aside(self.book, self.intake, self._failures)

    def expect_bolts(self, count: int) -> None:
        """Announce that ``count`` bolts in all will connect: each counts when the rest is shared
        out.
        """
        self.book.to_come = max(0, count - len(self.bolts))

    # -- records come in -----------------------------------------------------------------

    def offer(
        self,
        partition: str,
        records: Sequence[Record],
        *,
        now_s: float,
        sizes: Sequence[int] | None = None,
    ) -> int:
        """Take records of one partition; return how many.  Fewer: the producer has to wait.

        ``sizes``: as of :func:`flowctl.core.buffer.sizes_of`, where that was done before.
        Raises :class:`flowctl.errors.SourceError` only when positions do not rise.
        """
        empty_before = self.intake.empty
        taken = self.intake.offer(partition, records, now_s, sizes)
        self.counters.records_acked += self.intake.empty - empty_before
        return taken

    def set_aside(self, partition: str, record: Record, *, reason: str, now_s: float) -> bool:
        """Reject the next ``record``, which can't be sent: it waits for the dead letter.

        False: no room.
        """
        return self._aside.take(partition, record, reason, now_s)

    def on_committed(self) -> None:
        """Note that the offered records are saved; if saving has to come first, they may be sent
        now (S88).
        """
        self.intake.is_held = False

    def checkpoint(self) -> Checkpoint:
        """Return what a restart continues from.  A pure read; O(partitions + ranges)."""
        return self.intake.checkpoint()
