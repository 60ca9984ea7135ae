"""The event loop of one bolt whose ``process`` is ``async def``.

A thread of its own drives the loop.  The bolt's slots are threads as for a plain ``process``: each
takes a tuple, hands its coroutine over, and waits for it.  So at most ``slots`` run at once, and
what is said of slots elsewhere (idle time, pauses, reports) holds unchanged.  64 such threads only
sleep: 2 bolts of 64 slots reach the rate of a 50 ms service (``python -m tests.benchmarks async``).

Imported only where it is needed: asyncio costs a worker 50 ms.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final

# A task that does not end when it is cancelled may hold up the end of its bolt for so long.
_CANCEL_PATIENCE_S: Final = 2.0


class Cancelled(Exception):
    """The bolt ended while a coroutine ran: there is nothing to report."""


class BoltLoop:
    """Runs coroutines in a thread of its own; all methods may be called from any other thread."""

    def __init__(self, bolt: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=f"flowctl-loop-{bolt}", daemon=True)
        self._thread.start()

    def outcome_of(self, awaited: Awaitable[Any]) -> tuple[Any, BaseException | None]:
        """Run ``awaited`` to its end; return what it returned, and None or what it raised.

        Raises :class:`Cancelled` if :meth:`cancel` was called before its end.
        """
        guarded = _guarded(awaited)
        if self._is_ending:
            _close(guarded, awaited)
            raise Cancelled
        future = asyncio.run_coroutine_threadsafe(guarded, self._loop)
        if self._is_ending:  # cancel() may have looked just before
            self.cancel()
        try:
            made, error = future.result()
        except CancelledError:  # before it began
            _close(awaited)
            raise Cancelled from None
        if self._is_ending and isinstance(error, asyncio.CancelledError):
            raise Cancelled
        return made, error

    def cancel(self) -> None:
        """Cancel what runs and what comes; return at once."""
        self._is_ending = True
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._cancel_tasks)

    def close(self) -> None:
        """Cancel what still runs, give it some seconds, and end the thread."""
        self._is_ending = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _cancel_tasks(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._wind_up())
        finally:
            self._loop.close()

    async def _wind_up(self) -> None:
        """End what ``process`` left running."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CANCEL_PATIENCE_S)
        await self._loop.shutdown_asyncgens()


async def _guarded(awaited: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Await it; return its error as a value.

    An error that is raised is the slot's to handle: SystemExit, raised in a task, would end the
    loop, and with it the other tasks.
    """
    try:
        return await awaited, None
    except GeneratorExit:  # the loop was closed with this task in it
        raise
    except BaseException as error:
        return None, error


def is_interrupt(error: BaseException) -> bool:
    """Whether ``error`` ends the bolt, as it would from a plain ``process``."""
    return not isinstance(error, Exception | SystemExit | asyncio.CancelledError)


def _close(*never_awaited: Any) -> None:
    """Without this Python warns of each."""
    for each in never_awaited:
        if inspect.iscoroutine(each):
            each.close()
