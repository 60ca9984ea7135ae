"""How a checkpoint is stored in Redis.

One hash per job; one key, so that every script is atomic, also in a cluster::

    flowctl:{access-logs}            prefix:{job}; the braces are Redis' hash tag
      schema             "1"         "2" once there are blocks; another: refused, by its number
      epoch              "7"         generation of ownership, at least the server's unix time when
                                     taken; only rises, survives ``clear``
      epoch_copy         "7"         never more than ``epoch``, which is damaged if it is less
      revision           "1042"      rises with every save and rewind; see below
      saved_at_unix_ms   "17952…"    the saving driver's clock; absent: nothing is stored
      p:<partition>      hex|msgpack one field per source partition that moved lately
      blocks             "12"        the number of the next block; absent: there was none
      b:<number>         zlib        up to 1,000 partitions that have not moved for a while

Beside it, ``flowctl:{access-logs}:shown`` is what the newest run shows; it expires.

A partition's value is the hex of :func:`flowctl.core.positions.encode` (empty for position None), a
``|``, and msgpack ``[position, records, [[first, last, records], …], end, mark, checksum]``.  The
ranges begin with the lost ones, each with -1 - n for n lost records.  The checksum covers
everything before it (:mod:`flowctl.checksums`); a block has its own behind it.  Older versions
wrote no checksum, and fewer parts where ``end`` or ``mark`` was None: such values are still read.
Older versions ignore parts that they do not know, and drop them when they save.  Lua compares the
hex, which sorts bytewise like the positions.  The same checkpoint gives the same bytes, as long as
there are no blocks.

A partition's state is its ``p:`` field, else its entry in the block with the highest number. A job
with at most 2,000 partitions never has blocks, and stays readable for versions that know only
schema 1; schema 2 they refuse by its number.

Other fields are ignored: older versions also wrote ``windows``, and can do without it.

``revision`` makes partial saves safe: a store sends only what changed since the state that it knows
of, and names that state's revision.  Another revision means that the server lost something, or that
a save arrived whose answer was lost: the store then reads what is there, and sends the difference.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

import msgspec

from flowctl.checksums import crc32
from flowctl.core.positions import encode
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Position
from flowctl.errors import CheckpointCorruptError, JobError
from flowctl_redis.blocks import acked_of, as_acked, decode_block, encode_block
from flowctl_redis.held import Held, Partitions, Plan
from flowctl_redis.names import clear_command, to_bytes, to_text

SCHEMA = b"1"
SCHEMA_BLOCKS = b"2"
_PARTITION = b"p:"
_BLOCK = b"b:"
_SEPARATOR = b"|"
_WHOLE = re.compile(rb"0|[1-9][0-9]{0,14}")  # as common.lua expects it


class _Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    position: Position | None
    records: int
    acked: tuple[AckedRange, ...]

    end: Position | None = None
    mark: Position | None = None
    crc: int | None = None


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_partition_decoder = msgspec.msgpack.Decoder(_Stored)
_CRC = struct.Struct(">BI")  # a msgpack number of 32 bits
_UINT32 = 0xCE
_NO_CRC = len(_encoder.encode(None))


def job_key(prefix: str, job: str) -> bytes:
    return to_bytes(f"{prefix}:{{{job}}}")


def job_of(prefix: str, key: bytes) -> str:
    """The inverse of :func:`job_key`."""
    return to_text(key)[len(prefix) + 2 : -1]


def partition_field(partition: str) -> bytes:
    return _PARTITION + to_bytes(partition)


def partition_of(field: bytes) -> str:
    return to_text(field[len(_PARTITION) :])


def encode_partition(name: str, value: PartitionCheckpoint) -> bytes:
    """Return a partition's field; raise :class:`JobError` for a position that can't be stored."""
    acked = acked_of(value)
    stored = _Stored(value.position, value.records, acked, value.end, value.mark)
    try:
        packed = _encoder.encode(stored)[:-_NO_CRC]
    except (OverflowError, TypeError) as error:
        raise _not_storable(error) from None
    whole = _sort_key(value.position) + _SEPARATOR + packed
    return whole + _CRC.pack(_UINT32, crc32(partition_field(name), whole))


def _not_storable(error: Exception) -> JobError:
    return JobError(
        f"an acked range, an end or a mark can't be stored: {error}.",
        remedy="Use int, float or str positions.",
    )


def encode_plan(plan: Plan, next_block: int) -> tuple[list[bytes], list[bytes]]:
    """Return the fields to remove, and field, value, field, value, … of those to write."""
    gone = [_block_field(number) for number in plan.dropped]
    gone += [partition_field(name) for name in plan.unloosed]
    written: list[bytes] = []
    for name, state in plan.loose.items():
        written += (partition_field(name), encode_partition(name, state))
    for number, block in plan.blocks.items():
        try:
            for name in block.keys() & plan.changed.keys():
                _sort_key(block[name].position)  # blocks must not hold what fields can't
            field = _block_field(number)
            written += (field, encode_block(field, block))
        except (OverflowError, TypeError) as error:
            raise _not_storable(error) from None
    if plan.blocks:
        written += (b"blocks", str(next_block).encode())
    return gone, written


def _block_field(number: int) -> bytes:
    return _BLOCK + str(number).encode()


def decode_partition(key: bytes, field: bytes, raw: bytes) -> PartitionCheckpoint:
    sort_key, _, packed = raw.partition(_SEPARATOR)
    try:
        stored = _partition_decoder.decode(packed)
        intact = sort_key == _sort_key(stored.position)
        if stored.crc is not None:
            intact &= raw[-_CRC.size :] == _CRC.pack(_UINT32, crc32(field, raw[: -_CRC.size]))
    except (msgspec.MsgspecError, UnicodeDecodeError, JobError):
        intact = False
    if not intact:
        corrupt(key, f"field {to_text(field)} does not decode")
    acked, lost = as_acked(stored.acked)
    return PartitionCheckpoint(
        stored.position, stored.records, acked, stored.end, stored.mark, lost
    )


def decode_checkpoint(key: bytes, fields: Mapping[bytes, bytes]) -> Checkpoint:
    """Return the checkpoint in a job's hash; raise :class:`CheckpointCorruptError`."""
    return Checkpoint(decode_held(key, fields, epoch=0).partitions)


def decode_held(key: bytes, fields: Mapping[bytes, bytes], *, epoch: int) -> Held:
    """Return the state in a job's hash; raise :class:`CheckpointCorruptError`.

    ``epoch`` is the calling driver's.
    """
    if not fields:
        return Held(epoch, b"0", 0)
    check_schema(key, fields.get(b"schema", b""))
    decode_epoch(key, fields)  # these two make the fence
    decode_number(key, fields, "revision")
    loose = {
        partition_of(field): decode_partition(key, field, raw)
        for field, raw in fields.items()
        if field.startswith(_PARTITION)
    }
    blocks = dict(
        [_decode_block(key, field, fields) for field in fields if field.startswith(_BLOCK)]
    )
    next_block = decode_number(key, fields, "blocks")
    if blocks and next_block <= max(blocks):
        corrupt(key, "field blocks is too low")
    return Held.of(epoch, fields.get(b"revision", b"0"), next_block, loose, blocks)


def _decode_block(
    key: bytes, field: bytes, fields: Mapping[bytes, bytes]
) -> tuple[int, Partitions]:
    number = field[len(_BLOCK) :]
    if _WHOLE.fullmatch(number):
        with suppress(ValueError):
            return int(number), decode_block(field, fields[field])
    corrupt(key, f"field {to_text(field)} does not decode")


def decode_epoch(key: bytes, fields: Mapping[bytes, bytes]) -> int:
    """Return the newest epoch, 0 when absent."""
    epoch = decode_number(key, fields, "epoch")
    if epoch < decode_number(key, fields, "epoch_copy"):
        corrupt(key, "field epoch is less than its copy")
    return epoch


def decode_number(key: bytes, fields: Mapping[bytes, bytes], field: str) -> int:
    """Return a number field, 0 when absent."""
    raw = fields.get(field.encode(), b"0")
    if not _WHOLE.fullmatch(raw):
        corrupt(key, f"field {field} is not a number")
    return int(raw)


def check_schema(key: bytes, stored: bytes) -> None:
    """Refuse a hash that an incompatible version wrote, or that isn't flowctl's."""
    if stored in (SCHEMA, SCHEMA_BLOCKS):
        return
    if stored.isdigit():
        raise CheckpointCorruptError(
            f"{to_text(key)} has schema version {int(stored)}; this flowctl reads {int(SCHEMA)}"
            f" and {int(SCHEMA_BLOCKS)}.",
            remedy=f"Install the flowctl that wrote it, or clear it with `{clear_command(key)}`.",
        )
    corrupt(key, "it has no schema version")


def corrupt(key: bytes, problem: str) -> NoReturn:
    raise CheckpointCorruptError(
        f"{to_text(key)} in Redis is not a readable checkpoint: {problem}.",
        remedy=f"Restore it, or clear it and start from the beginning with `{clear_command(key)}`.",
    )


def _sort_key(position: Position | None) -> bytes:
    # The position None ("nothing yet") is the empty string, which sorts below every position.
    return b"" if position is None else encode(position).hex().encode()
