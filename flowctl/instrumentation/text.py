"""Foreign text on our screen: records, file names, errors, texts from servers and peers.

Unescaped, an escape sequence in it could set the window's title or clear the screen, a newline
could forge a line of ours, and a bidi control could reverse one.  All code that shows such text
passes it through here; JSON does not need it.
"""

from __future__ import annotations

import os
import re
import shlex
import traceback
from collections.abc import Sequence
from typing import Final

from flowctl.errors import has_secrets, without_secrets

# C0, DEL, C1; line and paragraph separator; bidi marks, embeddings, overrides and isolates; the
# byte order mark; lone surrogates, which a stream can't encode (file names contain them).
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TAB_CELLS: Final = 4  # as most editors show tabs
BLOCK_PREFIX: Final = "  | "  # no line of a block can be taken for one of ours
REDIS_URL_VARIABLE: Final = "FLOWCTL_REDIS_URL"


def printable(text: object) -> str:
    """Return ``text`` as one line that a terminal only displays: ``\\x1b``, ``\\n``,
    ``\\u202e``."""
    return _UNSAFE.sub(_escaped, repaired(str(text)))


def repaired(text: str) -> str:
    """Return ``text`` with the UTF-8 that the operating system gave and Python did not decode.

    Arguments and file names come in that form with ``LC_ALL=C`` and without Python's UTF-8 mode.
    """
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode()
    except UnicodeError:  # bytes of another encoding
        return text


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


def printable_block(text: str, *, prefix: str = BLOCK_PREFIX) -> str:
    """Return several lines, as of a traceback: each made printable, behind ``prefix``.

    No newline at the end.
    """
    lines = text.rstrip("\n").split("\n")
    return "\n".join(f"{prefix}{printable(line.expandtabs(_TAB_CELLS))}" for line in lines)


def printable_problem(text: str) -> str:
    """Return the first line of ``text`` printable, the rest (a traceback) as a block."""
    first, newline, rest = text.rstrip("\n").partition("\n")
    return printable(first) + (f"\n{printable_block(rest)}" if newline else "")


def printable_traceback(error: BaseException) -> str:
    """Return the traceback of ``error`` as a block, without passwords in URLs."""
    return printable_block(without_secrets("".join(traceback.format_exception(error))))


def shown_command(words: Sequence[str]) -> str:
    """Return a command line to paste, without passwords.

    A URL with a password is replaced by the variable FLOWCTL_REDIS_URL; a comment says so unless
    the variable is already set to it.
    """
    shown: list[str] = []
    is_missing = False
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        if not has_secrets(word):
            shown.append(shlex.quote(word))
        elif before == "--redis" or (option == "--redis" and equals):
            shown.append(
                f'{option}="${REDIS_URL_VARIABLE}"' if equals else f'"${REDIS_URL_VARIABLE}"'
            )
            is_missing |= os.environ.get(REDIS_URL_VARIABLE) != (value if equals else word)
        else:
            shown.append(shlex.quote(without_secrets(word)))
            is_missing = True
    hint = f"  # a URL with a password is not printed: set {REDIS_URL_VARIABLE} to it"
    return " ".join(shown) + (hint if is_missing else "")
