"""What comes in: records numbered per partition, kept in the send buffer, within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, groupby

from flowctl.core.buffer import NO_SIZE, Cut, SendBuffer, sizes_of
from flowctl.core.events import FlowEvent, IntakePaused, IntakeResumed
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.ledger import PartitionLedger
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Position, Record
from flowctl.core.settings import BufferSettings


class Intake:
    """Ledgers and send buffer of all partitions.  Not thread-safe; owned by ``SpoutCore``.

    Where the guarantee commits what was read, a record counts as acked once it is offered.
    ``is_held``: it may not be sent yet, because its position must be saved first (S88).
    """

    def __init__(
        self,
        settings: BufferSettings,
        restored: Checkpoint,
        events: deque[FlowEvent],
        guarantee: ProcessingGuarantee = ProcessingGuarantee.AT_LEAST_ONCE,
    ) -> None:
        self.is_held = False
        # Asked for each tuple: an enum's properties cost more than all else here.
        self._commits_acked = guarantee.commits_acked
        self._commits_first = guarantee.commits_before_emit
        self.buffer = SendBuffer()
        self.ledgers: dict[str, PartitionLedger] = {}
        self.uncommitted = 0  # records read and not below their partition's cumulative ack
        self._settings = settings
        self._restored = dict(restored.partitions)
        self._events = events
        self._paused_at_s: float | None = None

    def offer(
        self,
        partition: str,
        records: Sequence[Record],
        now_s: float,
        sizes: Sequence[int] | None = None,
    ) -> int:
        """Take as many of ``records`` as the bounds allow, in order; return how many.

        ``sizes`` are theirs, as of :func:`flowctl.core.buffer.sizes_of`, where they are known.
        """
        room = self._room_records()
        sizes = sizes_of(records[:room]) if sizes is None else sizes[:room]
        taken = self._fitting(sizes)
        if records:  # an empty offer neither begins nor ends a stretch
            self._note(taken, taken < len(records), now_s)
        if not taken:
            return 0
        ledger = self.ledgers.get(partition) or self._open(partition)
        before = ledger.uncommitted
        accepted = records if taken == len(records) else records[:taken]
        for seq, run in ledger.admit(accepted):
            run_sizes = (
                sizes[:taken] if len(run) == taken else sizes_of(run)  # some were skipped
            )
            if not self._commits_acked:
                ledger.ack(seq, seq + len(run), run[0].position, run[-1].position)
            if NO_SIZE in run_sizes:
                self._put_without_nulls(ledger, seq, run, run_sizes)
            else:
                self.buffer.put(partition, seq, run, run_sizes)
        self.uncommitted += ledger.uncommitted - before
        self.is_held = self.is_held or self._commits_first
        return taken

    def _put_without_nulls(
        self, ledger: PartitionLedger, seq: int, run: Sequence[Record], sizes: Sequence[int]
    ) -> None:
        """As ``put``, with records that hold nothing acked instead (S107)."""
        start = 0
        for is_null, group in groupby(range(len(run)), lambda index: sizes[index] == NO_SIZE):
            stop = start + len(list(group))
            part = run[start:stop]
            if not is_null:
                self.buffer.put(ledger.partition, seq + start, part, sizes[start:stop])
            elif self._commits_acked:
                ledger.ack(seq + start, seq + stop, part[0].position, part[-1].position)
            start = stop

    @property
    def has_room(self) -> bool:
        """Whether a producer that was refused should offer again: half of the buffer is free.

        Half, so that it does so in few large steps.  Where what was read is committed before it is
        sent, all of it: a kill loses what waits here (S93).
        """
        settings = self._settings
        if self._commits_first:
            return not self.buffer and not self.is_held
        return (
            2 * self.buffer.records <= settings.records_max
            and 2 * self.buffer.size_bytes <= settings.bytes_max
            and self.uncommitted < settings.uncommitted_max
        )

    def _open(self, partition: str) -> PartitionLedger:
        ledger = PartitionLedger(partition, self._restored.pop(partition, None))
        self.ledgers[partition] = ledger
        return ledger

    def _room_records(self) -> int:
        settings = self._settings
        return max(
            0,
            min(
                settings.records_max - self.buffer.records,
                settings.uncommitted_max - self.uncommitted,
            ),
        )

    def _fitting(self, sizes: Sequence[int]) -> int:
        """How many records of these sizes fit; one always fits into an empty buffer.

        Each NOTHING makes the sum smaller by one byte: that is nothing too.
        """
        room = self._settings.bytes_max - self.buffer.size_bytes
        if sum(sizes) <= room:
            return len(sizes)
        fitting = sum(1 for total in accumulate(sizes) if total <= room)
        return fitting or (1 if sizes and not self.buffer else 0)

    def _note(self, taken: int, refused: bool, now_s: float) -> None:
        """One event when a stretch of refusals begins, one when it ends (S44)."""
        if refused and self._paused_at_s is None:
            self._paused_at_s = now_s
            full = self.uncommitted + taken >= self._settings.uncommitted_max
            reason = "buffer.uncommitted_max" if full else "buffer full"
            self._events.append(IntakePaused(at_s=now_s, reason=reason))
        elif not refused and self._paused_at_s is not None:
            self._events.append(IntakeResumed(at_s=now_s, paused_s=now_s - self._paused_at_s))
            self._paused_at_s = None

    def end(self) -> None:
        """No more records: what an earlier run had acked beyond the last one read counts now."""
        for ledger in self.ledgers.values():
            before = ledger.uncommitted
            ledger.end_of_input()
            self.uncommitted += ledger.uncommitted - before

    def ack(self, cut: Cut) -> None:
        """The records of ``cut`` are processed."""
        if not self._commits_acked:
            return  # they were counted when they were read
        ledger = self.ledgers[cut.partition]
        before = ledger.cumulative_seq
        records = cut.records
        ledger.ack(cut.seq, cut.seq + len(records), records[0].position, records[-1].position)
        self.uncommitted -= ledger.cumulative_seq - before

    def acked_through(self, partition: str) -> Position | None:
        """Up to where all is processed, as far as that is known."""
        return self.ledgers[partition].cumulative if self._commits_acked else None

    def uncommitted_of(self, partition: str) -> int:
        """Records of ``partition`` that were read and are not below its cumulative ack."""
        ledger = self.ledgers.get(partition)
        return ledger.uncommitted if ledger is not None else 0

    def give(self, partition: str, state: PartitionCheckpoint) -> None:
        """``partition`` is read here from now on, from just after ``state``."""
        self.forget(partition)
        self._restored[partition] = state

    def forget(self, partition: str) -> PartitionCheckpoint | None:
        """``partition`` is read elsewhere from now on; return how far it was done, if known."""
        ledger = self.ledgers.pop(partition, None)
        if ledger is None:
            return self._restored.pop(partition, None)
        self.uncommitted -= ledger.uncommitted
        return ledger.checkpoint()

    @property
    def skipped(self) -> int:
        """Records read again though an earlier run had acked them."""
        return sum(ledger.skipped for ledger in self.ledgers.values())

    def checkpoint(self) -> Checkpoint:
        """What a restart needs, of partitions read in this run and of those not reached yet."""
        partitions = dict(self._restored)
        for name, ledger in self.ledgers.items():
            partitions[name] = ledger.checkpoint()
        return Checkpoint(partitions)
