"""Hooks: a user's code watches events in a task without changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from flowctl.errors import ConfigError


class EmitInfo(msgspec.Struct, frozen=True, gc=False):
    """A task emitted ``values``; with a direct grouping to task number ``direct``.

    Otherwise windows decide later which task gets it.
    """

    values: Any
    stream: str
    task_id: int
    direct: int | None


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
    """``execute`` returned from ``message``; it took ``delta_s``, None if not sampled.

    All inputs of a ``Batched`` bolt's tuple took the same time.
    """

    message: Any
    task_id: int
    delta_s: float | None


class BoltAckInfo(msgspec.Struct, frozen=True, gc=False):
    """A bolt acked ``message``, ``delta_s`` after it arrived, None if not sampled."""

    message: Any
    task_id: int
    delta_s: float | None


class BoltFailInfo(msgspec.Struct, frozen=True, gc=False):
    """A bolt failed ``message``; ``delta_s`` as in :class:`BoltAckInfo`."""

    message: Any
    task_id: int
    delta_s: float | None


class TaskHook:
    """Override the methods for what you want to watch.  They must not block: the task waits.

    A bolt's hooks run on its worker, in the thread that runs the bolt, after ``execute`` has
    returned: first the hooks for its emits, then the one for the execute, then those for acks and
    fails.  An exception fails the input as if ``execute`` had raised it (from ``bolt_fail`` it is
    only reported).  A spout's hooks run in the driver, in the thread of its callbacks; their
    exceptions are logged.  ``task_id`` is the number of the task among those of its component, from
    0.
    """

    def emit(self, info: EmitInfo) -> None:
        """The task emitted values."""

    def spout_ack(self, info: SpoutAckInfo) -> None:
        """A root of this spout is done."""

    def spout_fail(self, info: SpoutFailInfo) -> None:
        """A root of this spout failed or expired."""

    def bolt_execute(self, info: BoltExecuteInfo) -> None:
        """``execute`` has returned for an input."""

    def bolt_ack(self, info: BoltAckInfo) -> None:
        """The bolt acked an input."""

    def bolt_fail(self, info: BoltFailInfo) -> None:
        """The bolt failed an input."""


# A hook, or a maker of one: a class, or a function without arguments.
HookLike: TypeAlias = TaskHook | Callable[[], TaskHook]


class Hooks(TaskHook):
    """The hooks of one task, called in the order in which they were given.

    False if there are none: ``if hooks: hooks.emit(EmitInfo(...))`` creates no object needlessly.
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


def check_hooks(field: str, hooks: Iterable[Any]) -> None:
    """Raise :class:`ConfigError` for anything but a :data:`HookLike`."""
    for hook in hooks:
        if not isinstance(hook, TaskHook) and not callable(hook):
            raise ConfigError(
                field, f"a {type(hook).__name__} is not a hook.", remedy="Give a TaskHook."
            )


def make_hooks(hooks: Iterable[HookLike]) -> Hooks:
    """Return the hooks of one task; classes and functions among ``hooks`` are called."""
    return Hooks([hook if isinstance(hook, TaskHook) else hook() for hook in hooks])
