"""Many partitions that have not moved for a while, in one field of the hash."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import takewhile

import msgspec

from flowctl.checksums import CRC_BYTES, crc32
from flowctl.core.records import AckedRange, LostRange, PartitionCheckpoint, Position
from flowctl_redis.names import to_bytes, to_text

# One field of some 9 kB instead of a thousand of 120 bytes: quick to rewrite, and large enough that
# similar names compress well.
BLOCK_PARTITIONS = 1_000
_NONE = -1  # records of a range that is not acked, but lost without being kept nowhere
_LEVEL = 6  # zlib's default: 0.9 ms a block; level 1 saves a third of that and makes it 5 % larger


class _Columns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """By column: similar values next to each other compress best."""

    names: list[bytes]  # not str: names that are not UTF-8 come with surrogates
    positions: list[Position | None]
    records: list[int]
    acked: list[tuple[int, tuple[AckedRange, ...]]]  # with their index: few have any
    ends: list[Position | None]
    marks: list[tuple[int, Position]] = []  # with their index: few have one; none in older blocks


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(_Columns)


def acked_of(state: PartitionCheckpoint) -> tuple[AckedRange, ...]:
    """Return the acked ranges as they are stored: first, of -1 - n records, where n are lost."""
    lost = [AckedRange(span.first, span.last, _NONE - span.records) for span in state.lost]
    return (*lost, *state.acked)


def as_acked(
    stored: tuple[AckedRange, ...],
) -> tuple[tuple[AckedRange, ...], tuple[LostRange, ...]]:
    """The inverse: the acked ranges, and where records are lost.

    Older versions wrote one such range, of -1 records: the last place.
    """
    lost = tuple(
        LostRange(span.first, span.last, _NONE - span.records)
        for span in takewhile(lambda span: span.records <= _NONE, stored)
    )
    return stored[len(lost) :], lost


def encode_block(field: bytes, partitions: Mapping[str, PartitionCheckpoint]) -> bytes:
    """Return the value of a block in ``field``.

    Raises what msgspec raises for positions that can't be stored.
    """
    names = sorted(partitions)
    states = [partitions[name] for name in names]
    columns = _Columns(
        [to_bytes(name) for name in names],
        [state.position for state in states],
        [state.records for state in states],
        [(index, acked) for index, acked in enumerate(map(acked_of, states)) if acked],
        [state.end for state in states],
        [(index, state.mark) for index, state in enumerate(states) if state.mark is not None],
    )
    packed = zlib.compress(_encoder.encode(columns), _LEVEL)
    return packed + crc32(field, packed).to_bytes(CRC_BYTES, "big")


def decode_block(field: bytes, raw: bytes) -> dict[str, PartitionCheckpoint]:
    """The inverse; raises :class:`ValueError` for anything else."""
    try:
        stream = zlib.decompressobj()
        columns = _decoder.decode(stream.decompress(raw))
        if not stream.eof:
            raise ValueError("it ends too early")
        _check(field, raw, stream.unused_data)
        acked, marks = dict(columns.acked), dict(columns.marks)
        rows = zip(columns.names, columns.positions, columns.records, columns.ends, strict=True)
        found: dict[str, PartitionCheckpoint] = {}
        for index, (name, position, records, end) in enumerate(rows):
            above, lost = as_acked(acked.get(index, ()))
            found[to_text(name)] = PartitionCheckpoint(
                position, records, above, end, marks.get(index), lost
            )
        return found
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a block: {error}") from error


def _check(field: bytes, raw: bytes, behind: bytes) -> None:
    """Blocks of older versions end with what is compressed, which has a checksum of its own."""
    if behind and behind != crc32(field, raw[: -len(behind)]).to_bytes(CRC_BYTES, "big"):
        raise ValueError("its checksum is not that of its content")
