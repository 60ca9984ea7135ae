"""How a checkpoint lies in Redis.

One hash per job; one key, so that every script is atomic, also in a cluster::

    flowctl:{access-logs}            prefix:{job}; the braces are Redis' hash tag
      schema             "1"         another number: written by another flowctl, refused
      epoch              "7"         generation of ownership, at least the server's unix time when
                                     taken; only rises, survives ``clear``
      revision           "1042"      rises with every save and rewind; see below
      saved_at_unix_ms   "17952…"    the saving driver's clock; absent: nothing is stored
      p:<partition>      hex|msgpack one field per source partition

A partition's value is the hex of :func:`flowctl.core.positions.encode` (empty for position
None), a ``|``, and msgpack ``[position, records, [[first, last, records], …]]``.  The hex is
what Lua compares; it is bytewise ordered as the positions are.  The same checkpoint gives the
same bytes (S120).

Other fields are ignored: older versions also wrote ``windows``, and do without.

``revision`` makes partial saves safe: a store sends only the partitions that changed since its
last save, and names the revision that save left.  Another revision means that the server lost
it, and the store sends everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from flowctl.core.positions import encode
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Position
from flowctl.errors import CheckpointCorruptError, JobError

SCHEMA = b"1"
_PARTITION = b"p:"
_SEPARATOR = b"|"
_WHOLE = re.compile(rb"0|[1-9][0-9]{0,14}")  # as common.lua takes it


class _Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    position: Position | None
    records: int
    acked: tuple[AckedRange, ...]


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_partition_decoder = msgspec.msgpack.Decoder(_Stored)


def to_bytes(text: str) -> bytes:
    """Names as bytes; file names that are no UTF-8 come from the OS with surrogates and keep."""
    return text.encode("utf-8", "surrogateescape")


def to_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def job_key(prefix: str, job: str) -> bytes:
    return to_bytes(f"{prefix}:{{{job}}}")


def job_of(prefix: str, key: bytes) -> str:
    """The inverse of :func:`job_key`."""
    return to_text(key)[len(prefix) + 2 : -1]


def partition_field(partition: str) -> bytes:
    return _PARTITION + to_bytes(partition)


def partition_of(field: bytes) -> str:
    return to_text(field[len(_PARTITION) :])


def encode_partition(value: PartitionCheckpoint) -> bytes:
    """Return the field's value; raise :class:`JobError` for a position that can't be stored."""
    try:
        packed = _encoder.encode(_Stored(value.position, value.records, value.acked))
    except (OverflowError, TypeError) as error:
        raise JobError(
            f"an acked range can't be stored: {error}.", remedy="Use int, float or str positions."
        ) from None
    return _sort_key(value.position) + _SEPARATOR + packed


def decode_partition(key: bytes, field: bytes, raw: bytes) -> PartitionCheckpoint:
    sort_key, _, packed = raw.partition(_SEPARATOR)
    try:
        stored = _partition_decoder.decode(packed)
        intact = sort_key == _sort_key(stored.position)
    except (msgspec.MsgspecError, UnicodeDecodeError, JobError):
        intact = False
    if not intact:
        corrupt(key, f"field {to_text(field)} does not decode")
    return PartitionCheckpoint(position=stored.position, records=stored.records, acked=stored.acked)


def decode_checkpoint(key: bytes, fields: Mapping[bytes, bytes]) -> Checkpoint:
    """Return the checkpoint in a job's hash; raise :class:`CheckpointCorruptError`."""
    if not fields:
        return Checkpoint()
    check_schema(key, fields.get(b"schema", b""))
    for field in ("epoch", "revision"):  # the fence is made of them
        decode_number(key, fields, field)
    partitions = {
        partition_of(field): decode_partition(key, field, raw)
        for field, raw in fields.items()
        if field.startswith(_PARTITION)
    }
    return Checkpoint(partitions)


def decode_number(key: bytes, fields: Mapping[bytes, bytes], field: str) -> int:
    """Return a number field, 0 when absent."""
    raw = fields.get(field.encode(), b"0")
    if not _WHOLE.fullmatch(raw):
        corrupt(key, f"field {field} is no number")
    return int(raw)


def check_schema(key: bytes, stored: bytes) -> None:
    """Refuse what another version wrote, or what isn't ours."""
    if stored == SCHEMA:
        return
    if stored.isdigit():
        raise CheckpointCorruptError(
            f"{to_text(key)} has schema version {int(stored)}; this flowctl reads {int(SCHEMA)}.",
            remedy="Install the flowctl that wrote it, or forget it with"
            f" `flowctl checkpoint clear {_name(key)}`.",
        )
    corrupt(key, "it has no schema version")


def corrupt(key: bytes, problem: str) -> NoReturn:
    raise CheckpointCorruptError(
        f"{to_text(key)} in Redis holds no readable checkpoint: {problem}.",
        remedy="Restore it, or forget it and start from the beginning with"
        f" `flowctl checkpoint clear {_name(key)}`.",
    )


def _name(key: bytes) -> str:
    return to_text(key).partition("{")[2][:-1]


def _sort_key(position: Position | None) -> bytes:
    # None, "nothing yet", is the empty string: below every position.
    return b"" if position is None else encode(position).hex().encode()
