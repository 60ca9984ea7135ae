"""Directories that are tables: which of their files belong to it is written elsewhere."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any, Final

from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, SourceError

# What a reader has to know of; without it, it would read rows that were deleted, or wrong columns.
_UNREADABLE: Final = frozenset({"deletionVectors", "columnMapping", "typeWidening"})
_MAPPING: Final = "delta.columnMapping.mode"


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
        if table.metadata().configuration.get(_MAPPING, "none") != "none":
            needed.add("columnMapping")  # tables of reader version 2 do not list it
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


def check_kept(path: str, files: Iterable[str], checkpoint: Checkpoint) -> None:
    """Raise :class:`SourceError` if a file of which a part is done is not the table's any more.

    Its rows may stand in other files now, where they would be done again.
    """
    kept = set(files)
    # deltalake names files by the directory without links.
    local = os.path.expanduser(path)
    folders = (path,) if "://" in path else (os.path.abspath(local), os.path.realpath(local))
    inside = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    for name, done in checkpoint.partitions.items():
        if name in kept or not name.startswith(inside) or not done.records_done:
            continue
        raise SourceError(
            f"{path}: {name}, of which an earlier run of this job has done {done.records_done}"
            " rows, is no longer part of the Delta table; its rows may stand in other files now.",
            remedy="Give the job another name to do all rows of the newest version; or restore the"
            " version that the job began with.",
        )
