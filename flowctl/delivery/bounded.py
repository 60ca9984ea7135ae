"""Calls in a task of Spark: by one thread or several, told when they take long, given up when they
take too long.

A call runs in the task's own thread, as nothing has to end it then.  With a bound it runs in a
helper thread: one for all calls of the partition, and another only after one got stuck.  So the
task goes on and finds the row, which a process that is killed, and its Spark task begun anew with
the same rows, could not do.  A thread can't be ended: what got stuck ends with the process.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, TypeVar

from flowctl.bolts.batch import Batch
from flowctl.bolts.slots import Calls
from flowctl.core.messages import LongCall
from flowctl.core.positions import show_records
from flowctl.errors import CallTooLongError
from flowctl.logs import ModuleLogger

_T = TypeVar("_T")
# How often the calls under way are looked at [s].
_LOOK_S: Final = 1.0

_log = ModuleLogger("flowctl")


class TaskCalls:
    """The calls of one partition, for the thread of its task; a context manager.

    Other threads may call as well, if each ends with :meth:`leave`.
    ``timeout_s``: as :class:`flowctl.bolts.slots.Calls`.  ``at_end`` is called where the calls
    were, at the end: it closes what belongs to that thread.
    """

    def __init__(
        self,
        timeout_s: float | None,
        *,
        patience_s: float = 0.0,
        at_end: Callable[[], object] | None = None,
    ) -> None:
        self._calls = Calls(timeout_s)
        self._calls.patience_s = patience_s
        self._at_end = at_end
        self._local = threading.local()
        self._ended = threading.Event()
        self._look_s = _LOOK_S if timeout_s is None else min(_LOOK_S, timeout_s / 4)
        self._told: set[tuple[str, Any]] = set()

    def __enter__(self) -> TaskCalls:
        threading.Thread(target=self._watch, name="flowctl-calls", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if (helper := self._helper) is not None:
            helper.end(self._at_end)

    def leave(self) -> None:
        """Close what belongs to this thread, which calls no more."""
        if (helper := self._helper) is not None:
            helper.end(self._at_end)
        elif self._at_end is not None:
            self._at_end()

    @property
    def _helper(self) -> _Helper | None:
        """The thread that calls for this one."""
        return getattr(self._local, "helper", None)

    def call(self, process: Callable[[Batch], _T], batch: Batch) -> _T:
        """Return ``process(batch)``, or raise what it raises.

        Raises :class:`CallTooLongError` if it takes too long; it may go on then.
        """
        call = _Call(batch)
        self._calls.begin(call)
        if self._calls.timeout_s is None:
            try:
                return process(batch)
            finally:
                self._calls.end(call)
        helper = self._local.helper = self._helper or _Helper()
        helper.ask(lambda: process(batch), call.answer, lambda: self._calls.end(call))
        wait([call.answer])
        if call.is_stuck:
            self._local.helper = None
            helper.end(None)  # it ends when the call returns
        return call.answer.result()  # type: ignore[no-any-return]

    def here(self, do: Callable[[], object]) -> None:
        """Call ``do`` in the thread in which calls run: a connection may belong to it."""
        if (helper := self._helper) is None:
            do()
        else:
            helper.ask(do, Future()).result()

    def _watch(self) -> None:
        while not self._ended.wait(self._look_s):
            now_s = time.monotonic()
            self._calls.end_overdue(now_s)
            for call in self._calls.long(now_s):
                self._tell(call)

    def _tell(self, call: LongCall) -> None:
        records = show_records(call.first, call.last)
        if (call.partition, records) not in self._told:
            self._told.add((call.partition, records))
            _log.warning(
                "call_takes_long", partition=call.partition, records=records, for_s=call.for_s
            )


class _Call:
    """See :class:`flowctl.bolts.slots.UnderWay`."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.began_at_s = time.monotonic()
        self.answer: Future[Any] = Future()
        self.is_stuck = False

    def overdue(self, error: CallTooLongError) -> None:
        self.is_stuck = True
        self.answer.set_exception(error)


class _Helper:
    """A thread that does one job after the other, until it is ended or stuck."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # No executor's: the process would wait for one that is stuck.
        threading.Thread(target=self._run, name="flowctl-call", daemon=True).start()

    def ask(
        self,
        do: Callable[[], Any],
        answer: Future[Any],
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> Future[Any]:
        """Let it call ``do`` in the context of who asks, and ``answer`` if that ``is_awaited``."""
        context = contextvars.copy_context()

        def job() -> None:
            try:
                made = context.run(do)
            except BaseException as error:  # raised again by the answer
                if is_awaited():
                    answer.set_exception(error)
            else:
                if is_awaited():
                    answer.set_result(made)

        self._jobs.put(job)
        return answer

    def end(self, last: Callable[[], object] | None) -> None:
        """Let it do ``last`` and end; wait for that."""
        if last is not None:
            wait([self.ask(last, Future())])
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


# -- Several calls at once ------------------------------------------------------------------------
#
# With several threads each reads, calls and settles, one at a time but for what takes long:
# reading, waiting for the target, and the calls.  So nothing decides which of them does what:
# whoever is free takes the next piece.  How many calls are made at once is up to the target's limit
# (paced): a thread holds its rows while it waits for a place.


class Callers:
    """The threads of one partition that call at once, at most ``most``; with 1, the one that asks.

    ``lock`` guards what they share; only who holds it calls the other methods.
    """

    def __init__(self, most: int) -> None:
        held = threading.RLock()
        self.lock: threading.Condition = threading.Condition(held)
        # For who waits for all of them: it would take the word that is meant for one of them.
        self._over = threading.Condition(held)
        self._most = most
        self._work: Callable[[], None] = lambda: None
        self._threads = self._idle = self._calling = 0
        self._ending: BaseException | None = None

    @property
    def is_one(self) -> bool:
        """Whether there is no other thread that could change something meanwhile."""
        return self._most == 1

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work`` in as many threads as there is something to do for; return when all ended.

        Raises what one of them raised first.  Calls that are under way then are waited for; no
        other begins.
        """
        if self.is_one:
            work()
            return
        self._work = work
        with self.lock:
            try:
                self._start()
                while self._threads if self._ending is None else self._calling:
                    self._over.wait()
            except BaseException as error:  # an interrupt: no call begins any more
                self._ending = error
                raise
        if self._ending is not None:
            raise self._ending

    def more(self) -> None:
        """Somebody took a piece: if all others are busy, one more thread may be of use."""
        if not self._idle and 0 < self._threads < self._most:
            self._start()

    def _start(self) -> None:
        self._threads += 1
        run = contextvars.copy_context().run
        # Daemons: one that waits for the target's limit need not be waited for.
        threading.Thread(target=run, args=(self._loop,), name="flowctl-caller", daemon=True).start()

    def _loop(self) -> None:
        try:
            self._work()
        except StoppedError:
            pass
        except BaseException as error:  # raised again by run
            with self.lock:
                self._ending = self._ending or error
        finally:
            with self.lock:
                self._threads -= 1
                self._over.notify()
                if self._ending is not None:
                    self.lock.notify_all()

    def check(self) -> None:
        """Raise :class:`StoppedError` if another thread has failed."""
        if self._ending is not None:
            raise StoppedError

    def wait(self, most_s: float) -> None:
        """Wait for something to change, so long at most [s]."""
        self._idle += 1
        try:
            self.lock.wait(most_s)
        finally:
            self._idle -= 1
        self.check()

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """Let others go on meanwhile."""
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Make a call inside the block; the lock is not held there, nor before."""
        with self.lock:
            self.check()
            self._calling += 1
        try:
            yield
        finally:
            with self.lock:
                self._calling -= 1
                if self._ending is not None:
                    self._over.notify()


class StoppedError(BaseException):
    """Another thread of the partition has failed.  No ``Exception``: it is no failure of rows."""
