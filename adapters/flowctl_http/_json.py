"""Rows as JSON; a number that JSON does not have is an error, where msgspec would write null."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from flowctl.bolts.batch import Batch

_encode = msgspec.json.Encoder().encode
_NULL = b"null"  # what NaN and the infinities become: without it there are none


class NotInJsonError(ValueError):
    """The message says where the number is, and which."""


def encoded(value: Any) -> bytes:
    """Return ``value`` as JSON; raise :class:`NotInJsonError` if it holds NaN or an infinity."""
    content = _encode(value)
    if _NULL in content and (what := _found(msgspec.to_builtins(value), "")):
        raise NotInJsonError(f"{what}, which JSON does not have")
    return content


def without_rejected(
    wanted: Sequence[tuple[int, Any]], batch: Batch, encode: Callable[[int, Any], bytes]
) -> dict[int, bytes]:
    """Return each row as ``encode(index, row)`` makes it, by index.

    A row that holds a number that JSON does not have is rejected.
    """
    made: dict[int, bytes] = {}
    for index, row in wanted:
        try:
            made[index] = encode(index, row)
        except NotInJsonError as error:
            batch.reject(index, str(error))
    return made


def _found(value: Any, path: str) -> str:
    """Return where there is a number that JSON does not have, and which it is; "": nowhere."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{path or 'the row'} is {value}"
    if isinstance(value, Mapping):
        parts = [(f"{path}.{name}" if path else str(name), part) for name, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    else:
        return ""
    return next((what for where, part in parts if (what := _found(part, where))), "")
