"""Directories that are tables: which of their files belong to it is written elsewhere."""

from __future__ import annotations

import importlib
from typing import Any, Final

from flowctl.errors import ConfigError, SourceError

# What a reader has to know of; without it, it would read rows that were deleted, or wrong columns.
_UNREADABLE: Final = frozenset({"deletionVectors", "columnMapping", "typeWidening"})


def delta_files(path: str) -> list[str]:
    """Return the files of the newest version of the Delta table in the directory ``path``."""
    try:
        deltalake: Any = importlib.import_module("deltalake")
    except ModuleNotFoundError:
        raise ConfigError(
            "paths",
            f"{path} is a Delta table, and deltalake, which lists its files, is not installed.",
            remedy="Run: pip install deltalake (the driver alone needs it), or give the files.",
        ) from None
    try:
        table = deltalake.DeltaTable(path)
        needed = set(table.protocol().reader_features or ())
        files: list[str] = table.file_uris()
    except Exception as error:  # its errors have no common base
        text = str(error).partition("\n")[0]
        raise SourceError(
            f"{path}: can't be read as a Delta table: {text}.",
            remedy="Check the table, and that this user may read it.",
        ) from error
    if needed & _UNREADABLE:
        raise ConfigError(
            "paths",
            f"{path} is a Delta table with {', '.join(sorted(needed & _UNREADABLE))}: its files"
            " hold rows or columns that are not the table's.",
            remedy="Write a snapshot of it as Parquet first.",
        )
    return files


def iceberg(path: str) -> ConfigError:
    """Return the error for the directory of an Iceberg table."""
    return ConfigError(
        "paths",
        f"{path} is an Iceberg table: some of its files are no longer part of it.",
        remedy="Give the files of one snapshot, without delete files (pyiceberg):"
        " [task.file.file_path for task in table.scan().plan_files()].",
    )
