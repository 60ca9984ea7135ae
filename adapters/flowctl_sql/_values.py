"""Convert a DataFrame's values to Python's own; refuse values that a driver would change.  Pure.

Drivers store values of unknown types as something else, without an error: sqlite3 the memory of
anything with a buffer (``numpy.int64(5)`` as eight bytes), PyMySQL ``str(value)``, and psycopg
pandas' NaT as a day in the year 48113.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from flowctl_sql._dialect import MYSQL_NAMES

_Convert: TypeAlias = Callable[[Any], Any]

# Types that all drivers know.  Rows with only these are checked once, by their types.
_KNOWN = frozenset({int, float, str, bytes, bool, type(None), date, timedelta, Decimal})
_NATIVE = (float, bytes, type(None))  # beside int and str
# What DataFrames and other databases have, and SQLite can't store: a column has it in all rows.
_NOT_IN_SQLITE = (Decimal, time, timedelta, UUID)
_PACKAGES = ("numpy", "pandas")  # packages whose scalars are converted
# Errors that drivers raise for values that they can't pass on, or that the database can't read.
_BINDING_ERRORS = frozenset(
    {
        "ProgrammingError",
        "InterfaceError",
        "DataError",
        "OverflowError",
        "UnicodeError",
        "TypeError",
    }
)


class Unfit(NamedTuple):
    """An unfit value, number ``at`` of row ``row``: why it can't be stored, and what to do.

    ``is_type``: it is a type of which no value can be stored; so it is not this row's fault.
    """

    row: int
    at: int
    why: str
    remedy: str
    is_type: bool = False


class UnfitError(Exception):
    """Raised by :func:`as_python`."""

    def __init__(self, unfit: Unfit) -> None:
        super().__init__(unfit.why)
        self.unfit = unfit


class _Refused(Exception):
    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


def as_python(rows: Sequence[tuple[Any, ...]], dialect: str) -> Sequence[tuple[Any, ...]]:
    """Return ``rows`` with numpy's and pandas' scalars as Python's own; NaT and NA are None.

    ``dialect`` is SQLAlchemy's name of the dialect.  Raises :class:`UnfitError` for a value that
    the driver would store as something else.
    """
    if dialect not in MYSQL_NAMES and sys.modules.keys().isdisjoint(_PACKAGES):
        return rows  # neither is loaded: checking each value takes a tenth of a write
    unknown = set(map(type, chain.from_iterable(rows))) - _KNOWN
    found = {kind: convert for kind in unknown if (convert := _converter(kind, dialect))}
    if not found:
        return rows
    converted = []
    for number, row in enumerate(rows):
        values = list(row)
        for at, value in enumerate(row):
            if (convert := found.get(type(value))) is not None:
                try:
                    values[at] = convert(value)
                except _Refused as error:
                    raise UnfitError(Unfit(number, at, error.why, error.remedy)) from None
        converted.append(tuple(values))
    return converted


def _converter(kind: type, dialect: str) -> _Convert | None:
    if dialect == "sqlite" and (kind, sqlite3.PrepareProtocol) in sqlite3.adapters:
        return None  # the job's own adapters; datetime is among them
    packages = {cls.__module__.partition(".")[0] for cls in kind.__mro__}
    convert: _Convert | None = None
    if "numpy" in packages:
        convert = _of_numpy(kind, dialect)
    elif "pandas" in packages:
        convert = _PANDAS.get(kind.__name__)
    if dialect not in MYSQL_NAMES:
        return convert
    if issubclass(kind, datetime) or convert is not None:
        inner = convert or _same
        return lambda value: _without_zone(inner(value))
    if issubclass(kind, memoryview):
        return bytes
    return _refused_collection if issubclass(kind, list | tuple | set | frozenset) else None


def as_json(value: Any) -> Any:
    """Return a dict, a list, a tuple or a Row of Spark as JSON; anything else as it is.

    Also one that holds what JSON has no form for (a Decimal, NaN), or has two values for one key:
    the driver refuses it, unless the job has taught it what to do.
    """
    if not isinstance(value, dict | list | tuple):
        return value
    try:
        return _json_of(value)
    except (TypeError, ValueError):
        return value


def _json_of(value: Any) -> str:
    return json.dumps(_without_rows(value), ensure_ascii=False, allow_nan=False)


def _without_rows(value: Any) -> Any:
    fields = value if isinstance(value, dict) else None
    if hasattr(value, "asDict"):  # a Row, which is a tuple as well
        fields = value.asDict()
        if len(fields) < len(value):
            raise ValueError("two fields have one name")
    if fields is not None:
        # As text {1: "a", "1": "b"} has one key twice.
        if len({json.dumps({key: 0}) for key in fields}) < len(fields):
            raise ValueError("two keys are one as text")
        return {key: _without_rows(each) for key, each in fields.items()}
    return [_without_rows(each) for each in value] if isinstance(value, list | tuple) else value


def _same(value: Any) -> Any:
    return value


def _of_numpy(kind: type, dialect: str) -> _Convert | None:
    numpy = sys.modules["numpy"]
    if issubclass(kind, numpy.datetime64 | numpy.timedelta64):
        return _numpy_time
    if issubclass(kind, numpy.generic):
        return _numpy_scalar
    # A PostgreSQL driver may know arrays, as with pgvector; it refuses those that it doesn't know.
    return None if dialect == "postgresql" else _refused_collection


def _numpy_scalar(value: Any) -> Any:
    plain = value.item()
    if type(plain) is type(value):  # longdouble
        raise _Refused(f"a {type(value).__name__} of numpy", "Pass float(value) or str(value).")
    return plain


def _numpy_time(value: Any) -> Any:
    numpy = sys.modules["numpy"]
    if numpy.isnat(value):
        return None
    plain = value.item()
    if not isinstance(plain, int):
        return plain
    # Python's own times count microseconds; .item() returns plain numbers for finer units.
    coarse = value.astype(f"{value.dtype.kind}8[us]")
    plain = coarse.item()
    if coarse != value or isinstance(plain, int):
        raise _finer()
    return plain


def _timestamp(value: Any) -> Any:
    if value.nanosecond:
        raise _finer()
    return value.to_pydatetime()


def _timedelta(value: Any) -> Any:
    if value.nanoseconds:
        raise _finer()
    return value.to_pytimedelta()


def _none(value: Any) -> None:
    del value


_PANDAS: dict[str, _Convert] = {
    "Timestamp": _timestamp,
    "Timedelta": _timedelta,
    "NaTType": _none,
    "NAType": _none,
}


def _finer() -> _Refused:
    return _Refused(
        "a time with nanoseconds, or outside the years 1 to 9999",
        "Round it first: Timestamp.floor('us'), or astype('datetime64[us]').",
    )


def _without_zone(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        raise _Refused(
            "a datetime with a time zone, which MySQL's drivers drop",
            "Pass value.astimezone(datetime.UTC).replace(tzinfo=None).",
        )
    return value


def _refused_collection(value: Any) -> Any:
    raise _Refused(f"a {type(value).__name__}, not one value", _AS_JSON)


_AS_JSON = "Pass json.dumps(value), or a column for each of its values."


def unfit_of(rows: Iterable[tuple[Any, ...]], dialect: str, error: Exception) -> Unfit | None:
    """Return the value that made the driver raise ``error``, if it can't pass that value on."""
    # By PEP 249 each driver has classes of these names, but there is no common base.
    names = {cls.__name__ for cls in type(error).__mro__}
    if not names & _BINDING_ERRORS:
        return None
    said = str(error)
    for number, row in enumerate(rows):
        for at, value in enumerate(row):
            if (reason := _reason(value, dialect, said)) is not None:
                is_type = dialect == "sqlite" and isinstance(value, _NOT_IN_SQLITE)
                return Unfit(number, at, *reason, is_type)
    return None


def _reason(value: Any, dialect: str, said: str) -> tuple[str, str] | None:
    if isinstance(value, str):
        return _reason_of_text(value, dialect)
    if isinstance(value, int):
        return _reason_of_int(value) if dialect == "sqlite" else None
    if isinstance(value, dict | list | tuple) and "adapt type 'dict'" in said:  # psycopg's words
        try:
            _json_of(value)
        except (TypeError, ValueError) as error:
            return f"a {type(value).__name__} that is no JSON ({error})", _AS_JSON
    # Drivers name the type; it may be fine in itself, where the job has taught the driver.  That
    # of Python 3.10 for SQLite only says that there is one.
    is_named = type(value).__name__ in said
    if not is_named and ("unsupported type" not in said or isinstance(value, _NATIVE)):
        return None
    if isinstance(value, dict | set | frozenset) or (dialect == "sqlite" and _is_sequence(value)):
        return f"a {type(value).__name__}, not one value", _AS_JSON
    return _reason_of_type(value) if dialect == "sqlite" else None


def _is_sequence(value: object) -> bool:
    return isinstance(value, list | tuple)


def _reason_of_text(value: str, dialect: str) -> tuple[str, str] | None:
    if "\0" in value and dialect == "postgresql":
        return "text with the character NUL, which PostgreSQL can't store", (
            "Take it out: value.replace('\\0', '')."
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        return "text with half a surrogate pair, which is not UTF-8", (
            "Replace it: value.encode('utf-8', 'replace').decode()."
        )
    return None


def _reason_of_int(value: int) -> tuple[str, str] | None:
    if -(2**63) <= value < 2**63:
        return None
    return "an integer of more than 64 bits", "Pass str(value), into a column of text."


def _reason_of_type(value: Any) -> tuple[str, str] | None:
    kind = type(value).__name__
    adapted = (type(value), sqlite3.PrepareProtocol) in sqlite3.adapters
    if value is None or isinstance(value, float) or adapted or hasattr(value, "__conform__"):
        return None
    pass_on = "value.isoformat()" if isinstance(value, time) else "str(value) or a number"
    adapter = f"call sqlite3.register_adapter({kind}, …) where the job's module is imported"
    if isinstance(value, _NOT_IN_SQLITE):
        cast = '.cast("string")'
        if isinstance(value, Decimal):
            cast += ', or .cast("double") if it may lose digits'
        return f"of the type {kind}, which SQLite can't store", (
            f"Of a DataFrame, cast the column in Spark: {cast}. In process, pass {pass_on}, or"
            f" {adapter}."
        )
    return f"of the type {kind}, which SQLite can't store", f"Pass {pass_on}, or {adapter}."
