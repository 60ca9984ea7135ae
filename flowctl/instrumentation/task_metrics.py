"""Counts and means of one task, each read once an interval and then empty again.

A metric has ``get_value_and_reset``; None means that there is nothing to say, and is dropped.
Not thread-safe: a task counts and is read in its own loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flowctl.instrumentation.hooks import BoltAckInfo, BoltExecuteInfo, BoltFailInfo, Hooks
from flowctl.instrumentation.sampler import Chance, EvenSampler, started_at


class Count:
    """How many since it was read last; None: none."""

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


class KeyedCounts:
    """A :class:`Count` for each key."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, int] = {}

    def add(self, key: str, by: int = 1) -> None:
        """Count ``by`` more of ``key``."""
        self._values[key] = self._values.get(key, 0) + by

    def get_value_and_reset(self) -> dict[str, int] | None:
        """Return the counts of all keys that had any, and forget them."""
        values, self._values = self._values, {}
        return values or None


class KeyedMeans:
    """The mean of what was added for each key."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, key: str, value: float) -> None:
        """Take ``value`` into the mean of ``key``."""
        total, count = self._sums.get(key, (0.0, 0))
        self._sums[key] = (total + value, count + 1)

    def get_value_and_reset(self) -> dict[str, float] | None:
        """Return the means of all keys that had any value, and forget them."""
        sums, self._sums = self._sums, {}
        return {key: total / count for key, (total, count) in sums.items()} or None


class SpoutMetrics:
    """Acked, failed and complete latency of a spout task, by stream.

    Told of sampled roots only (S51): each stands for ``one_in`` of them.
    """

    def __init__(self, one_in: int) -> None:
        self._one_in = one_in
        self.acked_counts = KeyedCounts()
        self.failed_counts = KeyedCounts()
        self.complete_s = KeyedMeans()

    def acked(self, stream: str, delta_s: float) -> None:
        """A sampled root of ``stream`` was done after ``delta_s``."""
        self.acked_counts.add(stream, self._one_in)
        self.complete_s.add(stream, delta_s)

    def failed(self, stream: str) -> None:
        """A sampled root of ``stream`` failed."""
        self.failed_counts.add(stream, self._one_in)


class Origin(NamedTuple):
    """Where a message came from: the key of a bolt's metrics (S67)."""

    component: str
    stream: str

    @property
    def key(self) -> str:
        """As a metric's key: ``component:stream``."""
        return f"{self.component}:{self.stream}"


class Began(NamedTuple):
    """When a message came and when ``execute`` began [s]; None: not sampled."""

    came_at_s: float | None
    execute_at_s: float | None


class BoltWatch:
    """One bolt task's hooks and metrics: what was executed, acked and failed, from where.

    Counts are exact.  Times are of sampled messages: process latency (came until acked) and
    execute latency (the call alone) have a sampler each, so one may be off (S62).
    """

    def __init__(
        self,
        task_id: int,
        *,
        hooks: Hooks,
        chance: Chance,
        clock: Callable[[], float],
        process_one_in: int,
        execute_one_in: int,
    ) -> None:
        self._task_id = task_id
        self._hooks = hooks
        self._clock = clock
        self._process_sampler = EvenSampler(process_one_in, chance=chance)
        self._execute_sampler = EvenSampler(execute_one_in, chance=chance)
        self.executed_counts = KeyedCounts()
        self.acked_counts = KeyedCounts()
        self.failed_counts = KeyedCounts()
        self.execute_s = KeyedMeans()
        self.process_s = KeyedMeans()

    def began(self) -> Began:
        """``execute`` is about to be called; keep the answer with the message."""
        return Began(
            started_at(self._process_sampler, self._clock),
            started_at(self._execute_sampler, self._clock),
        )

    def executed(self, message: object, origin: Origin, began: Began) -> None:
        """``execute`` returned."""
        delta_s = self._since(began.execute_at_s)
        if self._hooks:
            self._hooks.bolt_execute(BoltExecuteInfo(message, self._task_id, delta_s))
        self.executed_counts.add(origin.key)
        if delta_s is not None:
            self.execute_s.add(origin.key, delta_s)

    def acked(self, message: object, origin: Origin, began: Began) -> None:
        """The bolt acked ``message``."""
        delta_s = self._since(began.came_at_s)
        if self._hooks:
            self._hooks.bolt_ack(BoltAckInfo(message, self._task_id, delta_s))
        self.acked_counts.add(origin.key)
        if delta_s is not None:
            self.process_s.add(origin.key, delta_s)

    def failed(self, message: object, origin: Origin, began: Began) -> None:
        """The bolt failed ``message``."""
        if self._hooks:
            delta_s = self._since(began.came_at_s)
            self._hooks.bolt_fail(BoltFailInfo(message, self._task_id, delta_s))
        self.failed_counts.add(origin.key)

    def _since(self, at_s: float | None) -> float | None:
        return None if at_s is None else self._clock() - at_s
