"""From what ``process`` hands over to parameters of an INSERT, record by record.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from flowctl.bolts.batch import Batch
from flowctl.core.positions import show
from flowctl.errors import JobError
from flowctl_sql._dialect import checked_columns

Row: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
Params: TypeAlias = tuple[Any, ...]

_SHAPES = "None for a record without a row, a dict or tuple for one, a list of them for several"


class Prepared:
    """Rows as parameters: ``by_record[i]`` are those of the batch's record ``i``."""

    def __init__(self, by_record: list[Sequence[Params]], columns: tuple[str, ...] | None) -> None:
        self.by_record = by_record
        self.columns = columns
        self.width = next((len(params) for several in by_record for params in several), 0)


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
            remedy=f"Hand over one item for each record, in order: {_SHAPES}.",
        )
    several = [row if isinstance(row, list) else () if row is None else (row,) for row in listed]
    if columns is None:
        first = next((row for group in several for row in group), None)
        columns = checked_columns(list(first)) if isinstance(first, Mapping) else None
    convert = _converter(several, columns)
    by_record: list[Sequence[Params]] = []
    for index, group in enumerate(several):
        try:
            by_record.append([convert(row) for row in group])
        except _BadRow as error:
            place = f"partition {batch.span.partition}, position {show(batch[index].position)}"
            raise JobError(f"{place}: {error}.", remedy=f"Hand over {_SHAPES}.") from None
    return Prepared(by_record, columns)


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
                raise _BadRow(f"a row of {len(row)} values where {width} are due")
            return row
        if not isinstance(row, Mapping):
            raise _BadRow(f"{type(row).__name__} is no row")
        if columns is None:
            raise _BadRow("a dict among tuples, and no columns are named")
        if len(row) != width or not all(column in row for column in columns):
            raise _BadRow(f"a row with the keys {sorted(map(str, row))} for {sorted(columns)}")
        return tuple([row[column] for column in columns])

    return convert
