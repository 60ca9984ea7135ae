"""Finding the record that makes a tuple fail, so that it does not take its tuple along.

If the failed call said which record it was reading, the tuple is cut there.  Else it goes again
once as a whole, as most failures pass; a second failure starts a binary search: the first half
goes alone.  If that fails, the record is in it; if it succeeds, the record is in the other half,
which need not be tried as a whole.  What lies behind waits aside and goes as one tuple at the end.
So each such record costs at most log2(n) + ``retry.attempts_max`` calls more than none would.

An error that is about what was sent comes again, so nothing goes again as a whole then.  If what
lay behind has such an error as well, there are many such records: from then on it goes in groups
of which about every other succeeds, which is when a call tells most.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, log
from typing import Final

from flowctl.core.book import Book
from flowctl.core.buffer import Cut
from flowctl.core.events import TupleCut
from flowctl.core.retry import CONTENT_ATTEMPTS_MAX, RetryQueue
from flowctl.core.tuples import FlowTuple, Search

# A tuple goes again as a whole after its first failure, as most pass, if attempts enough are left:
# the record needs one alone as well.
_WHOLE_TRIES = 2
_ATTEMPTS_FOR_TWO = 3
# How many records a group has of which every other succeeds, times the share that fails.
_HALF_SUCCEED: Final = log(2)
# So many records that fail tell their share within a third; older ones count half with each so
# many, as bad records come in runs.
_FOUND_MAX: Final = 8


class _Failing:
    """Of how many records that lay behind one that fails, how many fail too."""

    __slots__ = ("_found", "_tried")

    def __init__(self) -> None:
        self._tried = 0.0
        self._found = 0

    def passed(self, records: int) -> None:
        self._tried += records

    def failed(self) -> None:
        self._tried += 1
        self._found += 1
        if self._found >= _FOUND_MAX:
            self._found //= 2
            self._tried /= 2

    @property
    def group(self) -> float:
        """How many records should go together; inf: as many as there are."""
        return max(1.0, _HALF_SUCCEED * self._tried / self._found) if self._found else inf


class Isolation:
    """Cuts tuples that fail as a whole.  Part of ``TupleCore``, not thread-safe.

    A record that fails is given up only after it failed alone.
    """

    def __init__(self, book: Book, retries: RetryQueue[FlowTuple]) -> None:
        attempts_max = self._attempts_max = book.settings.retry.attempts_max
        self._whole_tries = _WHOLE_TRIES if attempts_max >= _ATTEMPTS_FOR_TWO else 1
        self._pending = book.pending
        self._retries = retries
        self._ids = book.ids
        self._counters = book.counters
        self._events = book.events
        self._failing = _Failing()

    def will_cut(self, failed: FlowTuple, record_index: int | None, *, is_content: bool) -> bool:
        """Whether :meth:`take` would cut ``failed``."""
        records = failed.cut.divisible
        if records == 1:
            return False
        names_one = record_index is not None and 0 <= record_index < records
        if names_one or is_content or failed.search is not None:
            return True
        return failed.faults >= self._whole_tries

    def take(
        self, failed: FlowTuple, record_index: int | None, now_s: float, *, is_content: bool = False
    ) -> bool:
        """``failed`` had a fault and is in nobody's hands; return whether it was cut.

        If not, it is to be tried again, or given up, as it is.
        """
        records = failed.cut.divisible
        if records == 1:
            # Of an error that nobody recognises, the target may be to blame.
            if is_content and failed.is_aside and failed.faults >= CONTENT_ATTEMPTS_MAX:
                self._failing.failed()
            search = failed.end_search()
            if search is not None:
                self._release_groups(self._join(search.suspect, search.aside, now_s), now_s)
            return False
        if not self.will_cut(failed, record_index, is_content=is_content):
            return False
        if record_index is not None and 0 <= record_index < records:
            self._cut_out(failed, record_index, now_s)
            return True
        search = failed.end_search()
        aside = self._join(search.suspect, search.aside, now_s) if search is not None else None
        self._narrow(failed, aside, now_s)
        return True

    def split(self, refused: FlowTuple, at: int, now_s: float, *, not_before_s: float) -> None:
        """``refused`` was refused at record ``at``: what came before goes apart from the rest.

        So a target that takes ten calls a second gets through a tuple of a hundred records.
        """
        for piece in self._cut(refused, (0, at, len(refused.cut.records)), now_s):
            piece.take_faults(self._inherited(refused))
            self._retries.add(piece, not_before_s=not_before_s, now_s=now_s)

    def ask_with_part(
        self, asking: FlowTuple, record_index: int | None, now_s: float, *, not_before_s: float
    ) -> None:
        """``asking`` was to show that the target is well, and failed: its first part asks next.

        So a part without a bad record is found soon, and shows it: most likely what was read before
        it failed, or else its first half.
        """
        records = asking.cut.divisible
        at = record_index
        # Who fails at the last record may have read all of them first.
        if at is None or not 0 < at < records - 1:
            at = (records + 1) // 2
        first, rest = self._cut(asking, (0, at, records), now_s)
        first.wait_until(0.0)  # before all others
        for piece in (first, rest):
            piece.take_faults(self._inherited(asking))
            self._retries.add(piece, not_before_s=not_before_s, now_s=now_s)

    def on_done(self, piece: FlowTuple, now_s: float) -> None:
        """``piece``, which lay aside or belongs to a search, was processed: of a search, the record
        is in the other part.
        """
        if piece.is_aside:
            self._failing.passed(piece.cut.divisible)
        search = piece.end_search()
        if search is not None and search.suspect is not None:
            self._narrow(search.suspect, search.aside, now_s)

    def _narrow(self, holder: FlowTuple, aside: FlowTuple | None, now_s: float) -> None:
        """The record is in ``holder``: try its first half, or itself if it is alone.

        Where many fail, the first half of a large one would fail for sure.
        """
        records = holder.cut.divisible
        if records == 1:
            self._release(holder, now_s)
            self._release_groups(aside, now_s)
            return
        at = min((records + 1) // 2, self._group(records))
        first, suspect = self._cut(holder, (0, at, records), now_s)
        for piece in (first, suspect):
            piece.take_faults(self._inherited(holder), is_culprit=True)
        self._retries.park(suspect)
        first.begin_search(Search(suspect, aside))
        self._release(first, now_s)

    def _cut_out(self, failed: FlowTuple, index: int, now_s: float) -> None:
        """The failed call was reading this record: it goes alone, what is around it as tuples."""
        search = failed.end_search()
        records = failed.cut.divisible
        bounds = sorted({0, index, index + 1, records})
        pieces = self._cut(failed, bounds, now_s)
        at = bounds.index(index)
        alone = pieces[at]
        alone.take_faults(self._inherited(failed), is_culprit=True)
        behind = pieces[at + 1] if at + 1 < len(pieces) else None
        if search is not None:
            rest = self._join(search.suspect, search.aside, now_s)
            behind = self._join(behind, rest, now_s)
        for piece in (*pieces[:at], alone, behind):
            self._release(piece, now_s)

    def _inherited(self, whole: FlowTuple) -> int:
        """How many of its faults count against a piece, which must have the last one alone."""
        return min(whole.faults, self._attempts_max - 1)

    def _cut(self, whole: FlowTuple, bounds: Sequence[int], now_s: float) -> list[FlowTuple]:
        del self._pending[whole.tuple_id]
        self._retries.discard(whole)
        pieces = [self._add(whole.cut.part(start, stop), whole) for start, stop in pairwise(bounds)]
        self._tell([whole], pieces, now_s)
        return pieces

    def _join(
        self, first: FlowTuple | None, second: FlowTuple | None, now_s: float
    ) -> FlowTuple | None:
        """Make one tuple of two that wait and follow each other; neither has failed by itself."""
        if first is None or second is None:
            whole = first or second
            if whole is not None:
                whole.take_faults(0)
            return whole
        for part in (first, second):
            del self._pending[part.tuple_id]
            self._retries.discard(part)
        joined = self._add(first.cut.joined(second.cut), first)
        self._retries.park(joined)
        self._tell([first, second], [joined], now_s)
        return joined

    def _add(self, cut: Cut, former: FlowTuple) -> FlowTuple:
        piece = former.piece(self._ids.next(), cut)
        self._pending[piece.tuple_id] = piece
        return piece

    def _release(self, piece: FlowTuple | None, now_s: float) -> None:
        if piece is not None:
            self._retries.add(piece, not_before_s=now_s, now_s=now_s)

    def _release_groups(self, aside: FlowTuple | None, now_s: float) -> None:
        """What lay behind a record that fails is tried, in groups if others in it may fail too."""
        if aside is None:
            return
        records = aside.cut.divisible
        group = self._group(records)
        groups = [aside]
        if group < records:
            groups = self._cut(aside, _growing(records, group), now_s)
        for piece in groups:
            piece.lay_aside()
            self._release(piece, now_s)

    def _group(self, records: int) -> int:
        return int(min(records, self._failing.group))

    def _tell(self, old: list[FlowTuple], new: list[FlowTuple], now_s: float) -> None:
        self._counters.tuples_cut += len(old)
        self._counters.pieces += len(new)
        for whole in old:
            self._events.append(
                TupleCut(
                    at_s=now_s,
                    tuple_id=whole.tuple_id,
                    partition=whole.cut.partition,
                    first=whole.first,
                    last=whole.last,
                    pieces=tuple(piece.tuple_id for piece in new),
                )
            )


def _growing(records: int, group: int) -> list[int]:
    """Return the bounds of groups of ``records``, the first of ``group``: bad records come in runs,
    and a run may have ended.
    """
    bounds, size = [0], group
    while bounds[-1] + size < records:
        bounds.append(bounds[-1] + size)
        size = bounds[-1]
    return [*bounds, records]
