"""Detect a file that an earlier run of the job read under another name."""

from __future__ import annotations

import os
from collections.abc import Collection

from flowctl.core.records import Checkpoint
from flowctl.errors import SourceError

_LOCAL = "file://"


def check_names(names: Collection[str], checkpoint: Checkpoint) -> None:
    """Raise :class:`SourceError` if one of ``names`` is a file that was done under another name.

    A partition is a file by its name, so ``a.log``, ``./a.log``, ``/data/a.log`` and a link to it
    would each be done, and their rows written again.  Takes a system call for each new file and for
    each file no longer named, if there are both.
    """
    before = {
        path: name
        for name, saved in checkpoint.partitions.items()
        if name not in names and saved.records_done and (path := _existing(name)) is not None
    }
    if not before:
        return
    for name in names:
        if name in checkpoint.partitions:
            continue
        path = _existing(name)
        if path is not None and path in before:
            raise SourceError(
                f"{name}: an earlier run of this job read this file as {before[path]}, so all of it"
                " would be processed again.",
                remedy=f"Give the path that leads to {before[path]}, from the same directory, or,"
                " to process it again, give the job another name.",
            )


def _existing(name: str) -> str | None:
    """Return the path of a local file with links resolved; None if there is no such file."""
    path = name.removeprefix(_LOCAL)
    return os.path.realpath(path) if "://" not in path and os.path.exists(path) else None
