"""What a bolt reports about one tuple: an ack, a fail, a refusal, or the end of the run."""

from __future__ import annotations

import time
from math import inf

from flowctl.bolts.batch import Batch
from flowctl.core.messages import (
    Ack,
    DetailedAck,
    Emission,
    Fail,
    Rejected,
    SettledAck,
)
from flowctl.core.trees.settlement import Settlement
from flowctl.errors import CallTooLongError, FencedError, QuotaUsedUpError, UnrunnableError
from flowctl.failure.classify import Meaning, RefusalRule, is_data_error, meaning_of
from flowctl.failure.job_fault import for_missing_module, not_allowed
from flowctl.failure.kinds import Kind
from flowctl.failure.texts import (
    ERROR_CHARS_MAX,
    error_text,
    refused_text,
    sendable_start,
    traceback_text,
)
from flowctl.wire.frames import Dying


def ack_of(frame: Emission, batch: Batch, times_s: tuple[float, float, float], made: object) -> Ack:
    """Return the ack of a tuple for which ``process`` returned ``made``.

    ``times_s``: ``wait_s``, ``service_s`` and ``idle_total_s`` of :class:`Ack`.
    """
    said = (frame.tuple_id, frame.attempt, *times_s, batch.sink_s)
    # A bolt of a topology settles each input itself.
    if made is not None and isinstance(made, Settlement):
        return SettledAck(*said, made)
    if batch.rejected or batch.left_out:
        return DetailedAck(*said, _rejected(batch), batch.left_out)
    return Ack(*said)


def fail_of(
    frame: Emission,
    error: BaseException,
    record_index: int | None,
    rule: RefusalRule | None = None,
) -> Fail:
    """Return what to report about ``error``, which ``process`` raised; ``rule`` is the user's
    own."""
    error = for_missing_module(error) or error
    meaning = Meaning(Kind.FAULT)
    if not isinstance(error, FencedError | UnrunnableError | QuotaUsedUpError):
        try:
            meaning = meaning_of(error, rule)
        # the user's rule itself failed; its error says for which error it was called
        except Exception as broken:
            broken.__context__ = broken.__context__ or error
            error = broken
        else:
            error = not_allowed(error, meaning) or error
    is_fatal = isinstance(error, UnrunnableError | QuotaUsedUpError)
    return Fail(
        tuple_id=frame.tuple_id,
        attempt=frame.attempt,
        error=refused_text(error, meaning.said) if meaning.is_refusal else error_text(error),
        # A refusal is not the fault of any record or line, and there may be very many.
        traceback="" if meaning.is_refusal or is_fatal else traceback_text(error),
        record_index=record_index,
        is_fenced=isinstance(error, FencedError),
        is_refused=meaning.is_refusal,
        after_s=_pause_s(error, meaning),
        is_fatal=is_fatal,
        is_data_error=is_data_error(error),
        is_content=meaning.kind is Kind.CONTENT or is_data_error(error),
        newest_epoch=error.newest_epoch if isinstance(error, FencedError) else None,
        is_overdue=isinstance(error, CallTooLongError),
    )


def _pause_s(error: BaseException, meaning: Meaning) -> float | None:
    if isinstance(error, QuotaUsedUpError):
        return 0.0 if error.until_s == inf else max(1.0, error.until_s - time.time())
    return meaning.after_s if meaning.is_refusal else None


def dying_of(error: BaseException) -> Dying:
    """Return the last frame of a bolt whose ``process`` ends it with ``error``."""
    return Dying(f"process raised {error_text(error)}")


def _rejected(batch: Batch) -> list[Rejected]:
    return [
        Rejected(index, sendable_start(reason, ERROR_CHARS_MAX))
        for index, reason in sorted(batch.rejected.items())
    ]
