"""How many records a run may leave out: rejected by ``process``, or given up and dead-lettered."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

import msgspec

from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, RecordsRejected, TupleDeadLettered
from flowctl.errors import ConfigError, InfrastructureError, TooManyLostError
from flowctl.instrumentation.failure_groups import Reasons
from flowctl.instrumentation.numbers import count, counted
from flowctl.instrumentation.snapshot import Report
from flowctl.instrumentation.summary import earlier_kept_nowhere, earlier_losses, losses
from flowctl.ports import CountingDeadLetter, DeadLetter, RedrivableDeadLetter
from flowctl.runtime.control import RunControl

# Records from which on a share counts, as a share of fewer says little: at 0.1 % the first bad
# record among the first 999 would end the run, however good the rest is.  At the end the share is
# exact, however few records there were.
SHARE_COUNTS_FROM: Final = 1_000
REASONS_TOLD: Final = 3
_FORM: Final = re.compile(r"(\d+)|(\d+(?:\.\d+)?) ?%")


class LossBudget(msgspec.Struct, frozen=True):
    """The most records, or the largest share of the done ones, that may be left out.

    ``text`` is what the user wrote.
    """

    text: str
    records: int | None = None
    share: Fraction | None = None

    @classmethod
    def parse(cls, given: object, *, name: str = "loss.fail_over") -> LossBudget:
        """Return the budget that ``100`` or ``0.1%`` means; raise :class:`ConfigError` for other
        texts.
        """
        text = str(given).strip()
        found = _FORM.fullmatch(text)
        if found is None:
            raise ConfigError(
                name,
                f"{text!r} is neither a count nor a share.",
                remedy="Write a count of records, such as 100, or a share of them, such as 0.1%.",
            )
        if found[1] is not None:
            return cls(text, records=int(found[1]))
        share = Fraction(found[2]) / 100
        if share > 1:
            raise ConfigError(
                name,
                f"{text!r} is more than all records.",
                remedy="Write a share of up to 100%, or leave the limit out: then any number may be"
                " lost, and the exit code is 3.",
            )
        return cls(text, share=share)

    def is_exceeded(self, lost: int, done: int, *, at_end: bool) -> bool:
        """Whether losing ``lost`` of ``done`` records is more than allowed; ``at_end``: none will
        follow.
        """
        if self.records is not None:
            return lost > self.records
        assert self.share is not None
        return (at_end or done >= SHARE_COUNTS_FROM) and lost > self.share * done


class Losses:
    """The records that a run leaves out, why, and whether they are too many.

    ``records_before``: done by earlier runs; a share refers to these too.  For one thread, except
    :meth:`is_too_many`.
    """

    def __init__(
        self,
        fail_over: str | None,
        dead_letter: DeadLetter | None,
        *,
        job: str,
        records_before: int = 0,
    ) -> None:
        self._budget = LossBudget.parse(fail_over) if fail_over is not None else None
        self._dead_letter = dead_letter
        self._job = job
        self._records_before = records_before
        self._letters_open = 0  # open letters when the run ended
        self._kept_nowhere_before = 0  # records rejected by earlier runs, still not done
        self._reasons = Reasons()

    def take(self, event: FlowEvent) -> None:
        """Take note of an event of the core."""
        self._reasons.take(event)

    def is_too_many(self, counters: Counters, *, at_end: bool = False) -> bool:
        """Whether more records were left out than allowed.

        Those of earlier runs count only at the end: this run may process letters again.
        """
        if self._budget is None:
            return False
        lost = counters.records_lost + (self._earlier(counters) if at_end else 0)
        done = self._records_before + counters.records_acked
        return self._budget.is_exceeded(lost, done, at_end=at_end)

    def _earlier(self, counters: Counters) -> int:
        """Return how many records earlier runs left out that are still not done."""
        letters = max(0, self._letters_open - counters.records_lost)
        return letters + self._kept_nowhere_before

    def enforce(self, control: RunControl) -> None:
        """Stop the run if too many records were left out, even without a further loss.

        A share counts only above some number of records.
        """
        if self._budget is None:
            return
        with control.lock:
            is_over = self.is_too_many(control.core.counters)
        if is_over and not control.stopping.is_set():
            control.fail(stopped())

    def verdict(
        self, error: BaseException | None, counters: Counters, kept_nowhere: int = 0
    ) -> BaseException | None:
        """Return what ended a run: ``error``, with the final numbers, or the losses.

        ``kept_nowhere``: records rejected by all runs that are in no dead letter.  If losses ended
        the run, the error says how many there were in the end.
        """
        ours = counters.records_rejected if self._dead_letter is None else 0
        self._kept_nowhere_before = max(0, kept_nowhere - ours)
        uncounted = self._count_letters()
        if error is None and uncounted is not None:
            return uncounted
        if self._budget is None:
            return error
        is_over = error is None and self.is_too_many(counters, at_end=True)
        return self._error(counters) if is_over or isinstance(error, TooManyLostError) else error

    def _count_letters(self) -> InfrastructureError | None:
        """Count the open letters; return why that is impossible, None if it worked."""
        port = self._dead_letter
        if not isinstance(port, CountingDeadLetter):
            return None
        try:
            self._letters_open = port.open_letters(self._job)
        except Exception as error:
            return InfrastructureError(
                f"the letters in the dead letter {type(port).__name__} can't be counted:"
                f" {type(error).__name__}: {error}.",
                remedy="What is done is saved. Make it readable and run again: letters of earlier"
                " runs may still be open.",
            )
        return None

    def _error(self, counters: Counters) -> TooManyLostError:
        budget = self._budget
        assert budget is not None
        total = self._records_before + counters.records_acked
        runs = "all runs" if self._records_before else "this run"
        facts = (
            losses(counters.records_rejected, counters.records_dead_lettered),
            earlier_losses(self._earlier(counters) - self._kept_nowhere_before, ""),
            earlier_kept_nowhere(self._kept_nowhere_before, self._job),
        )
        what = " · ".join(fact for fact in facts if fact)
        why = "; ".join(
            f"{told.reason} ({count(told.records)})" for told in self._reasons.most(REASONS_TOLD)
        )
        return TooManyLostError(
            f"too many records were left out: {what}, of {counted(total, 'record')} done in {runs};"
            f" --fail-over allows {budget.text}.{f' Most frequent: {why}.' if why else ''}",
            remedy=f"{self._where()} What is done is saved: fix the cause or raise the limit"
            " (loss.fail_over), and run again.",
        )

    def _where(self) -> str:
        port = self._dead_letter
        if isinstance(port, RedrivableDeadLetter):
            return (
                f"Look at them with: {port.hint(self._job)}. They count until they are dropped or"
                " processed again."
            )
        if port is not None:
            return f"They are in the job's {type(port).__name__}."
        return "The job has no dead letter, so rejected records are kept nowhere."

    def completed(self, report: Report) -> Report:
        """Return ``report`` with the reasons, and the place of the letters."""
        port = self._dead_letter
        hint = port.hint(self._job) if isinstance(port, RedrivableDeadLetter) else ""
        return msgspec.structs.replace(
            report,
            loss_reasons=self._reasons.most(REASONS_TOLD),
            dead_letters_hint=hint,
            letters_open=self._letters_open,
            records_kept_nowhere=report.records_rejected if port is None else 0,
            records_kept_nowhere_before=self._kept_nowhere_before,
        )


def stopped() -> TooManyLostError:
    """Return the error that stops a run; :meth:`Losses.verdict` adds the details when it is
    over.
    """
    return TooManyLostError("too many records were left out.")


def is_loss(event: FlowEvent) -> bool:
    """Whether ``event`` reports that records were left out."""
    return isinstance(event, RecordsRejected | TupleDeadLettered)
