"""Run a function over the Rows of each partition, as ``foreachPartition`` does, and get texts back.

Rows come out of Arrow batches: so it works on Spark Connect too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark_flowctl.features import arrow_converter, converts_arrow, is_connect


def run_on_rows(
    df: Any, partition: Callable[[Iterable[Any]], Iterator[str]], schema: str
) -> list[str]:
    """Call ``partition`` with the Rows of each partition of ``df``; return all texts it yields.

    ``schema`` is that of ``df``, as Spark's JSON.  Raises what Spark raises.
    """
    if not (converts_arrow() or is_connect(df)):  # Spark 3.5 makes the Rows itself
        texts: list[str] = df.rdd.mapPartitions(partition).collect()
        return texts

    def batches_in(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        made = list(partition(rows_of(batches, schema)))
        yield pyarrow.RecordBatch.from_pydict({"text": made})

    batches_in.__module__ = __name__  # found by its name on workers
    # By position: mapInArrow finds columns by name, and names may hold dots or come twice.
    columns = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    return [row.text for row in columns.mapInArrow(batches_in, "text string").collect()]


def rows_of(batches: Iterable[Any], schema: str) -> Iterator[Any]:
    """Yield the Rows of ``batches`` (``pyarrow.RecordBatch``); ``schema`` is Spark's, as JSON."""
    import pyarrow
    from pyspark.sql.types import StructType, _parse_datatype_json_string

    convert = arrow_converter().convert
    kind = _parse_datatype_json_string(schema)
    assert isinstance(kind, StructType)
    for batch in batches:
        yield from convert(pyarrow.Table.from_batches([batch]), kind)
