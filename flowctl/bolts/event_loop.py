"""The one event loop of a process, in which all ``async def`` code of users runs.

A client that is reused (a module's ``httpx.AsyncClient``) belongs to the loop that used it first.
With a loop for each bolt or partition it would fail in the next loop, after the request has gone
out: rows would be sent twice, or an answer would never come.

Imported only where it is needed: asyncio costs a worker 50 ms.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from flowctl.bolts.slots import too_long
from flowctl.errors import UnrunnableError

_T = TypeVar("_T")
# Cancelled code may want to tidy up; an interrupted caller waits no longer than this [s].
_CANCEL_MAX_S: Final = 5.0


class _Shared:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None

    def start(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                # A daemon: it is not known when the last client is no longer needed.
                self.thread = threading.Thread(
                    target=_run, args=(self.loop,), name="flowctl-async", daemon=True
                )
                self.thread.start()
            return self.loop


_shared = _Shared()


def _forget() -> None:
    """Forget the loop after a fork, which does not copy its thread: the child makes a new loop."""
    global _shared
    _shared = _Shared()


os.register_at_fork(after_in_child=_forget)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        # A task that raises these ends the loop too; callers that wait for the task get them.
        with suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()


def run_shared(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run ``coroutine`` in the loop of this process, and return what it returns.  Thread-safe.

    Raises what it raises.  An exception in the thread that waits (KeyboardInterrupt) cancels it.
    Raises :class:`UnrunnableError` in the loop's own thread, where waiting would last for ever.
    """
    loop = _shared.start()
    if threading.current_thread() is _shared.thread:
        coroutine.close()
        raise UnrunnableError(
            "process",
            "an `async def` started another job and waits for it: both need this event loop.",
            remedy="Start it in a thread: await asyncio.to_thread(spout.run).",
        )
    ended = threading.Event()
    returned: list[_T] = []
    raised: list[BaseException] = []

    async def whole() -> None:
        try:
            returned.append(await coroutine)
        except BaseException as error:  # raised by a task, some would end the loop
            raised.append(error)
        finally:
            ended.set()

    running = asyncio.run_coroutine_threadsafe(whole(), loop)
    try:
        ended.wait()
    except BaseException:
        running.cancel()
        ended.wait(_CANCEL_MAX_S)
        raise
    if raised:
        raise raised[0]
    return returned[0]


async def bounded(awaitable: Awaitable[_T], timeout_s: float | None) -> _T:
    """Await ``awaitable``; cancel it after ``timeout_s`` and raise :class:`CallTooLongError`.

    None: there is no bound.
    """
    if timeout_s is None:
        return await awaitable
    task, is_over = asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal is_over
        is_over = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(timeout_s, end)
    try:
        return await awaitable
    except asyncio.CancelledError:
        if not is_over:  # another cancellation ends it
            raise
        if hasattr(task, "uncancel"):  # Python 3.11: another cancellation was meant
            task.uncancel()
        # Not as a TimeoutError, which would look like a time-out of the target.
        raise too_long(timeout_s) from None
    finally:
        timer.cancel()
