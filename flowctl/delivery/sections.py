"""Sections, each marked by its content: they show which rows are the same when a partition is
repeated.

Spark numbers the rows of a partition only in the order in which they arrive.  If a task runs again
after a shuffle, or the job with another number of cores, row 7 may be another row, and a sink that
knows rows by numbers would leave out one that was never written.  So a row's position contains the
digest of its section, which is the same only if all rows of the section are, in that order.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import msgspec

from flowctl.core.records import Position

# A section has as many rows as all before it, so waiting for it takes no longer than those took;
# from the size of the first two calls (125) up to this many, which a task's memory holds.
_ROWS_FIRST: Final = 128
_ROWS_MAX: Final = 16_384
# Rows may be large: a section ends with the row that brings it to this many bytes.
_BYTES_MAX: Final = 16 * 1024 * 1024
# Fits in a position's part, and no two of any number of sections have the same one.
_MARK_BYTES: Final = 7
# The memory address in the repr of an object that defines none.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


class Sections:
    """The rows of one partition, in order, and the position of each.  For one thread.

    ``passing_moments``: a datetime that is equal in all rows of the first section is ignored.  It
    is the time of the run (``current_timestamp()``), and differs between runs in rows that are
    otherwise the same.
    """

    def __init__(self, rows: Iterable[Any], *, passing_moments: bool = False) -> None:
        self._rows = iter(rows)
        self._passing_moments = passing_moments
        self._moments: dict[int, datetime] = {}  # ignored datetimes, by column
        self._encode = msgspec.msgpack.Encoder(enc_hook=_shown).encode
        self._section = -1
        self._mark = 0
        self._first = 0  # the number of the section's first row
        self._stop = 0
        self._given = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows; each section is read when its first row is asked for."""
        while section := self._read():
            for row in section:
                self._given += 1
                yield row

    def place(self, number: int) -> tuple[int, int, int]:
        """Return the position of a row of the current section: the section, its mark, the row's
        number in the partition.
        """
        if not self._first <= number < self._stop:
            raise ValueError(f"row {number} is not in this section")
        return self._section, self._mark, number

    def rest(self) -> int:
        """Return how many rows of the current section are still to be yielded."""
        return self._stop - self._given

    def _read(self) -> list[Any]:
        most = min(max(_ROWS_FIRST, self._stop), _ROWS_MAX)
        rows: list[Any] = []
        encoded: list[bytes] = []
        size = 0
        for row in self._rows:
            rows.append(row)
            if self._section >= 0:
                encoded.append(self._encoded(row))
                size += len(encoded[-1])
            else:
                size += self._bytes_of(row)
            if len(rows) == most or size >= _BYTES_MAX:
                break
        if rows and self._section < 0:  # now it is known which datetimes to ignore
            self._moments = _shared_moments(rows) if self._passing_moments else {}
            encoded = [self._encoded(row) for row in rows]
        digest = blake2b(b"".join(encoded), digest_size=_MARK_BYTES)
        self._mark = int.from_bytes(digest.digest(), "big")
        self._section += 1
        self._first, self._stop = self._stop, self._stop + len(rows)
        return rows

    def _bytes_of(self, row: Any) -> int:
        """Return the size of a row without ignored datetimes: their text varies in length."""
        values = row if isinstance(row, tuple) else (row,)
        return len(self._packed([None if isinstance(v, datetime) else v for v in values]))

    def _encoded(self, row: Any) -> bytes:
        values = list(row) if isinstance(row, tuple) else [row]
        for column, moment in self._moments.items():
            if column < len(values) and values[column] == moment:
                values[column] = None
        return self._packed(values)

    def _packed(self, values: list[Any]) -> bytes:
        try:
            return self._encode(values)
        except (OverflowError, TypeError, ValueError):  # an int of more than 64 bits, odd keys
            return _shown(values).encode("utf-8", "surrogatepass")


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


def _shown(value: Any) -> str:
    """Return a value that msgpack has no form for as text that is the same in another process."""
    return _ADDRESS.sub("", repr(value))


def section_of(position: Position) -> tuple[Position, Position]:
    """Return two positions that enclose all rows of the section of ``position``, and no others."""
    assert isinstance(position, tuple)
    return (*position[:-1], -1), (*position[:-1], sys.maxsize)
