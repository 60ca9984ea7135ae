"""Messages about a value that would not arrive as it was sent: which part, its type, what to use
instead.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from flowctl.errors import JobError

#: The types that arrive exactly as sent, for messages.
CARRIED: Final = (
    "None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset, datetime, date, time,"
    " timedelta, Decimal, UUID"
)
_KEY_SHOWN_MAX: Final = 60  # characters: the message stays within a line or two


class NotCarriedError(JobError, TypeError):
    """A value, or a part of it, would not arrive as it was sent; the message says where."""


def refused(value: Any, where: str) -> NotCarriedError:
    """Return the error for the part ``value``, found at ``where``."""
    kind = type(value)
    name = name_of(kind)
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return NotCarriedError(
        f"{short(where)} is {article} {name}, which would not arrive as it is; {_hint(value)}."
    )


def _hint(value: Any) -> str:
    """Return what to use instead."""
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    if library == "pyspark" and kind.__name__ == "Row":
        return "use row.asDict() (row.asDict(recursive=True) where rows hold rows)"
    for is_it, instead in _INSTEAD:
        if is_it(value):
            return f"use {instead}"
    return f"use one of these types: {CARRIED}"


def _is_numpy(value: Any) -> bool:
    return type(value).__module__ == "numpy"


_INSTEAD: Final[Sequence[tuple[Callable[[Any], bool], str]]] = (
    (lambda v: isinstance(v, enum.Enum), "its .value"),
    (lambda v: type(v).__name__ in ("NaTType", "NAType"), "None"),
    (
        lambda v: isinstance(v, datetime.datetime),
        ".to_pydatetime(), or a datetime made from its fields",
    ),
    (lambda v: isinstance(v, bytes | bytearray | memoryview), "bytes()"),
    (lambda v: isinstance(v, str), "str()"),
    (lambda v: isinstance(v, tuple) and hasattr(v, "_asdict"), "tuple() or ._asdict()"),
    (lambda v: isinstance(v, dict), "dict()"),
    (lambda v: isinstance(v, list), "list()"),
    (lambda v: isinstance(v, tuple), "tuple()"),
    (lambda v: isinstance(v, set), "set()"),
    (lambda v: isinstance(v, frozenset), "frozenset()"),
    (lambda v: isinstance(v, numbers.Integral), "int()"),
    (lambda v: isinstance(v, decimal.Decimal), "Decimal()"),
    (lambda v: isinstance(v, float), "float()"),
    (lambda v: isinstance(v, numbers.Real), "float()"),
    (lambda v: isinstance(v, msgspec.Struct), "msgspec.structs.asdict()"),
    (lambda v: hasattr(v, "__dataclass_fields__"), "dataclasses.asdict()"),
    (lambda v: _is_numpy(v) and type(v).__name__.startswith("bool"), "bool()"),
    (lambda v: _is_numpy(v) and not getattr(v, "ndim", 1), ".item()"),
    (lambda v: _is_numpy(v) and hasattr(v, "tolist"), ".tolist()"),
)


def name_of(kind: type) -> str:
    """Return the usual name of a type: ``numpy.int64``, ``OrderedDict``, ``complex``."""
    module = kind.__module__
    if module in ("builtins", "__main__", "collections", "enum") or module.startswith("_"):
        return kind.__qualname__
    return f"{module}.{kind.__qualname__}"


def shown(key: Any) -> str:
    """Return a key as short text for a message, even if its ``repr`` is long or raises."""
    try:
        text = repr(key)
    except Exception:  # user code
        text = name_of(type(key))
    return text if len(text) <= _KEY_SHOWN_MAX else f"{text[: _KEY_SHOWN_MAX - 1]}…"


def short(where: str) -> str:
    """Return the beginning and the end of ``where``, if the text is long."""
    return where if len(where) <= 240 else f"{where[:80]}…{where[-159:]}"
