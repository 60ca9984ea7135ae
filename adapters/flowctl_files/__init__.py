"""Sources that read files: :class:`TextLines`; files for what can't be processed."""

from __future__ import annotations

from flowctl_files.dead_letter import FileDeadLetter, JsonLinesDeadLetter
from flowctl_files.text_lines import TextLines

__all__ = ["FileDeadLetter", "JsonLinesDeadLetter", "TextLines"]
