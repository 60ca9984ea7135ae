"""Rows that were read and are not settled, as pieces: which goes next, and what to cut when.

The rules are those of the core: retries with back-off, and the search for the record that makes a
piece fail (:mod:`flowctl.core.isolation`).  Pure; not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from flowctl.core.book import Book
from flowctl.core.buffer import Cut
from flowctl.core.isolation import Isolation
from flowctl.core.records import Position, Record
from flowctl.core.retry import DOUBT_WAIT_MAX_S, RetryQueue, backoff_s
from flowctl.core.settings import CoreSettings
from flowctl.core.supply import Backlog
from flowctl.core.tuples import NEVER_JUDGED, FlowTuple


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
        self._book = Book(settings, Backlog())
        self._retries = RetryQueue(settings.retry, chance)
        self._chance = chance
        most_s = min(DOUBT_WAIT_MAX_S, settings.retry.backoff_max_s)
        self._doubt = replace(settings.retry, backoff_max_s=most_s)
        self._isolation = Isolation(self._book, self._retries)
        self._last: Position | None = None  # of the newest row
        self._before: Position | None = None  # of the row before the oldest that is not settled

    def __len__(self) -> int:
        """How many pieces are not settled."""
        return len(self._book.pending)

    @property
    def waiting(self) -> int:
        """How many pieces go again, now or later."""
        return len(self._retries)

    def add(self, records: Sequence[Record]) -> FlowTuple:
        """Make a piece of rows that were just read; it is not given out by :meth:`next`."""
        piece = self._new(records)
        piece.deadline_s = piece.tuple_id  # pieces that are ready go in the order of reading
        self._last = records[-1].position
        return piece

    def _new(self, records: Sequence[Record]) -> FlowTuple:
        piece = FlowTuple(self._book.ids.next(), Cut(self._partition, 0, records, 0))
        self._book.pending[piece.tuple_id] = piece
        return piece

    def next(self, now_s: float) -> FlowTuple | None:
        """Return a piece that is to go again now, or None."""
        self._retries.ripen(now_s)
        return next(self._retries.take_ready(), None)

    def next_due_s(self) -> float | None:
        """When the next piece may go again, or None."""
        return self._retries.next_due_s()

    def settle(self, piece: FlowTuple, now_s: float, *, is_done: bool = True) -> None:
        """``piece`` is done, or given up (``is_done`` False): it does not go again."""
        if is_done:
            self._isolation.on_done(piece, now_s)
        del self._book.pending[piece.tuple_id]

    def judge(self, piece: FlowTuple, now_s: float) -> None:
        """Note that ``piece`` failed just now, if that is what a later success is compared with.

        For one row: when what it was cut from failed last; if it was read alone, when it failed
        first.
        """
        if piece.cut.divisible > 1 or piece.judged_at_s == NEVER_JUDGED:
            piece.judged_at_s = now_s

    def fault(
        self,
        piece: FlowTuple,
        record_index: int | None,
        now_s: float,
        *,
        is_doubtful: bool = False,
    ) -> bool:
        """``piece`` failed: it is sent again, whole or cut.  True: its attempts ran out.

        ``record_index``: the row that was being read, if that is known.  ``is_doubtful``: the
        target may be to blame, so it is not given up yet.
        """
        piece.faults += 1
        was_cut = self._isolation.take(piece, record_index, now_s)
        self._book.events.clear()  # the counts of the delivery tell as much
        if was_cut:
            return False
        if self._retries.schedule(piece, now_s=now_s) is not None:
            return False
        if is_doubtful:
            piece.faults -= 1
            piece.refusals += 1
            wait_s = backoff_s(piece.refusals, self._doubt, self._chance)
            self._retries.add(piece, not_before_s=now_s + wait_s, now_s=now_s)
        return not is_doubtful

    def split_off(self, piece: FlowTuple, at: int, now_s: float) -> None:
        """``piece`` keeps its first ``at`` rows; the others are a piece that goes next."""
        records = piece.cut.records
        rest = self._new(records[at:])
        rest.deadline_s, rest.faults = piece.deadline_s, piece.faults
        self._retries.add(rest, not_before_s=now_s, now_s=now_s)
        self.keep_only(piece, range(at))

    def keep_only(self, piece: FlowTuple, indices: Iterable[int]) -> None:
        """The target took ``piece`` but for these rows."""
        records = piece.cut.records
        piece.cut = Cut(self._partition, 0, [records[index] for index in indices], 0)

    def acked_through(self) -> Position | None:
        """Up to which row all are settled; None: not even the first."""
        return self._before

    def note_progress(self) -> None:
        """Work out :meth:`acked_through` again; for when no piece is under way.

        Only where nothing is pending, which is nearly always: then it is the newest row.
        """
        if not self._book.pending:
            self._before = self._last
