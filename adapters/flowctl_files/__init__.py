"""Sources that read files: :class:`TextLines`, :class:`TextRanges`, :class:`ParquetRows`,
:class:`ParquetRanges`; files for dead letters, and :class:`MarkedLetters`.

A job uses one or two of them: names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl_files.dead_letter import FileDeadLetter, JsonLinesDeadLetter, MarkedLetters
    from flowctl_files.parquet_ranges import ParquetRanges, ParquetRows
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

_HOMES = {
    "FileDeadLetter": "dead_letter",
    "JsonLinesDeadLetter": "dead_letter",
    "MarkedLetters": "dead_letter",
    "ParquetRanges": "parquet_ranges",
    "ParquetRows": "parquet_ranges",
    "TextLines": "text_lines",
    "TextRanges": "text_ranges",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
