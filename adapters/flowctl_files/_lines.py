"""From a block of bytes to lines: split, measured, decoded.  Pure: no I/O.

Lines end at ``\\n``; one ``\\r`` before it is removed too.  Nothing else ends a line (not ``\\r``
alone, not the Unicode separators that ``str.splitlines`` accepts).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from flowctl.errors import ConfigError

#: The longest line [bytes] that sources accept by default.  A longer one usually means that the
#: file is not text; and a line must fit into memory on a worker.
MAX_LINE_BYTES: Final = 8 << 20
# In these encodings no character contains a newline byte, and no other byte becomes "\n". So a
# whole block can be decoded at once, which is ten times as fast as line by line.
_WHOLE_BLOCK = frozenset({"utf-8", "ascii", "iso8859-1"})
_BOM = "\ufeff"
# surrogateescape and surrogatepass make text that msgpack can't carry.
_ERRORS = ("strict", "replace", "backslashreplace", "ignore")


class BadLine(Exception):
    """Line ``index`` of a block is invalid at byte ``at`` of the line, for the reason ``why``."""

    def __init__(self, index: int, at: int, why: str) -> None:
        super().__init__(why)
        self.index = index
        self.at = at
        self.why = why


class Lines(NamedTuple):
    """Lines of a block up to the first invalid one.

    ``sizes`` are in bytes, without the ``\\n`` but with the ``\\r``; there may be more of them than
    ``values``.
    """

    values: list[Any]
    sizes: Iterable[int]
    bad: BadLine | None = None


class LineCodec:
    """Splits and decodes blocks.  Immutable, thread-safe.

    ``encoding`` None leaves lines as bytes.  Raises :class:`ConfigError` for an encoding in
    which a newline is not the byte 10, and for handlers whose text can't be sent to a bolt.
    """

    def __init__(self, encoding: str | None, errors: str) -> None:
        if errors not in _ERRORS:
            raise ConfigError(
                "errors", f"{errors!r} can't be used.", remedy=f"Use one of {', '.join(_ERRORS)}."
            )
        self.encoding: str | None = encoding and _checked(encoding)
        self.errors = errors

    def split(self, block: bytes, *, begins: bool = False) -> Lines:
        """Split a block of whole lines; only the last may lack its newline.

        ``begins``: the block is the file's first, so a UTF-8 byte order mark is not part of its
        line.
        """
        lines = self._split(block)
        if begins and self.encoding == "utf-8" and lines.values:
            lines.values[0] = lines.values[0].removeprefix(_BOM)
        return lines

    def _split(self, block: bytes) -> Lines:
        ended = block.endswith(b"\n")
        body = block[:-1] if ended else block
        if self.encoding is None:
            return _bytes_lines(body, ended)
        if self.encoding not in _WHOLE_BLOCK:
            return self._line_by_line(body, ended)
        try:
            text = body.decode(self.encoding, self.errors)
        except UnicodeDecodeError:
            return self._line_by_line(body, ended)
        raw = text.split("\n")
        # ASCII text has as many characters as bytes, so no second split is needed to measure it.
        sizes = map(len, raw if text.isascii() and len(text) == len(body) else body.split(b"\n"))
        if "\r" not in text:
            return Lines(raw, sizes)
        return Lines(_without_cr(text, "\r\n", "\n", "\r", ended), sizes)

    def first_bad(self, block: bytes) -> BadLine | None:
        """Return the first invalid line, if any; a valid block is not split for it."""
        if self.encoding is None or (self.encoding in _WHOLE_BLOCK and block.isascii()):
            return None
        if self.encoding in _WHOLE_BLOCK:
            try:
                block.decode(self.encoding, self.errors)
            except UnicodeDecodeError:
                pass
            else:
                return None
        return self.split(block).bad

    def _line_by_line(self, body: bytes, ended: bool) -> Lines:
        assert self.encoding is not None
        lines, sizes, _ = _bytes_lines(body, ended)
        values: list[str] = []
        for index, line in enumerate(lines):
            try:
                values.append(line.decode(self.encoding, self.errors))
            except UnicodeDecodeError as error:
                why = f"{error.object[error.start]:#04x} is not {self.encoding} ({error.reason})"
                return Lines(values, sizes, BadLine(index, error.start, why))
        return Lines(values, sizes)


def checked_line_bytes(most: int) -> int:
    """Return ``max_line_bytes`` if it is a whole number of 1 or more, else raise ConfigError."""
    given: Any = most
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(
            "max_line_bytes",
            f"must be a whole number of 1 or more, got {given!r}.",
            remedy="Leave it out.",
        )
    return most


def _bytes_lines(body: bytes, ended: bool) -> Lines:
    raw = body.split(b"\n")
    sizes = map(len, raw)
    if b"\r" not in body:
        return Lines(raw, sizes)
    return Lines(_without_cr(body, b"\r\n", b"\n", b"\r", ended), sizes)


def _without_cr(body: Any, crlf: Any, lf: Any, cr: Any, ended: bool) -> list[Any]:
    """Split ``body`` (str or bytes) and remove one CR from each line that ends with a newline."""
    lines: list[Any] = body.replace(crlf, lf).split(lf)
    if ended and lines[-1].endswith(cr):  # the last line's "\n" was cut off with the block's end
        lines[-1] = lines[-1][:-1]
    return lines


def _checked(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
        newline = "\n".encode(encoding)
    except (LookupError, UnicodeError):
        raise ConfigError(
            "encoding", f"no text encoding {encoding!r}.", remedy="Use a name that Python knows."
        ) from None
    if newline != b"\n":
        raise ConfigError(
            "encoding",
            f"in {encoding!r} a newline is not the single byte 10, so lines can't be found.",
            remedy="Convert the file to UTF-8 first (iconv).",
        )
    return name
