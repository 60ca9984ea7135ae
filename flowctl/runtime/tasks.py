"""Tasks, and what a loop needs from outside to run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from flowctl.errors import InternalError
from flowctl.instrumentation.events import EventLogger
from flowctl.runtime.queues import Inbox, PendingEmits
from flowctl.runtime.wait import Parking, WaitSituation, WaitStrategy

T = TypeVar("T")
M = TypeVar("M", bound="ForTask")


class Task(Protocol):
    """What every task of a topology has.  All calls come from its loop's thread."""

    task_id: int

    def open(self) -> None:
        """Get ready; called once, before anything else."""

    def close(self) -> None:
        """Release what :meth:`open` took."""


class SpoutTask(Task, Protocol):
    """Emits.  Nothing here may block: acks wait meanwhile (S54)."""

    def activate(self) -> None:
        """Once at each change from inactive to active."""

    def deactivate(self) -> None:
        """Once at each change from active to inactive."""

    def next_tuple(self) -> None:
        """Emit something, or return."""

    def ack(self, message_id: Any) -> None:
        """The whole tree of what was emitted with ``message_id`` is done."""

    def fail(self, message_id: Any) -> None:
        """Something in the tree failed, or it expired."""


class BoltTask(Task, Protocol):
    """Works on what comes."""

    def execute(self, message: Any) -> None:
        """Work on one message; may emit, ack and fail."""


class ForTask(Protocol):
    """A message that names its task; None: it is for all tasks of the loop (ticks)."""

    @property
    def task_id(self) -> int | None: ...


class ByTask(Generic[M]):
    """Gives each message to the handler of its task: one loop may run several tasks (S69)."""

    def __init__(self, handlers: Mapping[int, Callable[[M], None]]) -> None:
        self._handlers = dict(handlers)

    def __call__(self, message: M) -> None:
        task_id = message.task_id
        if task_id is None:
            for handle in self._handlers.values():
                handle(message)
            return
        handler = self._handlers.get(task_id)
        if handler is None:
            raise InternalError(f"a message for task {task_id} came to {sorted(self._handlers)}.")
        handler(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports(Generic[T]):
    """What a loop needs from outside.

    ``inbox`` brings messages, ``handle`` takes each; ``emits`` is the overflow buffer that the
    tasks emit through.  ``strategy`` makes the wait strategy of a situation
    (:func:`flowctl.runtime.wait.make_wait_strategy`); ``park`` is the loop's own wait, for the
    time it is inactive.  ``clock`` gives monotonic seconds.  ``logger`` None: flowctl's own.
    """

    inbox: Inbox[T]
    handle: Callable[[T], None]
    emits: PendingEmits[Any]
    is_active: Callable[[], bool]
    strategy: Callable[[WaitSituation], WaitStrategy]
    park: Parking
    clock: Callable[[], float] = time.monotonic
    logger: EventLogger | None = None
