"""What a bolt reports about its own work on a tuple: its own metrics, and errors that fail
nothing."""

from __future__ import annotations

from operator import index as as_integer
from typing import Final

from flowctl.core.trees.settlement import ReportedError, Sum, Watched
from flowctl.errors import JobError
from flowctl.failure.texts import sendable_start
from flowctl.instrumentation.task_metrics import BOLT_METRICS

# Errors that one tuple may send: a bolt that reports each of its inputs would bury the acks.
_ERRORS_MAX: Final = 20
_COUNT_MAX: Final = 1 << 62  # what can be sent has 64 bits
_PROBLEM_CHARS_MAX: Final = 1_000  # an exception may quote a whole record


class Notes:
    """What a bolt reported about one tuple, through its collector."""

    __slots__ = ("counts", "errors", "errors_left_out", "means")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.means: dict[str, Sum] = {}
        self.errors: list[ReportedError] = []
        self.errors_left_out: int = 0

    def count(self, name: str, by: int) -> None:
        """Count ``by`` more of the user's own metric ``name``."""
        if name not in self.counts:
            _check_name(name, self.means)
        total = self.counts.get(name, 0) + as_integer(by)
        if abs(total) > _COUNT_MAX:
            raise JobError(
                f"metric {name!r}: {total} is too large.", remedy="Count in a larger unit."
            )
        self.counts[name] = total

    def measure(self, name: str, value: float) -> None:
        """Take ``value`` into the user's own mean ``name``."""
        if name not in self.means:
            _check_name(name, self.counts)
        add_to(self.means, name, float(value))

    def report_error(self, error: BaseException) -> None:
        """Keep ``error``, without secrets, or only its number if there are many."""
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
    """Return what ``error`` says, cut, without secrets, as what can be sent."""
    try:
        text = str(error)
    except Exception:  # user code again: an exception whose __str__ raises
        text = ""
    return sendable_start(text, _PROBLEM_CHARS_MAX)


def add_to(sums: dict[str, Sum], key: str, value: float) -> None:
    """Take ``value`` into the sum and the count of ``key``."""
    total, count = sums.get(key, (0.0, 0))
    sums[key] = (total + value, count + 1)


def _check_name(name: str, others: dict[str, Sum] | dict[str, int]) -> None:
    # raises for what could not be sent: here only the input fails, when sending the bolt would
    name.encode()
    if name in BOLT_METRICS or name in others:
        raise JobError(f"metric {name!r}: the name is taken.", remedy="Give another name.")
