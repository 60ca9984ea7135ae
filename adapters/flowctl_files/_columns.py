"""Which columns of a Parquet file are wanted, which it must have, and may not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from flowctl.errors import ConfigError, SourceError


def listed_columns(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the wanted columns, None for all; :class:`ConfigError` for what is no list of
    names."""
    given: Any = names
    if given is None:
        return None
    listed = () if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not listed or not all(isinstance(name, str) for name in listed):
        shown = listed if isinstance(given, Iterable) and not isinstance(given, str) else given
        raise ConfigError("columns", f"{shown!r} is not a list of names.", remedy="Give ['a'].")
    return listed


def check_columns(file: str, there: Sequence[str], wanted: Collection[str] | None) -> None:
    """Raise :class:`SourceError` if a wanted column is missing, or is there twice.

    ``wanted``: None for all.  A row is a dict, which would hold only one of two columns of a name.
    """
    missing = [name for name in wanted or () if name not in there]
    if missing:
        raise SourceError(
            f"{file}: there is no column {missing[0]!r}.",
            remedy=f"Its columns are {', '.join(map(repr, there))}.",
        )
    for name, times in Counter(there).items():
        if times > 1 and (wanted is None or name in wanted):
            others = [other for other in there if other != name]
            raise SourceError(
                f"{file}: {times} columns are called {name!r}, of which a row would hold one.",
                remedy="Give the file's columns different names, or read others:"
                f" columns={others!r}.",
            )
