"""Sources that read files: :class:`TextLines`, :class:`TextRanges`, :class:`ParquetRows`,
:class:`ParquetRanges`; files for dead letters."""

from __future__ import annotations

from flowctl_files.dead_letter import FileDeadLetter, JsonLinesDeadLetter
from flowctl_files.parquet_ranges import ParquetRanges
from flowctl_files.parquet_rows import ParquetRows
from flowctl_files.text_lines import TextLines
from flowctl_files.text_ranges import TextRanges

__all__ = [
    "FileDeadLetter",
    "JsonLinesDeadLetter",
    "ParquetRanges",
    "ParquetRows",
    "TextLines",
    "TextRanges",
]
