"""Small files of rows are merged into fewer ones."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from flowctl_apply._needed import arrow
from flowctl_apply._places import Place
from flowctl_apply._results import ResultFile, merged_name


def shares_of(files: Sequence[ResultFile], count: int) -> list[Sequence[ResultFile]]:
    """Return ``files``, in order, in at most ``count`` shares with about as many bytes each."""
    total = sum(file.bytes for file in files)
    shares: list[list[ResultFile]] = [[] for _ in range(count)]
    before = 0
    for file in files:
        middle = before + file.bytes / 2
        shares[min(int(count * middle / total) if total else 0, count - 1)].append(file)
        before += file.bytes
    return [share for share in shares if share]


def merge_files(
    place: Place, job: str, schema: Any, names: Sequence[str], *, epoch: int
) -> ResultFile:
    """Write the rows of ``names`` into one new file of the driver of ``epoch``; they stay.

    Holds one of them in memory, and the new file as it will be stored.
    """
    parquet = importlib.import_module("pyarrow.parquet")
    pyarrow = arrow()
    sink = pyarrow.BufferOutputStream()
    rows = 0
    with parquet.ParquetWriter(sink, schema) as writer:
        for name in names:
            table = parquet.read_table(pyarrow.BufferReader(place.get(name)))
            writer.write_table(table.cast(schema))
            rows += table.num_rows
    data = sink.getvalue().to_pybytes()
    merged = merged_name(job, epoch)
    place.put(merged, data)
    return ResultFile(merged, rows, len(data))
