"""Sinks whose target says of each row what became of it: only those that it refused come again.

And rows as JSON, as such sinks send them.  NaN and the infinities, which JSON lacks, are errors:
msgspec would write null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.positions import row_number
from flowctl.core.records import rows_of_arrow
from flowctl.errors import InternalError, RetryLater, UnrunnableError
from flowctl.failure.classify import meaning_of
from flowctl.failure.kinds import Kind


class BadItemError(ValueError):
    """A row that can't be sent at all; the message says why."""


class Fate(NamedTuple):
    """What became of an item.

    ``kind`` is None where it is written; ``is_left_out``: an earlier call has written it.
    Otherwise ``kind`` and ``reason`` are of the error: FULL and AGAIN bring the row again, by
    NOT_ALLOWED no row can succeed, anything else rejects the row.
    """

    kind: Kind | None = None
    reason: str = ""
    is_left_out: bool = False


WRITTEN: Final = Fate()
LEFT_OUT: Final = Fate(is_left_out=True)


class ItemSink:
    """Writes rows as items; a subclass says how: :meth:`item`, :meth:`cut` and :meth:`send`.

    An item that the target refuses is sent again, and lowers the target's limit; an item that it
    can't take is rejected, with the reason.  ``flow_sink`` and ``flow_batch`` never send an
    accepted item again; in a bolt of ``FlowControlSpout`` the whole tuple comes again after a
    refusal.  ``write`` is as thread-safe as the subclass.
    """

    #: Shown if no item can succeed.
    remedy: ClassVar[str] = "Give the user the right to write."

    def write(self, rows: Iterable[Any], *, batch: Batch) -> None:
        """Write ``rows``; ``rows[i]`` belongs to ``batch[i]``, None stands for no item.

        Or ``rows`` is a ``pyarrow.RecordBatch`` whose row ``i`` belongs to ``batch[i]``.

        The time it takes counts as ``batch.in_sink()``.  On return the target has taken all rows
        but those that are rejected or left out in ``batch``.  Raises :class:`flowctl.RetryLater`
        with ``again`` if some were refused, what the client raises if a whole call failed, and
        :class:`flowctl.errors.UnrunnableError` if no row can succeed, or there is not one item for
        each record.
        """
        made: dict[int, Any] = {}
        for index, row in wanted_of(rows, batch):
            try:
                made[index] = self.item(row, batch, index)
            except BadItemError as error:
                batch.reject(index, str(error))
        if made:
            with batch.in_sink():
                fates = self._sent(list(made.values()))
            self._settle(list(made), fates, batch)

    def item(self, row: Any, batch: Batch, index: int) -> Any:
        """Return the item of ``row``; raise :class:`BadItemError` if it can't be sent."""
        raise NotImplementedError

    def cut(self, items: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """Divide ``items``, in order, into those of one call each."""
        return [items]

    def send(self, items: Sequence[Any]) -> Sequence[Fate]:
        """Send the items of one call; return what became of each."""
        raise NotImplementedError

    def _sent(self, items: Sequence[Any]) -> list[Fate]:
        fates: list[Fate] = []
        for part in self.cut(items):
            try:
                said = self.send(part)
            except Exception as error:
                if not any(fate.kind is None for fate in fates):
                    raise
                # What was accepted before must not come again: the others do, alone.
                reason = f"{type(error).__name__}: {error}"
                kind = meaning_of(error).kind
                if kind is Kind.NOT_ALLOWED:
                    raise
                return fates + [Fate(Kind.FULL, reason)] * (len(items) - len(fates))
            if len(said) != len(part):
                raise InternalError(f"{self!r} told of {len(said)} of {len(part)} items.")
            fates += said
        return fates

    def _settle(self, indices: list[int], fates: Sequence[Fate], batch: Batch) -> None:
        again: list[int] = []
        why = ""
        for index, (kind, reason, is_left_out) in zip(indices, fates, strict=True):
            if is_left_out:
                batch.left_out += 1
            elif kind in (Kind.FULL, Kind.AGAIN):
                again.append(index)
                why = why or reason
            elif kind is Kind.NOT_ALLOWED:
                raise UnrunnableError(
                    type(self).__name__, f"every row is refused: {reason}.", remedy=self.remedy
                )
            elif kind is not None:
                batch.reject(index, reason)
        if again:
            raise RetryLater(f"{len(again)} of {len(indices)} items refused ({why})", again=again)


def columns_of(rows: Any) -> Any:
    """Return ``rows``; those of a ``pyarrow.RecordBatch`` as columns of values."""
    is_arrow = type(rows).__name__ == "RecordBatch" and type(rows).__module__.startswith("pyarrow")
    return rows_of_arrow(rows) if is_arrow else rows


def wanted_of(rows: Iterable[Any], batch: Batch) -> list[tuple[int, Any]]:
    """Return the rows that aren't None, each with its index in ``batch``."""
    listed = list(columns_of(rows))
    if len(listed) != len(batch):
        raise UnrunnableError(
            "rows",
            f"{len(listed)} rows for a batch of {len(batch)} records.",
            remedy="Pass one item for each record, in order; None for a record without a row.",
        )
    return [(index, row) for index, row in enumerate(listed) if row is not None]


def part_of(part: str | Callable[[Any], Any], row: Any, batch: Batch, index: int) -> Any:
    """Return the column of ``row`` that ``part`` names, or what ``part`` makes of it.

    Raises :class:`RowError` if the rows have no such column.
    """
    if callable(part):
        return part(row)
    try:
        return row[part]
    except KeyError:
        raise batch.row_error(
            index,
            f"row {row_number(batch[index].position)} has no column {part!r}.",
            remedy="Name a column of the rows, or give a function of the row.",
        ) from None


def parts_of(
    items: Sequence[Any], sizes: Sequence[int], most: int, bytes_max: int
) -> Iterator[Any]:
    """Divide ``items`` of these ``sizes`` [bytes] into parts of at most so many, and so large."""
    first, size = 0, 0
    for at, one in enumerate(sizes):
        if at > first and (at - first >= most or size + one > bytes_max):
            yield items[first:at]
            first, size = at, 0
        size += one
    if first < len(items):
        yield items[first:]


# -- Rows as JSON --------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_NULL = b"null"  # what msgspec writes for NaN and the infinities: without "null" there are none


class NotInJsonError(BadItemError):
    """A number that JSON lacks; the message names it and its place."""


def encoded(value: Any) -> bytes:
    """Return ``value`` as JSON; raise :class:`NotInJsonError` if it holds NaN or an infinity."""
    content = _encode(value)
    if _NULL in content and (what := _found(msgspec.to_builtins(value), "")):
        raise NotInJsonError(f"{what}, which JSON does not have")
    return content


def _found(value: Any, path: str) -> str:
    """Return the place and text of a number that JSON lacks; "" if there is none."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{path or 'the row'} is {value}"
    if isinstance(value, Mapping):
        parts = [(f"{path}.{name}" if path else str(name), part) for name, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    else:
        return ""
    return next((what for where, part in parts if (what := _found(part, where))), "")
