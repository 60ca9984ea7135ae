"""What the package needs and imports only where it is used."""

from __future__ import annotations

import importlib
from typing import Any

from flowctl.errors import MissingExtraError


def arrow() -> Any:
    """Return the module ``pyarrow``; raise :class:`MissingExtraError`."""
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        raise MissingExtraError("fn", "pyarrow", "parquet") from None
