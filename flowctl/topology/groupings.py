"""Which tasks of a stage get a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, TypeAlias
from zlib import crc32

import msgspec

from flowctl.errors import JobError
from flowctl.topology.plan import Subscription
from flowctl.wire.values import encode_value

# Of a value, and the task that it was emitted to (None: to nobody in particular): task numbers.
Choose: TypeAlias = Callable[[Any, int | None], Sequence[int]]

_NOBODY: tuple[int, ...] = ()
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def task_of_key(key: Sequence[Any], tasks: int) -> int:
    """Return which of ``tasks`` has ``key``: the same in every run, process and machine.

    Python's own hash of a text differs from process to process; a CRC does not, and spreads keys
    well enough over a few tasks.
    """
    try:
        data = _encode(key)
    except (TypeError, OverflowError):  # such as an int of more than 64 bits
        data = encode_value(list(key))
    return crc32(data) % tasks


def make_choice(subscription: Subscription, loads: Callable[[], Sequence[int]]) -> Choose:
    """Return how ``subscription`` chooses; ``loads()`` gives what each task has to do."""
    tasks = len(loads())
    kind = subscription.kind
    if kind == "direct":
        return lambda _value, task: _direct(task, tasks)
    if kind == "fields":
        fields = subscription.fields
        return lambda value, task: (
            (task_of_key(_key(value, fields), tasks),) if task is None else _NOBODY
        )
    if kind == "all":
        everyone = tuple(range(tasks))
        return lambda _value, task: everyone if task is None else _NOBODY
    if tasks == 1:
        only = (0,)
        return lambda _value, task: only if task is None else _NOBODY
    return _least_loaded(loads) if kind == "least_loaded" else _in_turn(tasks)


def _in_turn(tasks: int) -> Choose:
    ring = cycle([(task,) for task in range(tasks)])
    return lambda _value, task: next(ring) if task is None else _NOBODY


def _least_loaded(loads: Callable[[], Sequence[int]]) -> Choose:
    def choose(_value: Any, task: int | None) -> Sequence[int]:
        if task is not None:
            return _NOBODY
        held = loads()
        return (held.index(min(held)),)

    return choose


def _direct(task: int | None, tasks: int) -> Sequence[int]:
    if task is None:
        return _NOBODY
    if not 0 <= task < tasks:
        raise JobError(f"emit to task {task}: there are {tasks}.", remedy=f"Give 0 to {tasks - 1}.")
    return (task,)


def _key(value: Any, fields: Sequence[str | int]) -> list[Any]:
    try:
        return [value[field] for field in fields]
    except (KeyError, IndexError, TypeError) as error:
        raise JobError(
            f"grouping by {', '.join(map(str, fields))}: a {type(value).__name__} without it"
            f" ({type(error).__name__}: {error}).",
            remedy="Emit dicts with these keys, or lists with these places.",
        ) from None
