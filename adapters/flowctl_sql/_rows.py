"""Turn the rows that ``process`` passes in into parameters of an INSERT. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, chain, compress, groupby, repeat
from operator import countOf, itemgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.positions import show
from flowctl.errors import JobError, RowError, UnrunnableError
from flowctl_sql._casts import Cast, TableColumns
from flowctl_sql._dialect import checked_columns
from flowctl_sql._values import Unfit, UnfitError, as_json, as_python

Row: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
Params: TypeAlias = tuple[Any, ...]

_SHAPES = "None for a record without a row, a dict or tuple for one, a list of them for several"


class Insert(NamedTuple):
    """Rows for one statement; ``columns`` None stands for all of the table, in its order.

    ``rows``: tuples, or a ``pyarrow.RecordBatch`` for :class:`.Copies`.
    """

    columns: tuple[str, ...] | None
    rows: Any


class Prepared(msgspec.Struct, frozen=True):
    """All rows of a batch as parameters, in order.

    ``counts[i]`` is the number of rows of record ``i``; ``counts`` None: one row per record.
    ``shapes`` are the columns of each row; None: all rows have ``columns``.  Tuples may still be
    longer or shorter than the first one: see :meth:`refuse_widths`.  ``is_plain``: all values are
    of types that drivers know, and of one width.
    """

    rows: Sequence[Params]
    columns: tuple[str, ...] | None
    counts: Sequence[int] | None = None
    shapes: Sequence[tuple[str, ...]] | None = None
    is_plain: bool = False

    def inserts(
        self,
        wanted: Sequence[bool] | None = None,
        key: Sequence[str] | None = None,
        plain_text: Set[str] = frozenset(),
    ) -> list[Insert]:
        """Return the rows of records ``i`` with ``wanted[i]`` true, grouped by their columns.

        A column that a row lacks is left to the database: its default, or NULL.  With a ``key``
        (empty: of any index, which leaves rows as they came)
        rows go in its order, so that two writers seldom wait for each other crosswise, and rows of
        one key as they came: the last one stays.  In ``plain_text`` are columns whose texts are
        equal only if they differ in nothing but spaces at the end.
        """
        chosen = None if wanted is None else self._of_rows(wanted)
        rows = self.rows if chosen is None else list(compress(self.rows, chosen))
        if self.shapes is None:
            if key and self.columns is not None:
                places = [self.columns.index(column) for column in key]
                rows = _in_order(
                    rows, [[row[at] for row in rows] for at in places], key, plain_text
                )
            return [Insert(self.columns, rows)] if rows else []
        shapes = self.shapes if chosen is None else compress(self.shapes, chosen)
        if key is not None:
            return _runs(list(zip(shapes, rows, strict=True)), key, plain_text)
        grouped: dict[tuple[str, ...], list[Params]] = {}
        for shape, row in zip(shapes, rows, strict=True):
            grouped.setdefault(shape, []).append(row)
        return [Insert(*each) for each in grouped.items()]

    def rows_of(self, record: int) -> int:
        """Return the number of rows that belong to each record."""
        return 1 if self.counts is None else self.counts[record]

    def _of_rows(self, wanted: Sequence[bool]) -> Iterable[bool]:
        if self.counts is None:
            return wanted
        return list(chain.from_iterable(map(repeat, wanted, self.counts)))

    def as_rows(self, batch: Batch) -> Prepared:
        """Return itself: these are rows."""
        del batch
        return self

    def as_python(self, batch: Batch, dialect: str) -> Prepared:
        """Return a copy with numpy's and pandas' values as Python's own.

        Raises :class:`RowError` that names a value which the driver of ``dialect`` would change.
        """
        if self.is_plain:
            return self
        try:
            rows = as_python(self.rows, dialect)
        except UnfitError as error:
            raise self.unfit(batch, error.unfit) from None
        return self if rows is self.rows else msgspec.structs.replace(self, rows=rows)

    def as_json(self, table: Sequence[str], columns: Set[str]) -> Prepared:
        """Return a copy with JSON for dicts, lists and Rows in ``columns``.

        ``table`` has the table's columns.
        """
        shapes = self.shapes or [self.columns or tuple(table)] * len(self.rows)
        places = {
            shape: [at for at, column in enumerate(shape) if column in columns]
            for shape in set(shapes)
        }
        if not any(places.values()):
            return self
        rows = [
            _with_json(row, places[shape]) for shape, row in zip(shapes, self.rows, strict=True)
        ]
        return msgspec.structs.replace(self, rows=rows)

    def unfit(self, batch: Batch, unfit: Unfit, columns: Sequence[str] | None = None) -> JobError:
        """Return the error that names the record and the column of an unfit value.

        ``columns``: those of its row, where the rows don't say.
        """
        columns = columns or (self.columns if self.shapes is None else self.shapes[unfit.row])
        column = f"column {columns[unfit.at]}" if columns else f"value {unfit.at + 1}"
        at, problem = self._record_of(unfit.row, batch), f"{column} is {unfit.why}."
        error = row_error(batch, at, problem, unfit.remedy)
        if unfit.is_type:  # each row would fail in the same way
            return UnrunnableError("SqlSink", error.problem, remedy=error.remedy)
        return error

    def _record_of(self, row: int, batch: Batch) -> int:
        ends = accumulate(self.counts or repeat(1, len(batch)))
        return next(record for record, end in enumerate(ends) if row < end)

    def refuse_widths(self, batch: Batch) -> None:
        """Raise :class:`RowError` for the first row with more or fewer values than the others."""
        if not self.rows or self.is_plain or self.shapes is not None:
            return
        if not _are_equal(map(len, self.rows), self.rows):
            _of_any_shape(self.rows, batch, self.columns)

    def refuse_keyless(self, batch: Batch, key: Sequence[str]) -> None:
        """Raise :class:`RowError` for the first row without a value in a column of ``key``.

        NULL is equal to nothing, so such a row would be added each time.  Raises
        :class:`UnrunnableError` for tuples whose columns weren't given.
        """
        if not self.rows:
            return
        if self.columns is None:
            raise UnrunnableError(
                "columns", "is missing: which value of a tuple is the key?", remedy="Name them."
            )
        for shape, rows in self.inserts():
            for column in key:
                at = shape.index(column) if shape and column in shape else None
                if at is None or None in map(itemgetter(at), rows):
                    raise self._keyless(batch, column)

    def _keyless(self, batch: Batch, column: str) -> RowError:
        shapes = self.shapes or [self.columns or ()] * len(self.rows)
        rows = map(dict, map(zip, shapes, self.rows))
        bad = next(number for number, row in enumerate(rows) if row.get(column) is None)
        return row_error(
            batch,
            self._record_of(bad, batch),
            f"column {column} of the key is missing or NULL.",
            "Give each row its key, or leave the record out: batch.reject(record, reason).",
        )

    def refuse_casts(self, batch: Batch, table: TableColumns) -> None:
        """Raise :class:`RowError` for the first value of which its column would make another."""
        if not table.casts:
            return
        for columns, rows in self.inserts():
            # The database itself rejects rows that are shorter than the table.
            for at, column in enumerate((columns or table.names)[: len(rows[0])]):
                cast = table.cast_of(column)
                if cast is not None and cast.changes([row[at] for row in rows]):
                    raise self._cast(batch, column, table.names, cast)

    def _cast(self, batch: Batch, column: str, table: Sequence[str], cast: Cast) -> JobError:
        shapes = self.shapes or [self.columns or tuple(table)] * len(self.rows)
        number, at = next(
            (number, shape.index(column))
            for number, (shape, row) in enumerate(zip(shapes, self.rows, strict=True))
            if column in shape and cast.changes([row[shape.index(column)]])
        )
        unfit = Unfit(number, at, cast.why, cast.remedy, cast.is_type)
        return self.unfit(batch, unfit, shapes[number])


def prepare(
    listed: Sequence[Row | list[Row] | None], batch: Batch, columns: tuple[str, ...] | None
) -> Prepared:
    """Check and convert the rows; ``columns`` None: the keys of each dict.

    Raises :class:`RowError` that names the record, and :class:`UnrunnableError` if the number of
    items isn't that of the records: that is the program's fault, not a record's.
    """
    if len(listed) != len(batch):
        raise UnrunnableError(
            "rows",
            f"{len(listed)} rows for a batch of {len(batch)} records.",
            remedy=f"Pass one item for each record, in order: {_SHAPES}.",
        )
    return _of_one_shape(listed, columns) or _of_any_shape(listed, batch, columns)


def none_fits(listed: Sequence[Any], columns: tuple[str, ...] | None) -> bool:
    """Whether no row fits: each is a tuple whose length differs from that of ``columns``."""
    rows = [row for row in listed if row is not None]
    return columns is not None and all(
        isinstance(row, tuple) and len(row) != len(columns) for row in rows
    )


def _of_one_shape(listed: Sequence[Any], columns: tuple[str, ...] | None) -> Prepared | None:
    """Convert rows that are one tuple, or one dict, per record; None for anything else.

    It checks with countOf and map: a loop in Python took as long per row as SQLite takes to insert
    100 B.  Widths of tuples are left to :meth:`Prepared.refuse_widths`.
    """
    kind = type(listed[0]) if listed else None
    if kind is None or not _are_equal(map(type, listed), listed):
        return None
    if issubclass(kind, tuple):
        if columns is None or len(columns) == len(listed[0]):
            # A copy: the caller may reuse its own list.
            return Prepared(list(listed), columns)
    elif issubclass(kind, dict) and _are_equal(map(len, listed), listed):
        columns = columns or checked_columns(list(listed[0]))
        if len(columns) == len(listed[0]):
            try:
                return Prepared(_values_of(listed, columns), columns)
            except KeyError:  # the slow path names the record
                return None
    return None


def _are_equal(found: Iterator[object], of: Sequence[object]) -> bool:
    """Whether all of ``found``, as many as ``of`` has items, are equal."""
    first = next(found)
    return countOf(found, first) == len(of) - 1


def _values_of(listed: Sequence[dict[str, Any]], columns: tuple[str, ...]) -> list[Params]:
    if len(columns) == 1:  # itemgetter does not return a tuple then
        return [(row[columns[0]],) for row in listed]
    return list(map(itemgetter(*columns), listed))


def _of_any_shape(listed: Sequence[Any], batch: Batch, columns: tuple[str, ...] | None) -> Prepared:
    several = [row if isinstance(row, list) else () if row is None else (row,) for row in listed]
    convert = _Converter(several, columns)
    converted: list[Params] = []
    for index, group in enumerate(several):
        try:
            converted += [convert(row) for row in group]
        except _BadRow as error:
            raise row_error(batch, index, f"{error}.", f"Pass {_SHAPES}.") from None
    counts = list(map(len, several))
    of_one_shape = len(set(convert.shapes)) <= 1
    return Prepared(
        converted,
        convert.shapes[0] if convert.shapes and of_one_shape else convert.columns,
        None if set(counts) == {1} else counts,
        None if of_one_shape else convert.shapes,
    )


def _with_json(row: Params, places: Sequence[int]) -> Params:
    values = list(row)
    for at in places:
        values[at] = as_json(values[at])
    return tuple(values)


def _in_order(
    rows: Sequence[Any], values: Sequence[list[Any]], key: Sequence[str], plain_text: Set[str]
) -> Sequence[Any]:
    """Return ``rows`` by their ``values`` of each column of the ``key``; those of one key as they
    came.

    As they came, too, where the database may find values equal that Python tells apart, such as
    'a' and 'A', or times that it rounds: then a row could overtake the last one of its key.
    """
    columns = []
    for name, each in zip(key, values, strict=True):
        kinds = set(map(type, each))
        if kinds == {str} and name in plain_text:
            columns.append([text.rstrip(" ") for text in each])  # VARCHAR(3) takes "abc  ", too
        elif kinds == {int}:
            columns.append(each)
        else:
            return rows
    if not columns:
        return rows
    keys = list(zip(*columns, strict=True))
    return [rows[at] for at in sorted(range(len(rows)), key=keys.__getitem__)]  # stable


def _runs(
    shaped: Sequence[tuple[tuple[str, ...], Params]], key: Sequence[str], plain_text: Set[str]
) -> list[Insert]:
    """Rows of several shapes in the order of ``key``: of one key none overtakes another."""
    values = [[row[shape.index(column)] for shape, row in shaped] for column in key]
    runs = groupby(_in_order(shaped, values, key, plain_text), key=itemgetter(0))
    return [Insert(shape, [row for _, row in run]) for shape, run in runs]


def row_error(batch: Batch, index: int, problem: str, remedy: str) -> RowError:
    """Return the error of a row, which says where its record comes from."""
    place = f"partition {batch.span.partition}, position {show(batch[index].position)}"
    return batch.row_error(index, f"{place}: {problem}", remedy=remedy)


class _BadRow(Exception):
    pass


class _Converter:
    """Converts row by row; ``shapes`` are the columns of the rows so far, if known."""

    def __init__(self, several: Sequence[Sequence[Row]], columns: tuple[str, ...] | None) -> None:
        first = next((row for group in several for row in group), ())
        self._named = columns
        if columns is None and isinstance(first, Mapping) and first:
            columns = checked_columns(list(first))
        self.columns = columns
        self.shapes: list[tuple[str, ...]] = []
        self._width = len(columns or (first if isinstance(first, tuple) else ()))
        self._shape_of: dict[frozenset[str], tuple[str, ...]] = {}
        if columns is not None:
            self._shape_of[frozenset(columns)] = columns

    def __call__(self, row: Row) -> Params:
        if isinstance(row, tuple):
            if len(row) != self._width:
                raise _BadRow(f"a row of {len(row)} values where {self._width} are expected")
            if self.columns is not None:
                self.shapes.append(self.columns)
            return row
        if not isinstance(row, Mapping):
            raise _BadRow(f"{type(row).__name__} is not a row")
        if self.columns is None:
            raise _BadRow(
                "a dict among tuples, and no columns are named" if row else "an empty row"
            )
        keys = frozenset(row)
        shape = self._shape_of.get(keys)
        if shape is None:
            shape = self._shape_of[keys] = self._new_shape(row)
        self.shapes.append(shape)
        return tuple([row[column] for column in shape])

    def _new_shape(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        if not row:
            raise _BadRow("an empty row")
        if self._named is None:
            return checked_columns(list(row))
        if extra := sorted(map(str, set(row) - set(self._named))):
            raise _BadRow(
                f"a row with the key {extra[0]!r}, which is none of {sorted(self._named)}"
            )
        return tuple([column for column in self._named if column in row])
