"""A window that never changes: the right choice if you know the number."""

from __future__ import annotations

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample


class FixedWindow:
    """Always ``settings.initial`` tuples."""

    __slots__ = ("window",)

    work_max_s: float | None = None  # counts in tuples

    threshold_s: float | None = None

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        del learned  # a fixed window learns nothing
        self.window: float = float(min(settings.initial, settings.max))

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Any ack is in range."""
        del sample
        return Signal.IN_RANGE

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """The window stays; the bolt is BUSY until its next ack all the same."""
        del now_s, sent_at_s
