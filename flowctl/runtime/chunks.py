"""What a producer returned: refused by name before any of it is taken, if it can't be right.

A source that does not rise would be worse than an error: after a kill it is read on behind the last
position that is done, and smaller ones that were not would be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter, lt
from typing import Any, Final

from flowctl.core.positions import encode
from flowctl.core.records import Record
from flowctl.errors import JobError, SourceError
from flowctl.ports import SourceChunk

_position_of: Final = attrgetter("position")
_RISE: Final = (
    "Positions must rise from record to record, and all must have the same shape: order what you"
    " read by them, and give each record a position of its own."
)
_RETURN: Final = (
    "Return SourceChunk(partition, [Record(position, value), …]), without records if there is"
    " nothing yet, or None at the end."
)


def checked(chunk: Any, name: str) -> SourceChunk | None:
    """Return ``chunk``, which the producer of class ``name`` returned from ``poll``.

    Raises :class:`SourceError` if it is no chunk, or its positions don't rise.
    """
    if chunk is None:
        return None
    if not isinstance(chunk, SourceChunk):
        raise _wrong(name, f"a {type(chunk).__name__}")
    records: Any = chunk.records
    if not isinstance(chunk.partition, str):
        raise _wrong(name, f"a chunk whose partition is a {type(chunk.partition).__name__}")
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise _wrong(name, f"a chunk whose records are a {type(records).__name__}")
    for field, value in (("mark", chunk.mark), ("end", chunk.end)):
        if value is not None:
            _check_encodable(chunk.partition, field, value)
    if records:
        _check_positions(chunk.partition, records, name)
    return chunk


def _check_positions(partition: str, records: Any, name: str) -> None:
    try:
        positions: list[Any] = list(map(_position_of, records))
    except AttributeError:
        odd = next(each for each in records if not isinstance(each, Record))
        raise _wrong(name, f"a chunk with a {type(odd).__name__} as a record") from None
    try:
        is_risen = all(map(lt, positions, positions[1:]))
    except TypeError:
        is_risen = False
    first, last = type(positions[0]), type(positions[-1])
    if is_risen and first is last is not bool:
        _check_encodable(partition, "position", positions[0])
        _check_encodable(partition, "position", positions[-1])
        return
    before, after = next(filter(_falls, pairwise(positions)), (None, positions[0]))
    raise SourceError(
        f"partition {partition!r}: position {after!r} came after {before!r}.", remedy=_RISE
    )


def _falls(pair: tuple[Any, Any]) -> bool:
    before, after = pair
    try:
        return type(before) is not type(after) or isinstance(after, bool) or not before < after
    except TypeError:
        return True


def _check_encodable(partition: str, field: str, value: Any) -> None:
    try:
        encode(value)
    except JobError as error:
        raise SourceError(
            f"partition {partition!r}: the {field} {value!r} can't be saved: {error.problem}",
            remedy=error.remedy,
        ) from None


def _wrong(name: str, what: str) -> SourceError:
    return SourceError(f"the producer {name} returned {what} from poll.", remedy=_RETURN)
