"""A bolt whose machine does not answer any more is suspect before its silence alone says so.

Silence of a process means little: it may be busy, or hold the interpreter, so it has to last
(``timeout.silence_max_s``).  But its kernel answers probes whatever the process does.
"""

from __future__ import annotations

from typing import Final

from flowctl.core.tuple_core import TupleCore
from flowctl.runtime.control import RunControl
from flowctl.wire.reach import PROBE_AFTER_S
from flowctl.wire.server import SpoutServer

# How much longer than a probe takes to be sent its answer may take, besides the path: a timer of
# the kernel is some hundredths late.
_ANSWER_S: Final = 0.25


class Reach:
    """Checks the bolts of one run now and then; for one thread.

    A bolt has to be out of reach in two looks in a row: after the driver's own machine stood still,
    the first one comes before the answers.  Looks are half a heartbeat apart or more: a look at
    1,000 bolts takes a millisecond or two, and these send heartbeats once a second.
    """

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self._missing: dict[str, int] = {}  # the epoch of who was out of reach in the last look
        self._look_at_s = 0.0

    def look(self, server: SpoutServer | None) -> None:
        """Suspect who can't be reached; ``server`` None: there are no bolts yet."""
        control, core = self._control, self._control.core
        if server is None or not isinstance(core, TupleCore):
            return  # a topology's stages look at silence alone
        missing: dict[str, int] = {}
        now_s = control.clock()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + core.settings.timeout.heartbeat_s / 2
        for consumer in list(core.bolts.values()):
            patience_s = PROBE_AFTER_S + _ANSWER_S + consumer.service.path_peak_s
            if now_s - consumer.heard_at_s < patience_s or not consumer.sends_heartbeats:
                continue  # its machine answered since: the kernel, which costs more, need not say
            if not consumer.flight or consumer.is_suspect:
                continue
            if server.unanswered_s(consumer.bolt) >= patience_s:
                missing[consumer.bolt] = consumer.epoch
        found = [bolt for bolt, epoch in missing.items() if self._missing.get(bolt) == epoch]
        self._missing = missing
        if found:
            with control.lock:
                for bolt in found:
                    if bolt in core.bolts:
                        core.suspect(bolt, now_s=control.clock())
            control.wake()
