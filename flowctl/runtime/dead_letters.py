"""Moves tuples whose attempts ran out to the dead letter store, in a thread of its own."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Final

from flowctl.core.failures import DeadTuple
from flowctl.core.letters import LeftOut
from flowctl.errors import ProcessError
from flowctl.instrumentation.numbers import counted
from flowctl.ports import BatchDeadLetter, DeadLetter, RedrivableDeadLetter
from flowctl.runtime.control import RunControl
from flowctl.threads import GuardedThread

# Letters that are written in one step if the port can: at 2.5 ms per fsync, 20 000 rejects took 55
# s one by one; this way they need a fifth of a second.  More would save nothing, and their text is
# in memory all at once.
TOGETHER_MAX: Final = 256


class DeadLetters(GuardedThread):
    """Keeps tuples in order, all waiting ones in one step.  A tuple counts as done only after the
    port has returned.

    If the port raises, the run ends, as it would without a dead letter store.
    """

    def __init__(
        self, control: RunControl, port: DeadLetter, *, job: str, epoch: int | None = None
    ) -> None:
        super().__init__("flowctl-dead-letters", on_death=control.fail)
        self._control = control
        self._port = port
        self._job = job
        self._epoch = epoch
        self._is_ending = False
        self._queue: queue.SimpleQueue[DeadTuple | None] = queue.SimpleQueue()

    def put(self, dead: DeadTuple) -> None:
        """Take ``dead``, to be kept soon; returns at once."""
        self._queue.put(dead)

    def stop(self, timeout_s: float) -> None:
        """End when everything put so far is kept, or after ``timeout_s``."""
        self._queue.put(None)
        if self.ident:
            self.join(timeout_s)
        self._port.close()

    def work(self) -> None:
        control = self._control
        most = TOGETHER_MAX if isinstance(self._port, BatchDeadLetter) else 1
        while waiting := self._take(most):
            keep_all(self._port, self._job, waiting, epoch=self._epoch)  # an exception ends the run
            with control.lock:
                for dead in waiting:
                    control.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=control.clock())
            control.wake()

    def _take(self, most: int) -> list[DeadTuple]:
        """Wait for one, and return it with those behind it; [] once all are kept."""
        taken: list[DeadTuple] = []
        while not self._is_ending and len(taken) < most:
            try:
                dead = self._queue.get(block=not taken)
            except queue.Empty:
                break
            if dead is None:
                self._is_ending = True
            else:
                taken.append(dead)
        return taken


def dead_letters_for(
    control: RunControl, given: DeadLetter | None, job: str, epoch: int
) -> DeadLetters | None:
    """Return the thread that writes to the dead letter store of ``given``; None without one."""
    # Compare with None: a user's dead letter store may be falsy, such as an empty list.
    return DeadLetters(control, given, job=job, epoch=epoch) if given is not None else None


def keep_all(
    port: DeadLetter, job: str, all_dead: Sequence[DeadTuple], *, epoch: int | None = None
) -> None:
    """Give all to ``port``, in one step if it can; raises as :func:`keep`."""
    if not isinstance(port, BatchDeadLetter):
        for dead in all_dead:
            keep(port, job, dead, epoch=epoch)
        return
    try:
        port.dead_letter_many(job, [_left_out(dead) for dead in all_dead], epoch=epoch)
    except Exception as error:
        raise _not_kept(port, all_dead[0], error) from error


def keep(port: DeadLetter, job: str, dead: DeadTuple, *, epoch: int | None = None) -> None:
    """Give ``dead`` to ``port``; raise :class:`ProcessError` if it can't keep it."""
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
        raise _not_kept(port, dead, error) from error


def _left_out(dead: DeadTuple) -> LeftOut:
    gave_up = dead.gave_up
    return LeftOut(
        gave_up.partition, dead.records, gave_up.attempts, gave_up.reason, tuple(gave_up.bolts)
    )


def _not_kept(port: object, dead: DeadTuple, error: Exception) -> ProcessError:
    gave_up = dead.gave_up
    failed = f"process failed {counted(gave_up.attempts, 'time')}"
    return ProcessError(
        f"{gave_up.partition}: {failed} ({gave_up.reason}), and"
        f" the dead letter {type(port).__name__} raised {type(error).__name__}: {error}.",
        remedy="Fix either and run again: the job continues with these records.",
    )
