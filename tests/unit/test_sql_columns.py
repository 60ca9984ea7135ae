"""SqlSink takes a RecordBatch as it takes the same rows as dicts, whatever the database."""

from __future__ import annotations

import time
import warnings
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.errors import JobError, UnrunnableError
from flowctl_sql import SqlSink
from tests.sql_parts import batch_of, new_sink, query

pa = pytest.importorskip("pyarrow", reason="has the columns")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def columns(numbers: range) -> Any:
    return pa.RecordBatch.from_pydict(
        {"number": list(numbers), "line": [f"line {n}" for n in numbers]}
    )


@pytest.mark.req("S70")
def test_rows_that_were_written_before_are_cut_out() -> None:
    sink = new_sink()
    assert sink.write(columns(range(60)), batch=batch_of(range(60))) == (60, 0)
    again = batch_of(range(30, 90))
    assert sink.write(columns(range(30, 90)), batch=again) == (30, 30)
    assert (again.left_out, again.left_out_at) == (30, set(range(30)))
    assert query("SELECT number, line FROM t") == [(n, f"line {n}") for n in range(90)]


def test_the_same_columns_again_for_one_batch_are_fine_and_others_are_not() -> None:
    sink, batch = new_sink(), batch_of(range(5))
    sink.write(columns(range(5)), batch=batch)
    assert sink.write(columns(range(5)), batch=batch) == (0, 5)
    with pytest.raises(JobError, match="a second write of other rows"):
        sink.write(columns(range(1, 6)), batch=batch)


def test_rows_of_rejected_records_are_left_out_and_are_written_if_they_come_again() -> None:
    sink, batch = new_sink(), batch_of(range(6))
    batch.reject(2, "odd")
    batch.reject(5, "odd")
    assert sink.write(columns(range(6)), batch=batch) == (4, 0)
    assert query("SELECT number FROM t") == [(0,), (1,), (3,), (4,)]
    again = batch_of(range(6))
    again.reject(5, "odd")
    assert sink.write(columns(range(6)), batch=again) == (1, 4)
    assert query("SELECT number FROM t ORDER BY rowid") == [(0,), (1,), (3,), (4,), (2,)]


VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text(max_size=4)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "é", ""])),
    (pa.binary(), st.binary(max_size=4)),
    (pa.bool_(), st.booleans()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.date32(), st.dates()),
    (pa.decimal128(20, 2), st.decimals(-100, 100, places=2)),
    (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=2)),
    (pa.map_(pa.string(), pa.int64()), st.dictionaries(st.text(max_size=2), st.integers(0, 9))),
    (pa.null(), st.none()),
]


@pytest.mark.filterwarnings("ignore:The default date:DeprecationWarning")
@settings(deadline=None, max_examples=150)
@given(st.sampled_from(VALUES), st.data(), st.sampled_from(["TEXT", "INTEGER", "REAL", "ANY"]))
def test_a_value_is_stored_or_refused_as_in_a_dict(kind: Any, data: Any, column: str) -> None:
    """Kind: one row in two forms, with two ends."""
    arrow, values = kind
    some = data.draw(st.lists(values | st.none(), min_size=1, max_size=4))
    array = pa.array(some, arrow)
    python = array.to_pylist()
    if pa.types.is_map(arrow):
        python = [None if value is None else dict(value) for value in python]
    forms = [
        pa.record_batch([array], ["v"]),
        [{"v": value} for value in python],
    ]
    found: list[Any] = []
    for form in forms:
        Path("v.db").unlink(missing_ok=True)
        sink = SqlSink(
            "sqlite:///v.db", table="v", schema=f"CREATE TABLE v (v {column})", synchronous="NORMAL"
        )
        try:
            sink.write(form, batch=batch_of(range(len(some))))
            found.append(query("SELECT v, typeof(v) FROM v", "v.db"))
        except Exception as error:
            found.append((type(error), str(error)))
        sink.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (pa.array([0.5, float("nan")]), r"position 1: column number is NaN"),
        (pa.array([0, 10**7]).cast(pa.int32()).cast(pa.date32()), "position 1: .* number has a va"),
        (pa.array([Decimal(1), None]), r"position 0: column number is of the type Decimal"),
        (pa.array([0, 1], pa.timestamp("ns")), r"position 1: column number"),
    ],
)  # fmt: skip
def test_a_value_that_can_not_be_stored_is_named(array: Any, said: str) -> None:
    rows = pa.record_batch([array], ["number"])
    with pytest.raises(JobError, match=said):
        new_sink().write(rows, batch=batch_of([0, 1]))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_an_instant_is_written_as_the_time_that_a_row_of_spark_has(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        at = datetime(2024, 1, 2, 3, 4, 5, 678, timezone.utc)
        rows = pa.record_batch([pa.array([at, None], pa.timestamp("us", "Europe/Paris"))], ["line"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 on SQLite's times
            new_sink().write(rows, batch=batch_of([1, 2]))
        wanted = at.astimezone().replace(tzinfo=None).isoformat(" ")
        assert query("SELECT line FROM t") == [(wanted,), (None,)]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_named_columns_are_taken_in_any_order_and_others_end_the_run() -> None:
    sink = new_sink(columns=["number", "line"])
    turned = columns(range(3)).select(["line", "number"])
    sink.write(turned, batch=batch_of(range(3)))
    sink.write(turned.select(["number"]), batch=batch_of(range(3, 6)))
    assert query("SELECT count(number), max(line) FROM t") == [(6, "line 2")]
    with pytest.raises(UnrunnableError, match="'other', which is none of"):
        sink.write(pa.RecordBatch.from_pydict({"other": [1]}), batch=batch_of([9]))
    with pytest.raises(UnrunnableError, match="1 rows for a batch of 2 records"):
        sink.write(pa.RecordBatch.from_pydict({"number": [1]}), batch=batch_of([9, 10]))


def test_upserts_from_columns() -> None:
    sink = SqlSink(
        "sqlite:///t.db", table="t", mode="upsert", key=["k"],
        schema="CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)",
    )  # fmt: skip
    rows = pa.RecordBatch.from_pydict(
        {"k": [n % 3 for n in range(9)], "v": [str(n) for n in range(9)]}
    )
    assert sink.write(rows, batch=batch_of(range(9))) == (9, 0)
    assert query("SELECT * FROM t") == [(0, "6"), (1, "7"), (2, "8")]
    with pytest.raises(JobError, match="position 10: column k of the key is missing or NULL"):
        sink.write(
            pa.RecordBatch.from_pydict({"k": [1, None], "v": ["", ""]}), batch=batch_of([9, 10])
        )
