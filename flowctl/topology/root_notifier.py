"""Notifies a listener of what happens to a topology's roots, from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from flowctl.core.records import Checkpoint
from flowctl.ports import SpoutListener
from flowctl.runtime.notifier import Guarded
from flowctl.threads import OnDeath, guarded
from flowctl.topology.hub.news import RootStep


class RootNotifier:
    """The calls of a :class:`flowctl.ports.SpoutListener`, where a tuple is a root.

    The driver of the hub only queues: it never waits for a listener.
    """

    def __init__(self, listener: SpoutListener, *, on_death: OnDeath = lambda error: None) -> None:
        self._listener = listener
        self._calls: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        self._tell = Guarded()
        name = "flowctl-listener"
        run = guarded(self._run, name=name, on_death=on_death)
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Wait until everything queued is delivered."""
        self._calls.put(None)
        self._thread.join()

    def opened(self, job: str, restored: Checkpoint) -> None:
        """A run begins."""
        self._calls.put(("on_open", lambda: self._listener.on_open(job, restored)))

    def took(self, step: RootStep) -> None:
        """Something happened to a root."""
        listener, (kind, emission, reason) = self._listener, step
        if kind == "emitted":
            self._calls.put(("on_emit", lambda: listener.on_emit(emission)))
        elif kind == "acked":
            self._calls.put(("on_ack", lambda: listener.on_ack(emission)))
        elif kind == "retried":
            self._calls.put(("on_retry", lambda: listener.on_retry(emission, reason)))
        else:
            call = listener.on_max_retry_reached
            self._calls.put(("on_max_retry_reached", lambda: call(emission, reason)))

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            self._tell(*item)
