"""Calls in a task of Spark: told when they take long, given up when they take too long.

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
from collections.abc import Callable
from concurrent.futures import Future, wait
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
        self._helper: _Helper | None = None
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
        if self._helper is not None:
            self._helper.end(self._at_end)

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
        helper = self._helper = self._helper or _Helper()
        helper.ask(lambda: process(batch), call.answer, lambda: self._calls.end(call))
        wait([call.answer])
        if call.is_stuck:
            self._helper = None
            helper.end(None)  # it ends when the call returns
        return call.answer.result()  # type: ignore[no-any-return]

    def here(self, do: Callable[[], object]) -> None:
        """Call ``do`` in the thread in which calls run: a connection may belong to it."""
        if self._helper is None:
            do()
        else:
            self._helper.ask(do, Future()).result()

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
