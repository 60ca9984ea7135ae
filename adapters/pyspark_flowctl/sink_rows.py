"""Rows out of Arrow batches, as Spark makes them for ``foreachPartition``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def rows_of(batches: Iterable[Any], schema: str) -> Iterator[Any]:
    """Yield the Rows of ``batches`` (``pyarrow.RecordBatch``); ``schema`` is Spark's, as JSON."""
    import pyarrow
    from pyspark.sql.conversion import ArrowTableToRowsConversion
    from pyspark.sql.types import StructType, _parse_datatype_json_string

    kind = _parse_datatype_json_string(schema)
    assert isinstance(kind, StructType)
    for batch in batches:
        yield from ArrowTableToRowsConversion.convert(pyarrow.Table.from_batches([batch]), kind)
