"""Rows that a function returns: what is accepted is kept as it was, whatever its type holds."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.errors import UnrunnableError
from flowctl_apply._rows import table_of

AT = pyarrow.timestamp("us", "UTC")
NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    pyarrow.int64(): st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2.0, Decimal(3)]),
    pyarrow.float64(): st.floats(allow_nan=False),
    pyarrow.string(): st.text(max_size=3),
    pyarrow.binary(): st.binary(max_size=3),
    pyarrow.bool_(): st.booleans(),
    AT: st.just(NOW),
    pyarrow.date32(): st.just(NOW.date()),
}
ODD = st.sampled_from([1.5, -0.25, Decimal("1.5"), 1 << 64, 17, "a", b"a", True, NOW, float("inf")])


def kinds(depth: int) -> st.SearchStrategy[Any]:
    """A type."""
    plain = st.sampled_from(list(PLAIN))
    if not depth:
        return plain
    inner = kinds(depth - 1)
    fields = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        plain,
        inner.map(pyarrow.list_),
        inner.map(pyarrow.large_list),
        fields.map(lambda f: pyarrow.struct([(f"f{n}", kind) for n, kind in enumerate(f)])),
        st.tuples(st.sampled_from([pyarrow.string(), pyarrow.int64()]), inner).map(
            lambda both: pyarrow.map_(*both)
        ),
    )


def values(kind: Any, odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of a type, as a function gives them; amid them what ``odd`` draws."""
    types = pyarrow.types
    if kind in PLAIN:
        return st.none() | PLAIN[kind] | odd
    if types.is_map(kind):
        keys = PLAIN[kind.key_type] | odd
        pairs = st.tuples(keys, values(kind.item_type, odd))
        return st.none() | odd | st.lists(pairs, max_size=2)
    if types.is_struct(kind):
        inner = {field.name: values(field.type, odd) for field in kind}
        whole = st.fixed_dictionaries(inner)
        if odd is not ODD:
            return st.none() | whole  # pyarrow takes dicts or tuples, not both in one column
        some = st.fixed_dictionaries({}, optional={**inner, "more": odd})
        return st.none() | odd | whole | st.tuples(*inner.values()) | some
    return st.none() | odd | st.lists(values(kind.value_type, odd), max_size=3)


def as_read(value: Any, kind: Any) -> Any:
    """The value as Arrow gives it back."""
    types = pyarrow.types
    if value is None:
        return None
    if types.is_struct(kind):
        if not isinstance(value, Mapping):
            value = dict(zip([field.name for field in kind], value, strict=True))
        assert value.keys() <= {field.name for field in kind}, "a field is lost"
        return {field.name: as_read(value.get(field.name), field.type) for field in kind}
    if types.is_map(kind):
        pairs = list(value.items()) if isinstance(value, Mapping) else list(value)
        return [(as_read(k, kind.key_type), as_read(v, kind.item_type)) for k, v in pairs]
    if types.is_list(kind) or types.is_large_list(kind):
        assert not isinstance(value, str)
        return [as_read(one, kind.value_type) for one in value]
    return value


@st.composite
def columns(draw: st.DrawFn, odd: st.SearchStrategy[Any]) -> tuple[Any, list[Any]]:
    kind = draw(kinds(2))
    return kind, draw(st.lists(values(kind, odd), min_size=1, max_size=3))


def schema_of(kind: Any) -> Any:
    return pyarrow.schema([("x", kind)])


@settings(max_examples=100)
@given(columns(ODD))
def test_what_is_accepted_is_kept_as_it_was(column: tuple[Any, list[Any]]) -> None:
    kind, given_ = column
    try:
        table = table_of([(value,) for value in given_], schema_of(kind))
    except ValueError as error:
        assert "column 'x' is" in str(error)
        return
    assert table["x"].to_pylist() == [as_read(value, kind) for value in given_]
    again = table_of(table, schema_of(kind))
    assert again.equals(table)


@settings(max_examples=100)
@given(columns(st.nothing()))
def test_what_fits_is_accepted(column: tuple[Any, list[Any]]) -> None:
    kind, given_ = column
    for value in given_:
        keys = [key for key, _ in value] if pyarrow.types.is_map(kind) and value else []
        if None in keys or len(set(keys)) < len(keys):
            return
    try:
        table = table_of([{"x": value} for value in given_], schema_of(kind))
    except ValueError as error:
        assert "key" in str(error), error
        return
    assert table["x"].to_pylist() == [as_read(value, kind) for value in given_]


@pytest.mark.parametrize(
    ("given_", "wanted", "fits"),
    [
        (pyarrow.int32(), pyarrow.int64(), True),
        (pyarrow.int64(), AT, False),
        (pyarrow.list_(pyarrow.int64()), pyarrow.list_(AT), False),
        (pyarrow.list_(pyarrow.int64()), pyarrow.large_list(AT), False),
        (pyarrow.struct([("a", pyarrow.int64())]), pyarrow.struct([("a", AT)]), False),
        (
            pyarrow.struct([("a", pyarrow.int64()), ("b", pyarrow.string())]),
            pyarrow.struct([("a", pyarrow.int64())]),
            False,
        ),
        (
            pyarrow.map_(pyarrow.string(), pyarrow.int64()),
            pyarrow.map_(pyarrow.string(), pyarrow.date32()),
            False,
        ),
        (
            pyarrow.map_(pyarrow.int32(), pyarrow.int64()),
            pyarrow.map_(pyarrow.date32(), pyarrow.int64()),
            False,
        ),
        (
            pyarrow.map_(pyarrow.string(), pyarrow.int32()),
            pyarrow.map_(pyarrow.string(), pyarrow.int64()),
            True,
        ),
        (pyarrow.date32(), AT, True),
        (pyarrow.map_(pyarrow.string(), pyarrow.int64()), pyarrow.int64(), False),
        (pyarrow.int64(), pyarrow.map_(pyarrow.string(), pyarrow.int64()), False),
        (pyarrow.struct([("a", pyarrow.int64())]), pyarrow.int64(), False),
        (pyarrow.int64(), pyarrow.struct([("a", pyarrow.int64())]), False),
        (pyarrow.list_(pyarrow.int64()), pyarrow.int64(), False),
        (pyarrow.int64(), pyarrow.list_(pyarrow.int64()), False),
    ],
    ids=str,
)
def test_arrow_of_another_type_fits_if_no_value_becomes_another(
    given_: Any, wanted: Any, fits: bool
) -> None:
    made = pyarrow.table({"x": pyarrow.array([None], given_)})
    if fits:
        assert table_of(made, schema_of(wanted)).schema == schema_of(wanted)
    else:
        with pytest.raises(ValueError, match="column 'x' is"):
            table_of(made, schema_of(wanted))


def test_infinite_stays_infinite_and_what_is_too_large_does_not_become_it() -> None:
    kind = pyarrow.float32()
    for values_, fits in (([1.5, float("inf"), None], True), ([float("inf"), 1e39], False)):
        for made in ([(v,) for v in values_], pyarrow.table({"x": values_})):
            if fits:
                assert table_of(made, schema_of(kind))["x"].to_pylist() == values_
            else:
                with pytest.raises(ValueError, match="too large"):
                    table_of(made, schema_of(kind))


def test_rows_of_another_shape_are_named() -> None:
    schema = pyarrow.schema([("x", pyarrow.int64()), ("y", pyarrow.int64())])
    for made, said in (
        ([(1, 2), (3,)], "row 1 has 1 value for 2 columns"),
        ([(1, 2, 3)], "row 0 has 3 values for 2 columns"),
        ([{"x": 1, "y": 2}, {"x": 1}], "row 1 that the function returned has no column 'y'"),
        ([{"x": 1, "y": 2, "z": 3}], "has a column 'z'"),
        ([5], "row 0 is int 5, not a row"),
        ("text", "it returned str 'text', not rows"),
        ({"x": 1}, "not rows"),
    ):
        with pytest.raises(UnrunnableError, match=said):
            table_of(made, schema)


def test_moments_of_pandas_and_of_python_may_stand_in_one_column() -> None:
    rows = [(pandas.Timestamp(NOW),), (NOW,), (None,)]
    assert table_of(rows, schema_of(AT))["x"].to_pylist() == [NOW, NOW, None]
    with pytest.raises(ValueError, match="nanoseconds"):
        table_of([*rows, (pandas.Timestamp(1, tz="UTC"),)], schema_of(AT))


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        (pandas.NaT, pyarrow.date32(), "NaT"),
        (NOW, pyarrow.date32(), "a time of a day"),
        (b"a", pyarrow.string(), "bytes, not a text"),
        ("a", pyarrow.binary(), "a text, not bytes"),
    ],
)
def test_a_value_that_pyarrow_would_alter_is_refused_by_name(
    value: object, kind: object, why: str
) -> None:
    """Kind: a value of another type, which pyarrow takes and makes another one of."""
    with pytest.raises(ValueError, match=f"column 'x' is .*{why}"):
        table_of([(value,)], schema_of(kind))
