"""Adapters are found by name when they are needed: flowctl itself does not import any."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from flowctl.errors import ConfigError, MissingExtraError


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
    """Return where letters are kept: a store as it is, one of files for a directory; None: none."""
    if not isinstance(given, str | Path):
        return given
    try:
        return load_adapter("flowctl_files", "files").FileDeadLetter(given)
    except MissingExtraError:
        raise
    except ConfigError as error:  # of its argument: here it has another name
        problem = error.problem.removeprefix(f"{error.field}: ")
        raise ConfigError("dead_letter", problem, remedy=error.remedy) from None
