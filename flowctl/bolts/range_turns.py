"""One range's way through a bolt: batches for ``process``, progress for the spout.

The order is: claim, process, report.  So a bolt that dies leaves at most one batch that was
processed and not reported, and a split range is never processed beyond its new end.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.bolts.outcomes import fail_of
from flowctl.bolts.range_ahead import NOT_YET, Sign
from flowctl.bolts.work import Work
from flowctl.core.letters import to_show
from flowctl.core.messages import Fail, Processed, RangeEmission, RangeFail, RejectedRecord
from flowctl.core.records import Position, Record
from flowctl.errors import CallTooLongError, InternalError, JobError, UnrunnableError
from flowctl.failure.texts import (
    ERROR_CHARS_MAX,
    error_text,
    sendable,
    sendable_start,
    traceback_text,
)
from flowctl.range_ports import Block, RangeReader
from flowctl.wire.not_encodable import NotCarriedError
from flowctl.wire.values import carry

if TYPE_CHECKING:
    from flowctl.bolts.link import Link
    from flowctl.bolts.turns import Turns

# Characters of the repr of a value that can't be sent, which the dead letter gets in its place.
_SHOWN_CHARS_MAX: Final = 4_000
# The longest receipt: it names what was written (a file, a number of rows), and passes through the
# driver.
RECEIPT_BYTES_MAX: Final = 64 << 10


class RangeTurn:
    """One range.  For one thread; a context manager that stops reading at its end.

    ``slot`` is as in :class:`flowctl.bolts.link.Link`; ``on_ready`` is called from another thread
    when :meth:`poll`, which had no batch, is worth another try.  ``batch`` and ``began_at_s`` are
    of the newest call of ``process`` (:class:`flowctl.bolts.slots.UnderWay`).
    """

    batch: Batch

    def __init__(
        self,
        turns: Turns,
        work: Work,
        link: Link,
        slot: Hashable,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        assert isinstance(work.frame, RangeEmission)
        self._turns = turns
        self._frame = work.frame
        self._link = link
        self._desk = link.ranges
        self._slot = slot
        self._reader = _reader_of(turns)
        self._held, self._ahead = link.ranges.begin(work.frame.tuple_id, self._reader, slot)
        self._ahead.on_ready = on_ready
        self._block: Block | None = None
        self._index = 0  # index of the first unclaimed record of the block
        self._batch: Batch | None = None
        self._wait_s = time.monotonic() - work.received_at_s
        self._read_s = 0.0
        self._asked_at_s: float | None = None  # since when a batch is waited for
        self.began_at_s: float = 0.0
        self._is_over = False  # a call took too long: the bolt leaves

    def __enter__(self) -> RangeTurn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ahead.close()
        self._link.flush_range()

    def next_batch(self) -> Batch | None:
        """Wait until the next batch may begin and is read; None: the range or the link has ended.

        Waiting reports are sent first.
        """
        self._link.flush_range()
        if not self._desk.await_turn(self._held, self._slot):
            return None
        while (found := self.poll()) is NOT_YET:
            self._ahead.wait()
        return found if isinstance(found, Batch) else None

    def pause_s(self) -> float | None:
        """Return how long to wait before :meth:`poll`, like :meth:`RangeDesk.pause_s`."""
        return self._desk.pause_s(self._held, self._slot)

    def poll(self) -> Batch | Sign | None:
        """Return the next batch, NOT_YET if it is being read, or None if the range is over.

        The time from the first call to a batch counts as reading time.
        """
        if self._asked_at_s is None:
            self._asked_at_s = time.monotonic()
        try:
            found = self._poll()
        except Exception as error:
            self._unreadable(error)
            return None
        if found is not NOT_YET:
            self.began_at_s = time.monotonic()
            self._read_s += self.began_at_s - self._asked_at_s
            self._asked_at_s = None
        if isinstance(found, Batch):
            self._link.calls.begin(self)
        return found

    def _poll(self) -> Batch | Sign | None:
        while not (self._held.claims.is_finished or self._is_over):
            block = self._block
            if block is None or self._index >= len(block):
                taken = self._ahead.take()
                if taken is NOT_YET:
                    return taken
                if isinstance(taken, Sign):
                    self._nothing_more()
                    return None
                self._block, self._index = taken, 0
                block = taken
                if block.stop >= self._held.claims.stop:
                    self._desk.read_next(self._reader)
            if (batch := self._cut(block)) is not None:
                return batch
        return None

    def _nothing_more(self) -> None:
        """Note that the rest of the range has no record, or that the link has ended."""
        if not self._ahead.is_closed:
            self._desk.claim(self._held, self._held.claims.stop)
            self._desk.done(self._held, self._did(0), self._slot)

    def _cut(self, block: Block) -> Batch | None:
        """Claim the next records of ``block``; None: none of them is still ours."""
        first = self._index
        last = first + self._turns.pace.next_of(self._left)
        through = block.position(last)
        claimed = self._desk.claim(self._held, through)
        if claimed < through:  # the range was split meanwhile
            last = bisect_left(range(last), claimed, lo=first, key=block.position)
        self._index = last
        if last == first:
            self._desk.done(self._held, self._did(0), self._slot)
            return None
        records = block.batch_records(first, last)
        ends = block.position(first), block.position(last - 1)
        batch = self._turns.batch(self._frame, records, *ends)
        self._batch = self.batch = batch
        return batch

    @property
    def _is_awaited(self) -> bool:
        """Whether the batch after the next one is to wait until the done batches are saved."""
        block = self._block
        if block is None or not self._frame.tells_saved:
            return False
        return self._turns.pace.is_long_in(len(block))

    @property
    def _left(self) -> int:
        """The number of unclaimed records of the block."""
        return len(self._block) - self._index if self._block is not None else 0

    def returned(self, made: object) -> None:
        """Take the result of ``process``: bytes are a receipt, to be kept with the records.

        A tuple has one for each part of the batch.
        """
        if not self._ends():
            return
        self._returned(made)

    def _returned(self, made: object) -> None:
        receipts = [
            one for one in (made if isinstance(made, tuple) else (made,)) if isinstance(one, bytes)
        ]
        if long := [one for one in receipts if len(one) > RECEIPT_BYTES_MAX]:
            self._raised(_too_long(long[0]))
            return
        batch = self._begun()
        turns, service_s = self._turns, time.monotonic() - self.began_at_s
        turns.acked += 1
        turns.records += len(batch)
        turns.service_s += service_s
        turns.pace.took(len(batch), service_s)
        did = self._did(len(batch), batch, service_s)
        if receipts:
            did = msgspec.structs.replace(did, receipts=tuple(receipts))
        self._desk.done(self._held, did, self._slot)

    def raised(self, error: BaseException) -> None:
        """Take an exception of ``process``: these records fail, and the rest of the range goes
        on.
        """
        if self._ends():
            self._raised(error)

    def overdue(self, error: CallTooLongError) -> None:
        """Fail the call, as in :class:`flowctl.bolts.slots.UnderWay`; its later result does not
        count.
        """
        self._is_over = True
        self._raised(error)

    def _ends(self) -> bool:
        return self._link.calls.end(self)

    def _raised(self, error: BaseException) -> None:
        batch = self._begun()
        self._turns.failed += 1
        fail = fail_of(self._frame, error, batch.reading_index, self._turns.refusal)
        claims = self._held.claims
        record = None if len(batch) > 1 else _only(batch)
        at = _reading_at(batch)
        self._fail(RangeFail(fail, claims.settled, claims.claimed, len(batch), at, record))

    def _begun(self) -> Batch:
        batch, self._batch = self._batch, None
        if batch is None:
            raise InternalError("A batch of a range was reported before it was begun.")
        return batch

    def _unreadable(self, error: Exception) -> None:
        frame, is_fatal = self._frame, isinstance(error, JobError)
        text = error_text(error)
        trace = ""
        if isinstance(error, JobError):
            text = f"{sendable(error.problem)}\n{sendable(error.remedy)}"
        else:
            trace = traceback_text(error)
        fail = Fail(
            frame.tuple_id, frame.attempt, text, trace, is_fatal=is_fatal, is_read_error=True
        )
        stop = self._desk.claim(self._held, self._held.claims.stop)
        self._fail(RangeFail(fail, self._held.claims.settled, stop, 0))

    def _fail(self, said: RangeFail) -> None:
        self._desk.failed(self._held, said, self._slot)
        self._read_s = self._wait_s = 0.0

    def _did(self, records: int, batch: Batch | None = None, service_s: float = 0.0) -> Processed:
        did = Processed(
            records=records,
            read_s=self._read_s,
            wait_s=self._wait_s,
            service_s=service_s,
            sink_s=batch.sink_s if batch is not None else None,
            rejected=_rejected(batch) if batch is not None else [],
            left_out=batch.left_out if batch is not None else 0,
            call_s=self._turns.pace.dear_s,
            is_urgent=self._turns.pace.is_next_short(self._left),
            is_awaited=self._is_awaited,
        )
        self._read_s = self._wait_s = 0.0
        return did


def _reader_of(turns: Turns) -> RangeReader:
    if turns.reader is None:
        raise InternalError("A range came for a bolt that has no reader.")
    return turns.reader


def _too_long(receipt: bytes) -> UnrunnableError:
    return UnrunnableError(
        "process",
        f"returned {len(receipt)} bytes; a receipt may have {RECEIPT_BYTES_MAX} at most.",
        remedy="Write the data to their target, and return only their names.",
    )


def _rejected(batch: Batch) -> list[RejectedRecord]:
    return [
        # A position of a range is an int.
        RejectedRecord(record.position, record.value, sendable_start(reason, ERROR_CHARS_MAX))  # type: ignore[arg-type]
        for index, reason in sorted(batch.rejected.items())
        for record in (_sent(batch[index]),)
    ]


def _reading_at(batch: Batch) -> Position | None:
    at = batch.reading_index
    return None if at is None else batch[at].position


def _only(batch: Batch) -> Record:
    """Return the one record of ``batch``, or what is wrong with it if it can't be made.

    Columns may hold values that Python can't represent: bytes that are no text, a year above 9999.
    """
    try:
        return _sent(batch[0])
    except Exception as error:
        text = f"it can't be read: {type(error).__name__}: {error}"
        return Record(batch.span.first, to_show(sendable_start(text, _SHOWN_CHARS_MAX)))


def _sent(record: Record) -> Record:
    """Return ``record`` as it can go over the wire; in place of a value that can't, its
    ``repr``.
    """
    value: Any
    try:
        value = carry(record.value)
    except NotCarriedError:
        value = to_show(sendable_start(repr(record.value), _SHOWN_CHARS_MAX))
    return Record(record.position, value)
