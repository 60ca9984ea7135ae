"""Where files that are read by ranges lie: on disks, or behind URLs.  Used by driver and workers.

What is shipped to the workers names no secrets: whoever reads finds its own credentials, in its
environment, its instance's role, or in what ``filesystem`` does there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import IO, Any, Final, NamedTuple

from flowctl.core.ranges.extent import Extent, check_not_rewritten
from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, MissingExtraError, SourceError
from flowctl.failure.classify import store_denies
from flowctl.range_ports import B, verified
from flowctl_files._paths import (
    check_url,
    find,
    found_as,
    is_hidden,
    is_remote,
    once_each,
    open_regular,
)

# -- Files that are not what they were: the errors, with times as people read them -------------


# What an identity says of a file on a disk: its modification time [unix ns], since 2001.
_TIME_NS: Final = re.compile(r" bytes of (\d{19})\b")


def changed(name: str, before: str, now: str) -> SourceError:
    """The error for a file that is not what the driver saw."""
    return SourceError(
        f"{name}: it changed during the run: it was {_as_read(before)} and is {_as_read(now)}.",
        remedy="Read files that don't change any more, or use a source by value (TextLines).",
    )


def check_unchanged(extents: Mapping[str, Extent], checkpoint: Checkpoint) -> None:
    """Raise :class:`SourceError` for a file that was written again since rows of it were done."""
    for name in extents.keys() & checkpoint.partitions.keys():
        check_not_rewritten(name, checkpoint.partitions[name], extents[name], as_read=_as_read)


def _as_read(identity: str) -> str:
    return _TIME_NS.sub(lambda found: f" bytes of {_time(int(found[1]))}", identity)


def _time(unix_ns: int) -> str:
    seconds, rest = divmod(unix_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"


# -- Where files that are read by ranges lie ---------------------------------------------------


# What pyarrow reads by itself, with no other package.
_ARROW_SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
# A request to an object store costs some 50 ms: fewer, larger reads.
_REMOTE_BLOCK_BYTES: Final = 8 << 20
# What tells an object from its successor, the same in a listing and when it is asked for.
_MARKS: Final = ("ETag", "etag", "md5Hash", "generation", "mtime")
_SECRET: Final = re.compile(r"secret|password|passwd|token|credential|account_key|sas|^key$", re.I)
# What object stores say of what is not there.  pyarrow raises OSError for everything.
_NOT_THERE: Final = re.compile(
    r"no.?such.?bucket|no.?such.?key|not.?found|path does not exist", re.IGNORECASE
)


class Found(NamedTuple):
    """A file's size [bytes], and what tells it from one that takes its place."""

    size: int
    identity: str


class Stores:
    """Finds and opens files.  Picklable; thread-safe.

    ``filesystem`` is called, on the driver and on each worker, for a ``pyarrow.fs`` or fsspec file
    system to read all paths with; ``options`` are fsspec's, without secrets unless this object
    stays on the driver (``travels=False``).
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None,
        filesystem: Callable[[], Any] | None,
        *,
        travels: bool = True,
    ) -> None:
        for name in _names_in(options or {}) if travels else ():
            if _SECRET.search(name):
                raise ConfigError(
                    "storage_options",
                    f"{name!r} would travel to the workers.",
                    remedy="Let the workers find their own credentials (their environment or role),"
                    " or give filesystem=, a function that makes the file system there.",
                )
        if filesystem is not None and not callable(filesystem):
            raise ConfigError(
                "filesystem",
                f"{type(filesystem).__name__} is a file system, whose credentials would travel.",
                remedy="Give a function that returns it: it is called on each worker.",
            )
        self._options = dict(options or {})
        self._filesystem = filesystem
        self._made: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def find(self, patterns: Sequence[str]) -> dict[str, Found]:
        """Return the files that ``patterns`` name, sorted by name; :class:`SourceError` if one
        names none."""
        local = [] if self._filesystem else [each for each in patterns if not is_remote(each)]
        found = {
            name: _found_locally(size, changed_ns)
            for name, (size, changed_ns) in find(local, may_be_missing=False).items()
        }
        for url in (each for each in patterns if each not in local):
            found |= self._find(url)
        return dict(sorted(found.items()))

    def once_each(self, names: Collection[str]) -> list[str]:
        """Return those of ``names``, sorted, that name a file first; for URLs all."""
        local = [name for name in names if self._is_local(name)]
        return sorted([*once_each(local), *(set(names) - set(local))])

    def stat(self, name: str) -> Found:
        """Return what is there now.  Raises :class:`SourceError` or ``OSError``."""
        try:
            if self._is_local(name):
                return _found_locally(*found_as(os.stat(name)))
            files, path = self._files(name)
            files.invalidate_cache(files._parent(path))  # or it may answer from its memory
            return _found_remotely(files.info(path))
        except OSError as error:
            raise lasting(name, error) from error

    def open(self, name: str) -> IO[bytes]:
        """Open the file for reading.  Raises :class:`SourceError` or ``OSError``."""
        opened: IO[bytes]
        try:
            if self._is_local(name):
                opened = open_regular(name)
            else:
                files, path = self._files(name)
                opened = files.open(path, "rb", block_size=_REMOTE_BLOCK_BYTES)
        except OSError as error:
            raise lasting(name, error) from error
        return opened

    def is_folder(self, name: str) -> bool:
        """Whether there is a directory of that name.  Raises :class:`SourceError` or
        ``OSError``."""
        if self._is_local(name):
            return os.path.isdir(os.path.expanduser(name))
        files, path = self._files(name)
        try:
            return bool(files.isdir(path))
        except OSError as error:
            raise lasting(name, error) from error

    def check(self, name: str, identity: str) -> Found:
        """Raise :class:`SourceError` if the file is not the one that the driver saw."""
        now = self.stat(name)
        if identity and now.identity != identity:
            raise changed(name, identity, now.identity)
        return now

    def verified(self, name: str, identity: str, blocks: Iterable[B]) -> Iterator[B]:
        """Yield ``blocks``, each after the file was found to be the one that the driver saw; of an
        object in a store, once for as much as one request brings."""
        most = 0 if self._is_local(name) else _REMOTE_BLOCK_BYTES
        return verified(blocks, partial(self.check, name, identity), every_bytes=most)

    def _is_local(self, name: str) -> bool:
        return self._filesystem is None and not is_remote(name)

    def _find(self, pattern: str) -> dict[str, Found]:
        files, path = self._files(pattern)
        # In a web address "?" and "[" are plain characters.
        magic = re.search(r"[*]" if pattern.startswith("http") else r"[*?\[]", path)
        try:
            if magic:
                # One request per folder, not per file, where a listing says enough.
                infos = {
                    name: info if any(mark in info for mark in _MARKS) else files.info(name)
                    for name, info in files.glob(path, detail=True).items()
                    if not is_hidden(name, path)
                }
                if not infos:  # glob passes over what it may not list
                    files.ls(path[: magic.start()].rpartition("/")[0])
            else:
                infos = {path: files.info(path)}
        except FileNotFoundError:
            infos = {}
        except OSError as error:
            raise lasting(pattern, error) from error
        named = {
            files.unstrip_protocol(each): info
            for each, info in infos.items()
            if info["type"] == "file"
        }
        if not named:
            raise SourceError(f"no file matches {pattern!r}.", remedy="Check the URL or pattern.")
        return {self._name(name): _found_remotely(info) for name, info in named.items()}

    def _name(self, name: str) -> str:
        return name if self._filesystem is None else name.partition("://")[2]

    def _files(self, name: str) -> tuple[Any, str]:
        """Return an fsspec file system, and ``name`` as it calls it."""
        try:
            import fsspec
        except ModuleNotFoundError:
            raise MissingExtraError("paths", "fsspec, which reads URLs,", "remote") from None
        if self._filesystem is not None:
            if self._made is None:
                self._made = as_fsspec(self._filesystem())
            return self._made, name.partition("://")[2] or name
        check_url(name)
        try:
            files, path = fsspec.core.url_to_fs(name, **self._options)
        except (ImportError, ValueError) as error:
            if not self._options and (found := _by_arrow(name)) is not None:
                return found
            raise ConfigError(
                "paths",
                f"{name}: {str(error).partition(chr(10))[0]}.",
                remedy="Install the package that reads such URLs, here and on the workers.",
            ) from error
        return files, path


def as_fsspec(files: Any) -> Any:
    """Return ``files``, of pyarrow or fsspec, as a file system of fsspec."""
    if type(files).__module__.partition(".")[0] == "pyarrow":
        from fsspec.implementations.arrow import ArrowFSWrapper

        return ArrowFSWrapper(files)
    return files


def lasting(name: str, error: OSError) -> SourceError | OSError:
    """Return :class:`SourceError` if asking again can't help, else ``error`` itself."""
    for_good = isinstance(error, FileNotFoundError | IsADirectoryError) or store_denies(error)
    if not for_good and not _NOT_THERE.search(str(error)):
        return error
    text = str(error.strerror or error).partition("\n")[0].rstrip(".")
    return SourceError(
        f"{name}: can't be read: {text}.",
        remedy="Check that it is there, and that this machine may read it: every worker needs the"
        " path, or its own credentials.",
    )


def _names_in(options: Mapping[str, Any]) -> list[str]:
    nested = [value for value in options.values() if isinstance(value, Mapping)]
    return [str(name) for name in options] + [name for each in nested for name in _names_in(each)]


def _by_arrow(url: str) -> tuple[Any, str] | None:
    """Read ``url`` with pyarrow, if it can."""
    if url.partition("://")[0] not in _ARROW_SCHEMES:
        return None
    try:
        from pyarrow.fs import FileSystem
    except ModuleNotFoundError:
        return None
    files, path = FileSystem.from_uri(url)
    return as_fsspec(files), path


def _found_locally(size: int, changed_ns: int) -> Found:
    return Found(size, f"{size} bytes of {changed_ns}")


def _found_remotely(info: Mapping[str, Any]) -> Found:
    size = int(info["size"] or 0)
    marks = (*_MARKS, "LastModified", "created")
    mark = next((info[each] for each in marks if info.get(each) is not None), "")
    return Found(size, f"{size} bytes of {mark}")
