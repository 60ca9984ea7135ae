"""How a loop waits, and the log of that: one event when it starts and one when it ends.

For one loop's thread; totals may be read from any.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from flowctl.instrumentation.event_text import EventLogger
from flowctl.instrumentation.logging import light_logger
from flowctl.waiting.strategies import WaitStrategy

# -- Episodes of waiting.  Time comes in as an argument ----------------------------------------


# A loop with full windows waits for milliseconds many times a second, which is detail.  A longer
# wait than this [s] may be of interest, and can't occur more often.
LONG_S: Final = 5.0
# As long as the minimum RTO [s]: from here on tuples expire because their acks are not taken.
SLOW_CALL_S: Final = 1.0


class Episode:
    """One reason to wait.  ``waited_s`` is the time waited so far, over all episodes [s].

    ``started`` and ``ended`` are the names of the two log events, both with ``fields``; the second
    has the length of the episode and the number of waits in it.  An episode of at least ``long_s``
    is logged at INFO: its start as soon as it lasts that long, its end when it ends.  Both events
    of a shorter one are logged at its end, at DEBUG.
    """

    __slots__ = (
        "_ended",
        "_fields",
        "_is_told",
        "_logger",
        "_long_s",
        "_since_s",
        "_started",
        "_waits",
        "waited_s",
    )

    def __init__(
        self,
        started: str,
        ended: str,
        *,
        long_s: float = LONG_S,
        logger: EventLogger | None = None,
        **fields: Any,
    ) -> None:
        self._started = started
        self._ended = ended
        self._long_s = long_s
        self._logger = logger or light_logger()
        self._fields = fields
        self._since_s: float | None = None
        self._is_told = False
        self._waits = 0
        self.waited_s: float = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether an episode has started and not ended."""
        return self._since_s is not None

    def begin(self, now_s: float) -> None:
        """Begin an episode, as there is a reason to wait; does nothing if one has begun."""
        if self._since_s is None:
            self._since_s = now_s
            self._waits = 0

    def waited(self, time_s: float, now_s: float) -> None:
        """Count one wait of ``time_s``, which is over."""
        self._waits += 1
        self.waited_s += time_s
        if self._since_s is not None and not self._is_told:
            length_s = now_s - self._since_s
            if length_s >= self._long_s:
                self._is_told = True
                self._logger.log(logging.INFO, self._started, lasts_s=length_s, **self._fields)

    def end(self, now_s: float) -> None:
        """End the episode, as there is no reason to wait any more; log its length, if one was under
        way.
        """
        if self._since_s is None:
            return
        length_s = now_s - self._since_s
        self._since_s = None
        level = logging.INFO if self._is_told else logging.DEBUG
        if not self._is_told:
            self._logger.log(level, self._started, **self._fields)
        self._is_told = False
        self._logger.log(level, self._ended, length_s=length_s, waits=self._waits, **self._fields)


class SlowCalls:
    """Warns when the user's code held up a loop, once per episode of slow calls.

    A spout's acks are taken by the thread that calls ``next_tuple``: while it blocks, nothing is
    acked.
    """

    __slots__ = ("_is_slow", "_limit_s", "_logger", "count")

    def __init__(self, *, limit_s: float = SLOW_CALL_S, logger: EventLogger | None = None) -> None:
        self._limit_s = limit_s
        self._logger = logger or light_logger()
        self._is_slow = False
        self.count: int = 0

    def took(self, call: str, time_s: float) -> None:
        """Note that ``call`` took ``time_s``."""
        if time_s < self._limit_s:
            self._is_slow = False
            return
        self.count += 1
        if not self._is_slow:
            self._is_slow = True
            self._logger.log(logging.WARNING, "call_blocks_loop", call=call, took_s=time_s)


# -- One situation in which a loop waits: its strategy, its counter, its episode ---------------


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
        """Note that there is work: the next wait starts from the beginning."""
        if self.episode.is_under_way:  # the counter may stay 0 all along, as a spout's does
            self._counter = 0
            self.episode.end(self._clock())
