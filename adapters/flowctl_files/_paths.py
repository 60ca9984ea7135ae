"""From paths and patterns to the names of the files to read."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Sequence

from flowctl.errors import SourceError


def expand(patterns: Sequence[str], *, may_be_missing: bool) -> list[str]:
    """Return the files that ``patterns`` name, sorted, each file once.

    A relative pattern gives relative names.  A file that is reached by two names (two patterns,
    a symbolic link) counts under the first of them in sort order.  ``may_be_missing``: a
    pattern without a file is no error, since one may come later.
    """
    names: set[str] = set()
    for pattern in patterns:
        names.update(_expand_one(pattern, may_be_missing=may_be_missing))
    once: dict[str, str] = {}
    for name in sorted(names):
        once.setdefault(os.path.realpath(name), name)
    return list(once.values())


def _expand_one(pattern: str, *, may_be_missing: bool) -> list[str]:
    path = os.path.expanduser(pattern)
    if os.path.lexists(path):  # before globbing: "[1].log" can be a name
        _require_regular(path)
        found = [path]
    elif glob.has_magic(path):
        # A pattern such as logs/** also matches directories: only files are meant.
        found = [name for name in glob.glob(path, recursive=True) if os.path.isfile(name)]
    else:
        found = []
    if not found and not may_be_missing:
        raise _nothing_found(pattern, path)
    for name in found:
        _require_encodable(name)
    return found


def _nothing_found(pattern: str, path: str) -> SourceError:
    what = "no file matches" if glob.has_magic(path) else "no such file:"
    try:
        os.stat(path)
    except PermissionError:  # a directory on the way may not be entered
        what = "permission denied:"
    except OSError:
        pass
    return SourceError(
        f"{what} {pattern!r} (looked from {os.getcwd()}).", remedy="Check the path or pattern."
    )


def _require_regular(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise SourceError(
            f"{path!r} can't be read: {error.strerror}.", remedy="Check the link and its rights."
        ) from error
    if stat.S_ISDIR(mode):
        raise SourceError(
            f"{path!r} is a directory.", remedy=f"Name its files: {os.path.join(path, '*')!r}."
        )
    if not stat.S_ISREG(mode):
        raise SourceError(
            f"{path!r} is no regular file, so it can't be resumed.",
            remedy="Write it to a file first.",
        )


def _require_encodable(name: str) -> None:
    # The name is the partition: it goes into checkpoints, which hold UTF-8.
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(
            f"the file name {os.fsencode(name)!r} is not UTF-8.", remedy="Rename the file."
        ) from None
