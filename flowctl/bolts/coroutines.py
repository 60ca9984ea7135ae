"""The slots of a bolt whose ``process`` is ``async def``: tasks of one event loop.

The loop is that of the process (:mod:`flowctl.bolts.event_loop`).  A bolt takes a tuple for each
free slot, runs it as a task, and reports when the task has ended; no thread is woken between two
tuples of a slot.  A thread per slot that waits for its coroutine would be simpler, but it was
measured: 340 us of CPU a tuple, against 105 here and 135 for threads that only sleep (2 bolts of 64
slots, 50 ms a tuple, driver included).

Imported only where it is needed: asyncio costs a worker 50 ms.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from flowctl.bolts.batch import Batch
from flowctl.bolts.event_loop import bounded, run_shared
from flowctl.bolts.link import Link
from flowctl.bolts.outcomes import dying_of
from flowctl.bolts.range_ahead import NOT_YET
from flowctl.bolts.range_turns import RangeTurn
from flowctl.bolts.slots import CANCEL_MAX_S
from flowctl.bolts.turns import Turns
from flowctl.bolts.work import Work
from flowctl.core.messages import RangeEmission
from flowctl.failure.callables import check_returned

# A slot in a range waits for its target in steps of this [s]: a success of another slot ends the
# wait.
_LOOK_AGAIN_S: Final = 0.05
AsyncProcess = Callable[[Batch], Awaitable[Any]]


def work_in_loop(link: Link, process: AsyncProcess, turns: Turns, slots: int) -> None:
    """Processes up to ``slots`` tuples at once until the link ends; then running tasks are
    cancelled.

    Call it before the link is started.  KeyboardInterrupt passes through.
    """
    run_shared(_Slots(link, process, turns, slots).work())


class _Slots:
    """The slots, in the loop's thread: all methods but :meth:`_from_outside` are called there."""

    def __init__(self, link: Link, process: AsyncProcess, turns: Turns, slots: int) -> None:
        self._link = link
        timeout_s = link.calls.timeout_s
        self._process = process  # without a time-out nothing cancels a call
        if timeout_s is not None:
            self._process = lambda batch: bounded(process(batch), timeout_s)
        self._turns = turns
        self._free = [object() for _ in range(slots)]  # slots without a tuple
        self._idle: set[object] = set()  # those that the link counts as idle
        self._tasks: set[asyncio.Task[None]] = set()
        self._fill_later: asyncio.TimerHandle | None = None
        self._flush_is_due = False
        self._ended = asyncio.Event()
        self._defect: BaseException | None = None
        self._is_over = False

    async def work(self) -> None:
        """Return when the link and all tasks have ended."""
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._link.calls.patience_s = CANCEL_MAX_S
        self._link.on_end = self._from_outside(self._end)
        self._link.on_tuples = self._from_outside(self._fill)
        self._link.start()
        self._fill()
        try:
            await self._ended.wait()
        finally:
            self._end()
            while self._tasks:  # a task may take its time to end
                await asyncio.wait(self._tasks)
            self._is_over = True
        if self._defect is not None:
            raise self._defect

    def _from_outside(self, call: Callable[[], None]) -> Callable[[], None]:
        def in_the_loop() -> None:
            self._loop.call_soon_threadsafe(self._safely, call)

        return in_the_loop

    def _safely(self, call: Callable[[], None]) -> None:
        """Run ``call`` as a callback of the loop, which would only log an exception."""
        if self._is_over:  # the loop also serves other bolts
            return
        try:
            call()
        except Exception as error:
            self._break(error)

    def _break(self, defect: BaseException) -> None:
        """End because of an error that does not come from process: a lost slot would be hard to
        notice.
        """
        self._defect = defect
        self._end()

    def _end(self) -> None:
        if not self._ended.is_set():  # cancelling twice would interrupt the tasks' cleanup
            self._ended.set()
            for task in self._tasks:
                task.cancel()

    def _fill(self) -> None:
        """Give tuples to free slots; check again when a pause is over."""
        free, self._free = self._free, []
        look_in_s = math.inf
        is_empty = False
        for slot in free:
            if is_empty and slot in self._idle:  # the other free slots would get the same answer
                self._free.append(slot)
                continue
            pause_s = self._go_on(slot)
            look_in_s = min(look_in_s, pause_s or math.inf)
            is_empty = slot in self._idle and not self._link.is_pausing
        if self._fill_later is not None:
            self._fill_later.cancel()
            self._fill_later = None
        if look_in_s < math.inf:
            self._fill_later = self._loop.call_later(look_in_s, self._safely, self._fill)

    def _go_on(self, slot: object) -> float:
        """Give ``slot`` its next tuple, if there is one; return how long the slot has to wait
        [s].
        """
        self._idle.discard(slot)
        taken = self._link.take_now(slot)
        if isinstance(taken, Work):
            self._begin(taken, slot)
            return 0.0
        self._free.append(slot)
        if taken is None:
            self._idle.add(slot)
            return 0.0
        return taken

    def _begin(self, work: Work, slot: object) -> None:
        # One task per tuple, with its own context variables and its own cancellation.
        turn = self._turn(work, slot)
        task = self._context.copy().run(self._loop.create_task, turn)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            self._break(defect)

    async def _turn(self, work: Work, slot: object) -> None:
        """Process one tuple, report, and let the slot continue."""
        if isinstance(work.frame, RangeEmission):
            await self._range(work, slot)
            return
        turn = self._turns.begin(work)
        try:
            made = await self._turns.fit.call_async(self._process, turn.batch)
            check_returned(made)
        except (KeyboardInterrupt, GeneratorExit) as error:
            self._die(error)
            raise
        except BaseException as error:  # CancelledError too
            if self._ended.is_set():  # the report has no receiver any more
                return
            outcome = turn.raised(error)
        else:
            outcome = turn.returned(made)
        concerns_others = self._link.report(outcome, slot)
        self._flush_soon()
        if self._go_on(slot) > 0 or concerns_others:
            self._fill()

    def _die(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):  # GeneratorExit closes a coroutine
            self._link.flush(dying_of(error))

    async def _range(self, work: Work, slot: object) -> None:
        """Process one range, batch by batch, and let the slot continue."""
        ready = asyncio.Event()
        turn = self._turns.begin_range(work, slot, self._from_outside(ready.set))
        with turn:
            while (batch := await self._next_batch(turn, ready)) is not None:
                try:
                    made = await self._turns.fit.call_async(self._process, batch)
                    check_returned(made)
                except (KeyboardInterrupt, GeneratorExit) as error:
                    self._die(error)
                    raise
                except BaseException as error:
                    if self._ended.is_set():  # the report has no receiver any more
                        return
                    self._report(turn.raised, error)
                else:
                    self._report(turn.returned, made)
        if not self._ended.is_set() and self._go_on(slot) > 0:
            self._fill()

    async def _next_batch(self, turn: RangeTurn, ready: asyncio.Event) -> Batch | None:
        """Wait until the next batch may begin and is read; None: the range is over."""
        while (pause_s := turn.pause_s()) != 0:
            if pause_s is None:
                return None
            look_again = self._loop.call_later(min(pause_s, _LOOK_AGAIN_S), ready.set)
            try:
                await ready.wait()
            finally:
                look_again.cancel()
            ready.clear()
        while True:
            ready.clear()
            found = turn.poll()
            if found is not NOT_YET:
                return found if isinstance(found, Batch) else None
            await ready.wait()

    def _report(self, report: Callable[[Any], None], what: Any) -> None:
        was_pausing = self._link.is_pausing
        report(what)
        self._flush_soon()
        if was_pausing or self._link.is_pausing:
            self._fill()

    def _flush_soon(self) -> None:
        """Send once for all tasks that end in this turn of the loop."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._safely, self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._link.flush()
