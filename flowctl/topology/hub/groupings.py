"""Which tasks of a stage get a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Final, TypeAlias
from zlib import crc32

import msgspec

from flowctl.errors import JobError, with_article
from flowctl.topology.plan import Subscription, did_you_mean
from flowctl.wire.values import encode_value

# For a value, and the task that it was emitted to (None: to no specific one): task numbers.
Choose: TypeAlias = Callable[[Any, int | None], Sequence[int]]

_NOBODY: tuple[int, ...] = ()
_FIELDS_TOLD: Final = 10  # fields shown of a value that lacks one: enough to recognise it
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def task_of_key(key: Sequence[Any], tasks: int) -> int:
    """Return which of ``tasks`` gets ``key``: the same in every run, process and machine.

    Python's own hash of a text differs between processes; a CRC does not, and spreads keys well
    enough over a few tasks.
    """
    try:
        data = _encode(key)
    except (TypeError, OverflowError):  # such as an int of more than 64 bits
        data = encode_value(list(key))
    return crc32(data) % tasks


def make_choice(
    subscription: Subscription, loads: Callable[[], Sequence[int]], stage: str = ""
) -> Choose:
    """Return how ``subscription`` of ``stage`` chooses.

    ``loads()`` gives what each task has to do.
    """
    tasks = len(loads())
    kind = subscription.kind
    if kind == "direct":
        return lambda _value, task: _direct(task, tasks)
    if kind == "fields":
        return _by_fields(subscription, tasks, stage)
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
        raise JobError(
            f"emit to task {task}: there are {tasks} tasks.", remedy=f"Give 0 to {tasks - 1}."
        )
    return (task,)


def _by_fields(subscription: Subscription, tasks: int, stage: str) -> Choose:
    fields = subscription.fields

    def choose(value: Any, task: int | None) -> Sequence[int]:
        if task is not None:
            return _NOBODY
        try:
            key = [value[field] for field in fields]
        except (KeyError, IndexError, TypeError):
            raise _without_field(value, subscription, stage) from None
        return (task_of_key(key, tasks),)

    return choose


def _without_field(value: Any, subscription: Subscription, stage: str) -> JobError:
    """Return the error for a value that lacks a field it is grouped by."""
    missing = next(field for field in subscription.fields if not _has(value, field))
    if isinstance(value, dict):
        names = sorted(map(str, value))
        told = ", ".join(map(repr, names[:_FIELDS_TOLD]))
        more = f" and {len(names) - _FIELDS_TOLD} more" if len(names) > _FIELDS_TOLD else ""
        has = f"it has {told}{more}." if names else "it is empty."
        has += did_you_mean(str(missing), names)
    elif isinstance(value, list):
        has = f"it is a list of {len(value)}."
    else:
        has = f"it is {with_article(type(value).__name__)}."
    return JobError(
        f"stage {stage!r} groups the values of {subscription.source!r} by {missing!r}, but a value"
        f" has none: {has}",
        remedy="Emit dicts with these keys, or lists that are long enough.",
    )


def _has(value: Any, field: str | int) -> bool:
    try:
        value[field]
    except (KeyError, IndexError, TypeError):
        return False
    return True
