"""Rows as JSON. NaN and the infinities, which JSON lacks, are errors: msgspec would write null."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from flowctl.bolts.batch import Batch

_encode = msgspec.json.Encoder().encode
_NULL = b"null"  # what msgspec writes for NaN and the infinities: without "null" there are none


class NotInJsonError(ValueError):
    """A number that JSON lacks; the message names it and its place."""


def encoded(value: Any) -> bytes:
    """Return ``value`` as JSON; raise :class:`NotInJsonError` if it holds NaN or an infinity."""
    content = _encode(value)
    if _NULL in content and (what := _found(msgspec.to_builtins(value), "")):
        raise NotInJsonError(f"{what}, which JSON does not have")
    return content


def without_rejected(
    wanted: Sequence[tuple[int, Any]], batch: Batch, encode: Callable[[int, Any], bytes]
) -> dict[int, bytes]:
    """Return ``encode(index, row)`` of each row, by index.

    A row with a number that JSON lacks is rejected.
    """
    made: dict[int, bytes] = {}
    for index, row in wanted:
        try:
            made[index] = encode(index, row)
        except NotInJsonError as error:
            batch.reject(index, str(error))
    return made


def _found(value: Any, path: str) -> str:
    """Return the place and text of a number that JSON lacks; "" if there is none."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{path or 'the row'} is {value}"
    if isinstance(value, Mapping):
        parts = [(f"{path}.{name}" if path else str(name), part) for name, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    else:
        return ""
    return next((what for where, part in parts if (what := _found(part, where))), "")
