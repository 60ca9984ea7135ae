"""Rows that the target does not take: they go into the dead letter, or the partition fails."""

from __future__ import annotations

from collections.abc import Callable

from flowctl.core.events import TupleGaveUp
from flowctl.core.failures import DeadTuple
from flowctl.core.letters import REJECTED_PREFIX
from flowctl.core.positions import row_number
from flowctl.core.records import Position, Record
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.tally import Tally
from flowctl.errors import ProcessError, TooManyLostError
from flowctl.failure.texts import ERROR_CHARS_MAX, error_text, sendable_start
from flowctl.ports import AttemptDeadLetter, DeadLetter


class LostRows:
    """The rows that one partition leaves out.

    Not thread-safe.  Without a dead letter and without ``fail_over`` no row may be left out: the
    loss would be silent.
    """

    def __init__(self, plan: Plan, where: Where, tally: Tally) -> None:
        self._plan = plan
        self._where = where
        self._tally = tally
        self._in_a_row = 0
        self._last_reason = ""
        port = plan.dead_letter
        self._port: DeadLetter | None = port
        if isinstance(port, AttemptDeadLetter):
            self._port = port.of_attempt()
        self._budget = None
        if plan.fail_over is not None:
            # Takes half a second to load, and is only needed here.
            from flowctl.runtime.losses import LossBudget

            self._budget = LossBudget.parse(plan.fail_over, name="fail_over")

    def reject(self, record: Record, reason: str) -> None:
        """Count ``record``, which ``fn`` rejected."""
        reason = sendable_start(reason, ERROR_CHARS_MAX)
        self._tally.rejected += 1
        if self._plan.dead_letter is None and self._budget is None:
            raise TooManyLostError(
                f"a row was rejected ({reason}), and would be kept nowhere.",
                remedy="Give dead_letter=DIRECTORY to keep such rows, or fail_over='1%' to accept"
                " that some are missing.",
            )
        self._keep(record, f"{REJECTED_PREFIX}{reason}", attempts=1)

    def give_up(self, record: Record, attempts: int, error: BaseException) -> None:
        """Give up ``record``, which failed alone in its last attempt, by ``error``."""
        reason = error_text(error)
        self._tally.gave_up += 1
        self._in_a_row += 1
        if self._in_a_row > self._plan.gave_up_in_a_row_max:
            raise ProcessError(
                f"{self._in_a_row} rows in a row failed, and no call succeeded between them:"
                f" {_sentence(reason)}",
                remedy="So the target or fn is at fault, not the rows. Fix it and run again.",
            ) from error
        if self._plan.dead_letter is None:
            raise ProcessError(
                f"row {row_number(record.position)} of partition {self._where.partition} failed"
                f" {attempts} times: {_sentence(reason)}",
                remedy="Fix fn or the row, or give dead_letter=DIRECTORY to go on without it.",
            ) from error
        self._keep(record, reason, attempts=attempts)

    def succeeded(self) -> None:
        """Note that a call succeeded, perhaps since the row that is given up next failed first."""
        self._in_a_row = 0

    def end(self, is_written: Callable[[Position], bool | None]) -> None:
        """Note that all rows were read and settled; ``is_written`` tells which are written."""
        if self._plan.at_end:
            self._check(at_end=True)
        port, where = self._port, self._where
        if not isinstance(port, AttemptDeadLetter):
            return
        try:
            port.count_attempt(where.job, where.partition, is_written)
        except Exception as error:
            raise ProcessError(
                f"{where.partition}: all rows are settled, but the dead letter"
                f" {type(port).__name__} raised {_sentence(error_text(error))}"
                " The letters of this attempt do not count.",
                remedy="Mend the dead letter. Then the task can be run again.",
            ) from error

    def _keep(self, record: Record, reason: str, *, attempts: int) -> None:
        if self._port is not None:
            from flowctl.runtime.dead_letters import keep_all

            keep_all(self._port, self._where.job, [self._dead(record, reason, attempts)])
            self._tally.kept += 1
        self._last_reason = reason
        self._check(at_end=False)

    def _dead(self, record: Record, reason: str, attempts: int) -> DeadTuple:
        convert = self._plan.letter_value
        if convert is not None:
            record = Record(record.position, convert(record.value))
        gave_up = TupleGaveUp(
            at_s=0.0,
            tuple_id=0,
            partition=self._where.partition,
            first=record.position,
            last=record.position,
            attempts=attempts,
            bolts=(),
            reason=reason,
        )
        return DeadTuple(gave_up, [record])

    def _check(self, *, at_end: bool) -> None:
        last = f" The last one: {_sentence(self._last_reason)}" if self._last_reason else ""
        where = self._where.partition
        check_losses(self._plan.fail_over, self._tally, where, at_end=at_end, last=last)


def check_losses(
    fail_over: str | None, tally: Tally, where: str, *, at_end: bool = True, last: str = ""
) -> None:
    """Raise :class:`TooManyLostError` if ``tally`` lost more rows than ``fail_over`` allows.

    ``last`` is a sentence about the last of them.  Without it the rows are in the dead letters.
    """
    if fail_over is None or not tally.lost:
        return
    from flowctl.runtime.losses import LossBudget

    budget = LossBudget.parse(fail_over, name="fail_over")
    done = tally.written + tally.lost
    if budget.is_exceeded(tally.lost, done, at_end=at_end):
        raise TooManyLostError(
            f"{where}: {tally.lost} of {done} rows were left out ({tally.rejected} rejected,"
            f" {tally.gave_up} given up); fail_over allows {budget.text}.{last}",
            remedy="Fix the cause or raise the limit."
            if last
            else "Look at the dead letters, then fix the cause or raise the limit.",
        )


def _sentence(reason: str) -> str:
    """Return ``reason`` with a full stop: a remedy follows it."""
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."
