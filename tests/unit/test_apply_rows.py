"""What a function of rows gets, and how its rows become columns of the schema asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import pandas
import pyarrow
import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Fields, Record, Span
from flowctl.errors import ConfigError, UnrunnableError
from flowctl_apply._rows import Shape, call, shape_of, table_of

SCHEMA = pyarrow.schema(
    [pyarrow.field("id", pyarrow.int64(), nullable=False), ("label", pyarrow.string())]
)
ROWS = [{"id": 1, "label": "a"}, {"id": 2, "label": None}]


class Pair(NamedTuple):
    label: str | None
    id: int


def batch() -> Batch:
    records = [Record(row, {"x": row}) for row in range(3)]
    return Batch(records, Span("job", "p", 0, 2, 1), bolt="b1", attempt=1)


# -- what it gets ------------------------------------------------------------------------------


def takes_batch_of_arrow(rows: pyarrow.RecordBatch) -> Any: ...
def takes_table(rows: pyarrow.Table) -> Any: ...
def takes_frame(frame: pandas.DataFrame) -> Any: ...
def takes_records(batch: Batch) -> Any: ...
def takes_both(frame: pandas.DataFrame, batch: Batch) -> Any: ...
def takes_unknown(rows: SomethingElse) -> Any: ...  # type: ignore[name-defined]  # noqa: F821
def takes_frame_named(frame: foreign.DataFrame) -> Any: ...  # type: ignore[name-defined]  # noqa: F821


class Model:
    def __call__(self, frame: pandas.DataFrame) -> Any: ...


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (lambda rows: None, ("records", False)),
        (takes_records, ("records", False)),
        (takes_unknown, ("records", False)),
        (takes_batch_of_arrow, ("batch", False)),
        (takes_table, ("table", False)),
        (takes_frame, ("pandas", False)),
        (takes_frame_named, ("pandas", False)),
        (takes_both, ("pandas", True)),
        (Model(), ("pandas", False)),
        (functools.partial(takes_both, batch=None), ("pandas", False)),
        (len, ("records", False)),
    ],
)
def test_the_annotation_says_what_it_gets(fn: Callable[..., Any], shape: tuple[str, bool]) -> None:
    assert shape_of(fn) == Shape(*shape)  # type: ignore[arg-type]


def test_the_option_wins() -> None:
    assert shape_of(takes_frame, "arrow") == Shape("batch", False)


@pytest.mark.parametrize(
    ("fn", "form", "problem"),
    [
        (takes_frame, "polars", r"form: 'polars' is unknown.*records, arrow, pandas"),
        (lambda a, b, c: None, None, "fn: it needs 3 arguments"),
        (lambda: None, None, "fn: it needs 0 arguments"),
        ("score", None, "fn: 'score' can't be called"),
    ],
)
def test_a_function_that_can_not_be_called_so_is_refused(fn: Any, form: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        shape_of(fn, form)


def test_it_is_called_with_rows_in_its_form() -> None:
    given = batch()
    assert call(lambda rows: rows, Shape("records", False), given) is given
    assert call(lambda rows: rows, Shape("batch", False), given).column("x").to_pylist() == [
        0, 1, 2,
    ]  # fmt: skip
    assert isinstance(call(lambda rows: rows, Shape("batch", False), given), pyarrow.RecordBatch)
    table = call(lambda rows: rows, Shape("table", False), given)
    assert isinstance(table, pyarrow.Table) and table.num_rows == 3
    frame, also = call(lambda *rows: rows, Shape("pandas", True), given)
    assert list(frame["x"]) == [0, 1, 2]
    assert also is given


# -- what it gives -----------------------------------------------------------------------------


def yielded() -> Iterator[tuple[int, str | None]]:
    yield 1, "a"
    yield 2, None


@pytest.mark.parametrize(
    "made",
    [
        ROWS,
        [(1, "a"), [2, None]],
        [{"label": "a", "id": 1}, Fields(ROWS[1])],
        [ROWS[0], (2, None)],
        [Pair("a", 1), Pair(None, 2)],
        [Pair("a", 1), (2, None)],
        yielded(),
        pyarrow.RecordBatch.from_pylist(ROWS),
        pyarrow.table({"label": ["a", None], "id": pyarrow.array([1, 2], pyarrow.int8())}),
        pandas.DataFrame(ROWS, index=[7, 8]),
    ],
)
def test_rows_in_any_form_become_columns_of_the_schema(made: Any) -> None:
    table = table_of(made, SCHEMA)
    assert table.schema == SCHEMA
    assert table.to_pylist() == ROWS


@pytest.mark.parametrize("made", [None, [], (), pyarrow.RecordBatch.from_pylist([], SCHEMA)])
def test_no_rows_are_fine(made: Any) -> None:
    table = table_of(made, SCHEMA)
    assert (table.num_rows, table.schema) == (0, SCHEMA)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ("ab", "it returned str 'ab', not rows"),
        ({"id": 1, "label": "a"}, "it returned dict .*, not rows"),
        (3, "it returned int 3, not rows"),
        ([3], "row 0 is int 3, not a row"),
        ([(1, "a"), (2,)], r"row 1 has 1 value for 2 columns: \(2,\).*'id', 'label'"),
        ([{"id": 1}], "row 0 that the function returned has no column 'label'; it has 'id'"),
        ([ROWS[0], {"id": 1, "lable": ""}], "row 1 .* no column 'label'; it has 'id', 'lable'"),
        ([{"id": 1, "label": "", "x": 2}], "row 0 .* a column 'x' that is not in the schema"),
        (pyarrow.table({"id": [1]}), "what the function returned has no column 'label'"),
        (pyarrow.table([[1], [2], [""]], ["id", "id", "label"]), "two columns 'id'"),
        (pandas.DataFrame({"id": [1], "label": [""], "x": [0]}), "a column 'x'"),
    ],
)
def test_other_columns_end_the_run_and_are_named(made: Any, problem: str) -> None:
    with pytest.raises(UnrunnableError, match=f"(?s)fn: .*{problem}"):
        table_of(made, SCHEMA)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            [(1, "a"), ("two", "b")],
            "column 'id' is int64, and the function returned 'two' in row 1",
        ),
        ([(1.5, "a")], "column 'id' is int64, and the function returned 1.5 in row 0"),
        ([(1, 2)], "column 'label' is string, and the function returned 2 in row 0"),
        ([(1 << 70, "a")], "column 'id' is int64"),
        ([(None, "a")], "column 'id' may not be null"),
        (pyarrow.table({"id": ["x"], "label": ["a"]}), "column 'id' is int64.* string"),
        (pyarrow.table({"id": [None], "label": ["a"]}), "column 'id' may not be null"),
        (pandas.DataFrame({"id": [1, "x"], "label": ["a", "b"]}), "column id"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_of_its_row(made: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        table_of(made, SCHEMA)


AT = pyarrow.timestamp("us", "UTC")
STRUCT = pyarrow.struct([("a", pyarrow.int64()), ("b", pyarrow.string())])


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (STRUCT, {"A": 1, "b": "x"}, "a field 'A'"),
        (pyarrow.list_(STRUCT), [{"a": 1, "b": "x", "c": 2}], "a field 'c'"),
        (STRUCT, Pair(label="x", id=1), "its fields are label, id"),
        (STRUCT, {"a": 1.5, "b": "x"}, "not a whole number"),
        (STRUCT, (1.5, "x"), "not a whole number"),
        (pyarrow.list_(pyarrow.int64()), [1, 2.5], "not a whole number"),
        (pyarrow.map_(pyarrow.string(), pyarrow.int64()), {"k": 1.5}, "not a whole number"),
        (pyarrow.int64(), Decimal("1.5"), "not a whole number"),
        (pyarrow.map_(pyarrow.string(), pyarrow.int64()), [("k", 1), ("k", 2)], "a key twice"),
        (pyarrow.float32(), 1e39, "too large"),
        (AT, 1_767_268_800, "number.*, not"),
        (pyarrow.date32(), 20_454, "number.*, not"),
        (pyarrow.list_(AT), [1_767_268_800], "number.*, not"),
        (AT, pandas.Timestamp(1), "nanoseconds"),
        (pyarrow.map_(pyarrow.int64(), pyarrow.string()), {1.5: "x"}, "not a whole number"),
        (pyarrow.int64(), float("inf"), "not a whole number"),
        (pyarrow.list_(pyarrow.string()), "abc", "a text, not a list"),
        (pyarrow.large_list(pyarrow.string()), "abc", "a text, not a list"),
        (pyarrow.list_(pyarrow.int64()), b"abc", "bytes, not a list"),
        (pyarrow.list_(pyarrow.list_(pyarrow.string())), ["abc"], "a text, not a list"),
    ],
)
@pytest.mark.parametrize("form", ["rows", "pandas"])
def test_nothing_inside_a_value_is_left_out_or_cut_in_silence(
    kind: Any, value: Any, problem: str, form: str
) -> None:
    schema = pyarrow.schema([("id", pyarrow.int64()), ("x", kind)])
    made: Any = [(1, value)]
    if form == "pandas":
        if not pyarrow.types.is_nested(kind):
            problem += "|data loss|truncated|lose data"  # pyarrow's own words, of a whole column
        made = pandas.DataFrame({"id": [1], "x": [value]})
    with pytest.raises(ValueError, match=f"column 'x' is .*({problem})"):
        table_of(made, schema)


def test_fields_of_structs_in_arrow_are_those_of_the_schema() -> None:
    schema = pyarrow.schema([("x", pyarrow.list_(STRUCT))])
    other = pyarrow.table({"x": [[{"a": 1, "B": "lost"}]]})
    with pytest.raises(ValueError, match=r"column 'x' .* a field 'B'"):
        table_of(other, schema)
    same = pyarrow.table({"x": [[{"b": "kept", "a": 1}], None]})
    assert table_of(same, schema).to_pylist() == [{"x": [{"a": 1, "b": "kept"}]}, {"x": None}]


def test_a_frame_may_hold_structs_lists_and_maps() -> None:
    schema = pyarrow.schema([
        ("id", pyarrow.int64()),
        ("s", STRUCT),
        ("l", pyarrow.list_(pyarrow.float64())),
        ("m", pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    ])  # fmt: skip
    rows = [
        {"id": 1, "s": {"a": 1, "b": None}, "l": [1.5], "m": [("k", 1), ("l", None)]},
        {"id": 2, "s": None, "l": None, "m": None},
    ]
    frame = pyarrow.Table.from_pylist(rows, schema).to_pandas()
    assert table_of(frame, schema).to_pylist() == rows
