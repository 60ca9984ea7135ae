"""Rows that were read and are not settled, as pieces: which goes next, and what to cut when.

The rules are those of the core: retries with back-off, whose fault a failure is, and the search for
the record that makes a piece fail (:mod:`flowctl.core.isolation`).  Pure; not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from flowctl.core.blame import Place
from flowctl.core.book import Book
from flowctl.core.buffer import Cut
from flowctl.core.cost import ServiceModel, ServicePool
from flowctl.core.isolation import Isolation
from flowctl.core.positions import latest
from flowctl.core.records import Position, Record
from flowctl.core.retry import RetryQueue
from flowctl.core.settings import CoreSettings, TupleSettings
from flowctl.core.sizing import records_for
from flowctl.core.supply import Backlog
from flowctl.core.tuples import NEVER_JUDGED, FlowTuple, by_deadline

# -- How many rows the next call takes: the law by which bolts get tuples (core/sizing.py) -----


class RowsPerCall:
    """Sizes of calls of one partition.  Not thread-safe.

    As few rows as keep the fixed cost of a call small, and no more than take ``settings.
    service_max_s``; the first two calls are small, as nothing is known of the target.
    """

    def __init__(
        self, settings: TupleSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.service: ServiceModel = ServiceModel(ServicePool())
        self.sent: int = 0
        self._settings = settings
        self._clock = clock

    def next(self) -> int:
        """Return how many rows the next call should have at most."""
        rows = records_for(self, self._settings, 1, self.service.pool)
        service, most_s = self.service, self._settings.service_max_s
        # Ten times a call's cost may be more than the user allows: there, only where the call alone
        # takes over a fifth of that.  As sizes vary by 15 %, what is measured may be 10 % off.
        if service.record_s > 0 and 5 * service.tuple_s <= 1.1 * most_s:
            rows = min(rows, max(1, int(1.15 * (most_s - service.tuple_s) / service.record_s)))
        self.sent += 1
        return rows

    def took(self, service_s: float, rows: int) -> None:
        """A call of ``rows`` succeeded in ``service_s`` seconds."""
        self.service.on_sample(self._clock(), service_s, 0.0, rows)
        self.service.is_told = True


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
