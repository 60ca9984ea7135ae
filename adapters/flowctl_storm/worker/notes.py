"""A bolt's reports about its work on a tuple: its own metrics, and errors that fail no input."""

from __future__ import annotations

from operator import index as as_integer
from typing import Final

from flowctl.core.trees.settlement import ReportedError, Sum, Watched
from flowctl.errors import JobError
from flowctl.failure.texts import sendable_start
from flowctl.instrumentation.task_metrics import BOLT_METRICS

# Errors that one tuple may send: a bolt that reports each of its inputs would bury the acks.
_ERRORS_MAX: Final = 20
_COUNT_MAX: Final = 1 << 62  # integers that can be sent have 64 bits
_PROBLEM_CHARS_MAX: Final = 1_000  # an exception may quote a whole record


class Notes:
    """The reports of a bolt about one tuple, made through its collector."""

    __slots__ = ("counts", "errors", "errors_left_out", "means")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.means: dict[str, Sum] = {}
        self.errors: list[ReportedError] = []
        self.errors_left_out: int = 0

    def count(self, name: str, by: int) -> None:
        """Add ``by`` to the user's metric ``name``."""
        if name not in self.counts:
            _check_name(name, self.means)
        total = self.counts.get(name, 0) + as_integer(by)
        if abs(total) > _COUNT_MAX:
            raise JobError(
                f"metric {name!r}: {total} is too large.", remedy="Count in a larger unit."
            )
        self.counts[name] = total

    def measure(self, name: str, value: float) -> None:
        """Add ``value`` to the user's mean ``name``."""
        if name not in self.means:
            _check_name(name, self.counts)
        add_to(self.means, name, float(value))

    def report_error(self, error: BaseException) -> None:
        """Keep ``error``, without secrets; beyond a limit only count errors."""
        if len(self.errors) < _ERRORS_MAX:
            problem = problem_of(error)
            self.errors.append(ReportedError(type(error).__name__, problem))
        else:
            self.errors_left_out += 1

    def watched(self) -> Watched:
        """As it is sent."""
        return Watched(
            counts=self.counts,
            means=self.means,
            errors=self.errors,
            errors_left_out=self.errors_left_out,
        )


def problem_of(error: BaseException) -> str:
    """Return the text of ``error``, truncated, without secrets, fit to be sent."""
    try:
        text = str(error)
    except Exception:  # user code may raise again, in __str__ of its exception
        text = ""
    return sendable_start(text, _PROBLEM_CHARS_MAX)


def add_to(sums: dict[str, Sum], key: str, value: float) -> None:
    """Add ``value`` to the sum and 1 to the count of ``key``."""
    total, count = sums.get(key, (0.0, 0))
    sums[key] = (total + value, count + 1)


def _check_name(name: str, others: dict[str, Sum] | dict[str, int]) -> None:
    # raises for a value that can't be sent: here only the input fails, later the bolt would
    name.encode()
    if name in BOLT_METRICS or name in others:
        raise JobError(f"metric {name!r}: the name is taken.", remedy="Give another name.")
