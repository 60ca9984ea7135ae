"""Collect the figures of all tasks of a topology in the driver; pass them on at each tick."""

from __future__ import annotations

import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from flowctl.config import MetricsSettings
from flowctl.core.trees.settlement import DEFAULT_STREAM, Watched
from flowctl.instrumentation.event_text import EventLogger
from flowctl.instrumentation.logging import get_logger
from flowctl.instrumentation.task_metrics import (
    BoltMetrics,
    MetricRegistry,
    Point,
    SpoutMetrics,
    TaskInfo,
    TickSchedule,
)
from flowctl_storm.hub.news import RootEnd
from flowctl_storm.plan import task_of

# A function that gets the figures of one task, called from the thread of the spouts' callbacks.
Consumer: TypeAlias = Callable[[TaskInfo, list[Point]], Any]


class TopologyMetrics:
    """A metric registry with one interval, fed by settlements and by ends of roots.

    For one thread.  ``tell`` gets the figures of each task at each tick, which are also logged, as
    ``task_metrics``.
    """

    def __init__(
        self,
        spouts: Sequence[str],
        settings: MetricsSettings,
        *,
        tell: Callable[[TaskInfo, list[Point]], None],
        clock: Callable[[], float] = time.monotonic,
        clock_unix_s: Callable[[], float] = time.time,
        logger: EventLogger | None = None,
    ) -> None:
        self._interval_s = settings.interval_s or 0.0
        self._tell = tell
        self._clock_unix_s = clock_unix_s
        self._logger = logger or get_logger()
        self._registry = MetricRegistry()
        self._ticked_at_s = clock()
        self._workers: dict[str, tuple[str, int]] = {}
        self._bolts: dict[str, BoltMetrics] = {}
        self._spouts: Mapping[str, SpoutMetrics] = {}
        if self._interval_s:
            here = socket.gethostname(), os.getpid()
            self._workers = dict.fromkeys(spouts, here)
            one_in = settings.sample_one_in
            self._spouts = {s: SpoutMetrics(one_in, self._registering(s)) for s in spouts}
        self._schedule = TickSchedule(self._registry.intervals_s, now_s=clock())

    def _registering(self, task: str) -> Callable[..., None]:
        return functools.partial(self._registry.register, task=task, interval_s=self._interval_s)

    def took(self, bolt: str, watched: Watched) -> None:
        """Add the figures of a settlement of ``bolt``."""
        if not self._interval_s:
            return
        if watched.host:
            self._workers[bolt] = watched.host, watched.pid
        metrics = self._bolts.get(bolt)
        if metrics is None:
            metrics = self._bolts[bolt] = BoltMetrics(self._registering(bolt))
        metrics.take_in(watched)

    def ended(self, end: RootEnd) -> None:
        """Add the end of a root, if the root was sampled."""
        spout = self._spouts.get(end.spout)
        if spout is None or end.age_s is None:
            return
        if end.reason is None:
            spout.acked(DEFAULT_STREAM, end.age_s)
        else:
            spout.failed(DEFAULT_STREAM)

    def next_deadline_s(self) -> float | None:
        """Return when the next tick is due; None for never."""
        return self._schedule.next_deadline_s()

    def on_time(self, now_s: float) -> None:
        """Tick if it is time."""
        for interval_s in self._schedule.due(now_s):
            self._tick(interval_s, now_s)

    def finish(self, now_s: float) -> None:
        """Report the figures since the last tick."""
        for interval_s in self._registry.intervals_s:
            self._tick(interval_s, now_s)

    def _tick(self, interval_s: float, now_s: float) -> None:
        """Read and reset all figures; report them for each task that has any."""
        covered_s, self._ticked_at_s = now_s - self._ticked_at_s, now_s
        for task in self._registry.tasks(interval_s):
            points = self._registry.points(task=task, interval_s=interval_s)
            if points:
                info = self._info(task, covered_s)
                self._log(info, points)
                self._tell(info, points)

    def _info(self, task: str, covered_s: float) -> TaskInfo:
        host, pid = self._workers.get(task, ("", 0))
        component, _, number = task.partition(".")
        task_id = task_of(task) if number else 0
        return TaskInfo(host, pid, component, task_id, int(self._clock_unix_s()), covered_s)

    def _log(self, info: TaskInfo, points: list[Point]) -> None:
        self._logger.log(
            logging.INFO,
            "task_metrics",
            component=info.component,
            task=info.task_id,
            host=info.host,
            pid=info.pid,
            interval_s=round(info.interval_s, 3),
            **{point.name: point.value for point in points},
        )
