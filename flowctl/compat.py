"""What Python 3.10 lacks, in one place; to go with it."""

from __future__ import annotations

import enum
import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum

    def add_note(error: BaseException, note: str) -> None:
        """Add a line below the traceback of ``error``."""
        error.add_note(note)

else:

    class StrEnum(str, enum.Enum):
        """Names whose values are texts, and which print as those."""

        __str__ = str.__str__
        __format__ = str.__format__  # type: ignore[assignment]

    def add_note(error: BaseException, note: str) -> None:
        """Keep a line with ``error``, where Python 3.11 and test tools look for it."""
        vars(error).setdefault("__notes__", []).append(note)


__all__ = ["StrEnum", "add_note"]
