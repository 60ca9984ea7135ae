"""Records as columns, for sources that have none.  Imported only where it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from flowctl.core.records import Record
from flowctl.errors import MissingExtraError


def record_batch(records: Sequence[Record]) -> Any:
    """Return a ``pyarrow.RecordBatch`` with a row for each record.

    Values that are all dicts are rows with named columns; others make one column, ``value``.
    """
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        raise MissingExtraError("batch.to_arrow", "pyarrow", "parquet") from None
    values = [record.value for record in records]
    if values and all(isinstance(value, dict) for value in values):
        return pyarrow.RecordBatch.from_pylist(values)
    return pyarrow.RecordBatch.from_pydict({"value": values})
