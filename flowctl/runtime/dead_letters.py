"""Takes tuples whose attempts ran out to the dead letter, in a thread of its own (S109)."""

from __future__ import annotations

import queue

from flowctl.core.failures import DeadTuple
from flowctl.errors import ProcessError
from flowctl.ports import DeadLetter, RedrivableDeadLetter
from flowctl.runtime.control import RunControl
from flowctl.threads import GuardedThread


class DeadLetters(GuardedThread):
    """One at a time, in order.  A tuple counts as done only after the port has returned.

    If it raises, the run ends, as it would without a dead letter.
    """

    def __init__(
        self, control: RunControl, port: DeadLetter, *, job: str, epoch: int | None = None
    ) -> None:
        super().__init__("flowctl-dead-letters", on_death=control.fail)
        self._control = control
        self._port = port
        self._job = job
        self._epoch = epoch
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

    def work(self) -> None:
        while (dead := self._queue.get()) is not None:
            keep(self._port, self._job, dead, epoch=self._epoch)  # what it raises ends the run
            control = self._control
            with control.lock:
                control.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=control.clock())
            control.wake()


def dead_letters_for(
    control: RunControl, given: DeadLetter | None, job: str, epoch: int
) -> DeadLetters | None:
    """Return the thread that serves ``given``, if there is a dead letter."""
    # Not by truth: a dead letter of the user's may be an empty list of its own.
    return DeadLetters(control, given, job=job, epoch=epoch) if given is not None else None


def keep(port: DeadLetter, job: str, dead: DeadTuple, *, epoch: int | None = None) -> None:
    """Give ``dead`` to ``port``; raises :class:`ProcessError` when that can't keep it."""
    gave_up = dead.gave_up
    attempts, reason = gave_up.attempts, gave_up.reason
    try:
        if isinstance(port, RedrivableDeadLetter):
            port.dead_letter(
                job, gave_up.partition, dead.records,
                attempts=attempts, reason=reason, bolts=gave_up.bolts, epoch=epoch,
            )  # fmt: skip
        else:
            port.dead_letter(job, gave_up.partition, dead.records, attempts=attempts, reason=reason)
    except Exception as error:
        raise ProcessError(
            f"{gave_up.partition}: process failed {gave_up.attempts} times ({gave_up.reason}), and"
            f" the dead letter {type(port).__name__} raised {type(error).__name__}: {error}.",
            remedy="Mend either and run again: the checkpoint stands before these records.",
        ) from error
