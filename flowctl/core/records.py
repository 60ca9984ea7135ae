"""Records, and the state that is kept of them: spans, checkpoints, receipts.

All types are frozen :class:`msgspec.Struct`.  Threads may share them, as no code changes the dicts,
lists and values that they hold.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

import msgspec

# The source's own place of a record (S12), not a tuple's number: an offset, (byte, line), a key,
# a time with a tie-break.  Opaque to flowctl; totally ordered within its partition; the
# positions of one partition are all of one shape.  No bytes: msgspec can't tell them from str in
# a typed union; a hex string sorts the same.
PositionPart: TypeAlias = int | float | str | None
Position: TypeAlias = int | float | str | tuple[PositionPart, ...]


_Dict: TypeAlias = dict[str, Any]


class _Nothing:
    """See :data:`NOTHING`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"


# The value of a record in which a translator found no payload: it is not sent, and counts as acked
# at once, so that its position does not hold up the checkpoint (S107).
NOTHING: Final = _Nothing()


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record of a source partition.

    ``position`` is the source's own place; ``value`` arrives as it is or is refused: None, bool,
    int, float, str, bytes, list, tuple, dict, set, frozenset, dates and times, Decimal, UUID
    (:mod:`flowctl.wire.values`).
    """

    position: Position
    value: Any

    if not TYPE_CHECKING:  # type checkers report it themselves

        def __getitem__(self, key):
            """Explain what to write instead: many a first ``process`` does this."""
            raise TypeError(f"a Record is not its value: write record.value[{key!r}]")

        def __getattr__(self, name):
            """Explain as for ``record["id"]``: a record's fields are in its value."""
            if name.startswith("__"):  # attributes that Python and libraries ask any object for
                raise AttributeError(name)
            raise AttributeError(f"a Record is not its value: write record.value[{name!r}]")


class Fields(dict[str, Any]):
    """A dict whose items are attributes too: ``value["id"]`` is ``value.id``, as in a Row of Spark.

    What ``process`` gets for a record that is a dict, behind every door.  It is sent and stored as
    the dict that it is.  A field whose name is a dict's own (``items``, ``copy``) has only the
    first spelling.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}; there are {', '.join(self)}") from None
        if value.__class__ is dict:  # so that record.value.address.city is right too
            value = self[name] = Fields(value)
        return value

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """Return a plain dict of the fields, as a Row of Spark does."""
        return dict(self)


def with_fields(records: Sequence[Record]) -> Sequence[Record]:
    """Return ``records``, in which each value that is a dict is :class:`Fields`."""
    if dict not in {record.value.__class__ for record in records}:
        return records
    return [
        Record(record.position, Fields(record.value)) if record.value.__class__ is dict else record
        for record in records
    ]


class ColumnRecords(Sequence[Record]):
    """Rows of columns as records, which are made only when somebody asks for one.

    ``columns`` is a ``pyarrow.RecordBatch``; the records are those of its ``rows``, in that order.
    ``place`` gives the position of a row of ``columns``, ``values_of(columns)`` the value of each
    row of its argument.  Parts of it share the columns.  For one thread at a time.
    """

    __slots__ = ("_columns", "_place", "_records", "_rows", "_values_of")

    def __init__(
        self,
        columns: Any,
        rows: Sequence[int],
        place: Callable[[int], Position],
        values_of: Callable[[Any], Sequence[Any]],
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._place = place
        self._values_of = values_of
        self._records: list[Record] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            part = self._of(self._rows[index])
            part._records = None if self._records is None else self._records[index]
            return part
        return self._made()[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._made())

    def __add__(self, other: ColumnRecords) -> Sequence[Record]:
        """Return these and ``other``, as rows of the same columns if they are."""
        if other._columns is not self._columns:
            return [*self, *other]
        return self._of([*self._rows, *other._rows])

    def picked(self, indices: Iterable[int]) -> ColumnRecords:
        """Return some of them, by their indices."""
        return self._of([self._rows[index] for index in indices])

    def position(self, index: int) -> Position:
        """Return the position of one, without making it."""
        return self._place(self._rows[index])

    @property
    def values(self) -> Sequence[Any]:
        """Their values, without records around them."""
        if self._records is not None:
            return [record.value for record in self._records]
        return self._values_of(self.to_arrow())

    def to_arrow(self) -> Any:
        """Return the rows as a ``pyarrow.RecordBatch``; nothing is copied if they are in a row."""
        rows = self._rows
        if not rows or rows[-1] - rows[0] == len(rows) - 1:  # they never go back
            return self._columns.slice(rows[0] if rows else 0, len(rows))
        return self._columns.take(list(rows))

    def _of(self, rows: Sequence[int]) -> ColumnRecords:
        return ColumnRecords(self._columns, rows, self._place, self._values_of)

    def _made(self) -> list[Record]:
        if self._records is None:
            positions = map(self._place, self._rows)
            self._records = list(map(Record, positions, self.values))
        return self._records


class DictRows(Sequence[_Dict]):
    """Rows that come as columns of values, each a dict for whoever asks for one.

    As many dicts as each of the ``columns`` has values; ``names`` are those of the columns.

    For sinks whose class says ``takes_columns = True``: a dict for each row takes three times as
    long to make as the values in it.  Immutable, but for the values.
    """

    __slots__ = ("columns", "names")

    def __init__(self, names: Sequence[str], columns: Sequence[Sequence[Any]]) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self.columns: tuple[Sequence[Any], ...] = tuple(columns)

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def __iter__(self) -> Iterator[_Dict]:
        pairs = map(zip, repeat(self.names), zip(*self.columns, strict=True))
        return map(dict, pairs)

    @overload
    def __getitem__(self, index: int) -> _Dict: ...
    @overload
    def __getitem__(self, index: slice) -> DictRows: ...
    def __getitem__(self, index: int | slice) -> _Dict | DictRows:
        picked = [column[index] for column in self.columns]
        if isinstance(index, slice):
            return DictRows(self.names, picked)
        return dict(zip(self.names, picked, strict=True))


def rows_of_arrow(batch: Any) -> DictRows:
    """Return the rows of a ``pyarrow.RecordBatch``, with Arrow's own values."""
    return DictRows(batch.schema.names, [column.to_pylist() for column in batch.columns])


def picked(records: Sequence[Record], indices: Iterable[int]) -> Sequence[Record]:
    """Return some of ``records``, by their indices."""
    if isinstance(records, ColumnRecords):
        return records.picked(indices)
    return [records[index] for index in indices]


def values_of(records: Sequence[Record]) -> Sequence[Any]:
    """Return the values of ``records``; where these are columns or text, none is made for it."""
    made: Sequence[Any] | None = getattr(records, "values", None)
    return [record.value for record in records] if made is None else made


def joined(first: Sequence[Record], second: Sequence[Record]) -> Sequence[Record]:
    """Return ``first`` and then ``second``."""
    if isinstance(first, ColumnRecords) and isinstance(second, ColumnRecords):
        return first + second
    return (*first, *second)


def position_of(records: Sequence[Record], index: int) -> Position:
    """Return the position of one of ``records``; none is made for it."""
    if isinstance(records, ColumnRecords):
        return records.position(index)
    return records[index].position


# The memory address in the repr of an object that defines none.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def packed(value: Any) -> bytes:
    """Return a value as MessagePack: the same bytes in each process.

    What MessagePack has no form for is packed as :func:`shown_alike`.
    """
    try:
        return _encode(value)
    except (OverflowError, TypeError, ValueError):  # an int of more than 64 bits, odd keys
        return shown_alike(value).encode("utf-8", "surrogatepass")


def shown_alike(value: Any) -> str:
    """Return the ``repr`` of a value without what differs between processes."""
    return _ADDRESS.sub("", repr(value))


_encode: Final = msgspec.msgpack.Encoder(enc_hook=shown_alike).encode


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which records a tuple holds: the key by which a sink recognises a repeat.

    ``first`` and ``last`` are inclusive positions.  A tuple that is sent again within a run
    keeps its span; after a restart the same records may be cut differently, so a sink must
    remember *which positions are covered*, not equal spans.  ``epoch`` is the generation of
    the driver that sent it: a sink refuses one older than the newest it has seen.
    ``acked_through`` is the partition's cumulative ack when the tuple was sent: everything up
    to it has been processed, so a sink may merge its memory of spans up to there.
    ``unsettled``: but for what lies between these two positions, without them; None: all before
    the second.
    ``section``: the lowest and highest position of the rows that ``first`` and ``last`` belong to,
    where a position is only known by the content of its rows (``flow_sink``, ``flow_batch``).
    A repeat may bring other rows outside of it, so a sink that has merged beyond it can't tell.
    """

    job: str
    partition: str
    first: Position
    last: Position
    epoch: int
    acked_through: Position | None = None
    unsettled: tuple[Position | None, Position] | None = None
    section: tuple[Position, Position] | None = None


class AckOutcome(enum.Enum):
    """The effect of an ack or a fail.  None of these is an error; all but ACKED are counted."""

    ACKED = "acked"  # in time, from the bolt that holds the tuple
    LATE = "late"  # the first ack, but after expiry: it completes the tuple, replays are dropped
    DUPLICATE = "duplicate"  # the tuple was already done
    UNKNOWN = "unknown"  # no such tuple, or from an epoch that is over
    FAILED = "failed"  # the tuple failed and will be sent again
    REFUSED = "refused"  # the target has no room: it will be sent again, no attempt is counted
    DROPPED = "dropped"  # it failed in a mode that sends nothing again (core/guarantee.py)
    GAVE_UP = "gave_up"  # it failed and its attempts have run out


class AckedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of acked records above the cumulative ack; both ends inclusive."""

    first: Position
    last: Position
    records: int


class LostRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Records from ``first`` to ``last``, both inclusive, that are done without their effect.

    ``records`` of them were rejected and are kept nowhere; 0: the dead letter has them.
    """

    first: Position
    last: Position
    records: int


class PartitionCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """How far one source partition is done.

    ``position`` is the position of the last record up to which all are acked (None: none yet),
    ``records`` the number of records up to there since the partition's beginning, ``acked`` the
    selective acks above it, in order, disjoint.  ``end`` is what the source gave with its end
    (:class:`flowctl.ports.SourceChunk`), once all records before it are acked; None: there may be
    more to read.  ``mark`` is the newest that the source gave to recognise the partition by, while
    there is no end.  ``lost`` is where records count as done although they were given up or
    rejected (:mod:`flowctl.core.lost`), in order, disjoint.
    """

    position: Position | None = None
    records: int = 0
    acked: tuple[AckedRange, ...] = ()
    end: Position | None = None
    mark: Position | None = None
    lost: tuple[LostRange, ...] = ()

    @property
    def given_up(self) -> Position | None:
        """The last record that was given up or rejected, or None.

        No sink may treat it, or records before it, as written (``Span.unsettled``).
        """
        return self.lost[-1].last if self.lost else None

    @property
    def records_kept_nowhere(self) -> int:
        """Records that were rejected while the job had no dead letter."""
        return sum([span.records for span in self.lost])

    @property
    def records_done(self) -> int:
        """Records done, cumulative and selective together."""
        return self.records + sum([span.records for span in self.acked])


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """What a restart continues from: how far each partition is done."""

    partitions: dict[str, PartitionCheckpoint] = {}

    @property
    def records(self) -> int:
        """Records done, cumulative and selective together."""
        # Not by records_done, a call and two lists for each of perhaps 200,000 partitions.
        partitions = self.partitions.values()
        above = [span.records for each in partitions if each.acked for span in each.acked]
        return sum([each.records for each in partitions]) + sum(above)

    @property
    def records_kept_nowhere(self) -> int:
        """Records that were rejected while the job had no dead letter, by any run of it."""
        return sum([each.records_kept_nowhere for each in self.partitions.values() if each.lost])


class Receipts(msgspec.Struct, frozen=True, gc=False):
    """Receipts that ``process`` gave to be kept with the ``records`` in ``[start, stop)``, which
    are done, except for the positions ``apart``: they were rejected, and wait for the dead letter.

    ``kept_nowhere`` of the records were rejected, and there is no dead letter.
    """

    partition: str
    start: int
    stop: int
    records: int
    receipts: Sequence[bytes]
    apart: Sequence[int] = ()
    kept_nowhere: int = 0
