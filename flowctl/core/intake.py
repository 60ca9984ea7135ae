"""The intake: records are numbered per partition and kept in the send buffer, within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, groupby, islice

from flowctl.core.buffer import NO_SIZE, Cut, SendBuffer, sizes_of
from flowctl.core.events import FlowEvent, IntakePaused, IntakeResumed
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.ledger import PartitionLedger
from flowctl.core.lost import kept_nowhere, with_lost
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Position, Record
from flowctl.core.settings import BufferSettings

# Fewer records than a block of a file holds: 64 KB of lines of 100 B are some 600.
_FEW = 256
_NOT_BEGUN = PartitionCheckpoint()
# The most records read and not acked, if the settings do not bound how far the reader goes.  These
# take memory; records done above a hole do not: they are one range, however many, and there are at
# most as many ranges as tuples that are not done.  Twenty times the buffer; most of them wait to be
# sent again.
_UNDONE_MAX = 1_000_000


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
        self.is_held: bool = False
        # Asked for each tuple: an enum's properties cost more than all else here.
        self._commits_acked = guarantee.commits_acked
        self._commits_first = guarantee.commits_before_emit
        self.buffer: SendBuffer = SendBuffer()
        self.ledgers: dict[str, PartitionLedger] = {}
        self.skipped: int = 0  # records read again though an earlier run had acked them
        self.empty: int = 0  # records that hold NOTHING, which are done when they are read
        self.uncommitted: int = 0  # records read and not below their partition's cumulative ack
        self.undone: int = 0  # of these, the ones that are not acked
        self._settings = settings
        self._restored = dict(restored.partitions)
        self._restored_holes = dict.fromkeys(n for n, p in restored.partitions.items() if p.acked)
        self._events = events
        self._moved: set[str] = set()  # partitions to look at for the next save
        self._unsettled: dict[str, PartitionLedger] = {}  # and some that are settled by now
        self._paused_at_s: float | None = None
        # Whether, as far as is known, no more records will come: all that there were found room.
        self.holds_rest: bool = True
        self._is_worked_on = False  # whether anything was acked
        self._is_stream = False
        self._first_at_s: float | None = None  # when records came first
        self._offered = 0  # records that came so far

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
        if taken:
            self._look_for_stream(taken, now_s)
        if records:  # an empty offer neither begins nor ends an episode
            self._note(taken, taken < len(records), now_s)
        self.holds_rest = self._paused_at_s is None and not self._is_stream
        if not taken:
            return 0
        ledger = self.ledgers.get(partition) or self._open(partition)
        before, skipped_before = ledger.uncommitted, ledger.skipped
        undone_before = ledger.undone
        accepted = records if taken == len(records) else records[:taken]
        for seq, run in ledger.admit(accepted):
            run_sizes = (
                sizes[:taken] if len(run) == taken else sizes_of(run)  # some records were skipped
            )
            if not self._commits_acked:
                ledger.ack(seq, seq + len(run), run[0].position, run[-1].position)
            if NO_SIZE in run_sizes:
                self._put_without_nulls(ledger, seq, run, run_sizes)
            else:
                self.buffer.put(partition, seq, run, run_sizes)
        self.uncommitted += ledger.uncommitted - before
        self.undone += ledger.undone - undone_before
        self.skipped += ledger.skipped - skipped_before
        self._moved.add(partition)
        self._unsettled[partition] = ledger
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
            else:
                self.empty += len(part)
                if self._commits_acked:
                    ledger.ack(seq + start, seq + stop, part[0].position, part[-1].position)
            start = stop

    def _look_for_stream(self, taken: int, now_s: float) -> None:
        """Note whether the source is a stream, which gives the records of the moment and does not
        say how many are left.

        It shows when more records come although there was room for them before: after bolts had
        acked some, or after a first few.
        """
        if self._first_at_s is None:
            self._first_at_s = now_s
        elif self._paused_at_s is None:
            were_few = now_s > self._first_at_s and self._offered < _FEW
            self._is_stream = self._is_stream or self._is_worked_on or were_few
        self._offered += taken

    @property
    def has_room(self) -> bool:
        """Whether a producer that was refused should offer again: half of the buffer is free.

        Half, so that it offers few large pieces.  If positions are committed before records are
        sent, the whole buffer must be free: a kill loses the records in it (S93).
        """
        settings = self._settings
        if self._commits_first:
            return not self.buffer and not self.is_held
        return (
            2 * self.buffer.records <= settings.records_max
            and 2 * self.buffer.size_bytes <= settings.bytes_max
            and not self.is_full
        )

    @property
    def is_full(self) -> bool:
        """Whether reading has to wait until more is done, even if the buffer is nearly empty."""
        return self._room_ahead() <= 0

    def _room_ahead(self) -> int:
        most = self._settings.uncommitted_max
        return _UNDONE_MAX - self.undone if most is None else most - self.uncommitted

    def _open(self, partition: str) -> PartitionLedger:
        ledger = PartitionLedger(partition, self._restored.pop(partition, None))
        self.ledgers[partition] = ledger
        return ledger

    def _room_records(self) -> int:
        room = self._settings.records_max - self.buffer.records
        return max(0, min(room, self._room_ahead()))

    def _fitting(self, sizes: Sequence[int]) -> int:
        """Return how many records of these sizes fit; one always fits into an empty buffer.

        Each NOTHING makes the sum smaller by one byte, which does not matter.
        """
        room = self._settings.bytes_max - self.buffer.size_bytes
        if sum(sizes) <= room:
            return len(sizes)
        fitting = sum(1 for total in accumulate(sizes) if total <= room)
        return fitting or (1 if sizes and not self.buffer else 0)

    def _note(self, taken: int, refused: bool, now_s: float) -> None:
        """Report one event when an episode of refusals begins, and one when it ends (S44)."""
        if refused and self._paused_at_s is None:
            self._paused_at_s = now_s
            full = taken >= self._room_ahead()
            reason = "buffer.uncommitted_max" if full else "buffer full"
            buffered = self.buffer.records
            self._events.append(IntakePaused(at_s=now_s, reason=reason, records=buffered))
        elif not refused and self._paused_at_s is not None:
            self._events.append(IntakeResumed(at_s=now_s, paused_s=now_s - self._paused_at_s))
            self._paused_at_s = None

    def note_mark(self, partition: str, mark: Position) -> None:
        """Keep ``mark``, by which the source recognises its partition's data, for the next save."""
        ledger = self.ledgers.get(partition) or self._open(partition)
        ledger.mark = mark

    def finish(self, partition: str, end: Position) -> None:
        """Note that all records of ``partition`` have been offered; ``end`` is kept once they are
        acked.
        """
        ledger = self.ledgers.get(partition) or self._open(partition)
        self._end(ledger)
        ledger.end = end
        self._moved.add(partition)
        self._unsettled[partition] = ledger

    def end(self) -> None:
        """Note that no more records come: acks of an earlier run beyond the last record read count
        now.
        """
        for ledger in self.ledgers.values():
            self._end(ledger)

    def _end(self, ledger: PartitionLedger) -> None:
        before, seq_before = ledger.uncommitted, ledger.cumulative_seq
        ledger.end_of_input()
        self.uncommitted += ledger.uncommitted - before
        if ledger.cumulative_seq != seq_before:
            self._moved.add(ledger.partition)

    def ack(self, cut: Cut) -> None:
        """Mark the records of ``cut`` processed."""
        self._is_worked_on = True
        if not self._commits_acked:
            return  # records were counted when they were read
        partition, seq, records = cut.partition, cut.seq, cut.records
        ledger, count = self.ledgers[partition], len(records)
        before = ledger.cumulative_seq
        ledger.ack(seq, seq + count, records[0].position, records[-1].position)
        self.uncommitted -= ledger.cumulative_seq - before
        self.undone -= count
        self._moved.add(partition)

    def acked_through(self, partition: str) -> Position | None:
        """Return the position up to which all of ``partition`` is processed, as far as that is
        known.
        """
        return self.ledgers[partition].cumulative if self._commits_acked else None

    def given_up(self, partition: str) -> Position | None:
        """Return the last position of ``partition`` that was given up or rejected; None: none
        was.
        """
        lost = self.ledgers[partition].lost if self._commits_acked else ()
        return lost[-1].last if lost else None

    def note_lost(self, cut: Cut, *, is_kept: bool) -> None:
        """See :class:`flowctl.core.supply.Supply`."""
        ledger = self.ledgers.get(cut.partition)
        if ledger is None:
            return  # it counted as done when read; its partition is read elsewhere now
        for record in cut.records[-1:] if is_kept else cut.records:
            ledger.lost = with_lost(ledger.lost, record.position, is_kept=is_kept)
        self._moved.add(cut.partition)

    def uncommitted_of(self, partition: str) -> int:
        """Return how many records of ``partition`` were read and are above its cumulative ack."""
        ledger = self.ledgers.get(partition)
        return ledger.uncommitted if ledger is not None else 0

    def give(self, partition: str, state: PartitionCheckpoint) -> None:
        """Read ``partition`` here from now on, from just after ``state``."""
        self.forget(partition)
        self._restored[partition] = state
        self._moved.add(partition)
        if state.acked:
            self._restored_holes[partition] = None

    def forget(self, partition: str) -> PartitionCheckpoint | None:
        """Leave ``partition`` to another driver; return how far it was done, if known."""
        self._moved.discard(partition)
        self._unsettled.pop(partition, None)
        ledger = self.ledgers.pop(partition, None)
        if ledger is None:
            return self._restored.pop(partition, None)
        self.uncommitted -= ledger.uncommitted
        self.undone -= ledger.undone
        self.skipped -= ledger.skipped
        return ledger.checkpoint()

    def touch(self, partitions: Iterable[str]) -> None:
        """Have :meth:`take_moved` return ``partitions`` again: they advanced, or are not saved
        yet.
        """
        self._moved.update(partitions)

    def take_moved(self) -> dict[str, PartitionCheckpoint]:
        """Return the state of the partitions that may have advanced since the last call.

        O(those and their ranges), however many others there are.
        """
        moved, self._moved = self._moved, set()
        found = ((name, self._state(name)) for name in moved)
        return {name: state for name, state in found if state is not None}

    def _state(self, partition: str) -> PartitionCheckpoint | None:
        ledger = self.ledgers.get(partition)
        return ledger.checkpoint() if ledger is not None else self._restored.get(partition)

    @property
    def records_kept_nowhere(self) -> int:
        """Records that were rejected while the job had no dead letter, by any run of it."""
        of_ours = (ledger.lost for ledger in self.ledgers.values())
        return kept_nowhere(chain(of_ours, (state.lost for state in self._restored.values())))

    def overview(self, limit: int) -> dict[str, PartitionCheckpoint]:
        """Return up to ``limit`` partitions, those with acks above the cumulative ack first.

        O(partitions with records under way, and those offered since the last call).
        """
        self._unsettled = {n: led for n, led in self._unsettled.items() if not led.is_settled}
        gone = [n for n in self._restored_holes if not self._restored.get(n, _NOT_BEGUN).acked]
        for name in gone:
            del self._restored_holes[name]
        holes = (name for name, ledger in self._unsettled.items() if ledger.has_holes)
        names = chain(self._restored_holes, holes, self._restored, self.ledgers)
        # No more than the first ``limit`` of the last two groups are also in the first two.
        chosen = list(dict.fromkeys(islice(names, 2 * limit)))[:limit]
        states = {name: self._state(name) for name in chosen}
        return {name: state for name, state in states.items() if state is not None}

    def checkpoint(self) -> Checkpoint:
        """Return what a restart needs, also of partitions that this run has not reached yet."""
        partitions = dict(self._restored)
        for name, ledger in self.ledgers.items():
            partitions[name] = ledger.checkpoint()
        return Checkpoint(partitions)
