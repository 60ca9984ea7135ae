"""Filters in pyiceberg's words, so that files are left out by what the table says of them."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from flowctl.errors import ConfigError
from flowctl_files._layouts import Field

# Larger ints are not all doubles.
_EXACT_MAX: Final = 1 << 53


def check_filter(wanted: Any, fields: list[Field]) -> None:
    """Raise :class:`ConfigError` if an expression of pyarrow doesn't fit a table's columns."""
    import pyarrow

    if wanted is None:
        return
    schema = pyarrow.schema([(field.name, field.type) for field in fields])
    try:
        schema.empty_table().filter(wanted)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(
            "filter",
            f"{str(error).partition(chr(10))[0].rstrip('.')}.",
            remedy=f"The table's columns are {', '.join(f'{f.name}: {f.type}' for f in fields)}.",
        ) from error


def pushed_down(wanted: Any, schema: Any) -> Any:
    """Return an expression of pyiceberg that is true wherever ``wanted`` is; None: there is none.

    ``wanted`` is a list of terms, as ``pyarrow.parquet`` takes; of expressions of pyarrow nothing
    is known.  ``schema`` is the table's.
    """
    if not isinstance(wanted, list) or not wanted:
        return None
    from pyiceberg.expressions import AlwaysTrue, And, Or

    types = {field.name: str(field.field_type) for field in schema.fields}
    either = wanted if isinstance(wanted[0], list) else [wanted]
    every: Any = AlwaysTrue()
    terms = [functools.reduce(And, [_term(each, types) for each in all_], every) for all_ in either]
    return functools.reduce(Or, terms)


def _term(term: tuple[str, str, Any], types: Mapping[str, str]) -> Any:
    from pyiceberg import expressions as e

    name, operator, value = term
    is_exact = _EXACT.get(types.get(name, ""), _never)
    operators: dict[str, Any] = {
        "=": e.EqualTo,
        "==": e.EqualTo,
        "<": e.LessThan,
        "<=": e.LessThanOrEqual,
        ">": e.GreaterThan,
        ">=": e.GreaterThanOrEqual,
    }
    if operator in operators and is_exact(value):
        return operators[operator](name, value)
    if operator == "in" and value and all(map(is_exact, value)):
        return e.In(name, list(value))
    # What is unequal leaves hardly a file out.
    return e.AlwaysTrue()


def _never(value: object) -> bool:
    del value
    return False


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_double(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and _is_int(value) and abs(value) <= _EXACT_MAX


def _is_date(value: object) -> bool:
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


# pyiceberg rounds values of other types to the column's, and files would be missing that pyarrow,
# which has the last word on each row, takes rows of.
_EXACT: Final[Mapping[str, Callable[[object], bool]]] = {
    "boolean": lambda value: isinstance(value, bool),
    "int": _is_int,
    "long": _is_int,
    "double": _is_double,
    "string": lambda value: isinstance(value, str),
    "date": _is_date,
    "timestamp": lambda value: isinstance(value, datetime.datetime) and value.tzinfo is None,
    "timestamptz": lambda value: isinstance(value, datetime.datetime) and value.tzinfo is not None,
}
