"""Rows that were read and are not settled, as pieces: which goes next, and what to cut when.

The rules are those of the core: retries with back-off, whose fault a failure is, and the search for
the record that makes a piece fail (:mod:`flowctl.core.isolation`).  Pure; not thread-safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

from flowctl.core.book import Book
from flowctl.core.buffer import Cut
from flowctl.core.cost import CallCost
from flowctl.core.failures import Failures, Keeper
from flowctl.core.limit import RefusedLimit
from flowctl.core.positions import latest
from flowctl.core.records import AckOutcome, Position, Record, picked
from flowctl.core.settings import CoreSettings, RetrySettings
from flowctl.core.sizing import RECORDS_PER_DEAR_CALL
from flowctl.core.supply import Backlog
from flowctl.core.tuples import NEVER_JUDGED, FlowTuple

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


# Names of partitions in a run are other ones: one that :mod:`flowctl.core.letters` knows would make
# letters that are redriven fail at once, as in a run.
_LANE = "@{}"
#: Of rows that all have one target.
ONE_LANE: Final = ""


def lane_of(target: str) -> str:
    """Return the lane of a target, where several are called; the partition of its pieces."""
    return _LANE.format(target)


class Pieces:
    """All pieces of one partition, in a lane for each target that it calls.

    A lane is down, full or to blame by itself: what one target does says nothing of another.  It is
    the partition of its pieces (``cut.partition``).  ``acked_through``: up to this row all are
    settled; None: not even the first.  ``given_up``: the last row that its target does not have.
    ``chance`` gives numbers from 0 to 1 for the jitter of back-offs; None: no jitter.  ``calls``:
    so many are made at once.  ``keeps``: what is given up is kept as a dead letter; else it ends
    the task.
    """

    def __init__(
        self,
        attempts_max: int,
        chance: Callable[[], float] | None = None,
        *,
        calls: int = 1,
        keeps: bool = True,
    ) -> None:
        self._attempts_max = attempts_max
        self._keeps = keeps
        self._chance = chance
        settings = CoreSettings(retry=RetrySettings(attempts_max=attempts_max))
        self._book = Book(settings, Backlog())
        self._book.slots = calls
        self._lanes: dict[str, Failures] = {}
        self._waiting: dict[str, Failures] = {}  # lanes in which pieces wait; maybe no more
        self._calling: Counter[str] = Counter()  # calls under way, by lane
        self._first_failed_s: dict[float, float] = {}  # by what was read together
        self._newest: Position | None = None
        self.acked_through: Position | None = None
        self.given_up: Position | None = None

    def add(self, records: Sequence[Record], now_s: float, lane: str = ONE_LANE) -> None:
        """Make a piece of rows that were just read; it is ready.  Then call :meth:`note_read`."""
        if lane not in self._lanes:
            self._lanes[lane] = Failures(self._book, Keeper.CALLER, self._chance, in_place=True)
        piece = self._new(records, lane)
        piece.wait_until(piece.tuple_id)  # pieces that are ready go in the order of reading
        self.again(piece, now_s)

    def note_read(self, through: Position) -> None:
        """All rows up to ``through`` were read, and are pieces."""
        self._newest = through

    def _new(self, records: Sequence[Record], lane: str) -> FlowTuple:
        piece = FlowTuple(self._book.ids.next(), Cut(lane, 0, records, 0))
        self._book.pending[piece.tuple_id] = piece
        return piece

    def _lane(self, piece: FlowTuple) -> Failures:
        return self._lanes[piece.cut.partition]

    def may_read(self, now_s: float) -> bool:
        """Whether it is of use to read more: nothing else is asked of a target that is down."""
        one = self._lanes.get(ONE_LANE)
        return one is None or _may_call(one, now_s)

    def take(self, now_s: float) -> FlowTuple | None:
        """Take out and return the next piece that may be sent, or None.

        Of several lanes the one in which the fewest calls are under way, so that a target which
        makes its rows wait holds up the others as late as possible.
        """
        found: str | None = None
        for lane, failures in list(self._waiting.items()):
            if not failures.retries:
                del self._waiting[lane]
            elif found is not None and self._calling[lane] >= self._calling[found]:
                continue
            elif _may_call(failures, now_s) and failures.retries.has_ready:
                found = lane
                if not self._calling[lane]:
                    break
        if found is None:
            return None
        failures = self._waiting.pop(found)
        piece = failures.retries.take()
        if failures.retries:  # behind the others
            self._waiting[found] = failures
        return piece

    @property
    def waiting(self) -> int:
        """How many pieces wait, for their back-off or for somebody who sends them."""
        return sum(len(failures.retries) for failures in self._waiting.values())

    @property
    def are_settled(self) -> bool:
        """Whether nothing that was read is left to be done."""
        return not self._book.pending

    def next_s(self) -> float:
        """When the next piece, or a call to a target that is down, is due; inf: none."""
        due_s = (failures.next_s() for failures in self._lanes.values())
        return min((at_s for at_s in due_s if at_s is not None), default=inf)

    def begin(self, piece: FlowTuple, now_s: float) -> None:
        """``piece`` is about to be sent."""
        self._calling[piece.cut.partition] += 1
        target = self._lane(piece).target
        if target.is_troubled:
            target.note_sent(now_s)

    def ended(self, piece: FlowTuple) -> None:
        """The call of ``piece`` ended, however it did; then say how."""
        lane = piece.cut.partition
        self._calling[lane] -= 1
        self._waiting[lane] = self._lanes[lane]  # perhaps it goes again, or parts of it

    def done(self, piece: FlowTuple, now_s: float) -> None:
        """The target has ``piece``."""
        lane = self._lane(piece)
        # With several calls, what failed meanwhile may have failed after this one was taken.
        since_s = now_s if self._book.slots == 1 else piece.sent_at_s
        lane.target.proven_at_s = max(lane.target.proven_at_s, since_s)
        if lane.target.is_troubled:
            lane.target.on_success(piece.sent_at_s, now_s)
        if piece.search is not None or piece.is_aside:
            lane.isolation.on_done(piece, now_s)
        del self._book.pending[piece.tuple_id]
        if not self._book.pending:  # nearly always
            self.acked_through = self._newest
            self._first_failed_s.clear()

    def give_up(self, position: Position) -> None:
        """The target does not have the row at ``position``, and gets it no more."""
        self.given_up = latest(self.given_up, position)

    def fault(
        self, piece: FlowTuple, record_index: int | None, now_s: float, *, may_be_target: bool
    ) -> bool:
        """``piece`` failed: it is sent again, whole or cut.  True: it is given up.

        ``record_index``, ``may_be_target``: as :meth:`flowctl.core.failures.Failures.fault` has
        them.  The target is to blame for :data:`flowctl.core.blame.BAD_END_S` at most.
        """
        first_failed_s = self._first_failed_s.setdefault(piece.deadline_s, now_s)
        is_content = self._keeps and not may_be_target
        lane = self._lane(piece)
        if lane.target.fails_for_long(now_s) or not may_be_target:
            lane.target.close("", now_s)  # it has answered, or is to blame no longer
            may_be_target = False
        if piece.judged_at_s == NEVER_JUDGED and self._attempts_max == 1:
            piece.judged(now_s)  # the last attempt already: others have to show that it is bad
        judged_at_s = piece.judged_at_s
        outcome = lane.fault(
            piece, "", "", now_s,
            record_index=record_index, may_be_target=may_be_target, is_content=is_content,
        )  # fmt: skip
        # A later success is compared with this.  For one row: when what it was cut from failed
        # last; if it was read alone, when it failed first.
        if piece.cut.divisible == 1 and judged_at_s > NEVER_JUDGED:
            piece.judged(judged_at_s)
        self._book.events.clear()  # the counts of the delivery tell as much
        self._book.lost.clear()
        if outcome is AckOutcome.REFUSED:  # it is down: the last of all, with a name of its own
            last = float(self._book.ids.next())
            self._first_failed_s[last] = first_failed_s
            piece.wait_until(last)
        if outcome is not AckOutcome.GAVE_UP:
            return False
        self.give_up(piece.last)
        return True

    def fails_among_others(self, piece: FlowTuple, *, may_be_target: bool) -> bool:
        """Whether other rows were taken since ``piece``, which is given up, began to fail.

        Rows that wait for their back-off are given up one after the other, with no call between
        them if all others are done.
        """
        since_s = self._first_failed_s[piece.deadline_s]
        if may_be_target:
            since_s = max(since_s, piece.judged_at_s)
        return since_s < self._lane(piece).target.proven_at_s

    def split_off(self, piece: FlowTuple, at: int, now_s: float) -> None:
        """``piece`` keeps its first ``at`` rows; the others are a piece that goes next."""
        records = piece.cut.records
        rest = self._new(records[at:], piece.cut.partition)
        rest.wait_until(piece.deadline_s)
        rest.take_faults(piece.faults)
        self.again(rest, now_s)
        self.keep_only(piece, range(at))

    def again(self, piece: FlowTuple, now_s: float) -> None:
        """``piece`` goes next, as if it had not been sent."""
        lane = self._waiting[piece.cut.partition] = self._lane(piece)
        lane.retries.add(piece, not_before_s=now_s, now_s=now_s)

    def keep_only(self, piece: FlowTuple, indices: Iterable[int]) -> None:
        """The target took ``piece`` but for these rows."""
        records = piece.cut.records
        piece.recut(Cut(piece.cut.partition, 0, picked(records, indices), 0))


def _may_call(lane: Failures, now_s: float) -> bool:
    """Time passed; whether a call may be made: a target that is down is left alone."""
    is_troubled = lane.target.is_troubled
    if is_troubled or lane.retries:
        lane.on_deadline(now_s)
    return not is_troubled or lane.target.room(0, now_s) >= 1
