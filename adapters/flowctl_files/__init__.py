"""Sources that read files: :class:`TextLines`."""

from __future__ import annotations

from flowctl_files.text_lines import TextLines

__all__ = ["TextLines"]
