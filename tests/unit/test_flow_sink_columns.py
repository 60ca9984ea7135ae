"""flow_sink over rows that come as columns, as in ``write(df)``: nobody has to notice."""

from __future__ import annotations

import decimal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import Row
from pyspark.sql import types as t

from flowctl.bolts.batch import Batch, record_batch
from flowctl.core.records import Checkpoint, ColumnRecords, Record, Span, joined, position_of
from flowctl.errors import RetryLater, UnrunnableError
from flowctl_files import FileDeadLetter, TextRanges
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink
from pyspark_flowctl.arrow_rows import ArrowRows, letter_row, plain_row
from pyspark_flowctl.features import arrow_converter, arrow_schema, converts_arrow

_UTC = timezone.utc
_LONG = t.LongType()
_PAIR = t.StructType([t.StructField("x", _LONG), t.StructField("at", t.TimestampType())])


def _at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=_UTC)  # type: ignore[arg-type, misc]


def _vector(*values: float) -> dict[str, Any]:
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


#: A column of each type of Spark's, as values of Arrow.
COLUMNS: list[tuple[t.DataType, list[Any]]] = [
    (_LONG, [1, -(2**63), None]),
    (t.ByteType(), [-128, 127, 0]),
    (t.DoubleType(), [0.1, -0.0, float("inf")]),
    (t.FloatType(), [0.1, None, 1e30]),
    (t.BooleanType(), [True, None, False]),
    (t.StringType(), ["", "ä\n😀", None]),
    (t.BinaryType(), [b"", b"\x00\xff", None]),
    (t.DecimalType(38, 18), [decimal.Decimal("1.500000000000000000"), None, decimal.Decimal(0)]),
    (t.DateType(), [date(1, 1, 1), date(9999, 12, 31), None]),
    (t.TimestampType(), [_at(2026, 11, 22, 1, 2, 3, 4), None, _at(1969, 12, 31, 23, 59, 59, 7)]),
    # The hours in which clocks are set, and zones as they were before they were so many hours.
    (t.TimestampType(), [_at(2026, 10, 25, 0, 30), _at(2026, 10, 25, 1, 30), _at(1880, 2, 3, 4)]),
    (t.TimestampType(), [_at(2026, 3, 29, 1), _at(1937, 7, 1), _at(9999, 12, 30)]),
    (t.TimestampType(), [_at(1, 1, 3), None, None]),
    (t.TimestampNTZType(), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None]),
    (t.DayTimeIntervalType(), [timedelta(-1, 2, 3), None, timedelta(0)]),
    (t.NullType(), [None, None, None]),
    (t.ArrayType(_LONG), [[1, None], [], None]),
    (t.ArrayType(_PAIR), [[{"x": 1, "at": _at(2026, 7, 1)}, None], [], None]),
    (t.MapType(t.StringType(), _LONG), [[("a", 1), ("b", None)], [], None]),
    (t.MapType(t.StringType(), _PAIR), [[("a", {"x": None, "at": None})], None, []]),
    (t.MapType(_PAIR, _LONG), [[({"x": 1, "at": None}, 2)], None, []]),
    (_PAIR, [{"x": 1, "at": _at(2026, 7, 1)}, None, {"x": None, "at": None}]),
    (t.StructType([t.StructField("in", _PAIR)]), [{"in": {"x": 1, "at": None}}, None, None]),
    (VectorUDT(), [_vector(1.0, 2.0), None, _vector(3.0)]),
]


def rows_of(columns: list[tuple[t.DataType, list[Any]]], size: int = 3) -> ArrowRows:
    fields = [t.StructField(f"c{n}", kind) for n, (kind, _) in enumerate(columns)]
    schema = t.StructType(fields)
    arrays = [
        pa.array(values, kind.type)
        for (_, values), kind in zip(columns, arrow_schema(schema), strict=True)
    ]
    whole = pa.record_batch(arrays, names=[f"_{n}" for n in range(len(arrays))])
    return ArrowRows([whole.slice(at, size) for at in range(0, len(whole), size)], schema.json())


def shown(value: Any) -> str:
    """With the types of what is within, which are equal at times and not the same."""
    if isinstance(value, dict):
        return f"{type(value)}{[(shown(key), shown(part)) for key, part in value.items()]}"
    if isinstance(value, list | tuple):
        names = getattr(value, "__fields__", "")
        return f"{type(value)}{names}{list(map(shown, value))}"
    if isinstance(value, datetime):  # the next test is about it
        value = value.replace(fold=0)
    return f"{type(value)}{value!r}"


@pytest.fixture(params=["UTC", "UTC+3", "Europe/Amsterdam", "America/St_Johns", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column[0].simpleString())
def test_rows_and_dicts_are_those_that_sparks_own_converter_gives(
    column: tuple[t.DataType, list[Any]],
) -> None:
    kind = t.StructType([t.StructField("c0", column[0])])
    given = rows_of([column])
    [batch] = given
    wanted = arrow_converter().convert(pa.Table.from_batches([batch]), kind)
    assert shown(given.rows(batch)) == shown(wanted)
    assert shown(list(given.dicts(batch))) == shown(list(map(plain_row, wanted)))


@pytest.mark.usefixtures("zone")
def test_each_timestamp_is_still_the_instant_that_it_was_also_in_the_hour_that_comes_twice() -> (
    None
):
    """Kind: a value that is altered on its way, in one door and not in another."""
    given = rows_of([column for column in COLUMNS if column[0] == t.TimestampType()])
    [batch] = given
    for row, instants in zip(given.rows(batch), batch.to_pylist(), strict=True):
        for local, instant in zip(row, instants.values(), strict=True):
            wanted = instant and datetime.fromtimestamp(instant.timestamp())
            assert (local, local and local.fold) == (wanted, wanted and wanted.fold)


_FAR: list[t.DataType] = [t.TimestampType(), t.TimestampNTZType(), t.DateType()]


@pytest.mark.parametrize("kind", _FAR, ids=str)
def test_a_date_that_python_has_not_ends_the_task_by_the_name_of_its_column(
    kind: t.DataType, tmp_path: Path
) -> None:
    """Kind: a message that misleads.  No letter can keep such a row, and no other try helps."""
    sink = flow_sink(list, target="t", dead_letter=tmp_path, attempts_max=1)
    with pytest.raises(UnrunnableError, match="column 'c0' has a value that Python has not"):
        sink(rows_of([_far(kind)]))


def _far(kind: t.DataType) -> tuple[t.DataType, list[Any]]:
    return kind, [1, 2**31 - 1 if isinstance(kind, t.DateType) else 2**62, None]


# -- What a function and a sink get --------------------------------------------------------------

NUMBERS = 1_000


def numbers() -> ArrowRows:
    texts = [f"row {n}" for n in range(NUMBERS)]
    return rows_of([(_LONG, list(range(NUMBERS))), (t.StringType(), texts)], size=300)


class Kept:
    """What came, found by a name, as sinks are pickled."""

    seen: ClassVar[dict[str, list[Any]]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def keep(self, *what: Any) -> None:
        self.seen.setdefault(self.name, []).extend(what)


class ArrowSink(Kept):
    takes_arrow = True

    def write(self, rows: Any, *, batch: Batch) -> None:
        assert isinstance(rows, pa.RecordBatch) and len(rows) == len(batch)
        self.keep(*zip(rows["c0"].to_pylist(), rows["c1"].to_pylist(), strict=True))


def test_a_sink_that_takes_arrow_gets_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody makes rows of them."""
    monkeypatch.setattr(ArrowRows, "rows", None)
    flow_sink(sink=ArrowSink("arrow"), target="t")(numbers())
    assert ArrowSink.seen.pop("arrow") == [(n, f"row {n}") for n in range(NUMBERS)]


def test_other_sinks_get_dicts_and_functions_rows() -> None:
    class Dicts(Kept):
        def write(self, rows: Any, *, batch: Batch) -> None:
            self.keep(*rows)
            assert [record.value.asDict() for record in batch] == rows
            assert batch.values == [record.value for record in batch]

    flow_sink(sink=Dicts("dicts"), target="t")(numbers())
    assert Dicts.seen.pop("dicts") == [{"c0": n, "c1": f"row {n}"} for n in range(NUMBERS)]

    def write(batch: Batch) -> None:
        assert batch.has_columns and batch.to_arrow()["c0"].to_pylist() == [
            record.value.c0 for record in batch
        ]
        Kept("rows").keep(*((record.position[-1], record.value.c1) for record in batch))  # type: ignore[index]

    flow_sink(write, target="t")(numbers())
    assert Kept.seen.pop("rows") == [(n, f"row {n}") for n in range(NUMBERS)]


def test_columns_are_not_copied_and_one_call_has_rows_of_one_section() -> None:
    def write(batch: Batch) -> None:
        first, last = batch.span.first, batch.span.last
        assert first[:-1] == last[:-1]  # type: ignore[index]
        Kept("addresses").keep(batch.to_arrow()["c0"].buffers()[1].address)

    given = numbers()
    there = {batch["c0"].buffers()[1].address for batch in given}
    flow_sink(write, target="t")(given)
    found = [address in there for address in Kept.seen.pop("addresses")]
    # Only what a section takes of two batches is copied.
    assert sum(found) > len(found) / 2


class Picky(ArrowSink):
    """Fails if it sees one of these rows; takes only each second row at first."""

    bad = (7, 300, 301, 999)

    def write(self, rows: Any, *, batch: Batch) -> None:
        found = rows["c0"].to_pylist()
        if set(self.bad) & set(found):
            raise ValueError("not this one")
        if batch.attempt == 1 and len(found) > 3:
            super().write(rows.take(list(range(0, len(rows), 2))), batch=batch[::2])  # type: ignore[arg-type]
            raise RetryLater("half", again=list(range(1, len(rows), 2)), after_s=0)
        super().write(rows, batch=batch)


def test_what_goes_again_and_what_is_searched_stays_columns(tmp_path: Path) -> None:
    """Pieces are cut, joined and thinned out: each row comes once, or is a letter."""
    sink = flow_sink(
        sink=Picky("picky"), target="picky", name="picky", dead_letter=tmp_path, attempts_max=1
    )
    sink(numbers())
    seen = Counter(n for n, _ in Picky.seen.pop("picky"))
    assert seen == Counter(set(range(NUMBERS)) - set(Picky.bad))
    letters = FileDeadLetter(tmp_path).file_of("picky").read().of("picky")
    assert [letter.value for letter in letters] == [{"c0": n, "c1": f"row {n}"} for n in Picky.bad]
    assert [letter.position[-1] for letter in letters] == list(Picky.bad)


class FarDates(Kept):
    takes_arrow = True

    def write(self, rows: pa.RecordBatch, *, batch: Batch) -> None:
        self.keep(len(rows))
        if len(self.seen[self.name]) == 1:
            raise RuntimeError("once")
        nulls = rows["c0"].is_null().to_pylist()
        batch.reject(nulls.index(True), "null")


@pytest.mark.parametrize("kind", _FAR, ids=str)
def test_a_sink_of_columns_may_fail_and_reject_rows_beside_a_date_that_python_has_not(
    kind: t.DataType, tmp_path: Path
) -> None:
    """Kind: what was written comes again for the sake of a row that nobody asked for."""
    sink = flow_sink(sink=FarDates("far"), target="far", name="far", dead_letter=tmp_path)
    sink(rows_of([_far(kind)]))
    assert FarDates.seen.pop("far") == [3, 3]
    [letter] = FileDeadLetter(tmp_path).file_of("far").read().of("far")
    assert letter.value == {"c0": None}


def test_a_letter_of_a_row_is_the_same_as_if_it_came_as_a_row(tmp_path: Path) -> None:
    columns = [(kind, values) for kind, values in COLUMNS if not isinstance(kind, VectorUDT)]
    given = rows_of(columns)
    rows = [row for batch in given for row in given.rows(batch)]

    def write(batch: Batch) -> None:
        for index in range(len(batch)):
            batch.reject(index, "no")

    for name, source in (("rows", rows), ("columns", rows_of(columns))):
        flow_sink(write, target="t", name=name, dead_letter=tmp_path)(source)
    found = {
        name: [shown(x.value) for x in FileDeadLetter(tmp_path).file_of(name).read().of(name)]
        for name in ("rows", "columns")
    }
    assert found["rows"] == found["columns"] and len(rows) == len(found["rows"])
    assert letter_row(rows[0])["c0"] == 1


@pytest.mark.parametrize("run", [None, "2026-11-22"])
def test_the_time_of_a_run_makes_no_row_another_one(tmp_path: Path, run: str | None) -> None:
    """With ``run=``; without one, each action writes all of its rows."""
    schema = "CREATE TABLE t (c0 INTEGER, c1 TEXT)"
    into = SqlSink(f"sqlite:///{tmp_path}/out.db", table="t", schema=schema)

    def write(batch: Batch) -> None:
        into.write([{"c0": row.c0, "c1": str(row.c1)} for row in batch.values], batch=batch)

    sink = flow_sink(write, target="t", **({} if run is None else {"run": run}))
    for now in (_at(2026, 11, 22), _at(2026, 11, 23)):
        columns = [(_LONG, list(range(200))), (t.TimestampType(), [now] * 200)]
        sink(rows_of(columns, size=70))
    with sqlite3.connect(tmp_path / "out.db") as connection:
        found = Counter(n for (n,) in connection.execute("SELECT c0 FROM t"))
    assert found == Counter(dict.fromkeys(range(200), 2 if run is None else 1))


def test_records_of_other_columns_are_joined_too() -> None:
    def of(*values: int) -> ColumnRecords:
        batch = pa.RecordBatch.from_pydict({"n": values})
        return ColumnRecords(batch, range(len(values)), lambda row: values[row], _first_of)

    one, other = of(1, 2, 3), of(7, 8)
    assert list(joined(one, other)) == [Record(n, n) for n in (1, 2, 3, 7, 8)]
    assert list(joined(one[:1], one[2:])) == [Record(1, 1), Record(3, 3)]
    assert joined([Record(0, 0)], one[1:2]) == (Record(0, 0), Record(2, 2))
    assert position_of(other, -1) == 8 and one.to_arrow()["n"].to_pylist() == [1, 2, 3]
    assert list(of()) == [] and of().to_arrow().num_rows == 0


def test_maps_of_rows_are_maps_as_columns_too() -> None:
    """Kind: altered in one door.  They were structs of the keys of all rows; other keys than text
    failed."""
    rows = [Row(m={1: "a"}, s=Row(x=1)), Row(m=None, s=None), Row(m={}, s=Row(x=2))]
    found = record_batch(rows)
    assert found.to_pylist() == [
        {"m": [(1, "a")], "s": {"x": 1}},
        {"m": None, "s": None},
        {"m": [], "s": {"x": 2}},
    ]
    assert record_batch([Row(m={})]).to_pylist() == [{"m": []}]
    assert record_batch([{"m": {"k": 1}}]).to_pylist() == [{"m": {"k": 1}}]


def test_a_record_of_a_part_of_the_batch_can_be_rejected_whatever_its_value_is() -> None:
    """Kind: a right use that is refused.  Parts make records of their own; no NaN equals one."""
    columns = pa.RecordBatch.from_pydict({"x": [1.0, float("nan"), float("nan")]})
    records = ColumnRecords(columns, range(3), lambda row: (0, 9, row), _first_of)
    batch = Batch(records, Span("job", "p", (0, 9, 0), (0, 9, 2), 1), bolt="p", attempt=1)
    batch.reject(batch[1:][1], "half")
    assert batch.rejected == {2: "half"}


def _first_of(columns: Any) -> list[Any]:
    return columns[0].to_pylist()  # type: ignore[no-any-return]


class Later(Kept):
    """Rejects rows for now, or keeps them."""

    takes_arrow = True

    def __init__(self, name: str, *, is_now: bool) -> None:
        super().__init__(name)
        self.is_now = is_now

    def write(self, rows: Any, *, batch: Batch) -> None:
        if self.is_now:
            self.keep(rows)
            return
        for index in range(len(batch)):
            batch.reject(index, "later")


def redriven(given: ArrowRows, others: ArrowRows, folder: Path) -> list[Any]:
    """Return what a sink that takes Arrow gets of letters, in an action that has ``others``."""
    for is_now, rows in ((False, given), (True, others)):
        sink = Later("later", is_now=is_now)
        flow_sink(sink=sink, target="t", name="later", dead_letter=folder)(rows)
        FileDeadLetter(folder).file_of("later").redrive("later")
    return Later.seen.pop("later")


@pytest.mark.skipif(not converts_arrow(), reason="Rows stay Rows before Spark 4.0")
@pytest.mark.usefixtures("zone")
def test_rows_that_are_redriven_are_the_columns_that_they_were(tmp_path: Path) -> None:
    """Kind: altered on a second way.  Made of Rows alone, maps would be structs."""
    twice = _at(2026, 10, 25, 1, 30)  # a letter has no fold
    columns = [
        (kind, values)
        for kind, values in COLUMNS
        if not isinstance(kind, VectorUDT) and twice not in values
    ]
    given, others = rows_of(columns), rows_of([(kind, []) for kind, _ in columns])
    [batch] = given
    [found] = redriven(given, others, tmp_path)
    assert found.schema.types == batch.schema.types
    assert found.to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("other", [[(_LONG, []), (_LONG, [])], [(t.DateType(), [])]], ids=str)
def test_rows_that_are_redriven_among_rows_of_other_columns_come_as_dicts(
    other: list[tuple[t.DataType, list[Any]]], tmp_path: Path
) -> None:
    assert redriven(rows_of([(_LONG, [3])]), rows_of(other), tmp_path) == [[{"c0": 3}]]


@pytest.mark.parametrize("takes_arrow", [False, True])
def test_two_columns_of_one_name_are_refused_also_as_columns(takes_arrow: bool) -> None:
    class Sink(Kept):
        def write(self, rows: Any, *, batch: Batch) -> None:
            raise AssertionError

    Sink.takes_arrow = takes_arrow  # type: ignore[attr-defined]
    kind = t.StructType([t.StructField("id", _LONG), t.StructField("id", _LONG)])
    batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["c0", "c1"])
    with pytest.raises(UnrunnableError, match="df: two columns are called 'id'"):
        flow_sink(sink=Sink("none"), target="t")(ArrowRows([batch], kind.json()))


def test_values_of_text_and_of_records_by_value(tmp_path: Path) -> None:
    lines = [f"line {n} ä" for n in range(20_000)]
    path = tmp_path / "in.log"
    path.write_text("\n".join(lines))
    source = TextRanges(path)
    [(name, extent)] = source.extents(Checkpoint()).items()
    found: list[str] = []
    for block in source.reader().open(name, extent.start, extent.stop, extent.identity):
        for at in range(0, len(block), 700):
            records = block.batch_records(at, min(at + 700, len(block)))
            batch = Batch(records, Span("j", "p", 0, 0, 1), bolt="b", attempt=1)
            found += batch.values
            if at % 1400:
                assert batch.values == [record.value for record in batch]
    assert found == lines
    plain = Batch([Record(1, "a")], Span("j", "p", 1, 1, 1), bolt="b", attempt=1)
    assert plain.values == ["a"] and not plain.has_columns


def test_a_value_of_a_users_type_is_of_that_type() -> None:
    given = rows_of([(VectorUDT(), [_vector(1.0, 2.0)])])
    [batch] = given
    assert list(given.dicts(batch)) == [{"c0": Vectors.dense(1.0, 2.0)}]
