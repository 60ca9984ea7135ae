"""Timers that are polled: they have no thread and no clock of their own."""

from __future__ import annotations

from flowctl.errors import ConfigError

# What starts at the same time should not all be due at the same time (Storm's value).
FIRST_DELAY_S = 0.5


class Timer:
    """Expires ``delay_s + period_s`` after its start, then a period after each reset.  Seconds.

    Expirations don't accumulate: however late it is polled, it expires once.  Not thread-safe.
    """

    __slots__ = ("_from_s", "_period_s")

    def __init__(self, period_s: float, *, now_s: float, delay_s: float = FIRST_DELAY_S) -> None:
        if not period_s > 0:
            raise ConfigError(
                "period_s",
                f"must be greater than 0, got {period_s}.",
                remedy="Give a time in seconds.",
            )
        if delay_s < 0:
            raise ConfigError(
                "delay_s", f"must be 0 or more, got {delay_s}.", remedy="Give a time in seconds."
            )
        self._period_s = period_s
        self._from_s = now_s + delay_s

    @property
    def due_s(self) -> float:
        """When it expires next."""
        return self._from_s + self._period_s

    def expired_reset_on_true(self, now_s: float) -> bool:
        """Return whether it has expired; restart the period only if so."""
        if now_s < self.due_s:
            return False
        self._from_s = now_s
        return True
