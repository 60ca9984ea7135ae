"""The supervisor kills and restarts bolts that are silent for long.

A worker that is frozen or cut off may hold what others wait for: a row lock, SQLite's write lock.
Only its supervisor can take that away.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Final, NamedTuple

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.settings import TimeoutSettings
from flowctl.ports import Bolts, EndingBolts
from flowctl.runtime.control import RunControl

# A check that comes late counts at most this much silence: then the driver, or the whole machine,
# stood still, and what the bolts sent meanwhile has yet to be read.
_LOOK_MAX_S: Final = 0.5
# After this much silence (two heartbeats) we remember what the bolt was working on: later, that is
# given to others.
_REMEMBERED_AFTER_S: Final = 0.5
# A tuple whose bolts are killed again and again does not freeze them but runs in a call that lets
# no other thread run (the GIL): it gets twice as long each time, until the call finishes.
_DOUBLINGS_MAX: Final = 6


class Ending(NamedTuple):
    """A bolt that is being ended, and the message about it."""

    bolt: str
    text: str


class _Silence:
    """Since when one bolt is silent, and what it had begun: the oldest tuples, one per slot."""

    __slots__ = ("begun", "epoch", "is_ended", "partitions", "since_unix_s", "watched_s")

    def __init__(self, consumer: AdaptiveFlowConsumer, silent_s: float) -> None:
        stage = consumer.bolt.rpartition(".")[0]  # each connection counts its tuples from the start
        begun = list(consumer.flight.values())[: consumer.slots]
        self.epoch = consumer.epoch
        self.since_unix_s = time.time() - silent_s
        self.watched_s = _REMEMBERED_AFTER_S
        self.begun = [(stage, flow_tuple.tuple_id) for flow_tuple in begun]
        self.partitions = sorted({flow_tuple.cut.partition for flow_tuple in begun})
        self.is_ended = False


class Endings:
    """Checks the bolts of one run now and then; for one thread."""

    def __init__(self, control: RunControl, bolts: Bolts, timeout: TimeoutSettings) -> None:
        self._control = control
        self._bolts = bolts if isinstance(bolts, EndingBolts) else None
        self._timeout = timeout
        self._looked_at_s = control.clock()
        self._silent: dict[str, _Silence] = {}
        # How often a bolt was killed that had begun this tuple; as many entries as killings.
        self._ended: dict[tuple[str, int], int] = {}

    def look(self, *, is_deaf: bool = False) -> list[Ending]:
        """Kill the bolts whose time is up; return the messages about them.

        ``is_deaf``: nobody could be heard, so this look does not count as silence.
        """
        now_s = self._control.clock()
        look_s = 0.0 if is_deaf else min(now_s - self._looked_at_s, _LOOK_MAX_S)
        self._looked_at_s = now_s
        if self._bolts is None or self._timeout.end_after_s is None:
            return []
        with self._control.lock:
            overdue = [
                (consumer, silence)
                for consumer in self._control.core.bolts.values()
                if (silence := self._watch(consumer, now_s, look_s)) is not None
                and self._is_overdue(silence)
            ]
        return [self._end(self._bolts, consumer.bolt, silence) for consumer, silence in overdue]

    def _watch(
        self, consumer: AdaptiveFlowConsumer, now_s: float, look_s: float
    ) -> _Silence | None:
        """How long ``consumer`` has been silent, as far as we checked; None: not for long."""
        silent_s = now_s - consumer.heard_at_s
        if silent_s < _REMEMBERED_AFTER_S or not consumer.sends_heartbeats:
            self._silent.pop(consumer.bolt, None)
            return None
        silence = self._silent.get(consumer.bolt)
        if silence is None or silence.epoch != consumer.epoch:
            silence = self._silent[consumer.bolt] = _Silence(consumer, silent_s)
        else:
            silence.watched_s += look_s
        return silence

    def _is_overdue(self, silence: _Silence) -> bool:
        end_after_s = max(self._timeout.end_after_s or 0.0, self._timeout.silence_max_s)
        ended = max((self._ended.get(each, 0) for each in silence.begun), default=0)
        patience_s = end_after_s * 2 ** min(ended, _DOUBLINGS_MAX)
        return not silence.is_ended and silence.watched_s >= patience_s

    def _end(self, bolts: EndingBolts, bolt: str, silence: _Silence) -> Ending:
        silence.is_ended = True
        for each in silence.begun:
            self._ended[each] = self._ended.get(each, 0) + 1
        since = time.strftime("%H:%M:%S", time.localtime(silence.since_unix_s))
        reason = f"silent since {since}"
        host, pid = self._control.places.get(bolt, ("", 0))
        # It may have to ask a JVM or a server that does not answer.
        threading.Thread(
            target=bolts.end,
            args=(bolt,),
            kwargs={"reason": reason, "host": host, "pid": pid},
            name=f"flowctl-end-{bolt}",
            daemon=True,
        ).start()
        where = f" (process {pid}{'' if host == socket.gethostname() else f' on {host}'})"
        names = " and ".join(silence.partitions)
        work = f", working on {names}" if names else ""
        free = ", which frees any locks that others wait for" if names else ""
        return Ending(
            bolt,
            f"{bolt}{where if pid else ''} has been {reason}{work}: flowctl kills and restarts it"
            f"{free}",
        )
