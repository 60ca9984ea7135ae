"""Positions as bytes that sort as the positions do.

Stores and sinks compare positions where Python is not at hand (Lua, SQL).  The encoding is
order-preserving: ``encode(a) < encode(b)`` as bytes if and only if ``a < b``, for positions of
one partition (all of one shape).  After the "memcomparable" format of MyRocks and the tuple
layer of FoundationDB: a type tag, then a body that sorts bytewise.
"""

from __future__ import annotations

import struct

from flowctl.core.records import Position, PositionPart
from flowctl.errors import JobError

_NONE, _NUMBER, _FLOAT, _TEXT, _TUPLE = range(1, 6)
_END = b"\x00"
_ESCAPED_NUL = b"\x00\xff"  # a NUL inside text sorts above the terminator, below any other byte
_INT_BYTES = 8  # a position is an offset or a time: 64 bits, signed
_INT_BIAS = 1 << 63
_FLOAT_SIGN = 1 << 63
_ALL_BITS = (1 << 64) - 1


def encode(position: Position) -> bytes:
    """Return the order-preserving bytes of ``position``; raise :class:`JobError` for others."""
    if isinstance(position, tuple):
        return bytes([_TUPLE]) + b"".join(map(_encode_part, position)) + _END
    return _encode_part(position)


def _encode_part(part: PositionPart) -> bytes:
    if part is None:
        return bytes([_NONE])
    if isinstance(part, int):
        if not -_INT_BIAS <= part < _INT_BIAS:
            raise JobError(f"position {part} does not fit in 64 bits.", remedy="Use a str.")
        return bytes([_NUMBER]) + (part + _INT_BIAS).to_bytes(_INT_BYTES, "big")
    if isinstance(part, float):
        bits: int = struct.unpack(">Q", struct.pack(">d", part + 0.0))[0]  # -0.0 equals 0.0
        # IEEE 754 doubles sort as integers once the sign is folded in.
        bits = bits ^ _ALL_BITS if bits & _FLOAT_SIGN else bits | _FLOAT_SIGN
        return bytes([_FLOAT]) + bits.to_bytes(_INT_BYTES, "big")
    if isinstance(part, str):
        return bytes([_TEXT]) + part.encode().replace(b"\x00", _ESCAPED_NUL) + _END
    raise JobError(
        f"{type(part).__name__} can't be a position.",
        remedy="Use int, float, str, or a tuple of them.",
    )


def latest(one: Position | None, other: Position) -> Position:
    """Return the later of two positions of one partition; None is before all."""
    return other if one is None or encode(one) < encode(other) else one


def show(position: Position | None) -> str:
    """Return ``position`` as people read it: ``1234``, ``1234:57``, ``-`` for none."""
    if position is None:
        return "-"
    if isinstance(position, tuple):
        return ":".join(map(str, position))
    return str(position)


def row_number(position: Position) -> PositionPart:
    """Return the last part: the number of a row or a line in what the parts before it name."""
    return position[-1] if isinstance(position, tuple) else position


def show_records(first: Position | None, last: Position | None) -> str:
    """Return a tuple's records as people read them: ``record 7``, ``records 7 to 9``."""
    return f"record {show(first)}" if first == last else f"records {show(first)} to {show(last)}"
