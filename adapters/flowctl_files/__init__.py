"""Sources that read files: :class:`TextLines`, :class:`TextRanges`, :class:`ParquetRows`; files for
dead letters; rows in, rows out: :func:`apply_parquet`."""

from __future__ import annotations

from flowctl_files.dead_letter import FileDeadLetter, JsonLinesDeadLetter
from flowctl_files.parquet_apply import Applied, apply_parquet
from flowctl_files.parquet_ranges import ParquetRanges
from flowctl_files.parquet_rows import ParquetRows
from flowctl_files.text_lines import TextLines
from flowctl_files.text_ranges import TextRanges

__all__ = [
    "Applied",
    "FileDeadLetter",
    "JsonLinesDeadLetter",
    "ParquetRanges",
    "ParquetRows",
    "TextLines",
    "TextRanges",
    "apply_parquet",
]
