"""A table that was dropped takes its rows with it: its records still count as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowctl.errors import UnrunnableError
from tests.sql_parts import SCHEMA, new_sink, query, write


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_table_that_was_dropped_and_is_created_again_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(new_sink(), 1, 2)
    query("DROP TABLE t")
    assert write(new_sink(), 1, 2, 3) == (1, 2)
    [said] = caplog.messages
    assert said.startswith("table_dropped table='t'")
    assert "don't come again" in said and "checkpoint clear" in said


def test_a_first_table_and_one_that_is_there_are_no_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(new_sink(), 1)
    write(new_sink(), 2)
    write(new_sink(name="other", table="u", schema="CREATE TABLE u (number, line)"), 1)
    assert not caplog.messages


def test_while_it_is_missing_a_write_ends_the_run() -> None:
    sink = new_sink()
    write(sink, 1)
    query("DROP TABLE t")
    with pytest.raises(UnrunnableError, match="no such table"):
        write(sink, 2)


def test_one_that_another_program_creates_again_takes_what_comes_and_no_more() -> None:
    """A documented limit: nothing tells an open connection that this is another table."""
    sink = new_sink()
    write(sink, 1, 2)
    query("DROP TABLE t")
    for statement in SCHEMA:
        query(statement)
    assert write(sink, 1, 2, 3) == (1, 2)
    assert query("SELECT number FROM t") == [(3,)]
