"""Sections, each marked by its content: they show which rows are the same when a partition is
repeated.

Spark numbers the rows of a partition only in the order in which they arrive.  If a task runs again
after a shuffle, or the job with another number of cores, row 7 may be another row, and a sink that
knows rows by numbers would leave out one that was never written.  So a row's position contains the
digest of its section, which is the same only if all rows of the section are, in that order.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from flowctl.core.records import ColumnRecords, Position, Record, packed

# A section has as many rows as all before it, so waiting for it takes no longer than those took;
# from the size of the first two calls (125) up to this many, which a task's memory holds.
_ROWS_FIRST: Final = 128
_ROWS_MAX: Final = 16_384
# Rows may be large: a section ends with the row that brings it to this many bytes.
_BYTES_MAX: Final = 16 * 1024 * 1024
# Fits in a position's part, and no two of any number of sections have the same one.
_MARK_BYTES: Final = 7


class Numbered:
    """The sections of one partition, and the position of each row.  For one thread."""

    def __init__(self) -> None:
        self._section = -1
        self._mark = 0
        self._first = 0  # the number of the section's first row
        self._stop = 0
        self._given = 0

    def place(self, number: int) -> tuple[int, int, int]:
        """Return the position of a row of the current section: the section, its mark, the row's
        number in the partition.
        """
        if not self._first <= number < self._stop:
            raise ValueError(f"row {number} is not in this section")
        return self._section, self._mark, number

    def rest(self) -> int:
        """Return how many rows of the current section are still to be given."""
        return self._stop - self._given

    @property
    def most(self) -> int:
        """How many rows the next section has at most."""
        return min(max(_ROWS_FIRST, self._stop), _ROWS_MAX)

    @property
    def is_first(self) -> bool:
        """Whether no section was read yet."""
        return self._section < 0

    def _begin(self, rows: int, digest: Any) -> None:
        """Note that a section of ``rows`` follows."""
        self._mark = int.from_bytes(digest.digest(), "big")
        self._section += 1
        self._first, self._stop = self._stop, self._stop + rows


class Sections(Numbered):
    """The rows of one partition, in order.  For one thread.

    ``passing_moments``: a datetime that is equal in all rows of the first section is ignored.  It
    is the time of the run (``current_timestamp()``), and differs between runs in rows that are
    otherwise the same.
    """

    def __init__(self, rows: Iterable[Any], *, passing_moments: bool = False) -> None:
        super().__init__()
        self._rows = iter(rows)
        self._passing_moments = passing_moments
        self._moments: dict[int, datetime] = {}  # ignored datetimes, by column

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows; each section is read when its first row is asked for."""
        while section := self._read():
            for row in section:
                self._given += 1
                yield row

    def _read(self) -> list[Any]:
        most = self.most
        rows: list[Any] = []
        encoded: list[bytes] = []
        size = 0
        for row in self._rows:
            rows.append(row)
            if not self.is_first:
                encoded.append(self._encoded(row))
                size += len(encoded[-1])
            else:
                size += self._bytes_of(row)
            if len(rows) == most or size >= _BYTES_MAX:
                break
        if rows and self.is_first:  # now it is known which datetimes to ignore
            self._moments = _shared_moments(rows) if self._passing_moments else {}
            encoded = [self._encoded(row) for row in rows]
        self._begin(len(rows), blake2b(b"".join(encoded), digest_size=_MARK_BYTES))
        return rows

    def _bytes_of(self, row: Any) -> int:
        """Return the size of a row without ignored datetimes: their text varies in length."""
        values = row if isinstance(row, tuple) else (row,)
        return len(packed([None if isinstance(v, datetime) else v for v in values]))

    def _encoded(self, row: Any) -> bytes:
        values = list(row) if isinstance(row, tuple) else [row]
        for column, moment in self._moments.items():
            if column < len(values) and values[column] == moment:
                values[column] = None
        return packed(values)


def _shared_moments(rows: list[Any]) -> dict[int, datetime]:
    first = rows[0] if isinstance(rows[0], tuple) else rows[:1]
    moments = {at: value for at, value in enumerate(first) if isinstance(value, datetime)}
    return {
        column: moment
        for column, moment in moments.items()
        if all(_has(row, column, moment) for row in rows)
    }


def _has(row: Any, column: int, moment: datetime) -> bool:
    return isinstance(row, tuple) and column < len(row) and row[column] == moment


# -- The same for rows that come as columns: pyarrow is imported where it is needed ---------------


@runtime_checkable
class Taken(Protocol):
    """Rows of one partition from which each call takes its own, as columns."""

    def take(self, most: int, place: Callable[[int], Any]) -> Sequence[Record]:
        """Return the next rows, ``most`` at most, all of one section; none: that was all.

        ``place`` gives a row number the form of a position.
        """
        ...


class ColumnSections(Numbered):
    """The rows of one partition, which come as ``batches`` (``pyarrow.RecordBatch``).  As
    :class:`Sections`; marks are those of columns, which differ from those of the same rows.

    ``values_of`` makes the values of rows, as :class:`flowctl.core.records.ColumnRecords` has it.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        values_of: Callable[[Any], Sequence[Any]],
        *,
        passing_moments: bool = False,
    ) -> None:
        super().__init__()
        self._batches = iter(batches)
        self._left: Any = None  # of a batch of which a section took the beginning
        self._values_of = values_of
        self._passing_moments = passing_moments
        self._moments: dict[int, Any] = {}  # ignored moments, by column
        self._columns: Any = None  # the current section

    def take(self, most: int, place: Callable[[int], Any]) -> Sequence[Record]:
        """As :class:`Taken` has it; :meth:`place` is such a ``place``."""
        if not self.rest() and not self._read():
            return ()
        begin = self._given - self._first
        self._given += min(most, self.rest())
        first = self._first
        head = place(first)[:-1]
        return ColumnRecords(
            self._columns,
            range(begin, self._given - first),
            lambda row: (*head, first + row),
            self._values_of,
        )

    def _read(self) -> bool:
        self._columns = _whole(self._parts())
        if self._columns is None:
            return False
        columns = self._columns.columns
        if self.is_first and self._passing_moments:
            self._moments = _passing(columns)
        self._begin(self._columns.num_rows, _digest(_without(columns, self._moments)))
        return True

    def _parts(self) -> Iterator[Any]:
        """Yield what the next section consists of; the rest of a batch is of the one after."""
        rows_left, bytes_left = self.most, _BYTES_MAX
        while rows_left and bytes_left > 0 and (batch := self._next()) is not None:
            part = batch.slice(0, rows_left)
            size = _size(part)
            if size >= bytes_left:
                part = part.slice(0, _rows_of(part, bytes_left))
            yield part
            rows_left, bytes_left = rows_left - part.num_rows, bytes_left - size
            if part.num_rows < batch.num_rows:
                self._left = batch.slice(part.num_rows)

    def _next(self) -> Any:
        left, self._left = self._left, None
        return next(self._batches, None) if left is None else left


def _whole(parts: Iterable[Any]) -> Any:
    """Return ``parts`` as one ``RecordBatch``; None if they have no rows."""
    import pyarrow

    listed = [part for part in parts if part.num_rows]
    if len(listed) < 2:
        return listed[0] if listed else None
    [whole] = pyarrow.Table.from_batches(listed).combine_chunks().to_batches()
    return whole


def _rows_of(batch: Any, size: int) -> int:
    """Return how many rows of ``batch`` have ``size`` bytes, the last one included."""
    counts = range(1, batch.num_rows)
    return 1 + bisect_left(counts, size, key=lambda rows: _size(batch.slice(0, rows)))


def _passing(columns: Sequence[Any]) -> dict[int, Any]:
    """Return the moments that all rows share, by their column."""
    from pyarrow import compute, types

    found = {}
    for at, column in enumerate(columns):
        if types.is_timestamp(column.type) and not column.null_count:
            ends = compute.min_max(column)
            if ends["min"] == ends["max"]:
                found[at] = ends["min"]
    return found


def _without(columns: Sequence[Any], moments: Mapping[int, Any]) -> Iterator[Any]:
    """Yield ``columns`` with nulls in the place of the passing ``moments``."""
    from pyarrow import compute, scalar

    for at, column in enumerate(columns):
        if (moment := moments.get(at)) is None:
            yield column
        else:
            null = scalar(None, column.type)
            yield compute.if_else(compute.equal(column, moment), null, column)


def _digest(columns: Iterable[Any]) -> Any:
    digest = blake2b(digest_size=_MARK_BYTES)
    for column in columns:
        for part in _digested(column):
            digest.update(part)
    return digest


def _size(batch: Any) -> int:
    """Return the bytes of the values; however rows are cut, each adds its own."""
    return sum(map(_size_of, batch.columns))


def _size_of(array: Any) -> int:
    shape = _shape(_plain(array))
    size = shape.value_bytes + sum(map(_size_of, shape.inner))
    return size if shape.lengths is None else size + _LENGTH_BYTES * len(shape.lengths)


# Arrow lets the same values lie in memory in many ways: between others, indexed, with anything
# where there is a null. So what is digested is made of the values alone, and says how long it is.

# Of one text, list or map: Spark's are never longer.
_LENGTH_BYTES: Final = 4


class _Shape(NamedTuple):
    """Values without nulls, taken apart: ``values`` has ``value_bytes`` bytes.

    ``lengths`` of texts, lists and maps; ``inner``: the columns within.
    """

    name: str
    lengths: Any = None
    values: Any = b""
    value_bytes: int = 0
    inner: Sequence[Any] = ()


def _digested(array: Any) -> Iterator[Any]:
    """Yield bytes that are the same if and only if types, values and their order are."""
    array = _plain(array)
    shape = _shape(array)
    rows, nulls = len(array), array.null_count
    yield f"{shape.name} {rows} {nulls};".encode()
    if 0 < nulls < rows:
        yield _fixed(array.is_valid())
    if shape.lengths is not None:
        yield _fixed(shape.lengths)
    yield shape.values
    for column in shape.inner:
        yield from _digested(column)


def _shape(array: Any) -> _Shape:
    from pyarrow import types

    array = array.drop_null() if array.null_count else array
    kind = array.type
    if types.is_struct(kind):
        columns = [array.field(at) for at in range(kind.num_fields)]
        return _Shape(f"struct {kind.num_fields}", inner=columns)
    if types.is_map(kind):
        return _of_lists("map", array, [array.keys, array.items])
    if types.is_list(kind) or types.is_large_list(kind):
        return _of_lists("list", array, [array.values])
    if types.is_string(kind) or types.is_large_string(kind):
        return _of_texts("text", array)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _of_texts("bytes", array)
    if types.is_timestamp(kind):  # of an instant in any zone
        return _of_numbers(f"timestamp {kind.unit} {kind.tz is not None}", array)
    return _of_numbers(str(kind), array)


def _plain(array: Any) -> Any:
    """Return the values of an array as one of the types that :func:`_shape` knows, if possible."""
    import pyarrow
    from pyarrow import compute, types

    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _plain(array.storage)
    if types.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if types.is_run_end_encoded(kind):
        return _plain(compute.run_end_decode(array))
    if types.is_fixed_size_list(kind):
        return array.cast(pyarrow.list_(kind.value_type))
    return array


def _of_lists(name: str, lists: Any, columns: Sequence[Any]) -> _Shape:
    from pyarrow import compute

    if not len(lists):
        return _Shape(name)
    offsets = lists.offsets
    begin, end = offsets[0].as_py(), offsets[-1].as_py()
    lengths = compute.subtract(offsets.slice(1), offsets.slice(0, len(lists))).cast("int32")
    return _Shape(name, lengths, inner=[column.slice(begin, end - begin) for column in columns])


def _of_texts(name: str, texts: Any) -> _Shape:
    from pyarrow import compute, types

    if not len(texts):
        return _Shape(name)
    _, offsets, values = texts.buffers()
    is_large = types.is_large_string(texts.type) or types.is_large_binary(texts.type)
    form, width = ("<q", 8) if is_large else ("<i", 4)
    [begin] = struct.unpack_from(form, offsets, width * texts.offset)
    [end] = struct.unpack_from(form, offsets, width * (texts.offset + len(texts)))
    values = values.slice(begin, end - begin) if end > begin else b""
    return _Shape(name, compute.binary_length(texts).cast("int32"), values, end - begin)


def _of_numbers(name: str, numbers: Any) -> _Shape:
    if not len(numbers):
        return _Shape(name)
    values = _fixed(_one_nan(numbers))
    return _Shape(name, values=values, value_bytes=len(values))


def _one_nan(numbers: Any) -> Any:
    """Return the numbers with one NaN: 0 / 0 has another sign where the JVM has compiled it."""
    from pyarrow import compute, scalar, types

    if not types.is_floating(numbers.type):
        return numbers
    are_none = compute.is_nan(numbers)
    if not compute.any(are_none).as_py():
        return numbers
    return compute.if_else(are_none, scalar(float("nan"), numbers.type), numbers)


def _fixed(numbers: Any) -> Any:
    """Return the bytes of values of one width."""
    import pyarrow

    if numbers.type == pyarrow.bool_():
        numbers = numbers.cast(pyarrow.uint8())
    width = numbers.type.bit_width // 8
    return numbers.buffers()[1].slice(width * numbers.offset, width * len(numbers))


def section_of(position: Position) -> tuple[Position, Position]:
    """Return two positions that enclose all rows of the section of ``position``, and no others."""
    assert isinstance(position, tuple)
    return (*position[:-1], -1), (*position[:-1], sys.maxsize)
