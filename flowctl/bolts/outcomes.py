"""What a bolt reports about one tuple: an ack, a fail, a refusal, or the end of the run."""

from __future__ import annotations

import traceback
from typing import Final

from flowctl.bolts.batch import Batch
from flowctl.bolts.missing_module import for_missing_module
from flowctl.bolts.refusals import RefusalRule, refusal_of
from flowctl.core.records import Rejected
from flowctl.core.trees.settlement import Settlement
from flowctl.errors import FencedError, UnrunnableError, without_secrets
from flowctl.wire.frames import (
    AckFrame,
    DetailedAckFrame,
    Dying,
    FailFrame,
    RangeFrame,
    SettledFrame,
    TupleFrame,
)

# An exception may quote a whole record: enough to recognise it, and the innermost calls of a
# traceback.
ERROR_CHARS_MAX: Final = 1_000
_TRACEBACK_CHARS_MAX: Final = 4_000
# A user, a password and a host in a URL are shorter; keys of cloud services have some 1,500.
_SECRET_CHARS_MAX: Final = 4_000
# What Python's own operations on a value raise.  Exceptions of client libraries derive from these
# too, but then also from OSError (requests).  However many tuples fail this way, the target is not
# considered down.
_DATA_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)


def is_data_error(error: BaseException) -> bool:
    """Whether ``error`` is about a value, judged by its type, so that no target is to blame."""
    return isinstance(error, _DATA_ERRORS) and not isinstance(error, OSError)


def ack_of(
    frame: TupleFrame, batch: Batch, times_s: tuple[float, float, float], made: object
) -> AckFrame:
    """Return the ack of a tuple for which ``process`` returned ``made``.

    ``times_s``: ``wait_s``, ``service_s`` and ``idle_total_s`` of :class:`AckFrame`.
    """
    said = (frame.tuple_id, frame.attempt, *times_s, batch.sink_s)
    # A bolt of a topology settles each input itself.
    if made is not None and isinstance(made, Settlement):
        return SettledFrame(*said, made)
    if batch.rejected or batch.left_out:
        return DetailedAckFrame(*said, _rejected(batch), batch.left_out)
    return AckFrame(*said)


def fail_of(
    frame: TupleFrame | RangeFrame,
    error: BaseException,
    record_index: int | None,
    rule: RefusalRule | None = None,
) -> FailFrame:
    """Return what to report about ``error``, which ``process`` raised; ``rule`` is the user's
    own."""
    error = for_missing_module(error) or error
    after_s = None
    is_refused = False
    reason = ""
    if not isinstance(error, FencedError | UnrunnableError):
        try:
            refusal = refusal_of(error, rule)
        # the rule itself failed; its error says what it was asked about
        except Exception as broken:
            broken.__context__ = broken.__context__ or error
            error = broken
        else:
            if refusal is not None:
                is_refused, after_s, reason = True, refusal.after_s, refusal.reason
    is_fatal = isinstance(error, UnrunnableError)
    text = error_text(error)
    return FailFrame(
        tuple_id=frame.tuple_id,
        attempt=frame.attempt,
        error=_refused_text(reason, text) if is_refused else text,
        # A refusal is not the fault of any record or line, and there may be very many.
        traceback="" if is_refused or is_fatal else traceback_text(error),
        record_index=record_index,
        fenced=isinstance(error, FencedError),
        refused=is_refused,
        after_s=after_s,
        fatal=is_fatal,
        is_data_error=is_data_error(error),
        newest_epoch=error.newest_epoch if isinstance(error, FencedError) else None,
    )


def dying_of(error: BaseException) -> Dying:
    """The last frame of a bolt that ``process`` ends with ``error``."""
    return Dying(f"process raised {error_text(error)}")


def _refused_text(reason: str, text: str) -> str:
    """``text`` names the type of the error: a reason that is the same is not said twice."""
    why = "" if text == reason or text.startswith(f"{reason}:") else f" ({reason})"
    return f"refused{why}: {text}"[:ERROR_CHARS_MAX]


def _rejected(batch: Batch) -> list[Rejected]:
    return [
        Rejected(index, sendable_start(reason, ERROR_CHARS_MAX))
        for index, reason in sorted(batch.rejected.items())
    ]


def error_text(error: BaseException) -> str:
    """Return what is said about ``error``, on one line unless it has several of its own."""
    if isinstance(error, UnrunnableError):  # ours: the parts are shown separately
        return f"{sendable(error.problem)}\n{error.remedy}"
    try:
        said = str(error)
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    except Exception:  # user code: an exception whose __str__ raises
        text = type(error).__name__
    return sendable_start(text, ERROR_CHARS_MAX)


def traceback_text(error: BaseException) -> str:
    """Return the innermost calls of ``error``, without our own."""
    try:
        # Without our own frame, but with the frames of the errors that led to this one.
        below_us = error.__traceback__ and error.__traceback__.tb_next
        text = "".join(traceback.format_exception(type(error), error, below_us))
    except Exception:
        return ""
    return _sendable_end(text, _TRACEBACK_CHARS_MAX)


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
    """Without passwords in URLs, and without lone surrogates, which UTF-8 can't encode."""
    return without_secrets(text).encode("utf-8", "replace").decode()
