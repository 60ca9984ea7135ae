"""Find and open files that are read by ranges, on disks or behind URLs, on driver and workers.

Nothing that is shipped to the workers contains secrets: a worker finds its own credentials in its
environment, in its instance's role, or through the function ``filesystem``.
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


# The modification time [unix ns] in the identity of a file on a disk; 19 digits since 2001.
_TIME_NS: Final = re.compile(r" bytes of (\d{19})\b")


def changed(name: str, before: str, now: str) -> SourceError:
    """Return the error for a file that has changed since the driver saw it."""
    return SourceError(
        f"{name}: it changed during the run: it was {_as_read(before)} and is {_as_read(now)}.",
        remedy="Read files that don't change any more, or use a source by value (TextLines).",
    )


def check_unchanged(extents: Mapping[str, Extent], checkpoint: Checkpoint) -> None:
    """Raise :class:`SourceError` for a file that was rewritten after some of its rows were done."""
    for name in extents.keys() & checkpoint.partitions.keys():
        check_not_rewritten(name, checkpoint.partitions[name], extents[name], as_read=_as_read)


def _as_read(identity: str) -> str:
    return _TIME_NS.sub(lambda found: f" bytes of {_time(int(found[1]))}", identity)


def _time(unix_ns: int) -> str:
    seconds, rest = divmod(unix_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"


# -- Where files that are read by ranges lie ---------------------------------------------------


# Schemes of URLs that pyarrow reads without another package.
_ARROW_SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
# Bytes per read of a remote file: a request costs some 50 ms, so reads are few and large.
_REMOTE_BLOCK_BYTES: Final = 8 << 20
# Attributes that differ between an object and its successor; listings and single look-ups agree on
# them.
_MARKS: Final = ("ETag", "etag", "md5Hash", "generation", "mtime")
_SECRET: Final = re.compile(r"secret|password|passwd|token|credential|account_key|sas|^key$", re.I)
# Error texts of object stores for a missing object; pyarrow raises plain OSError for each.
_NOT_THERE: Final = re.compile(
    r"no.?such.?bucket|no.?such.?key|not.?found|path does not exist", re.IGNORECASE
)


class Found(NamedTuple):
    """A file's size [bytes], and a mark that differs for a file that replaces it."""

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
        """Return the files that ``patterns`` name, sorted; raise if a pattern has none."""
        local = [] if self._filesystem else [each for each in patterns if not is_remote(each)]
        found = {
            name: _found_locally(size, changed_ns)
            for name, (size, changed_ns) in find(local, may_be_missing=False).items()
        }
        for url in (each for each in patterns if each not in local):
            found |= self._find(url)
        return dict(sorted(found.items()))

    def once_each(self, names: Collection[str]) -> list[str]:
        """Return ``names`` sorted, each local file once; URLs are all kept."""
        local = [name for name in names if self._is_local(name)]
        return sorted([*once_each(local), *(set(names) - set(local))])

    def stat(self, name: str) -> Found:
        """Return the file's current size and mark.  Raises :class:`SourceError` or ``OSError``."""
        try:
            if self._is_local(name):
                return _found_locally(*found_as(os.stat(name)))
            files, path = self._files(name)
            files.invalidate_cache(files._parent(path))  # else its cache answers
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
        """Whether ``name`` is a directory.  Raises :class:`SourceError` or
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
        """Yield ``blocks``, each after a check that the file is still the one that the driver saw.

        An object in a store is checked once per request's worth of bytes.
        """
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
                # One request per folder instead of one per file, where the listing has size and
                # mark.
                infos = {
                    name: info if any(mark in info for mark in _MARKS) else files.info(name)
                    for name, info in files.glob(path, detail=True).items()
                    if not is_hidden(name, path)
                }
                if not infos:  # glob silently skips folders that it may not list
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
        """Return an fsspec file system, and ``name`` in the form that it uses."""
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
    """Return ``files``, a file system of pyarrow or fsspec, as one of fsspec."""
    if type(files).__module__.partition(".")[0] == "pyarrow":
        from fsspec.implementations.arrow import ArrowFSWrapper

        return ArrowFSWrapper(files)
    return files


def lasting(name: str, error: OSError) -> SourceError | OSError:
    """Return a :class:`SourceError` if trying again can't help, else ``error`` itself."""
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
    """Return pyarrow's file system for ``url``, if it has one."""
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
