"""How errors are shown: bounded, without passwords, and with what a service answered."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any, Final

from flowctl.errors import QuotaUsedUpError, UnrunnableError, without_secrets

# An exception may quote a whole record: enough to recognise it, and the innermost calls of a
# traceback.
ERROR_CHARS_MAX: Final = 1_000
_TRACEBACK_CHARS_MAX: Final = 4_000
# A user, a password and a host in a URL are shorter; keys of cloud services have some 1,500.
_SECRET_CHARS_MAX: Final = 4_000
ANSWER_CHARS_MAX: Final = 200
_ANSWER_BYTES_MAX: Final = 4 * ANSWER_CHARS_MAX + _SECRET_CHARS_MAX


def error_text(error: BaseException) -> str:
    """Return the text to show for ``error``, on one line unless its own text has several.

    For an HTTP response the start of its body is added, if the error does not quote it.
    """
    if isinstance(
        error, UnrunnableError | QuotaUsedUpError
    ):  # our own error: its parts are shown separately
        return f"{sendable(error.problem)}\n{error.remedy}"
    return sendable_start(message_of(error), ERROR_CHARS_MAX)


def refused_text(error: BaseException, said: str) -> str:
    """Return the text to show for a refusal; ``said`` is the text of its ``Meaning``.

    The text names the type of the error: a reason that is the same is not repeated.
    """
    text = error_text(error)
    why = "" if text == said or text.startswith(f"{said}:") else f" ({said})"
    return f"refused{why}: {text}"[:ERROR_CHARS_MAX]


def message_of(error: BaseException) -> str:
    """Return type, text and answer of ``error``, of any length and with what may be secret."""
    try:
        said = str(error)
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    except Exception:  # user code: an exception whose __str__ raises
        text = type(error).__name__
    answer = answer_of(error)
    if not answer or answer[:ANSWER_CHARS_MAX] in text:
        return text
    # Before the text is cut, or a long URL would leave no room for the rest.
    return f"{text[: ERROR_CHARS_MAX - 2 * ANSWER_CHARS_MAX]}; the answer: {answer}"


def answer_of(error: BaseException) -> str:
    """Return the start of the body of a service's response, on one line; "" if unknown.

    Only what the client has read already (httpx, requests): nothing waits for the network here.
    """
    try:
        content: Any = error.response._content  # type: ignore[attr-defined]
        encoding = error.response.encoding or "utf-8"  # type: ignore[attr-defined]
        if not isinstance(content, bytes):
            return ""
        text = content[:_ANSWER_BYTES_MAX].decode(encoding, "replace")
    except Exception:  # other clients store the body elsewhere, or not at all
        return ""
    shown = "".join(char if char.isprintable() else " " for char in sendable(text))
    return " ".join(shown.split())[:ANSWER_CHARS_MAX]


def traceback_text(error: BaseException) -> str:
    """Return the innermost calls of ``error``, without our own."""
    try:
        # Without our own frames, but with the frames of the errors that led to this one.
        below_us = error.__traceback__
        while below_us is not None and _is_ours(below_us):
            below_us = below_us.tb_next
        text = "".join(traceback.format_exception(type(error), error, below_us))
    except Exception:
        return ""
    return _sendable_end(text, _TRACEBACK_CHARS_MAX)


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__")).startswith("flowctl.")


def sendable_start(text: str, chars_max: int) -> str:
    """Return the first ``chars_max`` characters of ``text``, :func:`sendable`.

    A reason may hold megabytes, and a search of all of it for passwords takes from a second to
    minutes.  A password that is cut would not be recognised, so more than is wanted is searched.
    """
    if len(text) <= chars_max + _SECRET_CHARS_MAX:
        return sendable(text)[:chars_max]
    searched = sendable(text[: chars_max + 2 * _SECRET_CHARS_MAX])
    return searched[:-_SECRET_CHARS_MAX][:chars_max]


def _sendable_end(text: str, chars_max: int) -> str:
    """Return the last ``chars_max`` characters of ``text``; see :func:`sendable_start`."""
    if len(text) <= chars_max + _SECRET_CHARS_MAX:
        return sendable(text)[-chars_max:]
    searched = sendable(text[-chars_max - 2 * _SECRET_CHARS_MAX :])
    return searched[_SECRET_CHARS_MAX:][-chars_max:]


def sendable(text: str) -> str:
    """Return the text without passwords in URLs, and without lone surrogates, which UTF-8 can't
    encode.
    """
    return without_secrets(text).encode("utf-8", "replace").decode()
