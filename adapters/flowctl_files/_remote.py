"""Files behind a URL (``s3://``, ``gs://``, ``https://``, …), through fsspec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO, Any, Final

from flowctl.errors import ConfigError, MissingExtraError, SourceError
from flowctl_files._paths import is_hidden, unreadable
from flowctl_files._reader import FileReader

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# A request costs some 50 ms: reading this far ahead keeps the connection busy.
_BLOCK_BYTES: Final = 4 << 20


def is_remote(path: str) -> bool:
    """Whether ``path`` has a scheme, as ``s3://bucket/a.log`` has."""
    return _SCHEME.match(path) is not None


class Remote:
    """What URLs name.  ``options`` are fsspec's ``storage_options``: keys, endpoints."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def expand(self, pattern: str) -> list[str]:
        """Return the URLs of the files that ``pattern`` names; raise :class:`SourceError` if there
        are none."""
        files, path = self._files(pattern)
        try:
            if _has_magic(pattern):
                shown = [each for each in files.glob(path) if not is_hidden(each, path)]
                found = [each for each in shown if files.isfile(each)]
            else:
                found = [path] if files.isfile(path) else []
        except (OSError, ImportError) as error:
            raise _refused(pattern, error) from error
        if not found:
            raise SourceError(f"no file matches {pattern!r}.", remedy="Check the URL or pattern.")
        return [files.unstrip_protocol(each) for each in found]

    def size(self, name: str) -> int:
        """Return the file's size in bytes; 0 if the server doesn't say."""
        files, path = self._files(name)
        try:
            return int(files.size(path) or 0)
        except OSError as error:
            raise unreadable(name, error) from error

    def open(self, name: str) -> IO[bytes]:
        """Open the file for reading."""
        files, path = self._files(name)
        opened: IO[bytes] = files.open(path, "rb", block_size=_BLOCK_BYTES)
        return opened

    def _files(self, url: str) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            raise MissingExtraError("paths", "fsspec, which reads URLs,", "remote") from None
        try:
            files, path = url_to_fs(url, **self._options)
        except (ImportError, ValueError, OSError) as error:
            raise _refused(url, error) from error
        return files, path


class RemoteReader(FileReader):
    """A :class:`FileReader` of a file behind a URL.

    Changes during reading are not noticed: object stores replace a file as a whole.
    """

    def __init__(self, remote: Remote, *given: Any, **options: Any) -> None:
        self._remote = remote
        super().__init__(*given, **options)

    def _open_file(self) -> IO[bytes]:
        return self._remote.open(self.name)

    def size(self) -> int:
        return self._file.tell()  # everything was read: this is the end

    def end(self) -> None:
        """Unknown: a later run checks the file again."""

    def is_replaced(self) -> bool:
        return False

    def _check_tail(self) -> None:
        """Nothing to compare with."""


def check_url(path: str) -> None:
    """Refuse a password in a URL: it would show in checkpoints and on screens."""
    if re.match(r"[^/]+://[^/@]*:[^/@]*@", path):
        raise ConfigError(
            "paths",
            "a URL holds a password.",
            remedy="Give it in storage_options={…}, or in the environment variables of the store.",
        )


def _has_magic(pattern: str) -> bool:
    # In a web address "?" and "[" are plain characters.
    return "*" in pattern or ("http" not in pattern[:4] and bool(re.search(r"[?\[]", pattern)))


def _refused(url: str, error: Exception) -> ConfigError | SourceError:
    text = str(error).partition("\n")[0]
    if isinstance(error, OSError):
        return SourceError(
            f"{url}: can't be read: {text}.", remedy="Check the URL and the permissions."
        )
    return ConfigError(
        "paths", f"{url}: {text}.", remedy="Install the package that reads such URLs."
    )
