"""Adapters are found by name when they are needed: flowctl itself does not import any."""

from __future__ import annotations

import importlib
from types import ModuleType

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
