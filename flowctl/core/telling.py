"""A bolt's state for people, and the events that report its state and its window."""

from __future__ import annotations

from collections import deque
from typing import Final

from flowctl.core.events import BoltState, FlowEvent, StateChanged, WindowChanged
from flowctl.core.state import TRANSITIONS, Signal
from flowctl.core.window import WindowPolicy

# Report a window change only if it is at least 1/16 of the window: of one of 200, single steps are
# noise, and an event costs as much as an ack.
_TELL_WINDOW = 16
_NORMAL: Final = BoltState.NORMAL  # names: a member of an enum costs .1 us, its hash for a key .3
_IN_RANGE: Final = Signal.IN_RANGE


class StateTeller:
    """Part of ``AdaptiveFlowConsumer``; not thread-safe."""

    __slots__ = ("_bolt", "_events", "_policy", "_window_told", "state")

    def __init__(self, bolt: str, policy: WindowPolicy, events: deque[FlowEvent]) -> None:
        self.state: BoltState = BoltState.NORMAL
        self._bolt = bolt
        self._policy = policy
        self._events = events
        self._window_told = int(policy.window)

    def signal(self, signal: Signal, now_s: float, rtt_s: float | None) -> None:
        """The policy made something of an ack, an expiry or a refusal."""
        before, after = self._window_told, int(self._policy.window)
        if after != before and abs(after - before) * _TELL_WINDOW >= before:
            self._window_told = after
            self._events.append(
                WindowChanged(
                    at_s=now_s, bolt=self._bolt, before=before, after=after, reason=signal.value
                )
            )
        if signal is _IN_RANGE and self.state is _NORMAL:  # nearly always: it stays so
            return
        self.enter(TRANSITIONS[self.state, signal], signal.value, now_s, rtt_s)

    def enter(self, state: BoltState, reason: str, now_s: float, rtt_s: float | None) -> None:
        """Be in ``state`` from now on."""
        if state is self.state:
            return
        self._events.append(
            StateChanged(
                at_s=now_s,
                bolt=self._bolt,
                before=self.state,
                after=state,
                reason=reason,
                ack_rtt_s=rtt_s,
                threshold_s=self._policy.threshold_s,
            )
        )
        self.state = state
