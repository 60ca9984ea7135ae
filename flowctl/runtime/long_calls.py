"""The calls of ``process`` that take long, as bolts tell them with their heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.core.messages import LongCall
from flowctl.instrumentation.snapshot import LongCallView


class LongCalls:
    """What is told of one run.  Not thread-safe: guarded by the lock of :class:`.RunControl`.

    ``overdue`` counts the calls that took longer than ``call.timeout_s``.
    """

    def __init__(self) -> None:
        self.overdue: int = 0
        self._told: dict[str, tuple[float, Sequence[LongCall]]] = {}  # by bolt: when, and what

    def take(self, bolt: str, calls: Sequence[LongCall], now_s: float) -> None:
        """``bolt`` told that these are under way, and no others."""
        if calls:
            self._told[bolt] = (now_s, calls)
        else:
            self._told.pop(bolt, None)

    def joined(self, bolt: str) -> None:
        """``bolt`` came, or came back: none of its calls takes long.

        One that left because a thread is stuck does so only once that call has returned.
        """
        self._told.pop(bolt, None)

    def left(self, bolt: str, *, is_stuck: bool) -> None:
        """``bolt`` went.  ``is_stuck``: because a call does not return."""
        if not is_stuck:
            self._told.pop(bolt, None)

    @property
    def is_one_stuck(self) -> bool:
        """Whether a call took longer than it may and, as far as is known, is not back."""
        return self.overdue > 0 and bool(self._told)

    def views(self, now_s: float) -> tuple[LongCallView, ...]:
        """Return them for people, the longest first."""
        views = [
            LongCallView(
                bolt=bolt,
                partition=call.partition,
                first=call.first,
                last=call.last,
                for_s=call.for_s + now_s - told_s,
            )
            for bolt, (told_s, calls) in self._told.items()
            for call in calls
        ]
        return tuple(sorted(views, key=lambda view: -view.for_s))
