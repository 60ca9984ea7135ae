"""Notifies a listener of what happens to tuples, outside of the core's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flowctl.core.events import FlowEvent, TupleCut, TupleDropped, TupleFailed, TupleGaveUp
from flowctl.core.messages import Emission
from flowctl.core.records import Checkpoint
from flowctl.logs import ModuleLogger
from flowctl.ports import SpoutListener


class Guarded:
    """Calls a user's listener; exceptions are logged, once per kind of call, and end nothing.

    For one thread.
    """

    def __init__(self) -> None:
        self._logger = ModuleLogger("flowctl.listener")
        self._complained: set[str] = set()

    def __call__(self, what: str, call: Callable[[], None]) -> None:
        """Run ``call``; ``what`` names the kind of call."""
        try:
            call()
        except Exception as error:
            if what not in self._complained:
                self._complained.add(what)
                self._logger.warning("listener_raised", call=what, reason=repr(error))


class ListenerNotifier:
    """Collects while the lock is held; :meth:`flush` notifies.  Used by one thread."""

    def __init__(self, listener: SpoutListener) -> None:
        self._listener = listener
        self._emissions: dict[int, Emission] = {}  # by tuple: its last emission
        self._waiting: deque[Callable[[], None]] = deque()
        self._tell = Guarded()

    def opened(self, job: str, restored: Checkpoint) -> None:
        """Note that a run begins."""
        self._tell("on_open", lambda: self._listener.on_open(job, restored))

    def emitted(self, emission: Emission) -> None:
        """Note that ``emission`` is sent; the listener is notified of a tuple's first sending
        only.
        """
        if emission.tuple_id not in self._emissions and emission.attempt == 1:
            self._later("on_emit", lambda: self._listener.on_emit(emission))
        self._emissions[emission.tuple_id] = emission

    def acked(self, tuple_id: int) -> None:
        """Note that a tuple is acked, whatever effect that still has."""
        emission = self._emissions.pop(tuple_id, None)
        if emission is not None:
            self._later("on_ack", lambda: self._listener.on_ack(emission))

    def happened(self, event: FlowEvent) -> None:
        """Note an event of the core."""
        if isinstance(event, TupleFailed) and event.tuple_id in self._emissions:
            failed, reason = self._emissions[event.tuple_id], event.reason
            self._later("on_retry", lambda: self._listener.on_retry(failed, reason))
        elif isinstance(event, TupleGaveUp) and event.tuple_id in self._emissions:
            dead, why = self._emissions.pop(event.tuple_id), event.reason
            self._later(
                "on_max_retry_reached", lambda: self._listener.on_max_retry_reached(dead, why)
            )
        elif isinstance(event, TupleDropped | TupleCut):  # its pieces are separate tuples
            self._emissions.pop(event.tuple_id, None)

    def _later(self, what: str, tell: Callable[[], None]) -> None:
        self._waiting.append(lambda: self._tell(what, tell))

    def flush(self) -> None:
        """Notify the listener of what was collected, in order."""
        while self._waiting:
            self._waiting.popleft()()
