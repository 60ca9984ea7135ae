"""From paths and patterns to the names of the files to read."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Sequence, Set
from typing import IO, Any, TypeAlias

from flowctl.errors import ConfigError, SourceError
from flowctl_files._patterns import names_of, tell_dangling


def listed_paths(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, other: str = "a pattern"
) -> list[str]:
    """Return one path or several as texts; raise :class:`ConfigError` if there is none.

    ``other`` is what may be named in place of a file.
    """
    several: Any = (paths,) if isinstance(paths, str | os.PathLike) else paths
    if isinstance(several, bytes) or not isinstance(several, Iterable):
        raise _no_path(paths)
    for path in several:
        if not isinstance(path, str | os.PathLike):
            raise _no_path(path)
    listed = [os.fspath(path) for path in several]
    if not listed or not all(listed):
        raise ConfigError("paths", "no path given.", remedy=f"Name a file or {other}.")
    return listed


def _no_path(given: object) -> ConfigError:
    return ConfigError(
        "paths",
        f"{type(given).__name__} is not a path.",
        remedy="Give a text or a pathlib.Path, or several.",
    )


def expand(patterns: Sequence[str], *, may_be_missing: bool) -> list[str]:
    """Return the files that ``patterns`` name, sorted, each file once.

    A relative pattern gives relative names.  A file that is reached by two names (two patterns, a
    symbolic link) counts under the first of them in sort order, names that are links last.
    ``may_be_missing``: a pattern that matches no file is not an error, since one may come later.
    """
    return list(find(patterns, may_be_missing=may_be_missing))


# A file as it was found: its size [bytes] and modification time [unix ns].  If both are unchanged
# later, nothing was written to it.  A plain tuple: with a class of its own the garbage collector
# would visit each of 200,000 objects again and again.
Found: TypeAlias = tuple[int, int]
# The same with a digest of what was read last.
End: TypeAlias = tuple[int, int, str]


def found_as(status: os.stat_result) -> Found:
    """Return what a file is recognised by."""
    return status.st_size, status.st_mtime_ns


def find(patterns: Sequence[str], *, may_be_missing: bool) -> dict[str, Found]:
    """As :func:`expand`, with what is known about each file by then.  One system call per file."""
    found: dict[str, Found] = {}
    links: set[str] = set()
    for pattern in patterns:
        found.update(_expand_one(pattern, links, may_be_missing=may_be_missing))
    return {name: found[name] for name in _once(found.keys(), links)}


def once_each(names: Iterable[str]) -> list[str]:
    """Return those of ``names``, sorted, by which :func:`find` would count each file."""
    there = set(names)
    return _once(there, {name for name in there if os.path.islink(name)})


def _once(names: Set[str], links: Set[str]) -> list[str]:
    if not links and _lie_apart({name[: name.rfind("/") + 1] for name in names}):
        return sorted(names)
    once: dict[str, str] = {}
    folders: dict[str, str] = {}  # what the names of folders resolve to
    # Links last: one that comes between two runs must not give the file another name.
    for name in sorted(names - links) + sorted(names & links):
        path = os.path.realpath(name) if name in links else _real_path(name, folders)
        once.setdefault(path, name)
    return sorted(once.values())


def _lie_apart(folders: Set[str]) -> bool:
    """Whether no two of these names are one directory."""
    return len({os.path.realpath(folder) for folder in folders}) == len(folders)


def _expand_one(pattern: str, links: set[str], *, may_be_missing: bool) -> dict[str, Found]:
    path = os.path.expanduser(pattern)
    found: dict[str, Found] = {}
    if os.path.lexists(path):  # before globbing: "[1].log" can be a name
        _require_regular(path)
        _require_clear(path)
        _add([path], found, links)
    elif glob.has_magic(path):
        _add(names_of(path), found, links)
    if not found and not may_be_missing:
        raise _nothing_found(pattern, path)
    if not all(map(str.isascii, found)):
        for name in found:
            _require_encodable(name)
    return found


def _add(names: Iterable[str], found: dict[str, Found], links: set[str]) -> None:
    lstat, is_link, is_regular = os.lstat, stat.S_ISLNK, stat.S_ISREG
    for name in names:
        try:
            status = lstat(name)
            mode = status.st_mode
            if is_link(mode):
                links.add(name)
                status = os.stat(name)
                mode = status.st_mode
        except FileNotFoundError:
            if os.path.lexists(name):
                tell_dangling(name)
            continue  # otherwise it was removed meanwhile
        except OSError as error:
            raise _not_readable(name, error) from error
        # A pattern such as logs/** also matches directories: only files are meant.
        if is_regular(mode):
            found[name] = found_as(status)


def _require_clear(path: str) -> None:
    """A file called ``*.log``, as a failed redirection leaves one, must not hide all the others."""
    if not glob.has_magic(path):
        return
    other = next((name for name in names_of(path) if name != path), None)
    if other is not None:
        raise SourceError(
            f"{path!r} is the name of a file, and a pattern that others match, such as {other!r}.",
            remedy=f"For that file alone give {glob.escape(path)!r}; for all of them rename it.",
        )


def _real_path(name: str, folders: dict[str, str]) -> str:
    """As ``os.path.realpath`` for a path that is not itself a link, asking once per folder."""
    last = name[name.rfind("/") + 1 :]
    folder = name[: len(name) - len(last)]
    if folder not in folders:
        folders[folder] = os.path.join(os.path.realpath(folder), "")
    return folders[folder] + last


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


def is_hidden(path: str, pattern: str) -> bool:
    """Whether a local pattern would pass over ``path``: its star matches no dot at the beginning.

    Such are Hadoop's checksums (``.part-0.crc``) and files that are being written.  Not if
    ``pattern`` has such a name itself.
    """
    fixed = next(
        (n for n, part in enumerate(pattern.split("/")) if glob.has_magic(part)), len(pattern)
    )
    if any(part.startswith(".") for part in pattern.split("/")[fixed:]):
        return False
    return any(part.startswith(".") for part in path.split("/")[fixed:])


def _not_readable(path: str, error: OSError) -> SourceError:
    return SourceError(
        f"{path!r} can't be read: {error.strerror}.", remedy="Check the link and its permissions."
    )


def check_folder(name: str, began_in: str) -> None:
    """Raise :class:`SourceError` if a relative ``name`` leads elsewhere than when the job began.

    Bolts that are threads share the working directory with the source, and may change it.
    """
    if not os.path.isabs(name) and (now := os.getcwd()) != began_in:
        raise SourceError(
            f"{name}: the working directory was {began_in} when the job began and is {now} now,"
            " where this name may be another file's.",
            remedy="Give absolute paths, or leave the working directory as it is.",
        )


def open_regular(path: str) -> IO[bytes]:
    """Open the file for reading.  Raises :class:`SourceError` or ``OSError``, and never waits.

    A pipe that took the file's place since it was found would wait for somebody who writes to it.
    """
    file = open(path, "rb", buffering=0, opener=_open_now)  # noqa: SIM115 - the caller closes it
    try:
        _require_mode(path, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def _open_now(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # which changes nothing for regular files


def _require_regular(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise _not_readable(path, error) from error
    _require_mode(path, mode)


def _require_mode(path: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise SourceError(
            f"{path!r} is a directory.", remedy=f"Name its files: {os.path.join(path, '*')!r}."
        )
    if not stat.S_ISREG(mode):
        raise SourceError(
            f"{path!r} is not a regular file, so it can't be resumed.",
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
