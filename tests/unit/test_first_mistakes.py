"""What a first ``process`` gets wrong is named together with what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowctl import FlowControlSpout, LocalBolts, RetryLater, SourceError
from flowctl.core.events import TupleGaveUp
from flowctl.core.failures import NOTHING_SUCCEEDED
from flowctl.core.records import Record
from flowctl.errors import JobError, UnrunnableError
from flowctl.runtime.faults import gave_up_error
from flowctl_files import TextLines


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
    with pytest.raises(AttributeError, match=r"write record.value\['id'\]"):
        _ = Record(1, {"id": 7}).id  # type: ignore[attr-defined]
    assert not hasattr(Record(1, {"id": 7}), "asDict"), "what looks for an attribute is told no"


def test_seconds_are_given_as_the_reason() -> None:
    """It ends the run: as an error of the records it would fill the dead letter."""
    with pytest.raises(UnrunnableError, match=r"RetryLater\('busy', after_s=0.2\)"):
        RetryLater(0.2)  # type: ignore[arg-type]


@pytest.mark.parametrize("after_s", ["soon", float("nan"), float("inf")])
def test_a_wait_that_is_no_number_ends_the_run(after_s: float) -> None:
    """As an error of the records it would fill the dead letter."""
    with pytest.raises(UnrunnableError, match=f"after_s={after_s!r} is not a number"):
        RetryLater("busy", after_s=after_s)


def test_a_wait_for_a_moment_that_has_passed_is_none() -> None:
    """As ``reset_at_s - time.time()`` may give: no mistake, and no fault of the records."""
    assert RetryLater("busy", after_s=-0.5).after_s == 0


def test_what_to_do_stands_at_the_beginning_of_a_line_after_a_traceback() -> None:
    assert str(JobError("it failed.\nValueError: no\n", remedy="Fix it.")).endswith("no\nFix it.")


@pytest.mark.parametrize(
    ("last", "said"), [(7, "in.log, record 7: process"), (9, "in.log, records 7 to 9: process")]
)
def test_one_record_is_not_shown_as_a_range_and_a_sentence_ends_once(last: int, said: str) -> None:
    text = str(gave_up_error(gave_up(7, last, "JobError: 2 rows for 3 records."), None))
    assert text.startswith(said)
    assert "records..." not in text and "records. Fix process" in text


def test_who_has_a_dead_letter_is_not_told_to_make_one() -> None:
    text = str(gave_up_error(gave_up(7, 7, f"OSError: refused ({NOTHING_SUCCEEDED})"), None))
    assert "none was set aside" in text
    assert "--dead-letters" not in text


def test_a_sources_remedy_names_the_job(tmp_path: Path) -> None:
    """The command has to work as printed: a source does not know the job's name."""
    lines = tmp_path / "a.log"
    lines.write_text("one\ntwo\n")
    spout = FlowControlSpout(
        name="two words",
        producer=TextLines(str(lines)),
        bolts=LocalBolts(lambda batch: None, count=1),
    )
    spout.run(view="off")
    lines.write_text("neo\nowt\nmore\n")
    with pytest.raises(SourceError) as caught:
        spout.run(view="off")
    assert "flowctl checkpoint rewind 'two words' --partition" in caught.value.remedy
    assert caught.value.remedy in str(caught.value)
