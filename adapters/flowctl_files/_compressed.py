"""Compressed files, recognised by the end of their names: gzip, bzip2, Zstandard."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Iterable
from typing import IO, Any, Final, Protocol, cast

from flowctl.errors import MissingExtraError, SourceError

_KINDS: Final = {".gz": "gzip", ".bz2": "bzip2", ".zst": "zstd"}
# Ends of names of files that hold no lines of text, such as archives.  Some would pass for text,
# such as a small .zip or the contents of a .tar.gz, and each line would be processed.
_NO_TEXT: Final = (
    *(".7z", ".lz4", ".lzo", ".rar", ".snappy", ".tar", ".xz", ".zip"),
    *(".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.zst"),
)
# First bytes of compressed data; no line of text has these bytes.
_BEGINNINGS: Final = {
    b"\x1f\x8b\x08": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    **{b"BZh%d1AY&SY" % level: ".bz2" for level in range(1, 10)},
}
# First bytes of other files that can't be split into lines byte by byte.  UTF-16's byte order
# marks: its newline is two bytes, and with errors="replace" each line would pass for a record.
_NO_LINES: Final = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\xfd7zXZ\x00": "compressed (xz)",
    b"PK\x03\x04": "a zip archive",
}
BEGINNING_BYTES: Final = max(map(len, [*_BEGINNINGS, *_NO_LINES]))
# Compressed bytes decompressed at a time: they make some 100 KB of a log's text.
_INPUT_BYTES: Final = 8 << 10
# Bytes skipped at a time when a resumed run passes the part already done.
_SKIP_BYTES: Final = 1 << 20
_EMPTY: Final = "the file is empty, without even a header"


class Decompressed(Protocol):
    """A reader of the decompressed bytes of a file."""

    def read1(self, size: int, /) -> bytes:
        """Return 1 to ``size`` bytes, none at the end; raise an error where the data are
        damaged."""

    def close(self) -> None: ...


def kind_of(name: str) -> str:
    """Return the compression that the file's name tells of, "" for none."""
    lower = name.lower()
    return next((kind for end, kind in _KINDS.items() if lower.endswith(end)), "")


def check_text(names: Iterable[str]) -> None:
    """Raise :class:`SourceError` for an archive, or a compression that can't be read here."""
    for name in names:
        if name.lower().endswith(_NO_TEXT):
            raise SourceError(
                f"{name}: this is an archive, or compressed in a way that flowctl can't read.",
                remedy="Unpack it, or narrow the pattern: plain text, .gz, .bz2 and .zst are read.",
            )


def check_beginning(name: str, data: bytes) -> None:
    """Raise :class:`SourceError` if a file that passes for plain text begins like a compressed one.

    With ``errors="replace"``, or as Latin-1 or bytes, its lines would pass for records.
    """
    for beginning, end in _BEGINNINGS.items():
        if data.startswith(beginning):
            raise SourceError(
                f"{name}: it is compressed ({_KINDS[end]}), but its name does not end in {end}.",
                remedy=f"Rename it to {name}{end}, or unpack it.",
            )
    for beginning, what in _NO_LINES.items():
        if data.startswith(beginning):
            raise SourceError(
                f"{name}: it is {what}, which has no lines that flowctl could read.",
                remedy="Convert it to UTF-8 first (iconv), or unpack it.",
            )

    if _is_utf_16(data[:BEGINNING_BYTES]):
        raise SourceError(
            f"{name}: it is UTF-16 without a byte order mark, which has no lines that flowctl could"
            " read.",
            remedy="Convert it to UTF-8 first (iconv -f UTF-16LE or UTF-16BE).",
        )


def _is_utf_16(data: bytes) -> bool:
    """Whether every second byte and no other is NUL, as in ASCII text encoded as UTF-16."""
    even, odd = data[::2], data[1::2]
    is_little, is_big = all(even) and not any(odd), all(odd) and not any(even)
    return len(odd) > 1 and (is_little or is_big)  # one NUL may stand in a line of bytes


def decompressed(name: str, file: IO[bytes]) -> Decompressed | None:
    """Return a reader of the open ``file``, None for one that is not compressed.

    Raises :class:`MissingExtraError` for Zstandard without its package.
    """
    match kind_of(name):
        case "gzip":
            return _Gzip(fileobj=file, mode="rb")
        case "bzip2":
            return _Frames(file, bz2.BZ2Decompressor)
        case "zstd":
            return _Frames(file, _zstd())
    return None


def _is_damage(error: Exception) -> bool:
    """Whether ``error`` says that the compressed data are damaged or truncated."""
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return True
    # bz2 raises plain OSError for damage, but errors of system calls always have a number.
    is_bz2 = isinstance(error, OSError) and error.errno is None
    return is_bz2 or type(error).__name__ == "ZstdError"


class Unpacking:
    """Reads a compressed file in pieces of a wanted size; good bytes before a damage come first.

    ``line``, if it is known, returns the number of the next line, for errors.
    """

    def __init__(
        self, name: str, unpacked: Decompressed, line: Callable[[], int] | None = None
    ) -> None:
        self._name = name
        self._line = line
        self._unpacked = unpacked
        self._error: Exception | None = None

    def skip(self, size: int) -> None:
        """Skip the first ``size`` decompressed bytes."""
        view = memoryview(bytearray(_SKIP_BYTES))
        while size and (got := self.read_into(view[:size])):
            size -= got

    def read_into(self, view: memoryview) -> int:
        """Fill ``view``; less is read only at the end of the file, or before a damage."""
        filled = 0
        while filled < len(view) and self._error is None:
            try:
                # Not read(): when it finds damage it drops the good bytes before it.
                data = self._unpacked.read1(len(view) - filled)
            except Exception as error:
                self._error = error  # after what was good
                break
            if not data:
                break
            view[filled : filled + len(data)] = data
            filled += len(data)
        if not filled and self._error is not None:
            raise self._damaged(self._error) if _is_damage(self._error) else self._error
        return filled

    def _damaged(self, error: Exception) -> SourceError:
        kind = kind_of(self._name)
        after = "" if self._line is None else f" after line {self._line() - 1}"
        return SourceError(
            f"{self._name}: the {kind} data are damaged or truncated{after} ({error}).",
            remedy=f"Get the file again ({kind} -t checks it) and start again: what was read is"
            " kept.",
        )

    def close(self) -> None:
        """Release the decompressor; the file stays open."""
        self._unpacked.close()


class _Gzip(gzip.GzipFile):
    """Treats an empty file, such as a failed copy leaves, as damaged: it lacks a header."""

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        if not data and size and not cast("IO[bytes]", self.fileobj).tell():
            raise EOFError(_EMPTY)
        return data


class _Frame(Protocol):
    """A decompressor of one frame of Zstandard, or one stream of bzip2."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _Frames:
    """Reads compressed frames, one after the other; ``new`` makes the decompressor of a frame.

    Zstandard's own reader takes a truncated file for a complete one, and the standard library's of
    bzip2 leaves out whatever follows a stream that begins with damage.
    """

    def __init__(self, file: IO[bytes], new: Callable[[], _Frame]) -> None:
        self._file = file
        self._new = new
        self._frame: _Frame | None = None  # decompressor of the current frame, if any
        self._input = b""
        self._output = b""
        self._is_begun = False

    def read1(self, size: int, /) -> bytes:
        while not self._output:
            data = self._input or self._file.read(_INPUT_BYTES)
            self._input = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                if not self._is_begun:
                    raise EOFError(_EMPTY)
                return b""
            self._is_begun = True
            if self._frame is None:
                self._frame = self._new()
            self._output = self._frame.decompress(data)
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        given, self._output = self._output[:size], self._output[size:]
        return given

    def close(self) -> None:
        """Nothing to close."""


def _zstd() -> Callable[[], _Frame]:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise MissingExtraError("paths", "zstandard, which reads .zst files,", "zstd") from None
    made: Callable[[], Any] = zstandard.ZstdDecompressor().decompressobj
    return made
