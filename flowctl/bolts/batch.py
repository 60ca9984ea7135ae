"""What ``process`` gets: the records of one call, and what it reports about them while it runs."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

import msgspec

from flowctl.core.records import (
    ColumnRecords,
    Position,
    Record,
    Span,
    picked,
    position_of,
    values_of,
    with_fields,
)
from flowctl.errors import CallTooLongError, MissingExtraError, RowError, UnrunnableError

_SECOND: Final = operator.itemgetter(1)
_OLDER_MAX: Final = 4  # iterators kept; nested loops have two or three


class Batch(Sequence[Record]):
    """What ``process`` gets: the records of one tuple, in source order, and its span.

    Not thread-safe.  ``sink_s`` is the time spent under :meth:`in_sink` so far [s]; None if it was
    not used.  ``rejected`` maps the index of each rejected record to its reason; ``left_out``
    counts the records whose effect a sink already had from an earlier attempt.  ``left_out_at`` has
    their indices if the sink says which, else None.

    ``clock`` gives monotonic seconds; the caller of ``process`` provides it.  Without it nothing is
    measured, as in tests with a batch made by hand.  ``tell_prolonged`` is the bolt's link, for the
    collectors of topologies: it tells the hub that an input of this batch takes longer.
    ``overdue`` is set, by another thread, once the call took too long and counts as failed: see
    :meth:`check_in_time`.
    """

    __slots__ = (
        "__weakref__", "_clock", "_in_sink", "_older", "_reading", "_records", "_whole", "attempt",
        "bolt", "left_out", "left_out_at", "overdue", "rejected", "sink_s", "span",
        "tell_prolonged",
    )  # fmt: skip

    def __init__(
        self,
        records: Sequence[Record],
        span: Span,
        *,
        bolt: str,
        attempt: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        # Others make their records only when these are read, as Fields if they are dicts.
        self._records = with_fields(records) if isinstance(records, list | tuple) else records
        self._clock = clock
        self._in_sink = False
        self._whole: tuple[Batch, Sequence[int]] | None = None  # of which this is a part
        self.sink_s: float | None = None
        self.span: Span = span
        self.bolt: str = bolt
        self.attempt: int = attempt
        self._reading: Iterator[Record] | _Counted = iter(())
        # Iterators that were in use when a newer one was made, and where they were; the newest
        # first.
        self._older: Sequence[tuple[Iterator[Record] | _Counted, int]] = ()
        self.rejected: dict[int, str] = {}
        self.left_out: int = 0
        self.left_out_at: set[int] | None = None
        self.tell_prolonged: Callable[[int, Batch], None] | None = None
        self.overdue: CallTooLongError | None = None

    def __iter__(self) -> Iterator[Record]:
        # The list's own iterator: a generator that notes the index costs five times as much.
        before, at = self._reading, _index_of_last(self._reading)
        if at is not None:
            self._older = [(before, at), *self._older[: _OLDER_MAX - 1]]
        records = self._records
        if isinstance(records, list | tuple):
            self._reading = reading = iter(records)
            return reading
        # Records that are made while they are read: no Python code runs here for each record.
        asked = count()
        self._reading = _Counted(asked, len(records))
        return map(_SECOND, zip(asked, records, strict=False))

    @property
    def reading_index(self) -> int | None:
        """The index of the record that iteration returned last.

        None before the first and after the end.  When ``process`` raises, it names the record that
        was being worked on.
        """
        now = [(_index_of_last(iterator), was) for iterator, was in self._older]
        # An older iterator that was used after the newest was made: the newest only looked at the
        # batch.
        moved = next((at for at, was in now if at is not None and at != was), None)
        if moved is not None:
            return moved
        newest = _index_of_last(self._reading)
        return newest if newest is not None else next((at for at, _ in now if at is not None), None)

    def __contains__(self, record: object) -> bool:
        return record in self._records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        try:
            return self._records[index]
        except TypeError:
            if isinstance(index, str):
                raise _no_record(f"[{index!r}]") from None
            raise

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name):
            raise _no_record(f".{name}") if name[0] != "_" else AttributeError(name)

    @property
    def values(self) -> Sequence[Any]:
        """The records' values, in order: all at once where the source can (text, columns).

        That costs less than to take them from records, of which none is made.
        """
        return values_of(self._records)

    def position(self, index: int) -> Position:
        """Return the position of one record, which need not be made for that."""
        return position_of(self._records, index)

    @property
    def has_columns(self) -> bool:
        """Whether the source has columns: ``ParquetRanges``, and ``flow_sink(…).write(df)``."""
        return isinstance(self._records, ColumnRecords)

    def to_arrow(self) -> Any:
        """Return the batch as a ``pyarrow.RecordBatch``; its rows are in the order of the records.

        Nothing is copied if the source has columns (:attr:`has_columns`).  Otherwise each value
        becomes a row: a dict by its keys, anything else in a column ``value``.  Needs pyarrow
        (:class:`flowctl.errors.MissingExtraError`).
        """
        records = self._records
        if isinstance(records, ColumnRecords):
            return records.to_arrow()
        return record_batch(self.values)

    def to_pandas(self) -> Any:
        """Return the batch as a ``pandas.DataFrame``, as :meth:`to_arrow` would.

        A column of whole numbers with nulls has a type of pandas that keeps them whole (``Int64``).
        """
        return frame_of(self.to_arrow())

    def reject(self, record: Record | int, reason: object = "rejected") -> None:
        """Settle one record that can't be used; the rest of the batch continues.

        ``record`` is a record of this batch or its index (0 is the first, -1 the last).
        ``reason`` is text or an exception.  When ``process`` returns, the record is counted as
        rejected and goes to the dead letter, if the job has one; it is not tried again.  If
        ``process`` raises, nothing is settled: the record may be rejected again next time.

        A record that was already rejected keeps its first reason.  Anything but a record of this
        batch, or its index, ends the run (:class:`flowctl.errors.UnrunnableError`): that is a
        mistake in ``process``, not a fault of a record.
        """
        index = self._index_of(record)
        if index < 0:
            index += len(self._records)
        if not 0 <= index < len(self._records):
            raise _not_in_batch(f"{record} is not an index", len(self._records))
        text = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason
        self.rejected.setdefault(index, str(text))

    def row_error(self, index: int, problem: str, *, remedy: str = "") -> RowError:
        """Return the error, to be raised, of a row that can't be written as it is.

        It is that of the record at ``index``, which is cut out at once, without a search for it.
        """
        self._older = ()
        self._reading = _Counted(count(index + 1), len(self))
        return RowError(problem, remedy=remedy)

    def _index_of(self, record: Any) -> int:
        if isinstance(record, bool):  # bool is an int, but no index
            raise _not_in_batch(f"{record} is not a record", len(self._records))
        if hasattr(record, "__index__"):  # numpy's ints too
            return operator.index(record)
        reading = self.reading_index
        if reading is not None and self._records[reading] is record:
            return reading
        for index, candidate in enumerate(self._records):
            if candidate is record:
                return index
        if isinstance(record, Record):  # a copy is fine, also of a value that equals nothing: NaN
            for index, candidate in enumerate(self._records):
                if candidate == record or repr(candidate) == repr(record):
                    return index
        raise _not_in_batch(f"{type(record).__name__} is not a record", len(self._records))

    def part(self, indices: Sequence[int], of: str = "") -> Batch:
        """Return a batch of some of the records, by their indices, to be worked on apart.

        Work on it within :meth:`counted`.  ``of`` is added to the partition of its span: where
        other records lie between, no sink may take these for written.
        """
        records = picked(self._records, indices)
        ends = position_of(records, 0), position_of(records, -1)
        span = msgspec.structs.replace(
            self.span, partition=f"{self.span.partition}{of}", first=ends[0], last=ends[1]
        )
        made = Batch(records, span, bolt=self.bolt, attempt=self.attempt, clock=self._clock)
        made.tell_prolonged = self.tell_prolonged
        made._whole = self, indices
        return made

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Let count for the whole batch what is reported of this part, inside the block."""
        if self._whole is None:
            yield
            return
        whole, indices = self._whole
        try:
            yield
        except BaseException:
            at = self.reading_index
            whole._older = ()
            whole._reading = (
                iter(()) if at is None else _Counted(count(indices[at] + 1), len(whole))
            )
            raise
        finally:
            if self.sink_s is not None:
                whole.sink_s = (whole.sink_s or 0.0) + self.sink_s
        for at, reason in self.rejected.items():
            whole.rejected.setdefault(indices[at], reason)
        whole.left_out += self.left_out

    @contextmanager
    def in_sink(self) -> Iterator[None]:
        """Wrap the calls that wait for a sink which other bolts use too, such as a database.

        It lets the spout learn when the sink, not the bolts, is the bottleneck, so that it sends
        less at once.  May be used several times per batch; nested uses count once.  Raises
        :class:`flowctl.errors.CallTooLongError` if the call was given up, as :meth:`check_in_time`
        does.
        """
        self.check_in_time()
        if self._clock is None or self._in_sink:
            yield
            return
        self._in_sink = True
        begun_at_s = self._clock()
        try:
            yield
        finally:
            self._in_sink = False
            self.sink_s = (self.sink_s or 0.0) + self._clock() - begun_at_s

    def check_in_time(self) -> None:
        """Raise :class:`flowctl.errors.CallTooLongError` if this call took too long.

        Its records have failed by then: another bolt may have written them, or they are dead
        letters, which may be redriven.  Writing them now could write them twice.
        """
        if self._whole is not None:
            self._whole[0].check_in_time()
        if self.overdue is not None:
            raise self.overdue


class BatchIsNoRecordError(UnrunnableError, AttributeError):
    """Raised if ``process`` treats its batch as one record, which it would do for each batch."""


def _no_record(asked: str) -> BatchIsNoRecordError:
    field = asked if asked[1:] in Record.__struct_fields__ else f".value{asked}"
    return BatchIsNoRecordError(
        "process",
        f"it is called with a batch of records, which has no {asked}.",
        remedy=f"Loop over it, for record in batch, and read record{field}.",
    )


class _Counted(NamedTuple):
    """The number of calls of an iterator over ``records`` records; the end counts as one more."""

    asked: Iterator[int]
    records: int


def _index_of_last(reading: Iterator[Record] | _Counted) -> int | None:
    """Return the index that an iterator returned last; None before the first and after the end."""
    if isinstance(reading, _Counted):
        counter: Any = reading.asked.__reduce__()  # (count, (next,)), for pickling
        asked = counter[1][0]
        return asked - 1 if 0 < asked <= reading.records else None
    # For pickling, it says (iter, (records,), index of the next); only two parts after the end.
    state: Any = reading.__reduce__()
    return state[2] - 1 if len(state) == 3 and state[2] > 0 else None


def _not_in_batch(what: str, records: int) -> UnrunnableError:
    return UnrunnableError(
        "batch.reject",
        f"{what} of this batch of {records}.",
        remedy="Give a record of the batch or its index, and a reason: batch.reject(record, why).",
    )


# -- Records as columns, for sources that have none. Imported only where it is needed ----------


def record_batch(given: Sequence[Any]) -> Any:
    """Return a ``pyarrow.RecordBatch`` with a row for each value.

    If all values are dicts, or Rows of Spark, they become rows with named columns: all columns that
    occur, with nulls where a row lacks one.  Other values make one column, ``value``.
    """
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        raise MissingExtraError("batch.to_arrow", "pyarrow", "parquet") from None
    values = list(map(_fields, given))
    if values and all(isinstance(value, dict) for value in values):
        # Not from_pylist: it takes the columns of the first row only, and leaves out all others.
        names = dict.fromkeys(name for value in values for name in value)
        values_of = {name: [value.get(name) for value in values] for name in names}
        for name in {name for value in given for name in _maps_in(value)}:
            values_of[name] = _maps(pyarrow, values_of[name])
        return pyarrow.RecordBatch.from_pydict(values_of)
    return pyarrow.RecordBatch.from_pydict({"value": values})


def frame_of(batch: Any) -> Any:
    """Return a ``pyarrow.RecordBatch`` as a ``pandas.DataFrame``, with whole numbers exact.

    In a column with nulls pandas would make floats of them, which are exact up to 2^53 only: such
    columns have pandas' own types with nulls (``Int64``), as in Spark's ``mapInPandas``.
    """
    frame = batch.to_pandas(integer_object_nulls=True)
    types = importlib.import_module("pyarrow").types
    for at, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        if column.null_count and types.is_integer(field.type):
            sign = "Int" if types.is_signed_integer(field.type) else "UInt"
            frame.isetitem(at, frame.iloc[:, at].astype(f"{sign}{field.type.bit_width}"))
    return frame


def _maps_in(row: Any) -> list[str]:
    """Return the columns of a Row of Spark that are maps; structs are Rows there."""
    if not hasattr(row, "__fields__"):
        return []
    return [name for name, part in zip(row.__fields__, row, strict=True) if isinstance(part, dict)]


def _maps(pyarrow: Any, dicts: Sequence[dict[Any, Any] | None]) -> Any:
    """Return dicts as maps of Arrow, which else would be structs of all their keys."""
    found = [key for each in dicts for key in each or ()]
    keys = pyarrow.array(found, None if found else pyarrow.string())
    parts = pyarrow.array([part for each in dicts for part in (each or {}).values()])
    pairs = [None if each is None else list(each.items()) for each in dicts]
    return pyarrow.array(pairs, pyarrow.map_(keys.type, parts.type))


def _fields(value: Any) -> Any:
    """Return a Row of Spark as a dict; anything else as it is."""
    convert = getattr(value, "asDict", None)
    return convert(recursive=True) if callable(convert) else value
