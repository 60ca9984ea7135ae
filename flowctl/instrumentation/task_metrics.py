"""Counts and means of one task, reset at each reading.

A metric has ``get_value_and_reset``; None means that there is nothing to report, and is dropped.
Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from flowctl.core.trees.settlement import Sum, Watched
from flowctl.instrumentation.ticks import Metric


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
    """The mean of what was added since the last reading; None: nothing was."""

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
        """Count so many more of each key."""
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

    Gets sampled roots only: each stands for ``one_in`` of them.
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
        """A sampled root of ``stream`` was done after ``delta_s``."""
        self._acked.add(stream, self._one_in)
        self._complete_s.add(stream, delta_s)

    def failed(self, stream: str) -> None:
        """A sampled root of ``stream`` failed."""
        self._failed.add(stream, self._one_in)


_COUNTS: Final = ("executed", "acked", "failed", "emitted")
_TIMES: Final = ("execute_s", "process_s")
# What each task of a bolt reports; its own metrics need other names.
BOLT_METRICS: Final = frozenset({*_COUNTS, *_TIMES})


class BoltMetrics:
    """What a bolt's task executed, acked, failed and emitted, how long it took, its own metrics.

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
            if new := getattr(watched, name):  # comes with each tuple, and most of it is empty
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
