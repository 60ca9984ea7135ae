"""Convert the arguments and results of a function of rows: records, Arrow, or pandas.

Only this module knows these forms; errors name the column.  Needs pyarrow.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, time
from numbers import Number
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_type_hints

from flowctl.bolts.batch import Batch
from flowctl.core.records import Fields
from flowctl.errors import ConfigError, MissingExtraError, UnrunnableError


def arrow() -> Any:
    """Return the module ``pyarrow``; raise :class:`MissingExtraError`."""
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        raise MissingExtraError("fn", "pyarrow", "parquet") from None


# -- Values of structs, lists and maps, where pyarrow would leave out or cut some of them ------


# The largest float of 4 bytes; more would become infinite.
_FLOAT_MAX = (2 - 2**-23) * 2.0**127


def is_nested(kind: Any) -> bool:
    """Whether values of this type contain other values."""
    types = arrow().types
    return bool(types.is_struct(kind) or types.is_map(kind) or _is_list(kind))


def check_values(values: Iterable[Any], kind: Any) -> None:
    """Raise ``ValueError`` for a value that would lose something when converted to ``kind``."""
    types = arrow().types
    if types.is_integer(kind):
        _check_whole(values)
    elif types.is_float32(kind):
        _check_range(values)
    elif _is_moment(kind):
        _check_moments(list(values))
        if types.is_date(kind):
            _check_dates(values)
    elif _is_letters(kind):
        _check_letters(values, kind)
    elif types.is_struct(kind):
        _check_structs([_by_name(value, kind) for value in values if value is not None], kind)
    elif types.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in _pairs(value)]
        check_values([key for key, _ in pairs], kind.key_type)
        check_values([value for _, value in pairs], kind.item_type)
    elif _is_list(kind):
        lists = [value for value in values if value is not None]
        _check_lists(lists)
        if _is_checked(kind.value_type):
            check_values([one for each in lists for one in each], kind.value_type)


def check_type(given: Any, wanted: Any) -> None:
    """Raise ``ValueError`` if a cast of ``given`` to ``wanted`` would drop fields or invent dates.

    That is: leave out fields of structs, or take numbers for dates.
    """
    types = arrow().types
    if types.is_integer(given) and _is_moment(wanted):
        raise ValueError("these are numbers, not dates or times")
    if types.is_struct(given) and types.is_struct(wanted):
        _check_fields([field.name for field in given], wanted)
        for field in given:
            check_type(field.type, wanted.field(field.name).type)
    elif types.is_map(given) and types.is_map(wanted):
        check_type(given.key_type, wanted.key_type)
        check_type(given.item_type, wanted.item_type)
    elif _is_list(given) and _is_list(wanted):
        check_type(given.value_type, wanted.value_type)


def check_cast(given: Any, made: Any) -> None:
    """Raise ``ValueError`` if ``made``, cast from ``given``, has new infinities."""
    pyarrow = arrow()
    types = pyarrow.types
    if not (types.is_float32(made.type) and types.is_float64(given.type)):
        return
    compute = importlib.import_module("pyarrow.compute")
    if compute.sum(compute.is_inf(made)) != compute.sum(compute.is_inf(given)):
        raise ValueError("a value is too large for a float of 4 bytes")


def _check_lists(values: Iterable[Any]) -> None:
    """Refuse texts and bytes, which pyarrow would take for lists of letters or numbers."""
    for value in values:
        if isinstance(value, str | bytes):
            what = "a text" if isinstance(value, str) else "bytes"
            raise ValueError(f"it is {what}, not a list")


def _check_structs(values: list[Mapping[str, Any]], kind: Any) -> None:
    for value in values:
        _check_fields(value, kind)
    for field in kind:
        if _is_checked(field.type):
            check_values([value.get(field.name) for value in values], field.type)


def _by_name(value: Any, kind: Any) -> Mapping[str, Any]:
    """Return a struct's fields by name: pyarrow would take tuples, also Spark's Rows, by order."""
    if isinstance(value, Mapping):
        return value
    known = [field.name for field in kind]
    named = getattr(value, "__fields__", None) or getattr(value, "_fields", known)
    if list(named) != known:
        raise ValueError(f"its fields are {', '.join(named)}, and those of {kind} are others")
    return dict(zip(known, value, strict=False))


def _check_fields(names: Iterable[str], kind: Any) -> None:
    known = {field.name for field in kind}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ValueError(f"it has a field {unknown!r}, which {kind} does not have")


def _check_whole(values: Iterable[Any]) -> None:
    for value in values:
        if type(value) is int or not isinstance(value, Number) or isinstance(value, bool):
            continue
        try:
            is_whole = value == int(value)  # type: ignore[call-overload]
        except (ArithmeticError, TypeError, ValueError):  # infinite, or not a number
            is_whole = False
        if not is_whole:
            raise ValueError("it is not a whole number")


def _check_range(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, float) and _FLOAT_MAX < abs(value) < math.inf:
            raise ValueError("it is too large for a float of 4 bytes")


def _check_moments(values: Sequence[Any]) -> None:
    """Refuse numbers: they would count as days or (nano-, micro-)seconds since 1970."""
    kinds = set(map(type, values))
    if any(issubclass(kind, Number) for kind in kinds):
        raise ValueError("it is a number, not a date or a time")
    if not any(hasattr(kind, "nanosecond") for kind in kinds):
        return
    if any(getattr(value, "nanosecond", 0) > 0 for value in values):  # NaN of a missing time
        raise ValueError("it has nanoseconds, which would be lost")


def _check_dates(values: Iterable[Any]) -> None:
    for value in values:
        if not isinstance(value, datetime):
            continue
        if str(value) == "NaT":
            raise ValueError("it is NaT of pandas, which would be a day of the year 1: give None")
        if value.timetz() != time():
            raise ValueError("it is a time of a day, of which a date keeps the day alone")


def _check_letters(values: Iterable[Any], kind: Any) -> None:
    """Refuse bytes for texts and texts for bytes: pyarrow would take them to be UTF-8."""
    is_text = arrow().types.is_string(kind) or arrow().types.is_large_string(kind)
    if (bytes if is_text else str) in set(map(type, values)):
        raise ValueError("it is bytes, not a text" if is_text else "it is a text, not bytes")


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    pairs = list(value)
    keys = [key for key, _ in pairs]
    with suppress(TypeError):  # structs are dicts, which can't be hashed
        if len(set(keys)) < len(keys):
            raise ValueError("it has a key twice, of which Spark would read one")
    return pairs


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_checked(kind: Any) -> bool:
    """Whether values of the type need checks: this saves checking long lists of floats."""
    types = arrow().types
    is_number = bool(types.is_integer(kind))
    return is_nested(kind) or is_number or _is_moment(kind) or _is_letters(kind)


def _is_letters(kind: Any) -> bool:
    types = arrow().types
    checks = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary
    return any(is_one(kind) for is_one in checks)


def _is_moment(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind))


# -- What a function gets and gives ------------------------------------------------------------


Form: TypeAlias = Literal["records", "batch", "table", "pandas"]
_CHOICES: Final[dict[str, Form]] = {"records": "records", "arrow": "batch", "pandas": "pandas"}
# By the last word of the annotation: a module with postponed annotations may not be importable.
_BY_NAME: Final[dict[str, Form]] = {"RecordBatch": "batch", "Table": "table", "DataFrame": "pandas"}
_SHOWN_CHARS: Final = 80  # of a value in an error message: enough to recognise it
_RETURN: Final = (
    "Return a list of tuples or dicts, a pyarrow RecordBatch or Table, or a pandas DataFrame."
)


class Shape(NamedTuple):
    """The arguments of ``fn``; ``takes_batch``: it takes the batch too, for ``batch.reject``."""

    form: Form
    takes_batch: bool


def shape_of(fn: Callable[..., Any], form: str | None = None) -> Shape:
    """Return the arguments of ``fn``, by ``form`` or the annotation of its first parameter.

    Raises :class:`ConfigError` for an unknown ``form``, or a function that can't be called with one
    or two arguments.
    """
    if form is not None and form not in _CHOICES:
        raise ConfigError(
            "form", f"{form!r} is unknown.", remedy=f"Give one of {', '.join(_CHOICES)}."
        )
    if not callable(fn):
        raise ConfigError("fn", f"{fn!r} can't be called.", remedy="Give a function of a batch.")
    parameters = _positional(fn)
    if parameters is not None and not 1 <= len(parameters) <= 2:
        raise ConfigError(
            "fn",
            f"it needs {len(parameters)} arguments.",
            remedy="Let it take the rows, and if it wants to reject some, the batch.",
        )
    takes_batch = parameters is not None and len(parameters) == 2
    return Shape(_CHOICES[form] if form is not None else _annotated(fn), takes_batch)


def _positional(fn: Callable[..., Any]) -> list[str] | None:
    """Return the required parameters; None if Python doesn't know them (some builtins)."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one.name for one in parameters if one.kind in kinds and one.default is one.empty]
    variadic = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    first = [one.name for one in parameters if one.kind in kinds][:1]
    return needed or first or (["rows"] if variadic else [])


def _annotated(fn: Callable[..., Any]) -> Form:
    function = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004
    function = getattr(fn, "func", function)  # functools.partial
    given = dict(getattr(function, "__annotations__", {}))
    with suppress(Exception):  # a name imported for the type checker only
        given = get_type_hints(function)
    names = _positional(fn) or []
    hint = given.get(names[0]) if names else None
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    return _BY_NAME.get(text.rpartition(".")[2].strip("'\" "), "records")


def call(fn: Callable[..., Any], shape: Shape, batch: Batch) -> Any:
    """Call ``fn`` with the rows of ``batch`` in the form that it expects."""
    rows: Any = batch
    if shape.form in ("batch", "table"):
        rows = batch.to_arrow()
        if shape.form == "table":
            rows = arrow().Table.from_batches([rows])
    elif shape.form == "pandas":
        rows = batch.to_pandas()
    return fn(rows, batch) if shape.takes_batch else fn(rows)


def table_of(made: Any, schema: Any, field: str = "fn") -> Any:
    """Return a function's result ``made`` as a ``pyarrow.Table`` of ``schema``.

    ``field`` is the user's name of the function, for errors.  Raises :class:`UnrunnableError` if
    the result isn't rows, or has other columns, as that is so for every batch.  Raises
    ``ValueError`` if a value does not fit its column, which may be a row's fault.
    """
    try:
        return _table_of(made, schema)
    except _OtherRows as error:
        raise UnrunnableError(field, error.problem, remedy=error.remedy) from None


class _OtherRows(Exception):
    """A function's result isn't rows, or has other columns."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def _table_of(made: Any, schema: Any) -> Any:
    if made is None:
        return schema.empty_table()
    pyarrow = arrow()
    if isinstance(made, pyarrow.RecordBatch):
        made = pyarrow.Table.from_batches([made])
    elif _is_frame(made):
        made = _from_frame(made, schema)
    if isinstance(made, pyarrow.Table):
        return _fitted(made, schema)
    if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
        raise _OtherRows(f"it returned {_kind(made)}, not rows.", _RETURN)
    return _from_rows(list(made), schema)


def _is_frame(made: Any) -> bool:
    return type(made).__name__ == "DataFrame" and type(made).__module__.startswith("pandas.")


def _from_frame(frame: Any, schema: Any) -> Any:
    pyarrow = arrow()
    names = [str(name) for name in frame.columns]
    _check_names(names, schema)
    nested = [field for field in schema if is_nested(field.type)]
    flat = frame.drop(columns=[field.name for field in nested])
    try:
        table = pyarrow.Table.from_pandas(flat, preserve_index=False)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise ValueError(
            f"the DataFrame that the function returned is not a table: {error}"
        ) from error
    columns = dict(zip(table.column_names, table.columns, strict=True))
    # Pandas has no structs and maps: the cells alone don't determine the type.
    columns |= {field.name: _array(_cells(frame[field.name]), field) for field in nested}
    return pyarrow.table(columns)


def _cells(series: Any) -> list[Any]:
    """Return the values of an object column, with None for pandas' missing values."""
    missing = series.isna().tolist()
    return [None if gone else value for gone, value in zip(missing, series, strict=True)]


def _fitted(table: Any, schema: Any) -> Any:
    _check_names(table.column_names, schema)
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            check_type(column.type, field.type)
            cast = column.cast(field.type)
            check_cast(column, cast)
            columns.append(_not_null(cast, field))
        except (arrow().ArrowException, ValueError) as error:
            if getattr(error, "is_ours", False):
                raise
            raise ValueError(_does_not_fit(field, f"{column.type}: {error}")) from error
    return arrow().Table.from_arrays(columns, schema=schema)


def _check_names(
    names: Sequence[str], schema: Any, row: str = "what the function returned"
) -> None:
    wanted = schema.names
    doubled = next((name for name in names if list(names).count(name) > 1), None)
    missing = next((name for name in wanted if name not in names), None)
    unknown = next((name for name in names if name not in wanted), None)
    if doubled is not None:
        problem = f"{row} has two columns {doubled!r}."
    elif missing is not None:
        problem = f"{row} has no column {missing!r}; it has {_listed(names)}."
    elif unknown is not None:
        problem = f"{row} has a column {unknown!r} that is not in the schema."
    else:
        return
    raise _OtherRows(problem, f"The schema's columns are {_listed(wanted)}.")


def _from_rows(rows: Sequence[Any], schema: Any) -> Any:
    columns = _alike(rows, schema.names)
    if columns is None:  # or one of them is none: then this says which
        listed = [_values(row, number, schema) for number, row in enumerate(rows)]
        columns = [[row[at] for row in listed] for at in range(len(schema))]
    arrays = [_array(values, field) for values, field in zip(columns, schema, strict=True)]
    return arrow().Table.from_arrays(arrays, schema=schema)


def _alike(rows: Sequence[Any], names: Sequence[str]) -> Sequence[Sequence[Any]] | None:
    """Return the columns of rows that are all tuples, or all dicts, of these columns; else None.

    Nearly all rows are, and a look at each of them would cost ten times as much.
    """
    kinds = set(map(type, rows))
    are_dicts = kinds.issubset((dict, Fields))
    if not (are_dicts or kinds.issubset((tuple, list))) or set(map(len, rows)) != {len(set(names))}:
        return None
    if not are_dicts:
        return list(zip(*rows, strict=True))
    try:
        return [list(map(itemgetter(name), rows)) for name in names]
    except KeyError:
        return None


def _values(row: Any, number: int, schema: Any) -> Sequence[Any]:
    if not isinstance(row, Mapping):
        as_dict = getattr(row, "asDict", None) or getattr(row, "_asdict", None)
        row = as_dict() if callable(as_dict) else row  # a Row of Spark, a named tuple
    if isinstance(row, Mapping):
        _check_names(list(row), schema, f"row {number} that the function returned")
        return [row[name] for name in schema.names]
    if not isinstance(row, tuple | list):
        raise _OtherRows(f"row {number} is {_kind(row)}, not a row.", _RETURN)
    if len(row) != len(schema):
        raise _OtherRows(
            f"row {number} has {len(row)} value{'s' * (len(row) != 1)} for {len(schema)}"
            f" column{'s' * (len(schema) != 1)}: {_shown(row)}.",
            f"The schema's columns are {_listed(schema.names)}.",
        )
    return row


def _array(values: Sequence[Any], field: Any) -> Any:
    pyarrow = arrow()
    try:
        check_values(values, field.type)
        return _not_null(pyarrow.array(values, field.type), field)
    except (pyarrow.ArrowException, TypeError, OverflowError, ValueError) as error:
        if getattr(error, "is_ours", False):
            raise
        number = next((n for n, value in enumerate(values) if not _fits(value, field)), None)
        where = "" if number is None else f"{_shown(values[number])} in row {number}: "
        raise ValueError(_does_not_fit(field, f"{where}{error}")) from error


def _fits(value: Any, field: Any) -> bool:
    pyarrow = arrow()
    try:
        check_values([value], field.type)
        pyarrow.array([value], field.type)
    except (pyarrow.ArrowException, TypeError, OverflowError, ValueError):
        return False
    return True


class NullError(ValueError):
    """A null in a column that may not have any."""

    is_ours = True


def _not_null(column: Any, field: Any) -> Any:
    if not field.nullable and column.null_count:
        raise NullError(
            f"column {field.name!r} may not be null, and the function returned null for it"
        )
    return column


def _does_not_fit(field: Any, why: str) -> str:
    return f"column {field.name!r} is {field.type}, and the function returned {why}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {_shown(value)}"


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())  # the error of a table has several lines
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
