"""What a first ``process`` gets wrong is named together with what was meant."""

from __future__ import annotations

import pytest

from flowctl import RetryLater
from flowctl.core.events import TupleGaveUp
from flowctl.core.records import Record
from flowctl.runtime.faults import gave_up_error


def gave_up(first: int, last: int, reason: str) -> TupleGaveUp:
    return TupleGaveUp(
        at_s=0.0,
        tuple_id=1,
        partition="in.log",
        first=first,
        last=last,
        attempts=5,
        bolts=("b1",),
        reason=reason,
    )


def test_a_record_is_taken_for_its_value() -> None:
    with pytest.raises(TypeError, match=r"write record.value\['id'\]"):
        Record(0, {"id": 1})["id"]  # type: ignore[index]


def test_seconds_are_given_as_the_reason() -> None:
    with pytest.raises(TypeError, match=r"RetryLater\('busy', after_s=0.2\)"):
        RetryLater(0.2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("last", "said"), [(7, "in.log, record 7: process"), (9, "in.log, records 7 to 9: process")]
)
def test_one_record_is_not_shown_as_a_range_and_a_sentence_ends_once(last: int, said: str) -> None:
    text = str(gave_up_error(gave_up(7, last, "JobError: 2 rows for 3 records."), None))
    assert text.startswith(said)
    assert "records..." not in text and "records. Fix process" in text
