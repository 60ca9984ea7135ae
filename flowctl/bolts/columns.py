"""Records as columns, for sources that have none.  Imported only where it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from flowctl.core.records import Record
from flowctl.errors import MissingExtraError


def record_batch(records: Sequence[Record]) -> Any:
    """Return a ``pyarrow.RecordBatch`` with a row for each record.

    Values that are all dicts, or Rows of Spark, are rows with named columns: all that any of them
    has, with nulls where it is missing.  Others make one column, ``value``.
    """
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        raise MissingExtraError("batch.to_arrow", "pyarrow", "parquet") from None
    values = [_fields(record.value) for record in records]
    if values and all(isinstance(value, dict) for value in values):
        # Not from_pylist: it takes the columns from the first row, and leaves out all others.
        names = dict.fromkeys(name for value in values for name in value)
        values_of = {name: [value.get(name) for value in values] for name in names}
        return pyarrow.RecordBatch.from_pydict(values_of)
    return pyarrow.RecordBatch.from_pydict({"value": values})


def frame_of(batch: Any) -> Any:
    """Return a ``pyarrow.RecordBatch`` as a ``pandas.DataFrame``, with whole numbers exact.

    Beside a null pandas would make floats of them, which are exact up to 2^53 only: such columns
    have pandas' own types with nulls (``Int64``), as Spark makes them for ``mapInPandas``.
    """
    frame = batch.to_pandas(integer_object_nulls=True)
    types = importlib.import_module("pyarrow").types
    for at, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        if column.null_count and types.is_integer(field.type):
            sign = "Int" if types.is_signed_integer(field.type) else "UInt"
            frame.isetitem(at, frame.iloc[:, at].astype(f"{sign}{field.type.bit_width}"))
    return frame


def _fields(value: Any) -> Any:
    """Return a Row of Spark as a dict; anything else as it is."""
    convert = getattr(value, "asDict", None)
    return convert(recursive=True) if callable(convert) else value
