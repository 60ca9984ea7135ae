"""Directories of whole files, local or in an object store: put, get, list, delete.

A file exists as a whole or not at all, and survives a loss of power once ``put`` has returned.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from flowctl import disk
from flowctl.errors import ConfigError, MissingExtraError

# Spark's schemes of object stores, with pyarrow's names for them.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_TEMPORARY = ".flowctl-tmp-"  # hidden from Spark, and from `names`


class Found(NamedTuple):
    """A file that was found; its name is relative to the place."""

    name: str
    size_bytes: int


class Place(Protocol):
    """A directory.  Thread-safe; picklable.  All methods may raise ``OSError``."""

    url: str

    def put(self, name: str, data: bytes) -> None:
        """Keep ``data`` as the file ``name``, replacing an existing one."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Keep ``data`` as the new file ``name``; return False if the file already exists.

        Of two processes only one succeeds on a local disk.  For object stores there is no such
        call: both may succeed if they call within milliseconds, and the later one's data stays.
        """

    def get(self, name: str) -> bytes:
        """Return the file's bytes; ``FileNotFoundError`` if there is none."""

    def names(self, directory: str = "", *, recursive: bool = False) -> list[Found]:
        """Return the files in ``directory`` below the place, sorted; [] if it does not exist."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove these files; missing ones are fine."""

    def delete_directory(self, directory: str) -> None:
        """Remove ``directory`` below the place with all its contents."""

    def delete_temporary(self) -> None:
        """Remove temporary files that a killed ``put`` may have left at the top."""

    def path(self, name: str) -> str:
        """Return the URL of a file for Spark."""

    def own_path(self, name: str) -> str:
        """Return the path or URL of a file for pyarrow and flowctl's own sources."""


def place_at(url: str | os.PathLike[str]) -> Place:
    """Return the place that ``url`` names: a path, ``file:``, ``s3://``, ``gs://``, ``hdfs://`` …

    Raises :class:`ConfigError` for a URL that can't be reached with the installed packages.
    """
    if not url:
        raise ConfigError("out", "it is empty.", remedy="Give a path or a URL.")
    text = arrow_path(os.fspath(url)).rstrip("/") or "/"
    return ArrowPlace(os.fspath(url).rstrip("/")) if "://" in text else LocalPlace(text)


def arrow_path(url: str) -> str:
    """Return Spark's path or URL in pyarrow's form; local paths become absolute."""
    if url.startswith("file:"):
        return unquote(re.sub("^file:(//)?", "", url))
    scheme, colon, rest = url.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}://{rest}" if colon else os.path.abspath(url)


class LocalPlace:
    """A directory of this machine, or of a disk that all machines mount."""

    def __init__(self, path: str) -> None:
        self.url = path
        self._root = Path(path)

    def put(self, name: str, data: bytes) -> None:
        """See :class:`Place`."""
        path = self._root / name
        with self._written(path, data) as temporary:
            temporary.replace(path)
        disk.sync_directory(str(path))

    def put_new(self, name: str, data: bytes) -> bool:
        """See :class:`Place`."""
        path = self._root / name
        with self._written(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError:  # a file system without links, such as a mounted object store
                if path.exists():
                    return False
                temporary.replace(path)
        disk.sync_directory(str(path))
        return True

    @contextlib.contextmanager
    def _written(self, path: Path, data: bytes) -> Iterator[Path]:
        """Yield a temporary file with ``data`` beside ``path``; remove it unless renamed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            disk.write_new(str(temporary), data)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, name: str) -> bytes:
        """See :class:`Place`."""
        return (self._root / name).read_bytes()

    def names(self, directory: str = "", *, recursive: bool = False) -> list[Found]:
        """See :class:`Place`."""
        top = self._root / directory
        found = []
        for path in top.rglob("*") if recursive else _children(top):
            if not path.name.startswith(_TEMPORARY) and path.is_file():
                size_bytes = path.stat().st_size
                found.append(Found(path.relative_to(self._root).as_posix(), size_bytes))
        return sorted(found)

    def delete(self, names: Iterable[str]) -> None:
        """See :class:`Place`."""
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    def delete_directory(self, directory: str) -> None:
        """See :class:`Place`."""
        import shutil

        shutil.rmtree(self._root / directory, ignore_errors=True)

    def delete_temporary(self) -> None:
        """See :class:`Place`."""
        for path in self._root.glob(f"{_TEMPORARY}*"):
            path.unlink(missing_ok=True)

    def path(self, name: str) -> str:
        """See :class:`Place`."""
        return f"file://{self._root / name}"  # not quoted, since Spark does not decode it

    def own_path(self, name: str) -> str:
        """See :class:`Place`."""
        return os.path.abspath(self._root / name)


def _children(top: Path) -> list[Path]:
    try:
        return list(top.iterdir())
    except FileNotFoundError:
        return []


class ArrowPlace:
    """A directory that ``pyarrow.fs`` reaches; each process finds its own credentials."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._root = _arrow_files(url)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowPlace, (self.url,)  # opened anew, with the receiving machine's credentials

    def put(self, name: str, data: bytes) -> None:
        """See :class:`Place`."""
        path = f"{self._root}/{name}"
        if self._files.type_name in ("s3", "gcs", "abfs"):  # a file appears when it is closed
            self._write(path, data)
            return
        folder, _, last = path.rpartition("/")
        self._files.create_dir(folder, recursive=True)
        temporary = f"{folder}/{_TEMPORARY}{last}-{secrets.token_hex(8)}"
        self._write(temporary, data)
        self._files.move(temporary, path)

    def put_new(self, name: str, data: bytes) -> bool:
        """See :class:`Place`.  It takes two steps with pyarrow.fs."""
        fs = importlib.import_module("pyarrow.fs")
        (found,) = self._files.get_file_info([f"{self._root}/{name}"])
        if found.type != fs.FileType.NotFound:
            return False
        self.put(name, data)
        return True

    def _write(self, path: str, data: bytes) -> None:
        with self._files.open_output_stream(path) as stream:
            stream.write(data)

    def get(self, name: str) -> bytes:
        """See :class:`Place`."""
        with self._files.open_input_stream(f"{self._root}/{name}") as stream:
            data: bytes = stream.read()
        return data

    def names(self, directory: str = "", *, recursive: bool = False) -> list[Found]:
        """See :class:`Place`."""
        fs = importlib.import_module("pyarrow.fs")
        top = f"{self._root}/{directory}".rstrip("/")
        selector = fs.FileSelector(top, allow_not_found=True, recursive=recursive)
        return sorted(
            Found(info.path.removeprefix(f"{self._root}/"), info.size or 0)
            for info in self._files.get_file_info(selector)
            if info.type == fs.FileType.File and not info.base_name.startswith(_TEMPORARY)
        )

    def delete(self, names: Iterable[str]) -> None:
        """See :class:`Place`."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._files.delete_file(f"{self._root}/{name}")

    def delete_directory(self, directory: str) -> None:
        """See :class:`Place`."""
        self._files.delete_dir_contents(f"{self._root}/{directory}", missing_dir_ok=True)

    def delete_temporary(self) -> None:
        """Do nothing: files appear only once complete, by being closed or moved."""

    def path(self, name: str) -> str:
        """See :class:`Place`."""
        return f"{self.url.partition('?')[0].rstrip('/')}/{name}"

    def own_path(self, name: str) -> str:
        """See :class:`Place`."""
        return arrow_path(self.path(name))


def _arrow_files(url: str) -> tuple[Any, str]:
    try:
        fs = importlib.import_module("pyarrow.fs")
    except ModuleNotFoundError:
        raise MissingExtraError("out", "pyarrow, which reads URLs,", "parquet") from None
    try:
        files, root = fs.FileSystem.from_uri(arrow_path(url))
    except (ValueError, OSError) as error:
        text = str(error).partition("\n")[0]
        raise ConfigError(
            "out",
            f"{url}: {text}.",
            remedy="Give a path that all workers share, or a URL that pyarrow.fs knows: s3://,"
            " gs://, abfss://, hdfs://.",
        ) from error
    return files, root.rstrip("/")
