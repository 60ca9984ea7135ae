"""Turn paths and patterns into the names of the files to read."""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import IO, Any, Final, TypeAlias

from flowctl.errors import ConfigError, SourceError
from flowctl.logs import ModuleLogger

# -- Patterns ---------------------------------------------------------------------------------
#
# From a pattern to the names that it matches, as ``glob`` does; but nothing is left out silently.
#
# ``glob`` leaves out directories that can't be listed, so their files would count as not there;
# and two links back to a directory above keep it busy for ever.


_log = ModuleLogger("flowctl.files")
# Directories of file system repairs, at the root of a file system: never a job's input.
_REPAIRED = "lost+found"


def names_of(pattern: str, *, only_folders: bool = False) -> Iterator[str]:
    """Yield what ``pattern`` (``*``, ``?``, ``[…]``, ``**``) matches, perhaps twice; in any order.

    Hidden names are matched only by a part that begins with a dot.  Raises :class:`SourceError`
    for a directory that can't be read.
    """
    folder, last = os.path.split(pattern)
    if not glob.has_magic(pattern):
        if _is_there(pattern):
            yield pattern
        return
    folders = names_of(folder, only_folders=True) if glob.has_magic(folder) else [folder]
    for each in folders:
        if last == "**":
            yield from _below(each, only_folders, ())
        elif not glob.has_magic(last):
            path = os.path.join(each, last)
            if _is_there(path):
                yield path
        else:
            yield from _matching(each, last, only_folders)


def _matching(folder: str, part: str, only_folders: bool) -> list[str]:
    # For 200,000 files, joining each path and asking whether it is a directory took .6 s.
    inside = os.path.join(folder, "") if folder else ""
    is_match = re.compile(fnmatch.translate(part)).match
    takes_hidden = part[0] == "."
    return [
        inside + entry.name
        for entry in _listed(folder)
        if is_match(entry.name)
        and (takes_hidden or entry.name[0] != ".")
        and (not only_folders or _is_folder(folder, entry))
    ]


@functools.cache  # warns once per link, however often a pattern is expanded
def tell_dangling(name: str) -> None:
    """Warn of a link to nothing, once.  It is no error, since log rotation may leave such links."""
    _log.warning("link_leads_nowhere", file=name)


def unreadable_folder(name: str, error: OSError) -> SourceError:
    """Return the error for a directory that can't be listed."""
    return SourceError(
        f"the directory {name!r} can't be read: {error.strerror}.",
        remedy="Check its permissions, or narrow the pattern: its files would be left out.",
    )


def _below(folder: str, only_folders: bool, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield ``folder`` and everything below it, but not again what a link leads back to."""
    try:
        status = os.stat(folder or ".")
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable_folder(folder, error) from error
    itself = status.st_dev, status.st_ino
    if itself in above:
        return
    yield os.path.join(folder, "")
    for entry in _listed(folder):
        if entry.name[0] != ".":
            path = os.path.join(folder, entry.name)
            if _is_folder(folder, entry):
                yield from _below(path, only_folders, (*above, itself))
            elif not only_folders:
                yield path


def _listed(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of ``folder``."""
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if _is_repaired(folder):
            return []
        raise unreadable_folder(folder, error) from error


def _is_folder(folder: str, entry: os.DirEntry[str]) -> bool:
    try:  # where the listing lacks the type, these calls ask the file system
        if not entry.is_symlink():
            return entry.is_dir()
    except OSError as error:
        raise unreadable_folder(folder, error) from error
    try:
        if entry.is_dir():
            return True
    except OSError:  # opening it as a file will report why
        return False
    path = os.path.join(folder, entry.name)
    if not os.path.exists(path):
        tell_dangling(path)
    return False


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if _is_repaired(os.path.dirname(path)):
            return False
        raise unreadable_folder(os.path.dirname(path), error) from error
    return True


def _is_repaired(folder: str) -> bool:
    return os.path.basename(folder.rstrip("/")) == _REPAIRED


# -- From paths and patterns to the names of the files to read ---------------------------------


def listed_paths(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, other: str = "a pattern"
) -> list[str]:
    """Return one path or several as strings; raise :class:`ConfigError` if there is none.

    ``other`` names what may be given in place of a file, for the error.
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


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_remote(path: str) -> bool:
    """Whether ``path`` has a scheme, as ``s3://bucket/a.log`` has."""
    return _SCHEME.match(path) is not None


def check_url(path: str) -> None:
    """Refuse a password in a URL: it would show in checkpoints and on screens."""
    if re.match(r"[^/]+://[^/@]*:[^/@]*@", path):
        raise ConfigError(
            "paths",
            "a URL holds a password.",
            remedy="Give it in storage_options={…}, or in the environment variables of the store.",
        )


# State of a file when it was found: its size [bytes] and modification time [unix ns].  If both are
# unchanged later, nothing was written to it.  A plain tuple: with a class of its own the garbage
# collector would visit each of 200,000 objects again and again.
Found: TypeAlias = tuple[int, int]
# State of a file that was read to its end: the same with a digest of its last bytes.
End: TypeAlias = tuple[int, int, str]


def found_as(status: os.stat_result) -> Found:
    """Return the size and modification time by which a file is recognised."""
    return status.st_size, status.st_mtime_ns


def find(patterns: Sequence[str], *, may_be_missing: bool) -> dict[str, Found]:
    """Expand as :func:`expand` does, with the state of each file; a system call per file."""
    found: dict[str, Found] = {}
    links: set[str] = set()
    for pattern in patterns:
        found.update(_expand_one(pattern, links, may_be_missing=may_be_missing))
    return {name: found[name] for name in _once(found.keys(), links)}


def once_each(names: Iterable[str]) -> list[str]:
    """Return ``names`` sorted, each file once: under the name that :func:`find` would use."""
    there = set(names)
    return _once(there, {name for name in there if os.path.islink(name)})


def _once(names: Set[str], links: Set[str]) -> list[str]:
    if not links and _lie_apart({name[: name.rfind("/") + 1] for name in names}):
        return sorted(names)
    once: dict[str, str] = {}
    folders: dict[str, str] = {}  # real path of each folder
    # Links come last: a link made between two runs must not give the file another name.
    for name in sorted(names - links) + sorted(names & links):
        path = os.path.realpath(name) if name in links else _real_path(name, folders)
        once.setdefault(path, name)
    return sorted(once.values())


def _lie_apart(folders: Set[str]) -> bool:
    """Whether all of these names lead to different directories."""
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
            continue  # otherwise the file was removed meanwhile
        except OSError as error:
            raise _not_readable(name, error) from error
        # A pattern such as logs/** also matches directories: only files are meant.
        if is_regular(mode):
            found[name] = found_as(status)


def _require_clear(path: str) -> None:
    """Refuse a file whose name is a pattern (``*.log``), if the pattern matches others too."""
    if not glob.has_magic(path):
        return
    other = next((name for name in names_of(path) if name != path), None)
    if other is not None:
        raise SourceError(
            f"{path!r} is the name of a file, and a pattern that others match, such as {other!r}.",
            remedy=f"For that file alone give {glob.escape(path)!r}; for all of them rename it.",
        )


def _real_path(name: str, folders: dict[str, str]) -> str:
    """Return the real path of a path that is no link; asks the system once per folder."""
    last = name[name.rfind("/") + 1 :]
    folder = name[: len(name) - len(last)]
    if folder not in folders:
        folders[folder] = os.path.join(os.path.realpath(folder), "")
    return folders[folder] + last


def _nothing_found(pattern: str, path: str) -> SourceError:
    what = "no file matches" if glob.has_magic(path) else "no such file:"
    try:
        os.stat(path)
    except PermissionError:  # a directory on the way can't be entered
        what = "permission denied:"
    except OSError:
        pass
    return SourceError(
        f"{what} {pattern!r} (looked from {os.getcwd()}).", remedy="Check the path or pattern."
    )


def is_hidden(path: str, pattern: str) -> bool:
    """Whether a local pattern would skip ``path``: its star matches no dot at the beginning.

    Examples are Hadoop's checksums (``.part-0.crc``) and files still being written.  False if
    ``pattern`` itself has such a name.
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


def unreadable(name: str, error: OSError) -> SourceError:
    """Return the error for a file that the operating system refuses to open or read."""
    return SourceError(
        f"{name}: can't be read: {error.strerror or error}.",
        remedy="Check that the file is there and that this user may read it.",
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

    Opening a pipe that has taken the file's place since would wait for a writer.
    """
    file = open(path, "rb", buffering=0, opener=_open_now)  # noqa: SIM115 - the caller closes it
    try:
        _require_mode(path, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def _open_now(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # O_NONBLOCK has no effect on regular files


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
