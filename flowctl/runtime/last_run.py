"""What a job's last run learned, kept beside its checkpoint; the next one begins with it (ADR 32).

It decides nothing that could be wrong, only how well a run begins: a store that can't keep it, or
damage, costs what it would save.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

import msgspec

from flowctl.checksums import with_crc, without_crc
from flowctl.config import LearnedUse
from flowctl.core.first_guess import Learned
from flowctl.core.spout import SpoutCore
from flowctl.errors import FlowctlError
from flowctl.instrumentation.numbers import duration, rate
from flowctl.logs import ModuleLogger
from flowctl.ports import RememberingStore
from flowctl.prepared import prepare
from flowctl.runtime.control import RunControl

# How often it is kept [s]: after a kill the next run knows what was known then.  A save of some
# hundred bytes takes 1 ms at most.
EVERY_S: Final = 1.0
_VERSION: Final = 1
_TOLD_S: Final = 0.0005  # a cheaper call is not worth a word


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the run learned by ``at_unix_ms``, by its driver's clock."""

    version: int = _VERSION
    at_unix_ms: int
    learned: Learned

    def told(self) -> str:
        """Return it as a line for people."""
        learned = self.learned
        call = f"a call costs {duration(learned.call_s)}, " if learned.call_s >= _TOLD_S else ""
        return f"{call}a slot does {rate(1 / learned.record_s)}"


prepare(LastRun)
_decode: Final = msgspec.json.Decoder(LastRun).decode


def pack(job: str, learned: Learned, at_unix_ms: int) -> bytes:
    """Return it as bytes, with a checksum."""
    return with_crc(job, msgspec.json.encode(LastRun(at_unix_ms=at_unix_ms, learned=learned)))


def unpack(job: str, data: bytes) -> LastRun | None:
    """Return what was packed; None if it is damaged, not of ``job``, or of another version."""
    try:
        text, is_checked = without_crc(job, data)
        last = _decode(text)
    except (ValueError, msgspec.MsgspecError):
        return None
    return last if is_checked and last.version == _VERSION else None


def last_run_of(store: Any, job: str) -> LastRun | None:
    """Return what ``store`` keeps of the last run of ``job``; None: nothing that can be read."""
    if not isinstance(store, RememberingStore):
        return None
    with suppress(FlowctlError):
        return unpack(job, store.remembered(job))
    return None


class Learning:
    """Lets a core begin with what the last run learned, and keeps what this one learns.

    ``began_with``: what it began with, for people; "": nothing.  For one thread at a time.
    """

    def __init__(self, control: RunControl, store: Any, job: str, use: LearnedUse) -> None:
        self._control, self._job, self._keeps = control, job, use != "off"
        self._store = getattr(store, "inner", store)
        self._at_s = -EVERY_S
        self._kept: Learned | None = None
        core = control.core
        self._core = core if isinstance(core, SpoutCore) else None
        self.began_with: str = ""
        if self._core is None or use != "keep":
            return
        if (last := last_run_of(self._store, job)) is not None:
            self.began_with = last.told()
            self._core.recall(last.learned)

    def keep(self, *, is_last: bool = False) -> None:
        """Keep what is known now, if the last time was long enough ago; never raises."""
        core, store = self._core, self._store
        if core is None or not self._keeps or not isinstance(store, RememberingStore):
            return
        now_s = self._control.clock()
        if now_s - self._at_s < EVERY_S and not is_last:
            return
        with self._control.lock:
            learned = core.learn()
        if learned is None or learned == self._kept:
            return
        self._at_s, self._kept = now_s, learned
        try:
            store.remember(self._job, pack(self._job, learned, time.time_ns() // 1_000_000))
        except FlowctlError as error:  # it is no part of the checkpoint
            ModuleLogger("flowctl.checkpoint").debug("learned_not_kept", reason=str(error))
