"""Columns that stand in the names of directories: ``year=2026/month=11/part-0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

# What Hive and Spark write where the value is null.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")

Keys: TypeAlias = Mapping[str, str | None]


def keys_of(name: str, base: str) -> dict[str, str | None]:
    """Return the columns in the directories of ``name`` below ``base``, as text."""
    inner = name[len(base) :] if name.startswith(base) else ""
    keys: dict[str, str | None] = {}
    for folder in inner.split("/")[:-1]:
        key, equals, value = folder.partition("=")
        if equals and key:
            keys[unquote(key)] = None if value == _NULL else unquote(value)
    return keys


def int_columns(files: Iterable[Keys]) -> frozenset[str]:
    """Return the columns whose values are whole numbers in all files; the others are text.

    With leading zeros they are text, or ``month=01`` would not be found again.
    """
    names: set[str] = set()
    text: set[str] = set()
    for keys in files:
        names |= keys.keys()
        text |= {k for k, v in keys.items() if v is not None and not _INT.fullmatch(v)}
    return frozenset(names - text)


def typed(keys: Keys, ints: frozenset[str]) -> dict[str, Any]:
    """Return the values as scalars of pyarrow: ints where :func:`int_columns` says so."""
    import pyarrow

    scalars: dict[str, Any] = {}
    for name, value in keys.items():
        is_int = name in ints
        kind = pyarrow.int64() if is_int else pyarrow.string()
        scalars[name] = pyarrow.scalar(int(value) if is_int and value is not None else value, kind)
    return scalars
