"""What the hub says of roots and tasks, and what of it is wanted: plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from flowctl.core.buffer import size_of_record
from flowctl.core.records import Emission, Position
from flowctl.core.trees.settlement import Watched
from flowctl.topology.hub.tree_root import Root


class RootEnd(msgspec.Struct, frozen=True):
    """What a spout's callbacks are told; ``value`` is what the source gave.

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
    """What a listener hears of one root; ``emission`` names the spout as its bolt, one record."""

    kind: Literal["emitted", "acked", "retried", "gave_up"]
    emission: Emission
    reason: str = ""


class TaskWatched(NamedTuple):
    """A settlement of ``bolt`` brought this."""

    bolt: str
    watched: Watched


News: TypeAlias = RootEnd | RootEmitted | RootStep | TaskWatched


class Wanted(NamedTuple):
    """What is to be told; what nobody wants is not made.

    ``ends``: every end of a root (else only those of roots that ``samples`` picks as they are
    emitted); ``emits``: each emission of a spout; ``steps``: what a listener hears; ``tasks``: what
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
    """Return what a listener hears of ``root``, which has a number."""
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
