"""Refuse columns that can't be read or written, by name, before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flowctl.errors import ConfigError

# Types that Spark can't pass to Python, or would pass as bytes in its internal format.
_UNREADABLE = {
    "YearMonthIntervalType": "Spark has no value of Python's for it: CAST(… AS STRING)",
    "VariantType": "it would come as bytes in Spark's own format: to_json(…)",
    "TimeType": "this session's Spark reads no times: seconds as a long",
}


def check_columns(schema: Any, field: str, columns: Sequence[str] | None = None) -> None:
    """Raise :class:`ConfigError` if two columns have the same name, or one holds a variant.

    ``schema`` is a ``StructType``; only ``columns`` count, if given.
    """
    if not len(schema):
        raise ConfigError(field, "it has no columns.", remedy="Select the columns to read.")
    names = [one.name for one in schema]
    wanted = names if columns is None else columns
    doubled = next((name for name in wanted if names.count(name) > 1), None)
    if doubled is not None:
        raise ConfigError(
            field, f"two columns are called {doubled!r}.", remedy="Rename one: df.toDF(…)."
        )
    kept = [one for one in schema if one.name in wanted]
    _refuse(kept, field, "VariantType")


def check_sendable(schema: Any, field: str = "df") -> None:
    """Raise :class:`ConfigError` for a column whose values Spark can't pass to a function.

    Raises it also without columns, since Spark then passes no rows at all.
    """
    if not len(schema):
        raise ConfigError(field, "it has no columns.", remedy="Select the columns to write.")
    _refuse(list(schema), field, "YearMonthIntervalType")


def check_readable(schema: Any, field: str, setting: Callable[[str, str], Any]) -> None:
    """Raise :class:`ConfigError` for types that Spark would refuse to read after all the work.

    ``setting`` returns one of the session's settings, or a default.
    """
    is_exact = str(setting("spark.sql.caseSensitive", "false")).lower() == "true"
    for names in _names(schema):
        alike = names if is_exact else [name.lower() for name in names]
        doubled = next((name for name in alike if alike.count(name) > 1), None)
        if doubled is not None:
            case = "" if is_exact else " (Spark ignores case)"
            problem = f"two columns are called {doubled!r}{case}."
            raise ConfigError(field, problem, remedy="Rename one.")
    if str(setting("spark.sql.timeType.enabled", "false")).lower() != "true":
        _refuse(list(schema), field, "TimeType")


def _refuse(columns: Sequence[Any], field: str, kind: str) -> None:
    for column in columns:
        if kind in _kinds(column.dataType):
            raise ConfigError(
                field,
                f"column {column.name!r} is {column.dataType.simpleString()}.",
                remedy=f"Convert it first, as {_UNREADABLE[kind]}.",
            )


def _kinds(data_type: Any) -> Iterator[str]:
    """Return the class names of the type and of the types within it."""
    return (type(one).__name__ for one in _within(data_type))


def _names(data_type: Any) -> Iterator[list[str]]:
    """Yield the field names of each struct."""
    return (one.names for one in _within(data_type) if hasattr(one, "names"))


def _within(data_type: Any) -> Iterator[Any]:
    yield data_type
    for part in ("elementType", "keyType", "valueType"):
        if (inner := getattr(data_type, part, None)) is not None:
            yield from _within(inner)
    for field in getattr(data_type, "fields", ()):
        yield from _within(field.dataType)
