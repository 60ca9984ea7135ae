"""Ticks: when tasks' figures are read, and how they are reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from flowctl.errors import ConfigError


class Metric(Protocol):
    """A figure of a task."""

    def get_value_and_reset(self) -> Any:
        """Return the figure since the last call; None: nothing to report."""


class TaskInfo(msgspec.Struct, frozen=True, gc=False):
    """Whose figures they are: of task ``task_id`` (from 0) of ``component``, in ``interval_s``.

    ``host`` and ``pid`` say where it runs: our workers listen on no port that would distinguish two
    on one host.  ``timestamp_unix_s`` is the end of the interval.
    """

    host: str
    pid: int
    component: str
    task_id: int
    timestamp_unix_s: int
    interval_s: float


class Point(msgspec.Struct, frozen=True, gc=False):
    """One figure."""

    name: str
    value: Any


class TickSchedule:
    """When the recurring ticks of some intervals are due.  Pure: time comes in.

    Ticks missed while a task was busy come as one: the next figure covers a longer time, and is not
    followed by empty ones.
    """

    def __init__(self, intervals_s: Iterable[float], *, now_s: float) -> None:
        intervals = sorted(set(intervals_s))
        if intervals and intervals[0] <= 0:
            raise ConfigError(
                "interval_s", f"must be greater than 0, got {intervals[0]}.", remedy="Give seconds."
            )
        self._due_at_s = {interval_s: now_s + interval_s for interval_s in intervals}

    def next_deadline_s(self) -> float | None:
        """When the next tick is due; None: never."""
        return min(self._due_at_s.values(), default=None)

    def due(self, now_s: float) -> list[float]:
        """Return the intervals [s] whose tick is due, each once, shortest first."""
        due = [interval_s for interval_s, at_s in self._due_at_s.items() if at_s <= now_s]
        for interval_s in due:
            missed = int((now_s - self._due_at_s[interval_s]) // interval_s)
            self._due_at_s[interval_s] += (missed + 1) * interval_s
        return due


class MetricRegistry:
    """Metrics by interval, task and name.  Not thread-safe."""

    def __init__(self) -> None:
        self._metrics: dict[float, dict[str, dict[str, Metric]]] = {}

    @property
    def intervals_s(self) -> Sequence[float]:
        """The intervals that need a tick."""
        return sorted(self._metrics)

    def tasks(self, interval_s: float) -> Sequence[str]:
        """Names of the tasks that have a metric of ``interval_s``."""
        return list(self._metrics.get(interval_s, ()))

    def register(self, name: str, metric: Metric, *, task: str, interval_s: float) -> None:
        """Have ``metric`` read every ``interval_s``; a name is unique per task and interval."""
        named = self._metrics.setdefault(interval_s, {}).setdefault(task, {})
        if name in named:
            raise ConfigError(
                "name", f"{task} has a metric {name!r} already.", remedy="Give another name."
            )
        named[name] = metric

    def points(self, *, task: str, interval_s: float) -> list[Point]:
        """Read and reset the metrics of one tick; those with nothing to report are omitted."""
        named = self._metrics.get(interval_s, {}).get(task, {})
        read = ((name, metric.get_value_and_reset()) for name, metric in named.items())
        return [Point(name, value) for name, value in read if value is not None]
