"""Tells a listener what becomes of a topology's roots, from a thread of its own (S112)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from flowctl.core.buffer import size_of_record
from flowctl.core.records import Checkpoint, Emission
from flowctl.ports import SpoutListener
from flowctl.runtime.listening import Guarded
from flowctl.threads import OnDeath, guarded
from flowctl.topology.root import Root


class RootListening:
    """The calls of a :class:`flowctl.ports.SpoutListener`, where a tuple is a root.

    Who drives the hub only queues: a listener is never waited for.  An :class:`Emission` names the
    spout as its bolt, and one record.
    """

    def __init__(self, listener: SpoutListener, *, on_death: OnDeath = lambda error: None) -> None:
        self._listener = listener
        self._calls: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        self._tell = Guarded()
        name = "flowctl-listener"
        run = guarded(self._run, name=name, on_death=on_death)
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def close(self) -> None:
        """Wait until all that was queued is told."""
        self._calls.put(None)
        self._thread.join()

    def opened(self, job: str, restored: Checkpoint) -> None:
        """A run begins."""
        self._calls.put(("on_open", lambda: self._listener.on_open(job, restored)))

    def planted(self, root: Root) -> None:
        """Its tree begins; a listener hears of the first time."""
        if not root.replays:
            told = _emission(root)
            self._calls.put(("on_emit", lambda: self._listener.on_emit(told)))

    def acked(self, root: Root) -> None:
        """Its tree is complete, whatever that means by now."""
        if root.number:
            told = _emission(root)
            self._calls.put(("on_ack", lambda: self._listener.on_ack(told)))

    def retried(self, root: Root, reason: str) -> None:
        """It failed or expired, and goes again."""
        told = _emission(root)
        self._calls.put(("on_retry", lambda: self._listener.on_retry(told, reason)))

    def gave_up(self, root: Root, reason: str) -> None:
        """Its attempts ran out."""
        told = _emission(root)
        call = self._listener.on_max_retry_reached
        self._calls.put(("on_max_retry_reached", lambda: call(told, reason)))

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            self._tell(*item)


def _emission(root: Root) -> Emission:
    return Emission(
        tuple_id=root.number,
        bolt=root.spout,
        attempt=root.replays + 1,
        partition=root.partition,
        records=(root.record,),
        acked_through=None,
        size_bytes=size_of_record(root.record),
    )
