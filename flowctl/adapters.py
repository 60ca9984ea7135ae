"""Adapters are found by name when they are needed: flowctl itself imports none of them."""

from __future__ import annotations

import importlib
from types import ModuleType

from flowctl.errors import ConfigError


def load_adapter(module: str, extra: str) -> ModuleType:
    """Import an adapter; ``extra`` is the name of the optional install that brings it.

    Raises :class:`ConfigError` with the install command when it, or something it needs, is
    missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            module,
            f"is not installed (no module {error.name}).",
            remedy=f'Run: pip install "flowctl-spark[{extra}]"',
        ) from None
