"""Names of rows and calls that stay the same when the same rows come again."""

from __future__ import annotations

import hashlib

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.records import Position

_encode = msgspec.msgpack.Encoder().encode
_BYTES = 16  # 128 bits: no two of any number of rows get the same


def call_key(batch: Batch, place: str) -> str:
    """Return the name of a call: the same for the same rows of the same job, and only for them.

    ``place``: method and path, as rows that go to two places of a service are two calls.
    """
    span = batch.span
    positions = [record.position for record in batch]
    return _digest((span.job, span.partition, positions, place))


def row_key(batch: Batch, position: Position) -> str:
    """Return the name of one row."""
    return _digest((batch.span.job, batch.span.partition, position))


def _digest(what: object) -> str:
    return hashlib.blake2b(_encode(what), digest_size=_BYTES).hexdigest()
