"""What the run does if bolts are missing, silent, about to lose their place, or out of reach.

First the notices of their supervisor: they are shown, kept, and used to end a run that lacks bolts.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol, runtime_checkable

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.settings import TimeoutSettings
from flowctl.core.tuple_core import TupleCore
from flowctl.errors import BoltsUnavailableError
from flowctl.instrumentation.call_lines import call_lines
from flowctl.instrumentation.numbers import counted
from flowctl.ports import BoltNotice, Bolts, EndingBolts
from flowctl.runtime.control import RunControl
from flowctl.wire.reach import PROBE_AFTER_S
from flowctl.wire.server import SpoutServer


@runtime_checkable
class FollowingBolts(Protocol):
    """Bolts whose number depends on the room in the cluster, ``count`` at most."""

    @property
    def follows_slots(self) -> bool:
        """Whether they are."""


def expected_of(bolts: Bolts) -> str:
    """Return how many bolts there will be, as text: ``4 bolts``."""
    wanted = wanted_of(bolts)
    return counted(wanted, "bolt") if wanted else "bolts for all slots"


def wanted_of(bolts: Bolts) -> int:
    """Return how many bolts there will be; 0: as many as there are slots."""
    return 0 if isinstance(bolts, FollowingBolts) and bolts.follows_slots else bolts.count


class Notices:
    """Notices of one run.  :meth:`put` is for any thread, the rest for one.

    ``bolts`` are those that are expected; ``say`` shows a line; ``on_notice`` gets each notice.
    """

    def __init__(
        self,
        control: RunControl,
        *,
        bolts: Bolts,
        say: Callable[[str], None],
        on_notice: Callable[[BoltNotice], None] | None,
    ) -> None:
        self._control = control
        self._count = bolts.count
        self._expected = expected_of(bolts)
        self._say = say
        self._on_notice = on_notice
        self._new: deque[BoltNotice] = deque()
        self._fatal: dict[str, BoltNotice] = {}
        self._waiting: dict[str, BoltNotice] = {}
        self._starting = ""  # what has to start before the bolts: Spark

    def put(self, notice: BoltNotice) -> None:
        """Take a notice."""
        self._new.append(notice)

    def take(self) -> None:
        """Show what is new, and drop "waiting" notices of bolts that have connected since."""
        while self._new:
            notice = self._new.popleft()
            if self._on_notice is not None:
                self._on_notice(notice)
            self._take(notice)
        for bolt in list(self._waiting):
            if bolt in self._control.core.bolts:
                del self._waiting[bolt]

    def _take(self, notice: BoltNotice) -> None:
        if notice.kind == "fatal":
            self._fatal[notice.bolt] = notice
            self._say(f"{notice.bolt or 'bolts'}: {notice.detail} {notice.remedy}")
        elif notice.kind == "waiting":
            if not self._waiting:
                self._say(self._waits(notice))
            self._waiting[notice.bolt] = notice
        elif notice.kind == "warning":
            self._say(f"{notice.detail} {notice.remedy}")
        elif notice.kind == "starting":
            self._starting = notice.detail
        elif notice.kind == "restarting":
            self._say(f"{notice.bolt} restarts: {notice.detail}")
        elif notice.kind == "returned":
            with self._control.lock:
                self._control.long_calls.returned(notice.bolt)

    def note(self) -> str:
        """Return what the run is waiting for, "" if nothing is missing."""
        if self._waiting:
            return self._waits(next(iter(self._waiting.values())))
        if not self._control.core.bolts:
            what = f"starting {self._starting}, " if self._starting else ""
            return f"{what}waiting for {self._expected}"
        return ""

    def _waits(self, notice: BoltNotice) -> str:
        return f"{notice.detail}: {len(self._control.core.bolts)} of {self._expected} run"

    def check(self, absent_s: float, timeout_s: float) -> None:
        """End the run if no bolt will come, or if none was heard for too long (``absent_s``)."""
        if len(self._fatal) >= self._count or "" in self._fatal:
            notice = next(iter(self._fatal.values()))
            self._control.fail(BoltsUnavailableError(notice.detail, remedy=notice.remedy))
        elif absent_s > timeout_s and self._control.long_calls.is_one_stuck:
            stuck = "; ".join(call_lines(self._control.long_calls.views(self._control.clock())))
            self._control.fail(
                BoltsUnavailableError(
                    f"every bolt is in a call that does not return: {stuck}.",
                    remedy="A thread can't be ended, and the record needs retry.attempts_max of"
                    " them to become a letter. Give the client in process a time-out; or use more"
                    " bolts than attempts, or SparkBolts, whose workers can be ended.",
                )
            )
        elif absent_s > timeout_s:
            self._control.fail(
                BoltsUnavailableError(
                    f"no bolt has been heard from for {absent_s:.0f} s. {self.note()}",
                    remedy="Check the workers' logs; raise start.bolts_timeout_s if they are"
                    " slow to start.",
                )
            )


# -- The supervisor kills and restarts bolts that are silent for long --------------------------
#
# A worker that is frozen or cut off may hold what others wait for: a row lock, SQLite's write
# lock. Only its supervisor can take that away.


# A check that comes late counts at most this much silence: then the driver, or the whole machine,
# stood still, and what the bolts sent meanwhile has yet to be read.
_LOOK_MAX_S: Final = 0.5
# After this much silence (two heartbeats) we remember what the bolt was working on: later, that is
# given to others.
_REMEMBERED_AFTER_S: Final = 0.5
# If the bolts of one tuple are killed again and again, they are not frozen: its call lets no other
# thread run (the GIL).  It gets twice as long each time, until the call finishes.
_DOUBLINGS_MAX: Final = 6


class Ending(NamedTuple):
    """A bolt that is being ended, and the message about it."""

    bolt: str
    text: str


class _Silence:
    """Since when one bolt is silent, and the tuples that it had begun: the oldest, one per slot."""

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
    """Kills silent bolts of one run, checked now and then; for one thread."""

    def __init__(self, control: RunControl, bolts: Bolts, timeout: TimeoutSettings) -> None:
        self._control = control
        self._bolts = bolts if isinstance(bolts, EndingBolts) else None
        self._timeout = timeout
        self._looked_at_s = control.clock()
        self._silent: dict[str, _Silence] = {}
        # Tuple → how often a bolt that had begun it was killed; as many entries as killings.
        self._ended: dict[tuple[str, int], int] = {}

    def look(self, *, is_deaf: bool = False) -> list[Ending]:
        """Kill the bolts whose time is up; return the messages about them.

        ``is_deaf``: no bolt could be heard, so the time since the last check does not count as
        silence.
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
        """Return how long ``consumer`` has been silent at the checks so far; None: not for long."""
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


# -- Bolts leave a place that is about to go (a decommissioned executor) before it does --------


@runtime_checkable
class MovingBolts(Protocol):
    """Bolts (:class:`flowctl.ports.Bolts`) that know when their place is about to go."""

    def leaving(self) -> Collection[str]:
        """Names of the bolts that should leave soon, as a Spark executor is decommissioned.

        Each is ended (END) once it holds nothing, and then has to be run again at another place.
        Called a few times a second, from one thread.
        """


class Departures:
    """Lets bolts leave whose place is about to go, checked now and then; for one thread.

    Not for topologies, whose bolts may hold inputs for as long as they like: those go on until
    their place is gone.
    """

    def __init__(self, control: RunControl, bolts: Bolts) -> None:
        self._control = control
        self._bolts = bolts if isinstance(bolts, MovingBolts) else None
        self._retired: dict[str, int] = {}  # bolt → the epoch of its connection that is to end

    def look(self) -> list[str]:
        """Retire bolts that should leave, and end those that hold nothing any more; return the
        messages.
        """
        control, core = self._control, self._control.core
        if self._bolts is None or not isinstance(core, TupleCore):
            return []
        leaving = self._bolts.leaving()
        if not leaving:
            return []
        messages: list[str] = []
        with control.lock:
            for bolt in leaving:
                consumer = core.bolts.get(bolt)
                if consumer is None:
                    continue
                if self._retired.get(bolt) == consumer.epoch:
                    core.dismiss(bolt, now_s=control.clock(), reason="its place is about to go")
                    continue
                self._retired[bolt] = consumer.epoch
                core.retire(bolt, now_s=control.clock())
                messages.append(self._message(bolt))
        control.wake()
        return messages

    def _message(self, bolt: str) -> str:
        host, _ = self._control.places.get(bolt, ("", 0))
        where = f"{bolt}{f' on {host}' if host else ''}"
        return f"{where} is about to lose its place: it finishes what it has begun and moves"


# -- A bolt whose machine does not answer any more is suspect before its silence alone says so -
#
# Silence of a process means little: it may be busy, or hold the interpreter, so it has to last
# (``lab.timeout.silence_max_s``). But its kernel answers probes whatever the process does.


# How much longer than its sending the answer to a probe may take, besides the path [s]: a timer of
# the kernel is some hundredths late.
_ANSWER_S: Final = 0.25


class Reach:
    """Finds bolts of one run that are out of reach, checked now and then; for one thread.

    A bolt has to be out of reach in two looks in a row: after the driver's own machine stood still,
    the first one comes before the answers.  Looks are half a heartbeat apart or more: a look at
    1,000 bolts takes a millisecond or two, and these send heartbeats once a second.
    """

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self._missing: dict[str, int] = {}  # epochs of bolts that were unreachable in the last look
        self._look_at_s = 0.0

    def look(self, server: SpoutServer | None) -> None:
        """Suspect bolts that can't be reached; ``server`` None: there are no bolts yet."""
        control, core = self._control, self._control.core
        if server is None or not isinstance(core, TupleCore):
            return  # in a topology only silence counts
        missing: dict[str, int] = {}
        now_s = control.clock()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + core.settings.timeout.heartbeat_s / 2
        for consumer in list(core.bolts.values()):
            patience_s = PROBE_AFTER_S + _ANSWER_S + consumer.service.path_peak_s
            if now_s - consumer.heard_at_s < patience_s or not consumer.sends_heartbeats:
                continue  # its machine has answered: no costlier question to the kernel
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
