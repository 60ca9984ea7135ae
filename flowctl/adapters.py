"""Adapters are found by name when they are needed: flowctl itself does not import any."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from flowctl.errors import MissingExtraError


def load_adapter(module: str, extra: str) -> ModuleType:
    """Import an adapter; ``extra`` is the name of the optional install that provides it.

    Raises :class:`MissingExtraError` with the install command when it, or something it needs, is
    missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise MissingExtraError(module, f"the module {missing}", extra) from None


def dead_letter_of(given: Any) -> Any:
    """Return the store for letters: a store as it is, a store of files for a directory; None for
    None.
    """
    if not isinstance(given, str | Path):
        return given
    return load_adapter("flowctl_files", "files").FileDeadLetter(given)
