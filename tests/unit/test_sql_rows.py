"""Rows as parameters: one shape for all goes the short way, anything else record by record."""

from __future__ import annotations

from collections import defaultdict, namedtuple
from pathlib import Path
from typing import Any

import pytest

from flowctl.errors import JobError
from flowctl_sql import _rows
from tests.sql_parts import batch_of, new_sink, query

Point = namedtuple("Point", "number line")


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([(1, "a"), (2, "b")], None),
        ([(1, "a"), (2, "b")], ("number", "line")),
        ([Point(1, "a"), (2, "b")], None),
        ([{"number": 1, "line": "a"}, {"line": "b", "number": 2}], None),
        ([{"number": 1, "line": "a"}, {"line": "b", "number": 2}], ("number", "line")),
        ([defaultdict(str, number=1, line="a"), {"line": "b", "number": 2}], ("number", "line")),
        ([[(1, "a")], [(2, "b")]], None),
    ],
)
def test_both_ways_give_the_same(rows: list[Any], columns: tuple[str, ...] | None) -> None:
    batch = batch_of([1, 2])
    prepared = _rows.prepare(rows, batch, columns)
    assert prepared == _rows._of_any_shape(rows, batch, columns)
    assert list(prepared.rows) == [(1, "a"), (2, "b")]
    assert (prepared.counts, prepared.width) == (None, 2)
    assert prepared.only([False, True]) == [(2, "b")]


def test_rows_of_some_records() -> None:
    batch = batch_of([1, 2, 3])
    prepared = _rows.prepare([None, [(1, "a"), (2, "b")], (3, "c")], batch, None)
    assert prepared.only([True, False, True]) == [(3, "c")]
    assert prepared.only([True, True, False]) == [(1, "a"), (2, "b")]


def test_a_list_that_is_filled_again_is_seen_as_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink, batch = new_sink(), batch_of([1])
    rows = [(1, "a")]
    sink.write(rows, batch=batch)
    rows[0] = (1, "b")
    with pytest.raises(JobError, match="a second write of other rows"):
        sink.write(rows, batch=batch)
    assert query("SELECT line FROM t") == [("a",)]
