"""What the hub reports about roots and tasks, and which of it is wanted: plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from flowctl.core.buffer import size_of_record
from flowctl.core.messages import Emission
from flowctl.core.records import Position
from flowctl.core.trees.settlement import Watched
from flowctl_storm.hub.tree_root import Root


class RootEnd(msgspec.Struct, frozen=True):
    """What a spout's callbacks get; ``value`` is the source's.

    ``reason`` None: the tree is complete.  ``age_s``: since its emission; None: not sampled.
    """

    spout: str
    partition: str
    position: Position
    value: Any
    reason: str | None = None
    age_s: float | None = None


class RootEmitted(NamedTuple):
    """``spout`` emitted ``value``."""

    spout: str
    value: Any


class RootStep(NamedTuple):
    """What a listener gets about one root; ``emission`` has the spout as its bolt, and one
    record."""

    kind: Literal["emitted", "acked", "retried", "gave_up"]
    emission: Emission
    reason: str = ""


class TaskWatched(NamedTuple):
    """A settlement of ``bolt`` brought these figures."""

    bolt: str
    watched: Watched


News: TypeAlias = RootEnd | RootEmitted | RootStep | TaskWatched


class Wanted(NamedTuple):
    """What is to be reported; unwanted news are not created.

    ``ends``: every end of a root (otherwise only those of roots that ``samples`` picks at their
    emission); ``emits``: each emission of a spout; ``steps``: what a listener gets; ``tasks``: what
    settlements bring.
    """

    ends: bool = False
    emits: bool = False
    steps: bool = False
    tasks: bool = False
    samples: Callable[[], bool] | None = None


def step(
    kind: Literal["emitted", "acked", "retried", "gave_up"], root: Root, reason: str = ""
) -> RootStep:
    """Return what a listener gets about ``root``, which has a number."""
    record = root.record
    emission = Emission(
        tuple_id=root.number,
        bolt=root.spout,
        attempt=root.replays + 1,
        partition=root.partition,
        records=(record,),
        acked_through=None,
        size_bytes=size_of_record(record),
    )
    return RootStep(kind, emission, reason)
