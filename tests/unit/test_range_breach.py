"""What a bolt may report about ranges: what can't be true is named, all else passes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flowctl.core.messages import (
    Fail,
    Heartbeat,
    Processed,
    Progress,
    RangeEmission,
    RangeFail,
    RejectedRecord,
    SplitAnswer,
)
from flowctl.runtime.claims import Claims
from tests.range_driver import Ranges


@pytest.fixture
def given() -> tuple[Ranges, RangeEmission]:
    ranges = Ranges("a")
    return ranges, ranges.emit()[0]


def _said(given: tuple[Ranges, RangeEmission], frame: object) -> str:
    return Claims(given[0].core).breach("a", 1, frame)


def _of(message: Any, fields: dict[str, Any]) -> Any:
    """``message``, with these fields of it or of a message in it."""
    own = {name: fields.pop(name) for name in message.__struct_fields__ if name in fields}
    return replace(message, **own)


def _progress(emission: RangeEmission, **fields: Any) -> Progress:
    did = Processed(10, 0.1, 0.0, 0.1, rejected=[RejectedRecord(emission.start, "x", "bad")])
    start = emission.start
    done = Progress(emission.tuple_id, emission.attempt, start, start + 100, 0.0, _of(did, fields))
    return replace(done, **fields)


def _failed(emission: RangeEmission, **fields: Any) -> RangeFail:
    fail = _of(Fail(emission.tuple_id, emission.attempt, "boom"), fields)
    return replace(RangeFail(fail, emission.start, emission.start + 100, 10), **fields)


def test_what_can_be_true_is_no_breach(given: tuple[Ranges, RangeEmission]) -> None:
    _, emission = given
    for frame in (
        _progress(emission),
        _failed(emission, after_s=1.0),
        SplitAnswer(emission.tuple_id, 1, 50),
        Heartbeat(busy_slots=0, queued=0),
    ):
        assert _said(given, frame) == ""


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tuple_id": 999}, "range 999, which it was never sent"),
        ({"attempt": 7}, "it reported on sending 7 of range"),
        ({"service_s": float("nan")}, "are not possible"),
        ({"read_s": -1.0}, "are not possible"),
        ({"call_s": float("inf")}, "are not possible"),
        ({"done_through": 1 << 60}, "it did 0 to 1152921504606846976"),
        ({"left_out": 11}, "11 records were left out of 10"),
        ({"rejected": [RejectedRecord(1 << 50, "x", "bad")]}, "it rejected the record at"),
        ({"records": 0}, "it rejected 1 of 0 records"),
    ],
)
def test_progress_that_can_not_be_is_named(
    given: tuple[Ranges, RangeEmission], fields: dict[str, Any], named: str
) -> None:
    assert named in _said(given, _progress(given[1], **fields))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tuple_id": 999}, "range 999, which it was never sent"),
        ({"stop": 1 << 60}, "it failed 0 to 1152921504606846976"),
        ({"after_s": float("inf")}, "it wants to wait for inf s"),
        ({"error": "x" * 70_000}, "an error of 70000 characters"),
    ],
)
def test_a_fail_that_can_not_be_is_named(
    given: tuple[Ranges, RangeEmission], fields: dict[str, Any], named: str
) -> None:
    assert named in _said(given, _failed(given[1], **fields))


def test_the_order_in_which_ranges_are_begun_is_not_told(
    given: tuple[Ranges, RangeEmission],
) -> None:
    said = _said(given, Heartbeat(1, 0, begun=[given[1].tuple_id]))
    assert said == "it is at work on tuples, but this job has ranges"
