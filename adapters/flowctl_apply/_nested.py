"""Values of structs, lists and maps, checked where pyarrow would leave out or cut some of them.

Without this a field of a struct that the schema does not have disappears, and 1.5 in a list of
whole numbers is 1.  A number would pass for a date.  Needs pyarrow.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Number
from typing import Any

from flowctl_apply._needed import arrow

# The largest float of 4 bytes; more would become infinite.
_FLOAT_MAX = (2 - 2**-23) * 2.0**127


def is_nested(kind: Any) -> bool:
    """Whether values of this type hold others."""
    types = arrow().types
    return bool(types.is_struct(kind) or types.is_map(kind) or _is_list(kind))


def check_values(values: Iterable[Any], kind: Any) -> None:
    """Raise ``ValueError`` for a value that pyarrow would not keep whole in the type ``kind``."""
    types = arrow().types
    if types.is_integer(kind):
        _check_whole(values)
    elif types.is_float32(kind):
        _check_range(values)
    elif _is_moment(kind):
        _check_moments(list(values))
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
    """Raise ``ValueError`` if a cast of the type ``given`` would leave out fields of structs, or
    take numbers for dates.
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
    """Raise ``ValueError`` if the column ``made`` of ``given`` holds an infinity that was none."""
    pyarrow = arrow()
    types = pyarrow.types
    if not (types.is_float32(made.type) and types.is_float64(given.type)):
        return
    compute = importlib.import_module("pyarrow.compute")
    if compute.sum(compute.is_inf(made)) != compute.sum(compute.is_inf(given)):
        raise ValueError("a value is too large for a float of 4 bytes")


def _check_lists(values: Iterable[Any]) -> None:
    """A text would be a list of its letters, and bytes one of numbers."""
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
    """The fields of a struct: pyarrow takes a tuple by its order, also a Row of Spark."""
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
    """A number would count as microseconds, or days, since 1970; pandas has nanoseconds."""
    kinds = set(map(type, values))
    if any(issubclass(kind, Number) for kind in kinds):
        raise ValueError("it is a number, not a date or a time")
    if not any(hasattr(kind, "nanosecond") for kind in kinds):
        return
    if any(getattr(value, "nanosecond", 0) > 0 for value in values):  # NaN: of a missing time
        raise ValueError("it has nanoseconds, which would be lost")


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    pairs = list(value)
    keys = [key for key, _ in pairs]
    with suppress(TypeError):  # structs as dicts have no hash
        if len(set(keys)) < len(keys):
            raise ValueError("it has a key twice, of which Spark would read one")
    return pairs


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_checked(kind: Any) -> bool:
    """Whether there is anything to check: lists of floats are often long."""
    types = arrow().types
    return is_nested(kind) or bool(types.is_integer(kind)) or _is_moment(kind)


def _is_moment(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind))
