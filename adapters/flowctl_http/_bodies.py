"""The bodies of requests: rows as a JSON list or as lines, and compressed.

Rows are encoded all in one call of C, from columns without a dict for each.  Only where a number
may be among them that JSON lacks is each row looked at.
"""

from __future__ import annotations

import functools
import gzip
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.records import DictRows
from flowctl.delivery.item_sink import NotInJsonError, encoded, wanted_of
from flowctl.errors import ConfigError, MissingExtraError

Form: TypeAlias = Literal["json", "ndjson"]
FORMS: Final[dict[Form, str]] = {"json": "application/json", "ndjson": "application/x-ndjson"}
Compression: TypeAlias = Literal["gzip", "zstd"]

_encoder: Final = msgspec.json.Encoder()
# What msgspec writes for None, and for NaN and the infinities.
_NULL: Final = b"null"
# A head of some 300 bytes goes with each request: below this nothing is gained.
_COMPRESSED_MIN: Final = 1_000
# Rows become a sixth at 300 MB/s by gzip, a tenth at 600 by zstd; more by the next levels take
# longer than the network takes for what they save.
_LEVEL: Final = 1


def body_of(rows: Any, batch: Batch, form: Form) -> bytes:
    """Return ``rows`` (None: no row) in ``form``; empty if there are none.

    A row with a number that JSON lacks is rejected.
    """
    encode = _encoder.encode_lines if form == "ndjson" else _encoder.encode
    if (whole := _whole(rows, encode)) is not None and len(rows) == len(batch):
        return whole if rows else b""
    wanted = wanted_of(rows, batch)
    made = _without_rejected(wanted, batch, lambda _, row: encoded(row))
    if not made:
        return b""
    if form == "ndjson":
        return b"\n".join(made.values()) + b"\n"
    return b"[" + b",".join(made.values()) + b"]"


def _whole(rows: Any, encode: Callable[[Any], bytes]) -> bytes | None:
    """Return ``rows`` encoded in one call; None: one may be left out, or hold what JSON lacks."""
    if isinstance(rows, DictRows):
        if (make := _struct(rows.names)) is None:
            return None
        nulls = sum(column.count(None) for column in rows.columns)
        content = encode(list(map(make, *rows.columns)))
    elif isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        nulls = sum(list(row.values()).count(None) for row in rows)
        content = encode(rows)
    else:
        return None
    # A text, or what is nested, may hold more: then row by row.
    return content if content.count(_NULL) == nulls else None


@functools.lru_cache(maxsize=64)
def _struct(names: tuple[str, ...]) -> type[msgspec.Struct] | None:
    """Return a type whose objects are encoded as dicts of ``names`` are, and made faster.

    None for names that it can't have.
    """
    fields = [f"c{number}" for number in range(len(names))]
    try:
        return msgspec.defstruct("Row", fields, rename=dict(zip(fields, names, strict=True)))
    except (TypeError, ValueError):  # with a quotation mark, or a name twice
        return None


def _without_rejected(
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


# -- Compressed ----------------------------------------------------------------------------------


def checked_compression(given: Any) -> Compression | None:
    """Return ``given``; raise :class:`ConfigError` if it is not known, or its package missing."""
    if given not in (None, "gzip", "zstd"):
        raise ConfigError(
            "compression", f"{given!r} is not known.", remedy="Give 'gzip', 'zstd' or None."
        )
    if given == "zstd":
        _zstd()
    return given  # type: ignore[no-any-return]


def compressed(
    content: bytes, headers: dict[str, str], compression: Compression | None
) -> tuple[bytes, dict[str, str]]:
    """Return a body and its headers, compressed if that is asked for and pays."""
    if compression is None or len(content) < _COMPRESSED_MIN:
        return content, headers
    if compression == "gzip":
        made = gzip.compress(content, _LEVEL, mtime=0)
    else:
        made = _zstd().compress(content, _LEVEL)
    return made, {**headers, "Content-Encoding": compression}


def _zstd() -> Any:
    for name in ("compression.zstd", "zstandard"):  # Python's own from 3.14 on
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise MissingExtraError("compression", "zstandard", "zstd")
