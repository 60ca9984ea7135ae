"""Takes tuples whose attempts ran out to the dead letter, in a thread of its own (S109)."""

from __future__ import annotations

import queue
import threading

from flowctl.core.failures import DeadTuple
from flowctl.errors import FlowctlError, ProcessError
from flowctl.ports import DeadLetter
from flowctl.runtime.control import RunControl


class DeadLetters(threading.Thread):
    """One at a time, in order.  A tuple counts as done only after the port has returned.

    If it raises, the run ends, as it would without a dead letter.
    """

    def __init__(self, control: RunControl, port: DeadLetter, *, job: str) -> None:
        super().__init__(name="flowctl-dead-letters", daemon=True)
        self._control = control
        self._port = port
        self._job = job
        self._queue: queue.SimpleQueue[DeadTuple | None] = queue.SimpleQueue()

    def put(self, dead: DeadTuple) -> None:
        """Keep ``dead``; returns at once."""
        self._queue.put(dead)

    def stop(self, timeout_s: float) -> None:
        """End when what was put is kept, or after ``timeout_s``."""
        self._queue.put(None)
        if self.ident:
            self.join(timeout_s)
        self._port.close()

    def run(self) -> None:
        while (dead := self._queue.get()) is not None:
            try:
                keep(self._port, self._job, dead)
            except FlowctlError as error:
                self._control.fail(error)
                return
            control = self._control
            with control.lock:
                control.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=control.clock())
            control.wake()


def keep(port: DeadLetter, job: str, dead: DeadTuple) -> None:
    """Give ``dead`` to ``port``; raises :class:`ProcessError` when that can't keep it."""
    gave_up = dead.gave_up
    try:
        port.dead_letter(
            job, gave_up.partition, dead.records, attempts=gave_up.attempts, reason=gave_up.reason
        )
    except Exception as error:
        raise ProcessError(
            f"{gave_up.partition}: process failed {gave_up.attempts} times ({gave_up.reason}), and"
            f" the dead letter {type(port).__name__} raised {type(error).__name__}: {error}.",
            remedy="Mend either and run again: the checkpoint stands before these records.",
        ) from error
