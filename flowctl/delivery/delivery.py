"""Delivers the rows of one partition: reads, calls, settles, until nothing is left."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias

from flowctl.bolts.batch import Batch
from flowctl.bolts.slots import CANCEL_MAX_S
from flowctl.core.limit import BytesPerCall
from flowctl.core.positions import latest, row_number
from flowctl.core.records import Position, Record, Span, picked, position_of, values_of
from flowctl.core.tuples import FlowTuple
from flowctl.delivery.bounded import Callers, TaskCalls
from flowctl.delivery.lost_rows import LostRows
from flowctl.delivery.pacers import Pacer
from flowctl.delivery.pieces import Pieces, RowsPerCall, lane_of
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.sections import Taken
from flowctl.delivery.tally import Tally
from flowctl.errors import (
    FencedError,
    QuotaUsedUpError,
    RetryLater,
    TargetDownError,
    TooManyLostError,
    UnrunnableError,
)
from flowctl.failure.callables import check_returned, is_async
from flowctl.failure.classify import is_about_rows, is_too_large, refusal_of
from flowctl.failure.job_fault import job_fault_of

# -- Which rows a delivery has read, and so whether the letter of an earlier attempt is valid ---


class ReadRows:
    """Positions of one partition's rows, as few ranges.  Not thread-safe.

    ``section_of`` is that of :class:`flowctl.delivery.plan.Where`.
    """

    def __init__(self, section_of: Callable[[Any], Any] | None) -> None:
        self._section_of = section_of
        self._read: list[tuple[Any, Any]] = []
        self._left_out: list[tuple[Any, Any]] = []

    @property
    def first(self) -> Position:
        """The position of the first row of all; there must be one."""
        found: Position = self._read[0][0]
        return found

    def read(self, first: Position, last: Position) -> None:
        """These were read together, right behind those before; they are of one section."""
        section_of = self._section_of
        if self._read:
            begin, end = self._read[-1]
            if section_of is None or section_of(end) == section_of(first):
                self._read[-1] = begin, last
                return
        self._read.append((first, last))

    def left_out(self, batch: Batch) -> None:
        """Note that the target had some of the rows of ``batch`` already.

        A target that says which ones (``SqlSink``) knows them to be written.  Of another, any of
        the rows may be meant, and some may never have been written.
        """
        if batch.left_out_at is None:
            self._left_out += _runs(batch)

    def is_written(self, position: Position) -> bool | None:
        """Whether the row at ``position``, of which this delivery made no letter, is written.

        False: the target may have left it out as written, which need not be so for a row that has a
        letter.  None: it is none of this delivery's.
        """
        if _is_in(position, self._left_out):
            return False
        return True if _is_in(position, self._read) else None


def _runs(batch: Batch) -> list[tuple[Any, Any]]:
    """Return ranges that hold the rows of ``batch`` and none that lies between them."""
    first, last = batch.span.first, batch.span.last
    begin, end = row_number(first), row_number(last)
    if isinstance(begin, int) and isinstance(end, int) and end - begin == len(batch) - 1:
        return [(first, last)]
    places = [batch.position(index) for index in range(len(batch))]
    return list(zip(places, places, strict=True))


def _is_in(position: Any, ranges: list[tuple[Any, Any]]) -> bool:
    try:
        return any(first <= position <= last for first, last in ranges)
    except TypeError:  # positions of another shape: of another job under this name
        return False


# -- Delivers the rows of one partition --------------------------------------------------------


# So many pieces may wait for their back-off before reading stops: they hold rows in memory.
_WAITING_MAX = 8
# Where a target is called for each row's own, what is read at once is for several calls: as many
# rows as the largest section.
_READ_ROWS_MAX = 16_384
# A piece that was refused so often, while calls of this size used to succeed, may be too large for
# what is left of the target's speed; single rows would multiply the calls.
_REFUSALS_MAX = 3
# With several calls, whoever has nothing to do looks again after so long [s], if nobody wakes it.
_LOOK_MIN_S, _LOOK_MAX_S = 0.01, 60.0
_HALVED_ROWS_MIN = 25
# Returns the next rows, at most so many; none: that was all.
_Take: TypeAlias = Callable[[int], Sequence[Record]]
# No row is to blame for these: they end the partition.
_FATAL = (FencedError, UnrunnableError, TooManyLostError, TargetDownError, QuotaUsedUpError)


class _Turn:
    """What one thread does with one piece: its call's batch, and its time in ``fn`` [s]."""

    __slots__ = ("batch", "call_s")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.call_s = 0.0


class Delivery:
    """One partition's delivery.  Use it once, from one thread.

    ``clock`` gives monotonic seconds, ``sleep`` takes them; ``chance`` is for the jitter of
    back-offs.  Where the plan has several ``calls``, ``pacer`` and ``fn`` are called by as many
    threads, and pauses are those of the real clock.
    """

    def __init__(
        self,
        plan: Plan,
        where: Where,
        pacer: Pacer,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] | None = random.random,
    ) -> None:
        self.tally: Tally = Tally()
        self._plan = plan
        self._where = where
        self._pacer = pacer
        self._clock = clock
        self._sleep = sleep
        self._callers = Callers(plan.calls)
        self._pieces = Pieces(
            plan.attempts_max, chance, calls=plan.calls, keeps=plan.dead_letter is not None
        )
        self._rows_per_call = RowsPerCall(plan.rows_max, plan.call_max_s)
        self._bytes_per_call = BytesPerCall(plan.bytes_max)
        self._lost = LostRows(plan, where, self.tally)
        self._rows = ReadRows(where.section_of)
        self._calls = TaskCalls(
            plan.call_timeout_s,
            patience_s=CANCEL_MAX_S if is_async(plan.process) else 0.0,
            at_end=plan.release,
        )
        self._targets_of_read = 1
        self._is_reading = self._is_all_read = False

    def run(self, values: Iterable[Any] | Taken) -> Tally:
        """Deliver all ``values``; return the counts, which are also in ``tally`` if it raises.

        Raises what ends the partition: more lost rows than are allowed
        (:class:`TooManyLostError`, :class:`flowctl.errors.ProcessError`), a target that takes
        nothing (:class:`TargetDownError`), and mistakes in ``fn`` (:class:`UnrunnableError`).
        """
        take = self._taking(values)
        process = _called(self._plan.process, self._plan.call_timeout_s)

        def work() -> None:
            while (piece := self._next(take)) is not None:
                self._deliver(piece, process)
            if not self._callers.is_one:
                self._calls.leave()

        with self._calls:
            self._callers.run(work)
        self._lost.end(self._rows.is_written)
        return self.tally

    def _taking(self, values: Iterable[Any] | Taken) -> _Take:
        """Return what reads the next rows, so many at most and all of one section."""
        place, rest = self._where.place, self._where.rest
        if isinstance(values, Taken):
            return lambda most: values.take(most, place)
        records = (Record(place(number), value) for number, value in enumerate(values))

        def take(most: int) -> list[Record]:
            read = list(islice(records, 1))
            return read + list(islice(records, min(most - 1, rest())))

        return take

    def _next(self, take: _Take) -> FlowTuple | None:
        """Return what goes next, once it may; None: all is settled."""
        pieces = self._pieces
        with self._callers.lock:
            while True:
                self._callers.check()
                if (piece := pieces.take(self._clock())) is not None:
                    pieces.begin(piece, self._clock())
                    self._callers.more()
                    return piece
                if self._may_read():
                    self._read(take)
                elif self._is_all_read and pieces.are_settled:
                    return None
                else:
                    self._wait()

    def _may_read(self) -> bool:
        if self._is_reading or self._is_all_read:
            return False
        has_room = self._pieces.waiting < max(_WAITING_MAX, self._plan.calls)
        return has_room and self._pieces.may_read(self._clock())

    def _wait(self) -> None:
        wait_s = self._pieces.next_s() - self._clock()
        if self._callers.is_one:
            self._sleep(max(0.0, wait_s))
        else:
            self._callers.wait(min(max(_LOOK_MIN_S, wait_s), _LOOK_MAX_S))

    def _read(self, take: _Take) -> None:
        """Read the next rows, for a call of each target; none: that was all.  Others go on
        meanwhile.
        """
        most = min(self._rows_per_call.next() * self._targets_of_read, _READ_ROWS_MAX)
        self._is_reading = True
        try:
            with self._callers.unlocked():
                read = take(most)
        finally:
            self._is_reading = False
        if not read:
            self._is_all_read = True
            self._callers.lock.notify_all()
            return
        self._callers.lock.notify()
        self.tally.rows += len(read)
        self._rows.read(position_of(read, 0), position_of(read, -1))
        self._add(read)
        self._pieces.note_read(position_of(read, -1))

    def _add(self, read: Sequence[Record]) -> None:
        now_s = self._clock()
        if self._plan.target is None:
            self._pieces.add(read, now_s)
            return
        groups = self._plan.target.groups(values_of(read))
        self._targets_of_read = len(groups)
        for name, indices in groups.items():
            self._pieces.add(picked(read, indices), now_s, lane_of(name))

    # -- one piece -----------------------------------------------------------------------

    def _deliver(self, piece: FlowTuple, process: Callable[[Batch], Any]) -> None:
        with self._callers.lock:
            if self._cut_to_fit(piece):
                self._callers.lock.notify()
        cost, turn = self._plan.cost, _Turn()
        began_at_s = self._clock()
        price = None if cost is None else cost(self._batch_of(piece, 1))
        try:
            self._pacer_of(piece).run(lambda: self._call(piece, process, turn), price)
        except _FATAL:
            raise
        except _NotSettledError as ended:
            raise ended.error from ended.error.__cause__
        except Exception as error:
            if (ending := job_fault_of(error, self._plan.refusal)) is not None:
                raise ending from error
            self._ended(piece, turn, error)
        else:
            self._ended(piece, turn, None)
        finally:
            waited_s = self._clock() - began_at_s - turn.call_s
            with self._callers.lock:
                self.tally.waited_s += waited_s
            # One that waits more than it works holds no connection meanwhile: those who have the
            # places need it.  So connections are about as many as calls in flight.
            if waited_s > turn.call_s and self._plan.release is not None:
                self._calls.here(self._plan.release)

    def _pacer_of(self, piece: FlowTuple) -> Pacer:
        """Return the pacer of what ``piece`` is for; raises ``ValueError`` if that has no name."""
        target = self._plan.target
        if target is None:
            return self._pacer
        return self._pacer.of(target.name(piece.cut.records[0].value))

    def _cut_to_fit(self, piece: FlowTuple) -> bool:
        """Leave ``piece`` as many rows as a call may have; the rest goes next.

        That is by their bytes, and by their number where most that was read is for one of several
        targets.  True: there is a rest.
        """
        records = piece.cut.records
        if piece.search is not None:  # it is a part of what went as one call
            return False
        at = self._bytes_per_call.fitting(records)
        if self._plan.target is not None and not piece.attempt:
            at = min(at, self._rows_per_call.next())
        if at < len(records):
            self._pieces.split_off(piece, at, self._clock())
            return True
        return False

    def _ended(self, piece: FlowTuple, turn: _Turn, error: Exception | None) -> None:
        with self._callers.lock:
            self._pieces.ended(piece)
            if error is None:
                self._lost.succeeded()
                self._pieces.done(piece, self._clock())
            else:
                self._failed(piece, turn.batch, error)
            if self._is_all_read or self._pieces.waiting:
                self._callers.lock.notify_all()

    def _call(self, piece: FlowTuple, process: Callable[[Batch], Any], turn: _Turn) -> None:
        """Call ``process`` once with what is left of ``piece``; raise if that did not work."""
        raised: Exception | None = None
        with self._callers.calling():
            with self._callers.lock:
                batch = turn.batch = self._batch_of(piece, piece.begin_attempt())
                self.tally.calls += 1
            began_at_s = self._clock()
            piece.wait_anew(began_at_s)
            try:
                made = self._calls.call(process, batch)
                (self._plan.keep or check_returned)(made)
            except KeyboardInterrupt:
                raise
            except Exception as error:
                raised = error
            except BaseException as error:  # SystemExit, or a panic of a library in Rust
                raised = _PanicError(error)
            # Outside of the handler: what is raised here must not look as if it came from a
            # refusal.
            with self._callers.lock:
                spent_s = self._spent(began_at_s, turn)
                if raised is not None:
                    self._not_taken(piece, batch, raised)
                    return
                self._rows_per_call.took(spent_s, len(batch), self._clock())
                self._settle(batch, range(len(batch)))

    def _spent(self, began_at_s: float, turn: _Turn) -> float:
        spent_s = self._clock() - began_at_s
        turn.call_s += spent_s
        self.tally.called_s += spent_s
        return spent_s

    def _not_taken(self, piece: FlowTuple, batch: Batch, error: Exception) -> None:
        """Raise ``error``, unless nothing of ``piece`` is left to be done."""
        if refusal_of(error, self._plan.refusal) is None:
            self.tally.failed += 1
            raise error
        self.tally.refused += 1
        if isinstance(error, RetryLater) and error.again is not None:
            if not self._keep_refused(piece, batch, error.again):
                return
        elif piece.search is None and (at := self._cut_at(piece, batch, error)):
            self._pieces.split_off(piece, at, self._clock())
        raise error

    def _cut_at(self, piece: FlowTuple, batch: Batch, error: Exception) -> int:
        """Return where to cut a refused piece, for a target with little room; 0: nowhere.

        Where ``fn`` was, if it calls the target row by row: what came before goes apart from the
        rest.  It is not taken for done, as ``fn`` may write it at its end.
        """
        if index := batch.reading_index:
            return index
        if not _is_slow(error):
            return 0
        piece.refused()
        if piece.refusals < _REFUSALS_MAX or len(batch) <= _HALVED_ROWS_MIN:
            return 0
        self._rows_per_call.timed_out(len(batch), self._clock())
        return len(batch) // 2

    def _keep_refused(self, piece: FlowTuple, batch: Batch, again: tuple[int, ...]) -> bool:
        """The target took ``batch`` but for ``again``; return whether anything is left to send."""
        if not set(again) <= set(range(len(batch))):
            raise UnrunnableError(
                "RetryLater.again",
                f"{list(again)} are not indices of a batch of {len(batch)}.",
                remedy="Give the indices in the batch of the records that were not taken.",
            )
        left = sorted(set(again) - set(batch.rejected))
        self._settle(batch, sorted(set(range(len(batch))) - set(left)))
        if left:
            self._pieces.keep_only(piece, left)
        return bool(left)

    def _settle(self, batch: Batch, indices: Sequence[int]) -> None:
        rejected = [index for index in indices if index in batch.rejected] if batch.rejected else ()
        self.tally.written += len(indices) - len(rejected)
        for index in rejected:
            try:
                [record] = batch[index : index + 1]  # of columns, no other row is made
                self._lost.reject(record, batch.rejected[index])
            except Exception as error:
                raise _NotSettledError(error) from None
            self._pieces.give_up(record.position)
        if batch.left_out:
            self.tally.left_out += batch.left_out
            self._rows.left_out(batch)

    def _failed(self, piece: FlowTuple, batch: Batch | None, error: Exception) -> None:
        """``fn`` raised, and not a refusal: send the piece again, in parts, or give it up."""
        now_s = self._clock()
        index = None if batch is None else batch.reading_index
        if index is None and self._is_cut_smaller(piece, error, now_s):
            return
        may_be_target = not is_about_rows(error, self._plan.refusal)
        if self._pieces.fault(piece, index, now_s, may_be_target=may_be_target):
            if self._pieces.fails_among_others(piece, may_be_target=may_be_target):
                self._lost.succeeded()
            cause = error.error if isinstance(error, _PanicError) else error
            for record in piece.cut.records:
                self._lost.give_up(record, piece.faults, cause)

    def _is_cut_smaller(self, piece: FlowTuple, error: Exception, now_s: float) -> bool:
        """Send ``piece`` again in calls of fewer bytes, if it was too large as a whole."""
        records = piece.cut.records
        if len(records) == 1 or not is_too_large(error, self._plan.refusal):
            return False
        self._bytes_per_call.refused(records)
        if piece.search is not None:
            return False
        self._cut_to_fit(piece)
        self._pieces.again(piece, now_s)
        return True

    def _batch_of(self, piece: FlowTuple, attempt: int) -> Batch:
        with self._callers.lock:
            span = self._span_of(piece)
        # What Spark's earlier attempts of the task have sent counts too, as once each.
        attempt += self._where.attempt - 1
        bolt = self._where.partition
        return Batch(piece.cut.records, span, bolt=bolt, attempt=attempt, clock=self._clock)

    def _span_of(self, piece: FlowTuple) -> Span:
        where, records = self._where, piece.cut.records
        through, unsettled, section_of = self._pieces.acked_through, None, where.section_of
        if through is None:
            through = where.before
        elif where.before is not None:
            # Nobody knows of what lies between: only what this delivery has settled may be merged.
            begins: Any = self._rows.first if section_of is None else section_of(through)[0]
            unsettled = where.before, latest(self._pieces.given_up, begins)
        elif self._pieces.given_up is not None:
            # Nor is what was given up written: if it comes again, it is tried again.
            unsettled = None, self._pieces.given_up
        return Span(
            where.job,
            # A call has rows of one target, and others lie between: those must not count as done.
            f"{where.partition}{piece.cut.partition}",
            first := position_of(records, 0),
            position_of(records, -1),
            1,  # nobody replaces a partition's driver: Spark does, and spans hold for both
            through,
            unsettled,
            None if section_of is None else section_of(first),
        )


class _NotSettledError(BaseException):
    """A rejected row can't be kept, which ends the partition.

    No ``Exception``: the target has taken the other rows, and whatever treats ``error`` as a
    failure or a refusal of the call (a full disk) would send them again.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _PanicError(Exception):
    """``fn`` raised something that is no ``Exception``: it is a failure of the rows like others."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = self.__cause__ = error  # a cause may make it a refusal


def _is_slow(error: Exception) -> bool:
    """Whether the refusal was a time-out."""
    return isinstance(error, TimeoutError) or "Timeout" in type(error).__name__


def _called(process: Any, timeout_s: float | None) -> Callable[[Batch], Any]:
    """Return what calls ``process``; an ``async def`` runs in the event loop of this process.

    There it is cancelled after ``timeout_s``.
    """
    if not is_async(process):
        plain: Callable[[Batch], Any] = process
        return plain
    from flowctl.bolts.event_loop import bounded, run_shared

    return lambda batch: run_shared(bounded(process(batch), timeout_s))
