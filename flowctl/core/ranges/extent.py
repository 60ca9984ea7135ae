"""How far a partition of a source reaches, in the source's own integer positions."""

from __future__ import annotations

import msgspec


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
