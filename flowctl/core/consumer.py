"""AdaptiveFlowConsumer: one bolt's window, estimator, state and in-flight tuples (S2, S24)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from flowctl.core.events import BoltState, FlowEvent, StateChanged, WindowChanged
from flowctl.core.rtt import RttEstimator
from flowctl.core.settings import CoreSettings
from flowctl.core.state import TRANSITIONS, Signal
from flowctl.core.tuples import FlowTuple
from flowctl.core.window import AckSample, make_policy

_RTTS_KEPT = 64  # enough for a steady median on a screen, nothing decides on it


class AdaptiveFlowConsumer:
    """What the spout knows of one bolt.  Not thread-safe; owned by ``SpoutCore``.

    ``flight`` holds the tuples it was sent and is waited for, oldest first.  ``strays`` are
    those it may still hold though nobody waits for it any more (expired, or done elsewhere):
    they take room in the window until it is known that they are gone, so that a bolt never
    holds more than its window.
    """

    __slots__ = (
        "_events",
        "_full_at_s",
        "_is_queued",
        "_settings",
        "acked",
        "alarm_s",
        "bolt",
        "epoch",
        "flight",
        "heard_at_s",
        "idle_reported",
        "is_down",
        "is_gone",
        "is_suspect",
        "last_rtts_s",
        "last_services_s",
        "moved_away",
        "policy",
        "records_acked",
        "rtt",
        "sends_heartbeats",
        "slots",
        "state",
        "strays",
        "suspect_since_s",
    )

    def __init__(
        self,
        bolt: str,
        *,
        slots: int,
        epoch: int,
        now_s: float,
        settings: CoreSettings,
        events: deque[FlowEvent],
        learned: float | None = None,
    ) -> None:
        self.bolt = bolt
        self.slots = slots
        self.epoch = epoch
        self.policy = make_policy(settings.window, learned=learned)
        self.rtt = RttEstimator(settings.timeout)
        self.state = BoltState.NORMAL
        self.flight: dict[int, FlowTuple] = {}
        self.strays: dict[int, float] = {}  # tuple id → when we stopped waiting for it
        self.heard_at_s = now_s
        self.sends_heartbeats = False
        self.idle_reported = False  # by its last heartbeat: nothing queued, nothing in process
        self.is_suspect = False
        self.suspect_since_s = now_s
        self.is_down = False
        self.is_gone = False
        self.alarm_s = float("inf")  # when the spout will look at it next
        self.acked = 0
        self.records_acked = 0
        self.moved_away = 0
        self.last_rtts_s: deque[float] = deque(maxlen=_RTTS_KEPT)
        self.last_services_s: deque[float] = deque(maxlen=_RTTS_KEPT)
        self._full_at_s = float("-inf")  # when a tuple last filled the window
        self._is_queued = False  # in the dispatcher's ring; the dispatcher's to set
        self._settings = settings
        self._events = events

    @property
    def window(self) -> int:
        """The most tuples that the bolt may hold now."""
        return int(self.policy.window)

    @property
    def held(self) -> int:
        """The tuples that the bolt holds, as far as can be known."""
        return len(self.flight) + len(self.strays)

    @property
    def has_room(self) -> bool:
        """Whether a tuple may be sent: heard of lately, and in flight below the window (S10)."""
        return not (self.is_suspect or self.is_gone) and (
            len(self.flight) + len(self.strays) < int(self.policy.window)
        )

    @property
    def is_out(self) -> bool:
        """Whether no tuple should wait for it: suspect, or nothing but strays in its window."""
        return self.is_suspect or not (self.flight or self.has_room)

    def records_max(self) -> int:
        """How many records its next tuple should have at most, by its speed."""
        settings = self._settings.tuple
        per_record_s = self.rtt.service_per_record_s
        if not per_record_s:
            return settings.records_max
        return max(1, min(settings.records_max, int(settings.service_max_s / per_record_s)))

    def on_sent(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """A tuple goes to the bolt now; its time-out starts."""
        flow_tuple.held_by = self.bolt
        flow_tuple.attempt += 1
        flow_tuple.sent_at_s = now_s
        flow_tuple.deadline_s = now_s + self.rtt.rto_s
        self.idle_reported = False
        self.flight[flow_tuple.tuple_id] = flow_tuple
        if len(self.flight) + len(self.strays) >= int(self.policy.window):
            self._full_at_s = now_s

    def on_ack(
        self,
        flow_tuple: FlowTuple,
        now_s: float,
        wait_s: float | None,
        service_s: float | None,
        idle_total_s: float | None = None,
    ) -> None:
        """An ack of a tuple in flight: take its time, move window and state."""
        del self.flight[flow_tuple.tuple_id]
        self.acked += 1
        rtt_s = now_s - flow_tuple.sent_at_s
        records = len(flow_tuple.cut.records)
        self.records_acked += records
        self.last_rtts_s.append(rtt_s)
        if service_s is not None:
            self.last_services_s.append(service_s)
        self.rtt.on_sample(rtt_s, service_s, records)
        if self.strays:
            self._forget_strays(flow_tuple.sent_at_s)
        limited = flow_tuple.is_limited and self._full_at_s >= flow_tuple.sent_at_s
        before = int(self.policy.window)
        signal = self.policy.on_ack(
            AckSample(
                now_s,
                flow_tuple.sent_at_s,
                rtt_s,
                wait_s,
                service_s,
                records,
                limited,
                idle_total_s,
                self.slots,
            )
        )
        if signal is not None:
            self._signal(signal, before, now_s, rtt_s)
        elif self.state is BoltState.BUSY and rtt_s <= (self.policy.threshold_s or rtt_s):
            self._signal(Signal.IN_RANGE, before, now_s, rtt_s)

    def _forget_strays(self, acked_sent_at_s: float) -> None:
        """Drop the strays that the bolt must be rid of.

        It takes tuples in order, so when it acks one that was sent after we gave a stray up,
        that stray was lost or is in a slot of its own.
        """
        for tuple_id, since_s in list(self.strays.items()):
            if since_s < acked_sent_at_s:
                del self.strays[tuple_id]

    def strays_due_s(self) -> float:
        """When to give up the oldest stray of a bolt that does not tell what it holds.

        Without that, one lost tuple would take its place in the window for ever (S48).
        """
        if not self.strays or self.sends_heartbeats:
            return float("inf")
        return next(iter(self.strays.values())) + self.rtt.rto_s

    def drop_old_strays(self, now_s: float) -> None:
        """Give up the strays whose time has come by :meth:`strays_due_s`."""
        while self.strays_due_s() <= now_s:
            del self.strays[next(iter(self.strays))]

    def on_expired(self, overdue: Sequence[FlowTuple], now_s: float, *, silent: bool) -> None:
        """A time-out fired: BUSY, the window shrinks by one at once (S6), the RTO backs off."""
        before = int(self.policy.window)
        for flow_tuple in overdue:
            self.policy.on_expired(now_s, flow_tuple.sent_at_s)
        self.rtt.back_off(now_s)
        self._signal(Signal.SILENT if silent else Signal.EXPIRED, before, now_s, None)

    def on_heartbeat(self, holds: int, now_s: float) -> None:
        """The bolt holds ``holds`` tuples, begun or not: strays beyond those are gone."""
        self.sends_heartbeats = True
        self.idle_reported = not holds
        gone = len(self.strays) - holds
        for tuple_id, since_s in list(self.strays.items())[: max(0, gone)]:
            # One given up just now may have been on its way when the heartbeat left.
            if now_s - since_s >= self._settings.timeout.silence_s:
                del self.strays[tuple_id]

    def on_heard(self, now_s: float) -> bool:
        """Anything came from the bolt; True if that ends a suspicion."""
        self.heard_at_s = now_s
        ended = self.is_suspect
        self.is_suspect = self.is_down = False
        return ended

    def suspect(self, now_s: float) -> None:
        """Nothing was heard for too long: it gets no more until it speaks."""
        self.is_suspect = True
        self.suspect_since_s = now_s

    def _signal(self, signal: Signal, before: int, now_s: float, rtt_s: float | None) -> None:
        after = int(self.policy.window)
        if after != before:
            self._events.append(
                WindowChanged(
                    at_s=now_s, bolt=self.bolt, before=before, after=after, reason=signal.value
                )
            )
        self._enter(TRANSITIONS[self.state, signal], signal.value, now_s, rtt_s)

    def _enter(self, state: BoltState, reason: str, now_s: float, rtt_s: float | None) -> None:
        if state is self.state:
            return
        self._events.append(
            StateChanged(
                at_s=now_s,
                bolt=self.bolt,
                before=self.state,
                after=state,
                reason=reason,
                ack_rtt_s=rtt_s,
                threshold_s=self.policy.threshold_s,
            )
        )
        self.state = state
