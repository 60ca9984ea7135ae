"""Keys of rows and calls, which stay the same when the same rows are sent again."""

from __future__ import annotations

import hashlib

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.records import Position

_encode = msgspec.msgpack.Encoder().encode
_BYTES = 16  # 128 bits: no two rows will ever get the same key


def call_key(batch: Batch, place: str) -> str:
    """Return the key of a call: the same for the same rows of the same job, and only for them.

    ``place`` is method and path, since the same rows sent to two places are two calls.
    """
    span = batch.span
    positions = list(map(batch.position, range(len(batch))))
    return _digest((span.job, span.partition, positions, place))


def row_key(batch: Batch, position: Position) -> str:
    """Return the key of one row."""
    return _digest((batch.span.job, batch.span.partition, position))


def _digest(what: object) -> str:
    return hashlib.blake2b(_encode(what), digest_size=_BYTES).hexdigest()
