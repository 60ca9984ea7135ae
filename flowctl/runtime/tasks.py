"""What a task of a topology has to have, for those who tell it of acks and fails."""

from __future__ import annotations

from typing import Any, Protocol


class Task(Protocol):
    """What every task of a topology has.  All calls come from one thread."""

    task_id: int


class SpoutTask(Task, Protocol):
    """Emits.  Nothing here may block: acks wait meanwhile (S54)."""

    def ack(self, message_id: Any) -> None:
        """The whole tree of what was emitted with ``message_id`` is done."""

    def fail(self, message_id: Any) -> None:
        """Something in the tree failed, or it expired."""
