"""Hooks: what a user's own code may watch in a task, without changing it (S63)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec


class EmitInfo(msgspec.Struct, frozen=True, gc=False):
    """A task emitted ``values`` to the tasks ``targets``, which may be none."""

    values: Any
    stream: str
    task_id: int
    targets: Sequence[int]


class SpoutAckInfo(msgspec.Struct, frozen=True, gc=False):
    """A root is done; ``delta_s`` after its emission, None if it was not sampled."""

    message_id: Any
    task_id: int
    delta_s: float | None


class SpoutFailInfo(msgspec.Struct, frozen=True, gc=False):
    """A root failed or expired; ``delta_s`` as in :class:`SpoutAckInfo`."""

    message_id: Any
    task_id: int
    delta_s: float | None
    reason: str


class BoltExecuteInfo(msgspec.Struct, frozen=True, gc=False):
    """``execute`` returned from ``message``; it took ``delta_s``, None if not sampled."""

    message: Any
    task_id: int
    delta_s: float | None


class BoltAckInfo(msgspec.Struct, frozen=True, gc=False):
    """A bolt acked ``message``, ``delta_s`` after it came, None if not sampled."""

    message: Any
    task_id: int
    delta_s: float | None


class BoltFailInfo(msgspec.Struct, frozen=True, gc=False):
    """A bolt failed ``message``; ``delta_s`` as in :class:`BoltAckInfo`."""

    message: Any
    task_id: int
    delta_s: float | None


class TaskHook:
    """Override what is to be watched.  Called from the task's own thread: must not block.

    What a hook raises ends the task's loop, as what the task itself raises does.
    """

    def emit(self, info: EmitInfo) -> None: ...
    def spout_ack(self, info: SpoutAckInfo) -> None: ...
    def spout_fail(self, info: SpoutFailInfo) -> None: ...
    def bolt_execute(self, info: BoltExecuteInfo) -> None: ...
    def bolt_ack(self, info: BoltAckInfo) -> None: ...
    def bolt_fail(self, info: BoltFailInfo) -> None: ...


class Hooks(TaskHook):
    """The hooks of one task, called in the order in which they were given.

    False when there are none: ``if hooks: hooks.emit(EmitInfo(...))`` makes no object in vain.
    """

    __slots__ = ("_hooks",)

    def __init__(self, hooks: Iterable[TaskHook] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def emit(self, info: EmitInfo) -> None:
        for hook in self._hooks:
            hook.emit(info)

    def spout_ack(self, info: SpoutAckInfo) -> None:
        for hook in self._hooks:
            hook.spout_ack(info)

    def spout_fail(self, info: SpoutFailInfo) -> None:
        for hook in self._hooks:
            hook.spout_fail(info)

    def bolt_execute(self, info: BoltExecuteInfo) -> None:
        for hook in self._hooks:
            hook.bolt_execute(info)

    def bolt_ack(self, info: BoltAckInfo) -> None:
        for hook in self._hooks:
            hook.bolt_ack(info)

    def bolt_fail(self, info: BoltFailInfo) -> None:
        for hook in self._hooks:
            hook.bolt_fail(info)
