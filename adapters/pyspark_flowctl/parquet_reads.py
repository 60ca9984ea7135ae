"""Whether a DataFrame is exactly what stands in its Parquet files: then nothing is copied.

Spark adds what a file lacks, leaves out what only some files have, reads values as the types that
it was given, and reads a file twice that it was given twice.  Who reads the files sees none of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pyspark_flowctl.features import arrow_schema

_PARQUET = re.compile(r"Relation \[[^\n]*\] parquet")
_ONE_PATH = re.compile(r"InMemoryFileIndex\(1 paths\)")
# Ends of files that are read at once, as ParquetRanges reads them.
AT_ONCE = 16


class Content(NamedTuple):
    """What the end of a file says: its columns, as :func:`kind_of` has them, and its rows."""

    columns: Sequence[tuple[str, Any]]
    rows: int


def is_read(plan: str) -> bool:
    """Whether a DataFrame with this analysed plan only reads Parquet."""
    return _PARQUET.fullmatch(plan.partition("\n")[2]) is not None


def is_of_one_path(explained: str) -> bool:
    """Whether it was given one path, so that no file can be read twice."""
    return _ONE_PATH.search(explained) is not None


def holds_all(paths: Sequence[str], schema: Any, rows: int | None) -> bool:
    """Whether each file has the columns of ``schema``, and all together ``rows`` (None: any).

    ``schema`` is a ``StructType``.  False, too, if the driver can't read the files.
    """
    try:
        wanted = _columns_of(arrow_schema(schema))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            found = list(threads.map(_content, paths))
    except Exception:  # the driver may not read them; Spark will say why, if it can't either
        return False
    if any(list(file.columns) != wanted for file in found):
        return False
    return rows is None or rows == sum(file.rows for file in found)


def _content(path: str) -> Content:
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path)
    return Content(_columns_of(metadata.schema.to_arrow_schema()), metadata.num_rows)


def _columns_of(schema: Any) -> list[tuple[str, Any]]:
    return [(field.name, kind_of(field.type)) for field in schema]


def kind_of(arrow_type: Any) -> Any:
    """Return what is the same for types whose values are the same in Python.

    Timestamps without a zone are taken for those with one: files with INT96 have none.
    """
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        return kind_of(arrow_type.value_type)
    if types.is_struct(arrow_type):
        return "struct", tuple(_columns_of(arrow_type))
    if types.is_map(arrow_type):
        return "map", kind_of(arrow_type.key_type), kind_of(arrow_type.item_type)
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return "list", kind_of(arrow_type.value_type)
    if types.is_decimal(arrow_type):
        return "decimal", arrow_type.scale
    alike = {
        "whole": types.is_integer,
        "float": types.is_floating,
        "text": lambda one: types.is_string(one) or types.is_large_string(one),
        "bytes": lambda one: types.is_binary(one) or types.is_large_binary(one),
        "timestamp": types.is_timestamp,
    }
    return next((name for name, is_one in alike.items() if is_one(arrow_type)), str(arrow_type))
