"""For the tests of loops: waits that take no time, a log in a list."""

from __future__ import annotations

from typing import Any

from flowctl.testing.clock import ManualClock
from flowctl.waiting.strategies import WaitInterrupted


class Parked:
    """A Parking that moves a clock and remembers how long it was asked for."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.times_s: list[float] = []
        self.is_interrupted = False

    def __call__(self, timeout_s: float) -> None:
        if self.is_interrupted:
            raise WaitInterrupted
        self.times_s.append(timeout_s)
        self.clock.advance(timeout_s)


class Log:
    """A logger in a list."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str, dict[str, Any]]] = []

    def log(self, level: int, event: str, /, **fields: Any) -> None:
        self.told.append((level, event, fields))

    @property
    def events(self) -> list[str]:
        return [event for _, event, _ in self.told]
