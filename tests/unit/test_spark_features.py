"""What a Spark lacks is found out by looking; the page of versions says what the tests assert."""

from __future__ import annotations

import sys

import pytest

from flowctl.errors import ConfigError
from pyspark_flowctl import features
from tests import sparks


def test_before_4_2_a_stream_names_what_works_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: a door that this Spark lacks, told as a missing module or name of Spark's."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)

    with pytest.raises(ConfigError, match=r"needs Spark 4\.2") as caught:
        features.check_reads_streams()

    assert "SparkBolts" in caught.value.remedy
    assert "flow_batch" in caught.value.remedy


def test_the_formats_writers_need_nothing_that_streams_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark 4.0 and 4.1 have Python data sources, but no limits of what a stream reads."""
    pytest.importorskip("pyspark.sql.datasource")
    for name in ("pyspark_flowctl.data_source", "pyspark_flowctl.stream_reader"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)

    import pyspark_flowctl

    assert pyspark_flowctl.DefaultSource.name() == "flowctl"
    with pytest.raises(ConfigError, match=r"needs Spark 4\.2"):
        pyspark_flowctl.DefaultSource({}).streamReader(None)


def test_the_page_has_the_doors_as_they_are_tested() -> None:
    page = sparks.PAGE.read_text(encoding="utf-8")
    assert sparks.doors_table() in page
    assert sparks.with_doors(page) == page


def test_a_spark_has_one_row_of_what_it_was_tested_with() -> None:
    page = "a\n\n| Spark | tested with |\n|---|---|\n| 3.5.1 | x |\n| 4.0.5 | y |\n\nend\n"

    made = sparks.with_row(page, "| 3.5.9 | z |")

    assert made == page.replace("| 3.5.1 | x |", "| 3.5.9 | z |")
    assert sparks.with_row(made, "| 3.5.9 | z |") == made
