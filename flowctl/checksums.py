"""Checksums of stored values that decide which records are done: damage must not be taken for other
content.

All values that flowctl stores use CRC-32: it finds each damage of up to 32 bits in a row, and of
other damage all but one in four billion.  It also covers ``label``, the name under which a value is
kept, so a value under another name does not pass either.  It does not protect against intended
changes.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

CRC_BYTES: Final = 4
_FIELD: Final = re.compile(rb'\{"crc32":"([0-9a-f]{8})",')


def crc32(label: bytes, data: bytes) -> int:
    """Return the checksum of ``data`` that is kept under the name ``label``."""
    return zlib.crc32(data, zlib.crc32(label))


def with_crc(label: str, text: bytes) -> bytes:
    """Return ``text``, which begins with a JSON object, with its checksum as the first field."""
    rest = text[1:]
    return b'{"crc32":"%08x",%b' % (crc32(label.encode(), rest), rest)


def without_crc(label: str, data: bytes) -> tuple[bytes, bool]:
    """Return what :func:`with_crc` was given, and whether there was a checksum.

    Values of older versions have none: the caller decides whether this one may be that old.  Raises
    ``ValueError`` if the checksum is wrong.
    """
    found = _FIELD.match(data)
    if found is None:
        return data, False
    rest = data[found.end() :]
    if int(found[1], 16) != crc32(label.encode(), rest):
        raise ValueError("its checksum is not that of its content")
    return b"{" + rest, True
