"""Why records were left out: reasons that differ only in numbers and quoted parts count as one."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from flowctl.core.events import FlowEvent, RecordsRejected, TupleDeadLettered, TupleGaveUp
from flowctl.core.letters import REJECTED_PREFIX
from flowctl.instrumentation.snapshot import LossReason

KINDS_MAX: Final = 20  # nobody reads more; one reason per record must not accumulate
OTHERS: Final = "other reasons"
_TEXT_MAX: Final = 120  # characters: a line of a terminal
_DYING_MAX: Final = 10_000  # tuples on their way to the dead letter

_AT_RECORD: Final = re.compile(r", at record [^,]*$")  # runtime/faults.py adds it
_QUOTED: Final = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)*")


def folded(reason: str) -> str:
    """Return the first line of ``reason`` with numbers as ``#`` and quoted parts as ``'…'``."""
    text = reason.removeprefix(REJECTED_PREFIX).strip().partition("\n")[0]
    text = _QUOTED.sub("'…'", _AT_RECORD.sub("", text))
    text = _NUMBER.sub("#", text)
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


class Reasons:
    """Counts records by reason, from the core's events.  Bounded; for one thread."""

    def __init__(self) -> None:
        self._records: Counter[str] = Counter()
        self._dying: dict[int, str] = {}  # tuples that were given up, and why

    def take(self, event: FlowEvent) -> None:
        """Count what ``event`` says about records that were left out, if anything."""
        if isinstance(event, RecordsRejected):
            for reason in event.reasons:
                self.add(reason, 1)
        elif isinstance(event, TupleGaveUp):
            if len(self._dying) < _DYING_MAX:
                self._dying[event.tuple_id] = event.reason
        elif isinstance(event, TupleDeadLettered):
            self.add(self._dying.pop(event.tuple_id, "not known"), event.records)

    def add(self, reason: str, records: int) -> None:
        """``records`` more were left out because of ``reason``."""
        name = folded(reason)
        if name not in self._records and len(self._records) >= KINDS_MAX:
            name = OTHERS
        self._records[name] += records

    def most(self, number: int) -> tuple[LossReason, ...]:
        """Return the most frequent reasons, most frequent first."""
        return tuple(
            LossReason(reason=reason, records=records)
            for reason, records in self._records.most_common(number)
        )
