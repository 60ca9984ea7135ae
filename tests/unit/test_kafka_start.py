"""Where a partition of Kafka is begun, and what stands beside a group's commit."""

from __future__ import annotations

import msgspec
import pytest

from flowctl.core.records import AckedRange, LostRange, PartitionCheckpoint
from flowctl_kafka._start import (
    GroupCommit,
    Note,
    first_position,
    next_offset,
    read_note,
    seek_forward,
    where_to_start,
)

OWN = PartitionCheckpoint(49, 50, (AckedRange(60, 69, 10), AckedRange(90, 99, 10)))
RANGES = (AckedRange(85, 86, 2),)


def start(own: PartitionCheckpoint | None, group: GroupCommit | None) -> PartitionCheckpoint | None:
    return where_to_start(own, group, job="mine", first_poll="uncommitted_earliest")


def by(job: str, next_: int, acked: tuple[AckedRange, ...] = ()) -> GroupCommit:
    return GroupCommit(next_, Note(flowctl=1, job=job, acked=acked))


@pytest.mark.req("S103", "S13")
@pytest.mark.parametrize(
    "group",
    [None, by("mine", 10), by("mine", 80), by("theirs", 50), by("theirs", 20), GroupCommit(80)],
    ids=["none", "own behind", "own ahead", "sibling equal", "sibling behind", "others"],
)
def test_the_store_is_the_truth_for_what_the_job_did(group: GroupCommit | None) -> None:
    assert start(OWN, group) is OWN


@pytest.mark.req("S103")
def test_a_sibling_that_came_further_is_followed() -> None:
    found = start(OWN, by("theirs", 80, RANGES))
    assert found == PartitionCheckpoint(79, 50, RANGES)
    assert start(OWN, by("theirs", 80)) == PartitionCheckpoint(79, 50, OWN.acked[1:])
    assert start(None, by("theirs", 80, RANGES)) == PartitionCheckpoint(79, 0, RANGES)


def test_what_was_rejected_and_kept_nowhere_still_counts_where_a_sibling_came_further() -> None:
    """But not what the sibling has done above, or has not and this job does again."""
    lost = (LostRange(30, 30, 1), LostRange(95, 95, 1))
    own = msgspec.structs.replace(OWN, lost=lost)
    found = start(own, by("theirs", 80))
    assert found is not None and found.lost == lost
    found = start(own, by("theirs", 80, RANGES))
    assert found is not None and found.lost == lost[:1]


def test_a_rewind_and_a_clear_hold_against_the_jobs_own_commit() -> None:
    rewound = PartitionCheckpoint(None)
    assert start(rewound, by("mine", 80)) is rewound
    assert start(None, by("mine", 80)) is None, "cleared: it begins anew"


@pytest.mark.req("S114")
@pytest.mark.parametrize(
    ("first_poll", "begins"),
    [
        ("earliest", None),
        ("latest", None),
        ("uncommitted_earliest", 79),
        ("uncommitted_latest", 79),
    ],
)
def test_the_first_poll_strategy(first_poll: str, begins: int | None) -> None:
    found = where_to_start(None, GroupCommit(80), job="mine", first_poll=first_poll)  # type: ignore[arg-type]
    assert (found.position if found else None) == begins
    nobody = first_position(first_poll, low=10, high=90)  # type: ignore[arg-type]
    expected = 89 if first_poll.endswith("latest") else None
    assert nobody.position == expected
    assert next_offset(nobody, low=10) == (90 if first_poll.endswith("latest") else 10)


@pytest.mark.req("S103")
def test_a_note_survives_and_others_are_not_taken_for_ours() -> None:
    note = Note(flowctl=1, job="orders", acked=RANGES)
    assert read_note(note.to_text()) == note
    for text in ("", None, "{}", "no json", '{"job": "x"}', '{"flowctl": 2, "job": "x"}', "[1]"):
        assert read_note(text) is None, text


@pytest.mark.req("S103")
def test_a_note_fits_into_what_kafka_keeps_by_leaving_ranges_out_from_above() -> None:
    acked = tuple(AckedRange(10 * n, 10 * n + 5, 6) for n in range(10_000))
    text = Note(flowctl=1, job="j" * 200, acked=acked).to_text()
    assert len(text.encode()) <= 4_096
    kept = msgspec.json.decode(text, type=Note).acked
    assert len(kept) > 50 and kept == acked[: len(kept)]


@pytest.mark.req("S100")
def test_a_reader_behind_the_commit_goes_forward() -> None:
    assert seek_forward(3, 7) == 7
    assert seek_forward(7, 7) is None
    assert seek_forward(9, 7) is None
