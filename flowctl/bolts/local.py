"""LocalBolts: bolts as threads of this process, for laptops, tests and jobs without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from flowctl.arguments import check_arguments, check_whole
from flowctl.bolts.limits import check_descriptors
from flowctl.bolts.worker import FlowControlBolt
from flowctl.core.retry import RESTART, WELL_AFTER_S
from flowctl.errors import AuthenticationError, ConfigError, WireError
from flowctl.failure.callables import check_process
from flowctl.failure.classify import RefusalRule, check_rule
from flowctl.ports import BoltNotice, Endpoint, Process, all_fatal
from flowctl.threads import guarded

# How many threads of a run may be left in calls that don't return.  Each holds a stack, and what
# its call holds; if there are more, something else is wrong than a few records.
STUCK_MAX: Final = 64
# Over this time [s] a process uses its processor evenly enough; from this share of one on, more
# threads would only wait for the interpreter.
_LOAD_OVER_S: Final = 1.0
_LOAD_FULL: Final = 0.8


class LocalBolts:
    """Runs ``process`` in ``count`` bolts with ``slots`` tuples at once each; implements
    ``ports.Bolts``.

    The bolts share one interpreter: they help when ``process`` waits, not when it computes. A plain
    ``process`` may be called from several threads at once; an ``async def`` runs as tasks of the
    one event loop of this process.  ``refusal(error)`` may say which errors of ``process`` are
    refusals of the target (docs/process.md).  The bolts are named ``prefix`` and a number from 1.
    An object serves one run at a time, and may be used again afterwards.
    """

    shares_interpreter: Final = True  # with the driver: see :class:`Snapshot`

    @check_arguments("prefix")
    def __init__(
        self,
        process: Process,
        *,
        count: int,
        slots: int = 1,
        prefix: str = "b",
        refusal: RefusalRule | None = None,
    ) -> None:
        check_process(process)
        check_rule(refusal)
        check_whole(count=count)
        check_whole(slots=slots)
        self.count = count
        self.slots = slots
        self._prefix = prefix
        self._process = process
        self._refusal = refusal
        self._run: _Run | None = None
        self._load = _Load()

    @property
    def names(self) -> Sequence[str]:
        """See :class:`flowctl.ports.NamedBolts`."""
        return [f"{self._prefix}{number}" for number in range(1, self.count + 1)]

    def has_room(self) -> bool | None:
        """Whether this process leaves time for more threads; None for the first second."""
        return self._load.has_room()

    def listen_host(self) -> str:
        """Loopback: the bolts run here."""
        return "127.0.0.1"

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        """Start the bolts and return; a bolt that dies is restarted after a pause."""
        if self._run is not None:
            raise ConfigError(
                "bolts",
                "these LocalBolts are in use by another run.",
                remedy="Give each spout its own LocalBolts, or wait until the other run ends.",
            )
        check_descriptors(2 * self.count)  # both ends of each connection are in this process
        bolt_of = partial(
            FlowControlBolt,
            endpoint,
            process=self._process,
            slots=self.slots,
            refusal=self._refusal,
        )
        self._run = _Run(bolt_of, notify)
        self._run.start(self.names)

    def stop(self, *, timeout_s: float) -> None:
        """End all bolts; a call of ``process`` that takes longer than ``timeout_s`` is abandoned.

        Does nothing if the bolts were not started.
        """
        run, self._run = self._run, None
        if run is not None:
            run.stop(timeout_s)


class _Load:
    """How much of one processor this process used lately: its threads share one interpreter."""

    def __init__(self) -> None:
        self._at_s, self._used_s = time.monotonic(), time.process_time()
        self._has_room: bool | None = None

    def has_room(self) -> bool | None:
        passed_s = time.monotonic() - self._at_s
        if passed_s >= _LOAD_OVER_S:
            used_s = time.process_time()
            self._has_room = used_s - self._used_s < _LOAD_FULL * passed_s
            self._at_s, self._used_s = self._at_s + passed_s, used_s
        return self._has_room


class _Run:
    """The bolts from one start to its stop: an abandoned bolt never joins the next run."""

    def __init__(
        self, bolt_of: Callable[[str], FlowControlBolt], notify: Callable[[BoltNotice], None]
    ) -> None:
        self._bolt_of = bolt_of
        self._notify = notify
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._running: dict[str, FlowControlBolt] = {}
        self._stuck: set[threading.Thread] = set()  # in calls that nobody waits for any more

    def start(self, bolts: Sequence[str]) -> None:
        for bolt in bolts:
            self._start(bolt)

    def _start(self, bolt: str) -> None:
        name = f"flowctl-bolt-{bolt}"
        supervise = guarded(self._supervise, name=name, on_death=all_fatal(self._notify))
        thread = threading.Thread(target=supervise, args=(bolt,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _replace(self, bolt: str, stuck: threading.Thread) -> None:
        """Go on with another thread: ``stuck`` is in a call that took too long.

        It can't be ended, and a bad record holds as many threads as it has attempts.
        """
        if not self._stopping.is_set() and len(self._stuck) < STUCK_MAX:
            self._stuck.add(stuck)
            self._start(bolt)

    def _is_replaced(self) -> bool:
        """Whether another thread took the place of this one, whose call is back now."""
        thread = threading.current_thread()
        is_replaced = thread in self._stuck
        self._stuck.discard(thread)
        return is_replaced

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        for bolt in list(self._running.values()):
            bolt.cancel()
        deadline_s = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(deadline_s - time.monotonic(), 0))

    def _supervise(self, bolt: str) -> None:
        self._notify(BoltNotice(bolt, "starting"))
        pauses = RESTART.waits()
        while not self._stopping.is_set():
            began_at_s = time.monotonic()
            try:
                detail = self._run_once(bolt)
            except (AuthenticationError, WireError) as error:
                self._notify(BoltNotice(bolt, "fatal", error.problem, error.remedy))
                return
            except BaseException as error:  # also SystemExit of user code
                detail = ": ".join(filter(None, (type(error).__name__, str(error))))
            if detail is not None and detail.startswith("overdue"):
                self._notify(BoltNotice(bolt, "returned"))
            if self._is_replaced():
                return
            if detail is None or self._stopping.is_set():
                return
            if time.monotonic() - began_at_s > WELL_AFTER_S:
                pauses = RESTART.waits()
            self._notify(BoltNotice(bolt, "restarting", detail))
            self._stopping.wait(next(pauses))

    def _run_once(self, bolt: str) -> str | None:
        """Run the bolt for one connection; return why it must restart, or None if it need not."""
        running = self._bolt_of(bolt)
        running.when_stuck = partial(self._replace, bolt, threading.current_thread())
        self._running[bolt] = running
        if self._stopping.is_set():  # stop() may have checked just before
            return None
        ended = running.run().ended
        return None if ended == "end" else ended
