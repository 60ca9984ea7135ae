"""How far a partition of a source reaches, in its own integer positions, and its identity."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import msgspec

from flowctl.core.records import PartitionCheckpoint
from flowctl.errors import SourceError


class Extent(msgspec.Struct, frozen=True, gc=False):
    """The half-open span ``[start, stop)`` of one partition: bytes, row numbers, offsets or keys.

    ``identity`` is what the driver saw, such as size and modification time: a worker that finds
    another one refuses to read.  ``is_final``: ``stop`` never grows.  ``is_splittable``: a reader
    can begin anywhere within it.  A compressed file can only be read from its beginning, so it is
    a single range.  ``size_bytes`` is for views (None: unknown).
    """

    start: int
    stop: int
    identity: str = ""
    is_final: bool = True
    is_splittable: bool = True
    size_bytes: int | None = None


def check_not_rewritten(
    partition: str,
    restored: PartitionCheckpoint,
    extent: Extent,
    *,
    as_read: Callable[[str], str] = str,
) -> None:
    """Raise :class:`SourceError` if the done part belongs to another identity than ``extent`` has.

    ``as_read`` turns an identity into readable text.
    """
    is_over = restored.end is not None
    if not is_over and restored.position is None and not restored.acked:
        return  # nothing is done
    was = restored.end if is_over else restored.mark
    if not isinstance(was, str) or not extent.identity or was == extent.identity:
        return
    raise SourceError(
        f"{partition}: {'all' if is_over else 'a part'} of it was done by an earlier run, but then"
        f" it was written again or replaced: it was {as_read(was)}, and is now"
        f" {as_read(extent.identity)}.",
        remedy="To process it again from its beginning: flowctl checkpoint rewind JOB --partition"
        f" {shlex.quote(partition)} --start --sink FILE.py:SINK (without --sink an SqlSink takes"
        " its records for those that it has and skips them; leave it out if there is no such"
        " sink). To process everything again, give the job another name. For a file, you can also"
        " bring the old one back with its modification time (cp -p), or leave it out and put new"
        " data beside it under another name.",
    )
