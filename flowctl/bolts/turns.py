"""One tuple's way through a bolt: a batch for ``process``, a report for the spout."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.bolts.link import Link
from flowctl.bolts.outcomes import ack_of, fail_of
from flowctl.bolts.range_pace import BatchPace
from flowctl.bolts.range_turns import RangeTurn
from flowctl.bolts.work import Outcome, Work
from flowctl.core.limit import BytesPerCall
from flowctl.core.messages import Emission
from flowctl.core.records import Position, Record, Span
from flowctl.errors import CallTooLongError
from flowctl.failure.callables import check_returned
from flowctl.failure.classify import RefusalRule, is_too_large
from flowctl.ports import Endpoint
from flowctl.wire.frames import Welcome


class InParts(tuple[Any, ...]):
    """What ``process`` returned for the parts of a batch that was too large for one call."""


class Fit:
    """Calls ``process`` with as many bytes as the target takes.  For one thread.

    After an answer of the target that a call is too large (413), the batch goes again in parts, and
    so do larger ones from then on.  Parts that were done before one fails are done again with it,
    as where ``process`` makes several calls itself.  ``rule`` is the user's own.
    """

    def __init__(self, rule: RefusalRule | None) -> None:
        self._rule = rule
        self._bytes = BytesPerCall()
        self._is_again = False

    def call(self, process: Callable[[Batch], Any], batch: Batch) -> Any:
        """Return what ``process`` returns, of parts as :class:`InParts`; raise what it raises."""
        if not self._bytes.is_bound:
            try:
                return process(batch)
            except Exception as error:
                if not self._learns(batch, error):
                    raise
        made = []
        for part in self._parts(batch):
            with self._trying(part):
                check_returned(one := process(part))
                made.append(one)
        return made[0] if len(made) == 1 else InParts(made)

    async def call_async(self, process: Callable[[Batch], Awaitable[Any]], batch: Batch) -> Any:
        """As :meth:`call`, for ``async def``."""
        if not self._bytes.is_bound:
            try:
                return await process(batch)
            except Exception as error:
                if not self._learns(batch, error):
                    raise
        made = []
        for part in self._parts(batch):
            with self._trying(part):
                check_returned(one := await process(part))
                made.append(one)
        return made[0] if len(made) == 1 else InParts(made)

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        at, records = 0, batch[:]
        while at < len(records):
            self._is_again = False
            stop = at + self._bytes.fitting(records[at:])
            is_all = stop - at == len(records)
            yield batch if is_all else batch.part(range(at, stop))
            if not self._is_again:
                at = stop

    @contextmanager
    def _trying(self, part: Batch) -> Iterator[None]:
        try:
            with part.counted():
                yield
        except Exception as error:
            if not self._learns(part, error):
                raise
            self._is_again = True

    def _learns(self, batch: Batch, error: Exception) -> bool:
        """Whether ``batch`` should go again in parts."""
        if len(batch) == 1 or not is_too_large(error, self._rule):
            return False
        self._bytes.refused(batch[:])
        return True


class Turns:
    """Begins turns and counts their outcomes.  For one thread: no lock needed.

    ``acked`` and ``failed`` count tuples, ``records`` the acked records; ``service_s`` is the time
    that their processing took.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        bolt: str,
        welcome: Welcome,
        link: Link,
        refusal: RefusalRule | None,
        *,
        pace: BatchPace,
    ) -> None:
        self._job: Final = endpoint.job
        self.reader: Final = endpoint.reader
        self.pace: Final = pace
        self._bolt = bolt
        self._welcome = welcome
        self.link: Final = link
        self.refusal = refusal
        self.fit: Final = Fit(refusal)
        self.acked = 0
        self.failed = 0
        self.records = 0
        self.service_s: float = 0.0

    def begin(self, work: Work) -> Turn:
        """Begin a turn: ``process`` is about to be called with its batch."""
        frame = work.frame
        records = frame.records
        batch = self.batch(frame, records, records[0].position, records[-1].position)
        turn = Turn(self, work, frame, batch, time.monotonic())
        self.link.calls.begin(turn)
        return turn

    def begin_range(
        self, work: Work, slot: Hashable, on_ready: Callable[[], None] = lambda: None
    ) -> RangeTurn:
        """Begin a range: ``process`` is about to be called with its batches."""
        return RangeTurn(self, work, self.link, slot, on_ready)

    def batch(
        self,
        frame: Emission,
        records: Sequence[Record],
        first: Position,
        last: Position,
    ) -> Batch:
        """Return what ``process`` gets: ``records``, from position ``first`` to ``last``."""
        epoch = self._welcome.job_epoch
        unsettled = None if frame.given_up is None else (None, frame.given_up)
        through = frame.acked_through
        span = Span(self._job, frame.partition, first, last, epoch, through, unsettled)
        batch = Batch(records, span, bolt=self._bolt, attempt=frame.attempt, clock=time.monotonic)
        batch.tell_prolonged = self.link.prolong
        return batch


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One call of ``process``.  Not tracked by the collector: one at a time."""

    turns: Turns
    work: Work
    frame: Emission
    batch: Batch
    began_at_s: float

    def returned(self, made: object) -> Outcome:
        """Take the result of ``process``; return what to report."""
        turns, work, frame, began_at_s = self.turns, self.work, self.frame, self.began_at_s
        turns.link.calls.end(self)
        service_s = time.monotonic() - began_at_s
        turns.acked += 1
        turns.records += len(frame.records)
        turns.service_s += service_s
        wait_s = began_at_s - work.received_at_s
        return ack_of(frame, self.batch, (wait_s, service_s, work.idle_total_s), made)

    def raised(self, error: BaseException) -> Outcome:
        """Take an exception of ``process``; return what to report."""
        self.turns.link.calls.end(self)
        self.turns.failed += 1
        return fail_of(self.frame, error, self.batch.reading_index, self.turns.refusal)

    def overdue(self, error: CallTooLongError) -> None:
        """Fail the call, as in :class:`flowctl.bolts.slots.UnderWay`; its later result is a late
        ack.
        """
        fail = fail_of(self.frame, error, self.batch.reading_index, self.turns.refusal)
        self.turns.link.report_overdue(fail)
