"""Rows that were read and are not settled, as pieces: which goes next, and what to cut when.

The rules are those of the core: retries with back-off, whose fault a failure is, and the search for
the record that makes a piece fail (:mod:`flowctl.core.isolation`).  Pure; not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flowctl.core.blame import Place
from flowctl.core.book import Book
from flowctl.core.buffer import Cut
from flowctl.core.cost import CallCost
from flowctl.core.isolation import Isolation
from flowctl.core.limit import RefusedLimit
from flowctl.core.positions import latest
from flowctl.core.records import Position, Record
from flowctl.core.retry import RetryQueue
from flowctl.core.settings import CoreSettings
from flowctl.core.sizing import RECORDS_PER_DEAR_CALL
from flowctl.core.supply import Backlog
from flowctl.core.tuples import NEVER_JUDGED, FlowTuple, by_deadline

# -- How many rows the next call takes -----------------------------------------------------------

# Nothing is known of the target before the first call, and a row may take a second.
_FIRST_ROWS = 25
# At most so many times as many as ever before: one wrong guess costs the time of four calls.
_GROWTH = 4
# A call that alone takes more than this share of the time that is allowed decides how long a call
# takes: below it, four fifths of the time are work as it is.
_DEAR_SHARE = 1 / 5
# While a call may be dear, one in eight has a quarter of the rows (of single ones two): in calls of
# one size nothing tells what is the call's from what is the rows'.
_TRY_EVERY, _TRY_PART = 8, 1 / 4
# What a call costs belongs to the target, and changes by so much of itself from call to call.
_CALL_DRIFT = 0.01


class RowsPerCall:
    """Sizes of calls of one partition: as many rows as take ``call_max_s``.  Not thread-safe.

    Where a call is dear by itself, it takes longer: rows take 24 times as long as the call then.
    """

    def __init__(self, rows_max: int, call_max_s: float) -> None:
        self._rows_max = rows_max
        self._call_max_s = call_max_s
        self._cost: CallCost | None = None
        self._limit = RefusedLimit()  # of rows: more time out
        self._most = 0  # rows of a call so far
        self._calls = 0

    def next(self) -> int:
        """Return how many rows the next call should have at most."""
        self._calls += 1
        if (cost := self._cost) is None:
            return min(_FIRST_ROWS, self._rows_max)
        dear_s = _DEAR_SHARE * self._call_max_s
        is_dear = cost.call_s > dear_s
        rows_s = RECORDS_PER_DEAR_CALL * cost.call_s if is_dear else self._call_max_s - cost.call_s
        most = min(_GROWTH * self._most, self._limit.most, self._rows_max)
        rows = max(1, int(min(rows_s / cost.record_s, most) if cost.record_s else most))
        may_be_dear = not is_dear and cost.call_s + cost.call_error_s > dear_s
        if may_be_dear and not self._calls % _TRY_EVERY:
            rows = min(2, self._rows_max) if rows == 1 else max(1, int(_TRY_PART * rows))
        return rows

    def timed_out(self, rows: int, now_s: float) -> None:
        """Calls of ``rows`` time out, though the target took some as large before."""
        self._limit.fall(now_s, rows, rows // 2)

    def took(self, service_s: float, rows: int, now_s: float) -> None:
        """A call of ``rows`` succeeded in ``service_s`` seconds."""
        self._most = max(self._most, rows)
        if self._limit.most < self._rows_max:
            self._limit.took(1)
            self._limit.rise(now_s)
        if self._cost is None:
            self._cost = CallCost(rows, service_s, drift=_CALL_DRIFT)
        else:
            self._cost.took(rows, service_s)


# -- Rows that were read and are not settled, as pieces ----------------------------------------


class Pieces:
    """All pieces of one partition.

    ``chance`` gives numbers from 0 to 1 for the jitter of back-offs; None: no jitter.
    """

    def __init__(
        self,
        partition: str,
        settings: CoreSettings,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._partition = partition
        book = self._book = Book(settings, Backlog())
        self._retries: RetryQueue[FlowTuple] = RetryQueue(settings.retry, chance, by_deadline)
        # Others write to it too, so it counts as known although this partition has just begun.
        self._target = Place(
            settings.retry.give_up_after_s, book.counters, book.events, is_known=True
        )
        self._first_failed_s: dict[float, float] = {}  # by what was read together
        self._isolation = Isolation(self._book, self._retries)
        self._last: Position | None = None  # of the newest row
        self._before: Position | None = None  # of the row before the oldest that is not settled
        self.given_up: Position | None = None  # of the last row that the target does not have

    @property
    def waiting(self) -> int:
        """How many pieces go again, now or later."""
        return len(self._retries)

    def add(self, records: Sequence[Record]) -> FlowTuple:
        """Make a piece of rows that were just read; it is not given out by :meth:`next`."""
        piece = self._new(records)
        piece.wait_until(piece.tuple_id)  # pieces that are ready go in the order of reading
        self._last = records[-1].position
        return piece

    def _new(self, records: Sequence[Record]) -> FlowTuple:
        piece = FlowTuple(self._book.ids.next(), Cut(self._partition, 0, records, 0))
        self._book.pending[piece.tuple_id] = piece
        return piece

    def next(self, now_s: float) -> FlowTuple | None:
        """Return a piece that is to go again now, or None."""
        self._retries.ripen(now_s)
        return self._retries.take()

    def next_due_s(self) -> float | None:
        """When the next piece may go again, or None."""
        return self._retries.next_due_s()

    def settle(self, piece: FlowTuple, now_s: float, *, is_done: bool = True) -> None:
        """``piece`` is done, or given up (``is_done`` False): it does not go again."""
        if is_done:
            self._target.proven_at_s = now_s
            self._isolation.on_done(piece, now_s)
        else:
            self.note_given_up(piece.cut.records[-1])
        del self._book.pending[piece.tuple_id]
        if is_done and not self._book.pending:
            self._first_failed_s.clear()

    def note_given_up(self, record: Record) -> None:
        """The target does not have ``record``, and gets it no more."""
        self.given_up = latest(self.given_up, record.position)

    def fault(
        self,
        piece: FlowTuple,
        record_index: int | None,
        now_s: float,
        *,
        may_be_target: bool = True,
    ) -> bool:
        """``piece`` failed: it is sent again, whole or cut.  True: its attempts ran out.

        ``record_index``: the row that was being read, if that is known.  ``may_be_target``: as far
        as can be seen, the target may be to blame.  Then the piece is not given up while nothing
        has succeeded since it failed, for as long as that lasts in a run (core/blame.py).
        """
        self._first_failed_s.setdefault(piece.deadline_s, now_s)
        # A later success is compared with this.  For one row: when what it was cut from failed
        # last; if it was read alone, when it failed first.
        if piece.cut.divisible > 1 or piece.judged_at_s == NEVER_JUDGED:
            piece.judged(now_s)
        may_wait = not self._target.fails_for_long(now_s) and may_be_target
        piece.faulted()
        was_cut = self._isolation.take(piece, record_index, now_s)
        self._book.events.clear()  # the counts of the delivery tell as much
        if was_cut or self._retries.fault(piece, piece.faults, now_s) is not None:
            return False
        if may_wait and self._target.lacks_proof(piece.judged_at_s):
            piece.forgiven()
            piece.refused()
            self._retries.refusal(piece, piece.refusals, now_s)
            return False
        return True

    def fails_among_others(self, piece: FlowTuple, *, may_be_target: bool = True) -> bool:
        """Whether other rows were taken since ``piece``, which is given up, began to fail.

        Rows that wait for their back-off are given up one after the other, with no call between
        them if all others are done.
        """
        since_s = self._first_failed_s[piece.deadline_s]
        if may_be_target:
            since_s = max(since_s, piece.judged_at_s)
        return since_s < self._target.proven_at_s

    def split_off(self, piece: FlowTuple, at: int, now_s: float) -> None:
        """``piece`` keeps its first ``at`` rows; the others are a piece that goes next."""
        records = piece.cut.records
        rest = self._new(records[at:])
        rest.wait_until(piece.deadline_s)
        rest.take_faults(piece.faults)
        self._retries.add(rest, not_before_s=now_s, now_s=now_s)
        self.keep_only(piece, range(at))

    def keep_only(self, piece: FlowTuple, indices: Iterable[int]) -> None:
        """The target took ``piece`` but for these rows."""
        records = piece.cut.records
        piece.recut(Cut(self._partition, 0, [records[index] for index in indices], 0))

    def acked_through(self) -> Position | None:
        """Up to which row all are settled; None: not even the first."""
        return self._before

    def note_progress(self) -> None:
        """Work out :meth:`acked_through` again; for when no piece is under way.

        Only where nothing is pending, which is nearly always: then it is the newest row.
        """
        if not self._book.pending:
            self._before = self._last
