"""Records as bytes that give back exactly what went in, and as JSON for people."""

from __future__ import annotations

from typing import Any

import msgspec

from flowctl.core.records import Record

# The one pair to replace when values of more types travel exactly: what the wire carries, a letter
# must carry too.
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """Return ``record`` as bytes; raise for a value that the wire does not carry either."""
    return _encoder.encode(record)


def decode_record(data: bytes) -> Record:
    """Return what :func:`encode_record` was given; raise ``msgspec.DecodeError``."""
    return _decoder.decode(data)


def readable(value: Any) -> Any:
    """Return ``value`` if JSON can show it, else its text."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value)
    return value
