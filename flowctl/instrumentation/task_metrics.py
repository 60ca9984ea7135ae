"""Metrics of a topology's tasks: figures read at each tick, sampled times, errors.

A metric has ``get_value_and_reset``; None means that there is nothing to report, and is dropped.
None of this is thread-safe.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from flowctl.core.trees.settlement import Sum, Watched
from flowctl.errors import ConfigError
from flowctl.instrumentation.event_text import EventLogger
from flowctl.instrumentation.logging import get_logger

# -- ticks -------------------------------------------------------------------------------------


class Metric(Protocol):
    """A figure of a task."""

    def get_value_and_reset(self) -> Any:
        """Return the figure since the last call; None: nothing to report."""


class TaskInfo(msgspec.Struct, frozen=True, gc=False):
    """The task that figures belong to: ``task_id`` (from 0) of ``component``, in ``interval_s``.

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

    Ticks missed while a task was busy come as one: the next figure covers a longer time, and no
    empty ones follow.
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


# -- what is timed -----------------------------------------------------------------------------


class Chance(Protocol):
    """The part of ``random.Random`` that is used here."""

    def randrange(self, stop: int, /) -> int: ...


class EvenSampler:
    """Fires exactly once in each run of ``one_in`` calls, at a random place in it.

    Exact, so that counts can be scaled by ``one_in``; random, so that work which repeats with the
    same period is not always hit or always missed.  ``one_in`` 0 never fires.  For one thread.
    """

    __slots__ = ("_at", "_call", "_chance", "one_in")

    def __init__(self, one_in: int, *, chance: Chance) -> None:
        if one_in < 0:
            raise ConfigError(
                "one_in", f"must be 0 or more, got {one_in}.", remedy="0 samples nothing."
            )
        self.one_in: int = one_in
        self._chance = chance
        self._call = one_in
        self._at = 0

    def __call__(self) -> bool:
        """Whether this event is to be timed."""
        if self._call >= self.one_in:
            if not self.one_in:
                return False
            self._call = 0
            self._at = self._chance.randrange(self.one_in)
        fires = self._call == self._at
        self._call += 1
        return fires


# -- counts and means --------------------------------------------------------------------------


class Count:
    """A count since the last reading; None: zero."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def add(self, by: int = 1) -> None:
        """Count ``by`` more."""
        self._value += by

    def get_value_and_reset(self) -> int | None:
        """Return the count, and start from 0."""
        value, self._value = self._value, 0
        return value or None


class Mean:
    """The mean of the values added since the last reading; None: no value was added."""

    __slots__ = ("_count", "_total")

    def __init__(self) -> None:
        self._total = 0.0
        self._count = 0

    def add(self, total: float, count: int = 1) -> None:
        """Take ``count`` values into the mean whose sum is ``total``."""
        self._total += total
        self._count += count

    def get_value_and_reset(self) -> float | None:
        """Return the mean, and reset it."""
        total, count = self._total, self._count
        self._total, self._count = 0.0, 0
        return total / count if count else None


class KeyedCounts:
    """A :class:`Count` for each key."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, int] = {}

    def add(self, key: str, by: int = 1) -> None:
        """Count ``by`` more of ``key``."""
        self._values[key] = self._values.get(key, 0) + by

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Count ``counts`` more, by key."""
        values = self._values
        for key, by in counts.items():
            values[key] = values.get(key, 0) + by

    def get_value_and_reset(self) -> dict[str, int] | None:
        """Return the counts of all keys that had any, and reset them."""
        values, self._values = self._values, {}
        return values or None


class KeyedMeans:
    """A :class:`Mean` for each key."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[str, Sum] = {}

    def add(self, key: str, total: float, count: int = 1) -> None:
        """Take ``count`` values into the mean of ``key`` whose sum is ``total``."""
        before, times = self._sums.get(key, (0.0, 0))
        self._sums[key] = (before + total, times + count)

    def add_all(self, sums: Mapping[str, Sum]) -> None:
        """Take the values of each key into its mean."""
        for key, (total, count) in sums.items():
            self.add(key, total, count)

    def get_value_and_reset(self) -> dict[str, float] | None:
        """Return the means of all keys that had any value, and reset them."""
        sums, self._sums = self._sums, {}
        return {key: total / count for key, (total, count) in sums.items()} or None


# Has a metric read at each tick, under its name.
Register: TypeAlias = Callable[[str, Metric], None]


class SpoutMetrics:
    """Acked, failed and complete latency [s] of a spout, by stream.

    Only sampled roots are added: each stands for ``one_in`` of them.
    """

    def __init__(self, one_in: int, register: Register) -> None:
        self._one_in = one_in
        self._acked = KeyedCounts()
        self._failed = KeyedCounts()
        self._complete_s = KeyedMeans()
        register("acked", self._acked)
        register("failed", self._failed)
        register("complete_s", self._complete_s)

    def acked(self, stream: str, delta_s: float) -> None:
        """Count a sampled root of ``stream`` that was done after ``delta_s``."""
        self._acked.add(stream, self._one_in)
        self._complete_s.add(stream, delta_s)

    def failed(self, stream: str) -> None:
        """Count a sampled root of ``stream`` that failed."""
        self._failed.add(stream, self._one_in)


_COUNTS: Final = ("executed", "acked", "failed", "emitted")
_TIMES: Final = ("execute_s", "process_s")
# The built-in metrics of each task of a bolt; user metrics need other names.
BOLT_METRICS: Final = frozenset({*_COUNTS, *_TIMES})


class BoltMetrics:
    """Metrics of a bolt's task: tuples executed, acked, failed and emitted, their times, and user
    metrics.

    Built from its settlements, under the names of :class:`flowctl.core.trees.settlement.Watched`.
    """

    def __init__(self, register: Register) -> None:
        self._register = register
        self._counts = {name: KeyedCounts() for name in _COUNTS}
        self._times = {name: KeyedMeans() for name in _TIMES}
        self._own_counts: dict[str, Count] = {}
        self._own_means: dict[str, Mean] = {}
        for name, counts in self._counts.items():
            register(name, counts)
        for name, times in self._times.items():
            register(name, times)

    def take_in(self, watched: Watched) -> None:
        """Add what was watched."""
        for name, counts in self._counts.items():
            if new := getattr(watched, name):  # sent with each tuple, and mostly empty
                counts.add_all(new)
        for name, times in self._times.items():
            if sums := getattr(watched, name):
                times.add_all(sums)
        for name, by in watched.counts.items():
            if name not in self._own_counts:
                self._own_counts[name] = Count()
                self._register(name, self._own_counts[name])
            self._own_counts[name].add(by)
        for name, (total, times_of) in watched.means.items():
            if name not in self._own_means:
                self._own_means[name] = Mean()
                self._register(name, self._own_means[name])
            self._own_means[name].add(total, times_of)


# -- errors ------------------------------------------------------------------------------------

# A task that reports each tuple would flood the log: five lines in ten seconds show what is wrong.
_TOLD_MAX: Final = 5
_PER_S: Final = 10.0
_KEPT: Final = 20  # enough for a report; the log has the rest


class ErrorReporter:
    """The errors of one task, as received by the driver.  For one thread.

    Every error is counted and the latest are kept in ``latest``; the log gets five in ten
    seconds, and the next one says how many were left out.
    """

    def __init__(
        self,
        task: str,
        *,
        clock: Callable[[], float],
        logger: EventLogger | None = None,
    ) -> None:
        self._task = task
        self._clock = clock
        self._logger = logger or get_logger()
        self._told_at_s: deque[float] = deque(maxlen=_TOLD_MAX)
        self._untold = 0
        self.count: int = 0
        self.latest: deque[str] = deque(maxlen=_KEPT)

    def report(self, kind: str, problem: str) -> None:
        """Report an error of the task, without secrets."""
        now_s = self._clock()
        self.count += 1
        self.latest.append(f"{kind}: {problem}")
        if len(self._told_at_s) == _TOLD_MAX and now_s - self._told_at_s[0] < _PER_S:
            self._untold += 1
            return
        self._told_at_s.append(now_s)
        self._logger.log(
            logging.ERROR,
            "task_error",
            task=self._task,
            error=self.latest[-1],
            left_out=self._untold,
        )
        self._untold = 0

    def left_out(self, errors: int) -> None:
        """Count ``errors`` more that the task had, too many to send."""
        self.count += errors
        self._untold += errors
