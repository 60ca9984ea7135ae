"""How many bolts and slots there may be."""

from __future__ import annotations

from flowctl.errors import ConfigError


def check_count(field: str, value: object) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            field, f"{value!r} is not a count.", remedy="Give a whole number, 1 or more."
        )
