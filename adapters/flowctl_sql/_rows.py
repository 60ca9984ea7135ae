"""From what ``process`` passes in to parameters of an INSERT, record by record.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.positions import show
from flowctl.errors import JobError
from flowctl_sql._dialect import checked_columns

Row: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
Params: TypeAlias = tuple[Any, ...]

_SHAPES = "None for a record without a row, a dict or tuple for one, a list of them for several"


class Prepared(msgspec.Struct, frozen=True):
    """All rows of a batch as parameters, in order.

    ``counts[i]`` is how many of them belong to record ``i``; None: one each.
    """

    rows: Sequence[Params]
    columns: tuple[str, ...] | None
    counts: Sequence[int] | None = None

    @property
    def width(self) -> int:
        """How many values a row has; 0 if there are no rows."""
        return len(self.rows[0]) if self.rows else 0

    def only(self, wanted: Sequence[bool]) -> list[Params]:
        """Return the rows of the records ``i`` for which ``wanted[i]`` is true."""
        if self.counts is None:
            return list(compress(self.rows, wanted))
        each = chain.from_iterable(map(repeat, wanted, self.counts))
        return list(compress(self.rows, each))


def prepare(
    rows: Iterable[Row | list[Row] | None], batch: Batch, columns: tuple[str, ...] | None
) -> Prepared:
    """Check and convert ``rows``; ``columns`` None: the keys of the first dict, if there is one.

    Raises :class:`JobError` that names the record.
    """
    listed = rows if isinstance(rows, list | tuple) else list(rows)
    if len(listed) != len(batch):
        raise JobError(
            f"{len(listed)} rows for a batch of {len(batch)} records.",
            remedy=f"Pass one item for each record, in order: {_SHAPES}.",
        )
    return _of_one_shape(listed, columns) or _of_any_shape(listed, batch, columns)


def _of_one_shape(listed: Sequence[Any], columns: tuple[str, ...] | None) -> Prepared | None:
    """Convert rows that are one tuple, or one dict, per record; None for anything else.

    Checks with set and map: row by row, Python took as long as SQLite does to insert a row of 100
    B.
    """
    types = set(map(type, listed))
    if all(issubclass(kind, tuple) for kind in types) and len(set(map(len, listed))) == 1:
        if columns is None or len(columns) == len(listed[0]):
            # A copy: the caller may reuse its own list.
            return Prepared(list(listed), columns)
    elif types == {dict} and len(set(map(len, listed))) == 1:
        columns = columns or checked_columns(list(listed[0]))
        if len(columns) == len(listed[0]):
            try:
                return Prepared(_values_of(listed, columns), columns)
            except KeyError:  # the slow path says which record's
                return None
    return None


def _values_of(listed: Sequence[dict[str, Any]], columns: tuple[str, ...]) -> list[Params]:
    if len(columns) == 1:  # itemgetter does not return a tuple then
        return [(row[columns[0]],) for row in listed]
    return list(map(itemgetter(*columns), listed))


def _of_any_shape(listed: Sequence[Any], batch: Batch, columns: tuple[str, ...] | None) -> Prepared:
    several = [row if isinstance(row, list) else () if row is None else (row,) for row in listed]
    if columns is None:
        first = next((row for group in several for row in group), None)
        columns = checked_columns(list(first)) if isinstance(first, Mapping) else None
    convert = _converter(several, columns)
    converted: list[Params] = []
    for index, group in enumerate(several):
        try:
            converted += [convert(row) for row in group]
        except _BadRow as error:
            place = f"partition {batch.span.partition}, position {show(batch[index].position)}"
            raise JobError(f"{place}: {error}.", remedy=f"Pass {_SHAPES}.") from None
    counts = list(map(len, several))
    return Prepared(converted, columns, None if set(counts) == {1} else counts)


class _BadRow(Exception):
    pass


def _converter(
    several: Sequence[Sequence[Row]], columns: tuple[str, ...] | None
) -> Callable[[Row], Params]:
    first = columns or next((row for group in several for row in group), ())
    width = len(first) if isinstance(first, tuple) else 0

    def convert(row: Row) -> Params:
        if isinstance(row, tuple):
            if len(row) != width:
                raise _BadRow(f"a row of {len(row)} values where {width} are expected")
            return row
        if not isinstance(row, Mapping):
            raise _BadRow(f"{type(row).__name__} is not a row")
        if columns is None:
            raise _BadRow("a dict among tuples, and no columns are named")
        if len(row) != width or not all(column in row for column in columns):
            raise _BadRow(f"a row with the keys {sorted(map(str, row))} for {sorted(columns)}")
        return tuple([row[column] for column in columns])

    return convert
