"""A stream whose source gives no more records, though its query runs on."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need Spark 4.2")

from pyspark.sql.streaming.datasource import ReadMaxRows
from structlog.testing import capture_logs

from pyspark_flowctl.stream_reader import reader_of


@pytest.mark.parametrize(
    ("is_available_now", "follow", "told"),
    [(False, "false", 1), (False, "true", 0), (True, "false", 0)],
)
def test_a_query_whose_source_gives_no_more_is_told_once(
    is_available_now: bool, follow: str, told: int
) -> None:
    """It ran on and read no file that was added, without a word."""
    options = {"producer": "tests.stream_parts:Numbers", "producer.follow": follow}
    reader = reader_of(options, "n long")
    if is_available_now:
        reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    with capture_logs() as lines:
        for _ in range(8):
            begin, at = at, reader.latestOffset(at, ReadMaxRows(1_000))
            reader.partitions(begin, at)
    assert [line["event"] for line in lines] == ["source_ended"] * told
