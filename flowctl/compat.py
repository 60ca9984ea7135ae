"""Features that Python 3.10 lacks, in one place; removed together with 3.10."""

from __future__ import annotations

import enum

try:
    from enum import StrEnum
except ImportError:

    class StrEnum(str, enum.Enum):  # type: ignore[no-redef]
        """Names whose values are texts, and which print as those."""

        __str__ = str.__str__


__all__ = ["StrEnum", "add_note"]


def add_note(error: BaseException, note: str) -> None:
    """Add a line below the traceback of ``error``; in Python 3.10 only test tools print it."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        vars(error).setdefault("__notes__", []).append(note)
