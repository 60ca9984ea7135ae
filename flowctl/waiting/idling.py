"""One situation in which a loop waits: its strategy, its counter, its episode."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowctl.waiting.episodes import Episode
from flowctl.waiting.strategies import WaitStrategy


class Idling:
    """Waits by ``strategy``, counts the waits, and logs the episode that they make.

    For one thread; ``clock`` gives monotonic seconds.
    """

    __slots__ = ("_clock", "_counter", "_strategy", "episode")

    def __init__(
        self,
        strategy: WaitStrategy,
        episode: Episode,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._strategy = strategy
        self._clock = clock
        self._counter = 0
        self.episode: Episode = episode

    def wait(self) -> float:
        """Wait once; return how long it took [s].  Raises ``WaitInterrupted``."""
        began_s = self._clock()
        self.episode.begin(began_s)
        try:
            self._counter = self._strategy.idle(self._counter)
        finally:  # an interruption also ends a wait
            ended_s = self._clock()
            self.episode.waited(ended_s - began_s, ended_s)
        return ended_s - began_s

    def over(self) -> None:
        """There is work: the next wait starts from the beginning."""
        if self.episode.is_under_way:  # the counter may stay 0 all along, as a spout's does
            self._counter = 0
            self.episode.end(self._clock())
