"""Which columns a Parquet file must have, and may not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from flowctl.errors import SourceError


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
