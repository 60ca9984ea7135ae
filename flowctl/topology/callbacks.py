"""Tells users of the ends of their roots, in a thread of its own: the hub never waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import NamedTuple

import structlog

from flowctl.topology.roots import RootEnd


class SpoutCallbacks(NamedTuple):
    """``on_ack`` when a root's tree is complete, ``on_fail`` each time it failed or expired.

    Both get the value as well (S82).  A root that failed goes again: it may fail several times,
    and is acked once.
    """

    on_ack: Callable[[RootEnd], None] | None = None
    on_fail: Callable[[RootEnd], None] | None = None


class CallbackThread:
    """One thread for all callbacks, so they come one after the other (S54).

    What a callback raises is logged and changes nothing: the record is done, or goes again,
    whatever its author makes of it.
    """

    def __init__(self, callbacks: Mapping[str, SpoutCallbacks]) -> None:
        self._callbacks = callbacks
        self._ends: SimpleQueue[RootEnd | None] = SimpleQueue()
        self._log = structlog.get_logger("flowctl.topology")
        self._thread = threading.Thread(target=self._run, name="flowctl-callbacks", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def tell(self, end: RootEnd) -> None:
        """Queue ``end``; never blocks."""
        callbacks = self._callbacks.get(end.spout)
        if callbacks is None:
            return
        if (callbacks.on_ack if end.reason is None else callbacks.on_fail) is not None:
            self._ends.put(end)

    def close(self) -> None:
        """Wait until all that was queued is told."""
        self._ends.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (end := self._ends.get()) is not None:
            callbacks = self._callbacks[end.spout]
            call = callbacks.on_ack if end.reason is None else callbacks.on_fail
            if call is None:
                continue
            try:
                call(end)
            except Exception as error:
                self._log.error("callback_failed", spout=end.spout, error=repr(error))
