"""What a run shows, kept beside its checkpoint, so that it is seen from elsewhere too.

It is the snapshot that the run's own view is given, and at the end its report.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final

import msgspec

from flowctl.errors import FlowctlError
from flowctl.instrumentation.snapshot import Report, Snapshot, View
from flowctl.instrumentation.text import printable
from flowctl.instrumentation.views import Beside

# A person sees no more; of 1,000 bolts it takes 0.5 ms, and is 13 KB.
EVERY_S: Final = 1.0
#: A run that has shown nothing for so long [s] is killed, frozen, or can't reach its store.
SILENT_S: Final = 15.0
# How long the end of a run waits to be shown [s]: a store that is there takes some ms.
_LAST_WORD_S: Final = 2.0
_ZLIB_LEVEL: Final = 1  # bolts are alike: a tenth is left; 9 takes several times longer


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of ``job`` showed at ``at_unix_ms``, by the driver's clock.

    ``snapshot``: its newest state; ``report``: how it ended, None while it goes on.  ``driver`` is
    where it runs: process and host.  ``elsewhere``: where to look for what failed, and why.
    """

    job: str
    headline: str
    driver: str
    at_unix_ms: int
    snapshot: Snapshot | None = None
    report: Report | None = None
    elsewhere: str = ""

    def is_silent(self, now_s: float) -> bool:
        """Whether it goes on, as far as it said, but has said nothing lately."""
        return self.report is None and now_s - self.at_unix_ms / 1000 > SILENT_S


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Shown).decode


def pack(shown: Shown) -> bytes:
    """Return ``shown`` as bytes."""
    try:
        packed = _encode(shown)
    except UnicodeEncodeError:  # a name that is not UTF-8
        packed = _encode(_printable(msgspec.to_builtins(shown, builtin_types=(bytes,))))
    return zlib.compress(packed, _ZLIB_LEVEL)


def unpack(data: bytes) -> Shown | None:
    """Return what was packed; None if this version can't read it."""
    try:
        return _decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError):
        return None


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(each) for each in value]
    return value


class Shower(Beside):
    """Keeps what a run shows by ``keep``, beside the view that shows it.

    A thread of its own does so once in ``every_s`` [s] if there is something new: a store that is
    slow or away holds up nobody, and what could not be kept is forgotten.
    """

    def __init__(
        self,
        inner: View,
        keep: Callable[[bytes], None],
        *,
        every_s: float = EVERY_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(inner)
        self._keep, self._every_s, self._now = keep, every_s, now
        self._newest: Shown | None = None
        self._over = Event()
        self._thread = Thread(target=self._run, name="flowctl-shown", daemon=True)

    def start(self, job: str, headline: str) -> None:
        super().start(job, headline)
        driver = f"process {os.getpid()} on {os.uname().nodename}"
        self._newest = Shown(job=job, headline=headline, driver=driver, at_unix_ms=self._now_ms())
        self._thread.start()

    def update(self, snapshot: Snapshot) -> None:
        self._show(snapshot=snapshot)
        super().update(snapshot)

    def stop(self, report: Report) -> None:
        self._show(report=report)
        self._over.set()
        try:
            super().stop(report)
        finally:
            if self._thread.is_alive():
                self._thread.join(_LAST_WORD_S)

    def _show(self, **told: Any) -> None:
        if self._newest is not None:
            self._newest = msgspec.structs.replace(self._newest, at_unix_ms=self._now_ms(), **told)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    def _run(self) -> None:
        kept: Shown | None = None
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._every_s)
            newest = self._newest
            if newest is not None and newest is not kept:
                with suppress(FlowctlError):
                    self._keep(pack(newest))
                kept = newest
