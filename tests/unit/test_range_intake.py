"""What there is to do of a source by reference: what is done, what is new, what is shown of it."""

from __future__ import annotations

import pytest

from flowctl.core.messages import Ack
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import (
    AckedRange,
    AckOutcome,
    Checkpoint,
    PartitionCheckpoint,
    Record,
)
from flowctl.errors import InternalError, SourceError
from tests.range_driver import MB, Ranges


@pytest.mark.parametrize(("done", "start"), [(49, 100), (49, 0), (149, 100), (99, 100)])
def test_what_a_log_has_thrown_away_needs_no_doing(done: int, start: int) -> None:
    saved = Checkpoint({"p": PartitionCheckpoint(done, 5)})
    ranges = Ranges("a", extent=Extent(start, 200), checkpoint=saved)
    assert ranges.state == PartitionCheckpoint(max(done, start - 1), 5)
    (e,) = ranges.emit()
    assert (e.start, e.stop) == (max(done + 1, start), 200)
    ranges.did(e, e.start, e.stop, records=3)
    assert ranges.state == PartitionCheckpoint(199, 8)


@pytest.mark.parametrize(
    ("sizes", "progress"),
    [((8_000, 1_000), (4_000, 9_000)), ((8_000, None), (500, 2_000)), ((None, None), (500, 2_000))],
)
def test_progress_is_in_bytes_where_all_of_the_source_says_how_many_it_has(
    sizes: tuple[int | None, int | None], progress: tuple[int, int]
) -> None:
    ranges = Ranges("a", extent=Extent(0, 1_000, size_bytes=sizes[0]))
    ranges.core.offer_extents(
        {"q": Extent(0, 1_000, size_bytes=sizes[1]), "r": Extent(5, 5, size_bytes=0)}
    )
    e = ranges.emit()[0]
    ranges.did(e, 0, 500)
    assert ranges.core.intake.progress == progress


def test_partitions_with_holes_are_shown_first() -> None:
    ranges = Ranges("a", stop=1_000)
    ranges.core.offer_extents({name: Extent(0, 1_000) for name in ("q", "r")})
    sent = {e.partition: e for e in ranges.emit()}
    ranges.did(sent["p"], 0, 100)
    ranges.did(sent["q"], 500, 600)
    intake = ranges.core.intake
    assert list(intake.overview(1)) == ["q"]
    assert set(intake.overview(9)) == {"p", "q", "r"}
    assert intake.overview(1)["q"] == PartitionCheckpoint(None, 0, (AckedRange(500, 599, 1),))


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        (Extent(0, 100, "v1", is_final=False), Extent(0, 100, "v1", is_final=False), True),
        (Extent(0, 100, "v1", is_final=False), Extent(0, 200, "v1", is_final=False), True),
        (Extent(0, 100, "v1", is_final=False), Extent(0, 100, "v1"), True),
        (Extent(0, 100, "v1", is_final=False), Extent(0, 90, "v1", is_final=False), False),
        (Extent(0, 100, "v1"), Extent(0, 200, "v1"), False),
        (Extent(0, 100, "v1"), Extent(0, 100, "v1", size_bytes=7), True),
        (Extent(0, 100, "v1", is_final=False), Extent(5, 200, "v1", is_final=False), False),
        (Extent(0, 100, "v1", is_final=False), Extent(0, 200, "v2", is_final=False), False),
    ],
)
def test_a_partition_that_grows_is_the_same_and_one_that_changed_is_not(
    before: Extent, after: Extent, is_same: bool
) -> None:
    ranges = Ranges("a", extent=before)
    if is_same:
        ranges.core.offer_extents({"p": after})
        assert ranges.emit()
    else:
        with pytest.raises(SourceError, match="has changed since the run began"):
            ranges.core.offer_extents({"p": after})


def test_the_first_range_is_a_block_however_long_its_records_are() -> None:
    for positions, size_bytes, first in (
        (10, 10 * MB, 1),
        (100, 10 * MB, 10),
        (5_000, None, 1_000),
    ):
        ranges = Ranges("a", extent=Extent(0, positions, size_bytes=size_bytes))
        e = ranges.emit()[0]
        assert e.stop - e.start == first


def test_of_a_source_that_bolts_read_nothing_is_held_here() -> None:
    """So there is always room, and nobody waits for a save."""
    ranges = Ranges("a")
    for _ in range(3):
        for e in ranges.emit():
            ranges.did(e, e.start, e.stop)
        intake = ranges.core.intake
        assert (intake.has_room, intake.is_full, intake.holds_rest) == (True, False, False)
        assert (intake.skipped, intake.uncommitted, intake.uncommitted_of("p")) == (0, 0, 0)


def test_a_source_grows_no_more_when_none_of_its_partitions_does() -> None:
    ranges = Ranges("a", stop=1_000)
    assert ranges.core.intake.is_final
    ranges.core.offer_extents({"q": Extent(0, 10, is_final=False)})
    assert not ranges.core.intake.is_final
    ranges.core.offer_extents({"q": Extent(0, 20)})
    assert ranges.core.intake.is_final


def test_records_by_value_are_none_of_its_business() -> None:
    core = Ranges("a").core
    record = Record(1, "x")
    with pytest.raises(InternalError, match="records were offered"):
        core.offer("p", [record], now_s=0.0)
    with pytest.raises(InternalError, match="a record was offered"):
        core.set_aside("p", record, reason="", now_s=0.0)
    with pytest.raises(InternalError, match="not handed over"):
        _ = core.handover
    ack = Ack(1, 1, wait_s=0.0, service_s=0.1, idle_total_s=0.0)
    assert core.on_ack("a", 1, ack, now_s=0.0) is AckOutcome.UNKNOWN
