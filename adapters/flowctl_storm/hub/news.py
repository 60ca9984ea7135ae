"""The hub's news about roots and tasks, and the choice of wanted ones: plain values."""

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
    """The end of a root, for a spout's callbacks; ``value`` is the source's.

    ``reason`` is None if the tree is complete.  ``age_s`` is the time since its emission; None if
    not sampled.
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
    """An event of one root, for a listener; its ``emission`` is of one record, by the spout."""

    kind: Literal["emitted", "acked", "retried", "gave_up"]
    emission: Emission
    reason: str = ""


class TaskWatched(NamedTuple):
    """Figures that came with a settlement of ``bolt``."""

    bolt: str
    watched: Watched


News: TypeAlias = RootEnd | RootEmitted | RootStep | TaskWatched


class Wanted(NamedTuple):
    """The news to report; others are not created.

    ``ends``: each end of a root (otherwise only of roots that ``samples`` picks at their emission);
    ``emits``: each emission of a spout; ``steps``: a listener's events; ``tasks``: figures from
    settlements.
    """

    ends: bool = False
    emits: bool = False
    steps: bool = False
    tasks: bool = False
    samples: Callable[[], bool] | None = None


def step(
    kind: Literal["emitted", "acked", "retried", "gave_up"], root: Root, reason: str = ""
) -> RootStep:
    """Return a listener's event of ``root``, which must have a number."""
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
