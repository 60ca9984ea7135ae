"""Records as bytes that decode to exactly what went in, and as JSON for people."""

from __future__ import annotations

from typing import Any

import msgspec

from flowctl.core.records import Record
from flowctl.wire.values import decode_value, encode_value


def encode_record(record: Record) -> bytes:
    """Return ``record`` as bytes; raise for a value that the wire does not carry either."""
    return encode_value([record.position, record.value])


def decode_record(data: bytes) -> Record:
    """Return what :func:`encode_record` was given; raise if it was something else."""
    position, value = decode_value(data)
    # Letters of versions before dates and tuples were kept; a position is never a list.
    return Record(tuple(position) if isinstance(position, list) else position, value)


def readable(value: Any) -> Any:
    """Return ``value`` if JSON can show it, else its text."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value)
    return value
