"""Sources that read files: :class:`TextLines`, :class:`TextRanges`, :class:`ParquetRows`,
:class:`ParquetRanges`; files for dead letters, and :class:`MarkedLetters`."""

from __future__ import annotations

from flowctl_files.dead_letter import FileDeadLetter, JsonLinesDeadLetter
from flowctl_files.marked_letters import MarkedLetters
from flowctl_files.parquet_ranges import ParquetRanges
from flowctl_files.parquet_rows import ParquetRows
from flowctl_files.text_lines import TextLines
from flowctl_files.text_ranges import TextRanges

__all__ = [
    "FileDeadLetter",
    "JsonLinesDeadLetter",
    "MarkedLetters",
    "ParquetRanges",
    "ParquetRows",
    "TextLines",
    "TextRanges",
]
