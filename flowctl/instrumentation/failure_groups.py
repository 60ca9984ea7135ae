"""Failures whose texts differ only in numbers and quoted parts count as one kind.

So a run reports the number and reason of each kind; it shows the first failure of a kind at once,
the rest as a count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from flowctl.core import events as ev
from flowctl.core.letters import REJECTED_PREFIX
from flowctl.core.positions import show_records
from flowctl.instrumentation.snapshot import LossReason

KINDS_MAX: Final = 20  # more reasons would not be read; one per record must not accumulate
OTHERS: Final = "other reasons"
_TEXT_MAX: Final = 120  # characters: a line of a terminal
_DYING_MAX: Final = 10_000  # tuples on their way to the dead letter

_AT_RECORD: Final = re.compile(r", at record [^,]*$")  # runtime/faults.py adds it
# What distinguishes kinds of failures: "HTTP 422", "Error code: 429", "errno 111", and "422
# Unprocessable Entity", in quotes (httpx) or not (requests).
_STATUS = r"[45]\d\d [A-Z][a-z]"
_CODE = rf"(?i:http|status|code|errno)[ :=]{{1,2}}\d{{1,5}}\b|\b{_STATUS}"
_QUOTED: Final = re.compile(rf"""(?<!\w)(?:'(?!{_STATUS})[^']*'|"[^"]*")(?!\w)""")
_NUMBER: Final = re.compile(rf"(?P<code>{_CODE})|0x[0-9a-fA-F]+|\d+(?:\.\d+)*")


def folded(reason: str) -> str:
    """Return the first line of ``reason`` with numbers as ``#`` and quoted parts as ``'…'``.

    A status and a code stay: they say what kind it is.
    """
    text = reason.removeprefix(REJECTED_PREFIX).strip().partition("\n")[0]
    text = _QUOTED.sub("'…'", _AT_RECORD.sub("", text))
    text = _NUMBER.sub(lambda number: number["code"] or "#", text)
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


class Reasons:
    """Counts records by reason, from the core's events.  Bounded; for one thread."""

    def __init__(self) -> None:
        self._records: Counter[str] = Counter()
        self._examples: dict[str, str] = {}  # of each reason the first
        self._dying: dict[int, str] = {}  # tuples that were given up, and why

    def take(self, event: ev.FlowEvent) -> None:
        """Count the records that were left out according to ``event``, if any."""
        if isinstance(event, ev.RecordsRejected):
            for position, reason in zip(event.positions, event.reasons, strict=False):
                self.add(
                    reason,
                    1,
                    example=f"{event.partition} {show_records(position, position)}: {reason}",
                )
        elif isinstance(event, ev.TupleGaveUp):
            if len(self._dying) < _DYING_MAX:
                self._dying[event.tuple_id] = event.reason
        elif isinstance(event, ev.TupleDeadLettered):
            reason = self._dying.pop(event.tuple_id, "not known")
            example = f"{event.partition} {show_records(event.first, event.last)}: {reason}"
            self.add(reason, event.records, example=example)

    def add(self, reason: str, records: int, *, example: str = "") -> None:
        """Count ``records`` more because of ``reason``; the first ``example`` is kept."""
        name = folded(reason)
        if name not in self._records and len(self._records) >= KINDS_MAX:
            name = OTHERS
        self._records[name] += records
        self._examples.setdefault(name, example or reason)

    def example(self, reason: str) -> str:
        """Return the first example of a reason that :meth:`most` names."""
        return self._examples[reason]

    def most(self, number: int) -> tuple[LossReason, ...]:
        """Return the most frequent reasons, most frequent first."""
        return tuple(
            LossReason(reason=reason, records=records)
            for reason, records in self._records.most_common(number)
        )


# As often as the plain view writes a line: an error in every record becomes a line in five seconds.
TELL_EVERY_S: Final = 5.0

_KINDS: Final = (
    ev.TupleFailed,
    ev.TupleGaveUp,
    ev.TupleDeadLettered,
    ev.TupleDropped,
    ev.RecordsRejected,
)


class _Kind:
    """One event class with one folded reason."""

    __slots__ = ("last", "told_at_s", "untold")

    def __init__(self, event: ev.FlowEvent, now_s: float) -> None:
        self.last = event
        self.told_at_s = now_s
        self.untold = 0


class Repeats:
    """Distinguishes repeated failures of one kind from news.  Bounded; for one thread.

    Two are of one kind if they are of one class and their reasons differ in numbers and quoted
    parts only.  A kind that was quiet for :data:`TELL_EVERY_S` is news again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[tuple[type[ev.FlowEvent], str], _Kind] = {}

    def is_news(self, event: ev.FlowEvent) -> bool:
        """Whether to show ``event`` now; otherwise it is counted for :meth:`due`."""
        if not isinstance(event, _KINDS):
            return True
        key = (type(event), folded(_reason_of(event)))
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = (type(event), OTHERS)
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _Kind(event, self._clock())
            return True
        kind.last = event
        kind.untold += len(event.positions) if isinstance(event, ev.RecordsRejected) else 1
        return False

    def due(self, *, is_end: bool = False) -> Iterator[tuple[ev.FlowEvent, int]]:
        """Yield the last event of each kind that is due, and how many there were.

        Those already shown, at once or here, are not counted again.  ``is_end``: all kinds are due.
        """
        now_s = self._clock()
        for key, kind in list(self._kinds.items()):
            if not is_end and now_s - kind.told_at_s < TELL_EVERY_S:
                continue
            if kind.untold:
                yield kind.last, kind.untold
                kind.untold = 0
                kind.told_at_s = now_s
            else:
                del self._kinds[key]


def _reason_of(event: ev.FlowEvent) -> str:
    if isinstance(event, ev.RecordsRejected):
        return event.reasons[0]
    return getattr(event, "reason", "")
