"""Pack many partitions that haven't moved for a while into one field of the hash."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import takewhile

import msgspec

from flowctl.checksums import CRC_BYTES, crc32
from flowctl.core.records import AckedRange, LostRange, PartitionCheckpoint, Position
from flowctl_redis.names import to_bytes, to_text

# Partitions per block: one field of some 9 kB instead of a thousand of 120 bytes.  It is quick to
# rewrite, and large enough that similar names compress well.
BLOCK_PARTITIONS = 1_000
_NONE = -1  # number of records that marks a range as lost
_LEVEL = 6  # zlib's default: 0.9 ms a block; level 1 saves a third of that and makes it 5 % larger


class _Columns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The partitions of a block by column: similar values next to each other compress best."""

    names: list[bytes]  # bytes, as names that are not UTF-8 have surrogates as str
    positions: list[Position | None]
    records: list[int]
    acked: list[tuple[int, tuple[AckedRange, ...]]]  # with the partition's index: few have any
    ends: list[Position | None]
    marks: list[tuple[int, Position]] = []  # with the index: few have one; none in older blocks


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(_Columns)


def acked_of(state: PartitionCheckpoint) -> tuple[AckedRange, ...]:
    """Return the ranges to store: the lost ones, with -1 - n for n records, then the acked."""
    lost = [AckedRange(span.first, span.last, _NONE - span.records) for span in state.lost]
    return (*lost, *state.acked)


def as_acked(
    stored: tuple[AckedRange, ...],
) -> tuple[tuple[AckedRange, ...], tuple[LostRange, ...]]:
    """Split stored ranges, the inverse of :func:`acked_of`: acked ones, and lost ones.

    Older versions wrote one lost range, with -1 records: the last place of a loss.
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
    """Return the partitions in an encoded block; :class:`ValueError` for other data."""
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
    """Check the checksum; blocks of older versions have none but zlib's own."""
    if behind and behind != crc32(field, raw[: -len(behind)]).to_bytes(CRC_BYTES, "big"):
        raise ValueError("its checksum is not that of its content")
