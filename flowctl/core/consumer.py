"""AdaptiveFlowConsumer: one bolt's window, estimator, state and in-flight tuples (S2, S24)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from flowctl.core.cost import ServiceModel, ServicePool
from flowctl.core.events import BoltState, FlowEvent, StateChanged, WindowChanged
from flowctl.core.messages import Ack, Heartbeat
from flowctl.core.retry import TARGET
from flowctl.core.rtt import RttEstimator
from flowctl.core.settings import CoreSettings
from flowctl.core.state import LIVENESS, SILENT, TRANSITIONS, Liveness, Sign, Signal
from flowctl.core.times import BoltTimes
from flowctl.core.tuples import FlowTuple, Ids
from flowctl.core.window import AckSample, WindowPolicy, make_policy

# -- Tuples that a bolt may still hold though nobody waits for them any more -------------------


class Strays(dict[int, float]):
    """Tuples that the spout stopped waiting for, but which the bolt may still hold: id → since
    when, oldest first.

    They take room in the bolt's window until they are known to be gone, so that a bolt never holds
    more than its window.  ``are_told``: the bolt's heartbeats report what it holds, so that time
    alone decides nothing.  Part of ``AdaptiveFlowConsumer``; not thread-safe.
    """

    __slots__ = ("are_told",)

    def __init__(self) -> None:
        self.are_told: bool = False

    def end(self, tuple_id: int) -> bool:
        """Remove a tuple that the bolt no longer holds; return whether it was a stray."""
        return self.pop(tuple_id, None) is not None

    def forget_before(self, sent_at_s: float) -> None:
        """Forget strays given up before ``sent_at_s``, as the bolt acked a tuple sent then.

        A bolt takes tuples in order, so such a stray was lost or is in another slot.
        """
        for tuple_id, since_s in list(self.items()):
            if since_s < sent_at_s:
                del self[tuple_id]

    def keep_at_most(self, holds: int, *, before_s: float) -> None:
        """Keep at most ``holds`` strays, as the bolt reports that it holds so few tuples.

        A tuple given up after ``before_s`` stays: it may have been on its way when the bolt sent
        that.
        """
        for tuple_id, since_s in list(self.items())[: max(0, len(self) - holds)]:
            if since_s <= before_s:
                del self[tuple_id]

    def drop_due(self, rto_s: float, now_s: float) -> None:
        """Forget the strays whose time has come by :meth:`due_s`."""
        while self.due_s(rto_s) <= now_s:  # the same sum as there, or an alarm would ring for ever
            del self[next(iter(self))]

    def renew(self, now_s: float) -> None:
        """Restart the time of all strays, as if they had just been given up."""
        for tuple_id in self:
            self[tuple_id] = now_s

    def due_s(self, rto_s: float) -> float:
        """Return when to forget the oldest stray, if the bolt does not report what it holds.

        Otherwise one lost tuple would take up room in the window for ever (S48).
        """
        return next(iter(self.values())) + rto_s if self and not self.are_told else inf

    def is_unheard(self, heard_at_s: float) -> bool:
        """Whether the bolt, last heard at ``heard_at_s``, has been silent since the oldest stray
        was given up.
        """
        return bool(self) and not self.are_told and heard_at_s <= next(iter(self.values()))


# -- A bolt's state for people, and the events that report its state and its window ------------


# Report a window change only if it is at least 1/16 of the window: in a window of 200, single steps
# are noise, and an event costs as much as an ack.
_TELL_WINDOW = 16
_NORMAL: Final = BoltState.NORMAL  # names: a member of an enum costs .1 us, its hash for a key .3
_IN_RANGE: Final = Signal.IN_RANGE


class StateTeller:
    """Part of ``AdaptiveFlowConsumer``; not thread-safe."""

    __slots__ = ("_bolt", "_events", "_policy", "_service", "_window_told", "state")

    def __init__(
        self, bolt: str, policy: WindowPolicy, service: ServiceModel, events: deque[FlowEvent]
    ) -> None:
        self.state: BoltState = BoltState.NORMAL
        self._bolt = bolt
        self._policy = policy
        self._service = service
        self._events = events
        self._window_told = int(policy.window)

    def signal(
        self, signal: Signal, now_s: float, rtt_s: float | None, *, silent_s: float | None = None
    ) -> None:
        """Note what the window policy made of an ack, an expiry or a refusal."""
        before, after = self._window_told, int(self._policy.window)
        if after != before and abs(after - before) * _TELL_WINDOW >= before:
            self._window_told = after
            self._events.append(
                WindowChanged(
                    at_s=now_s,
                    bolt=self._bolt,
                    before=before,
                    after=after,
                    reason=signal.value,
                    service_s=self._service.mean_s,
                    path_s=self._service.path_s,
                )
            )
        if signal is _IN_RANGE and self.state is _NORMAL:  # the usual case: the state stays
            return
        self.enter(TRANSITIONS[self.state, signal], signal.value, now_s, rtt_s, silent_s=silent_s)

    def enter(
        self,
        state: BoltState,
        reason: str,
        now_s: float,
        rtt_s: float | None,
        *,
        silent_s: float | None = None,
    ) -> None:
        """Change to ``state``, and report that."""
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
                silent_s=silent_s,
            )
        )
        self.state = state


# -- AdaptiveFlowConsumer ----------------------------------------------------------------------


NEVER: Final = float("inf")
NOT_QUEUED: Final = NEVER
# Names, as a member of an enum costs .2 us for each tuple.
_ALIVE: Final = Liveness.ALIVE
_BUSY: Final = BoltState.BUSY
# Every fourth time is kept for display; no decision depends on it.
_RTT_EVERY = 4
# Heartbeats that come later than so many periods show a process that stood still.
_PAUSE_BEATS = 2.0
# Until a bolt has this many acks, the mean service time of all bolts counts beside its own.
_SAMPLES_MIN = 4


class NewBolt(NamedTuple):
    """A bolt that came at ``now_s``; ``in_order`` as in ``TupleCore.add_bolt``.

    ``counts``: what it did before it went and came back (tuples acked, records acked, tuples that
    went from it to others).
    """

    bolt: str
    slots: int
    epoch: int
    now_s: float
    in_order: bool = False
    counts: tuple[int, int, int] = (0, 0, 0)


class AdaptiveFlowConsumer:
    """What the spout knows of one bolt.  Not thread-safe; owned by ``TupleCore``.

    ``flight`` holds the tuples sent to it whose acks are waited for, oldest first.  ``strays`` are
    tuples that it may still hold although their acks are not waited for any more (expired, or done
    elsewhere).  ``is_fifo``: one slot, and acks come in the order of sending, so that the ack of a
    later tuple proves an earlier one lost.

    ``has_room``: it was heard recently, and holds less work than its window, or has a free slot and
    fewer tuples than its window (S10).  ``completion_s``: how long until a tuple of mean size would
    be acked, if sent now.  Both are as of the last :meth:`refresh`; sending refreshes.
    """

    __slots__ = (
        "_beat_at_s", "_by_signs", "_bytes_max", "_full_at_s", "_is_full", "_paused_s",
        "_settings", "_teller", "_window_max", "acked", "alarm_s", "armed_at_s", "arrived",
        "begun", "bolt", "bytes_held", "called", "completion_s", "epoch", "flight", "has_room",
        "heard_at_s", "idle_said_at_s", "is_fifo", "is_in_order", "liveness", "moved_away",
        "place", "policy", "queued_s", "records_acked", "records_held", "refused_in_a_row",
        "rests_until_s", "rtt", "sends_heartbeats", "sent", "service", "slots", "slow_since_s",
        "strays", "suspect_since_s", "times",
    )  # fmt: skip

    def __init__(
        self, new: NewBolt, settings: CoreSettings, events: deque[FlowEvent],
        *, pool: ServicePool | None = None, learned: float | None = None,
    ) -> None:  # fmt: skip
        bolt, slots, epoch, now_s, in_order, counts = new
        self.bolt: str = bolt
        self.slots: int = slots
        self.epoch: int = epoch
        self.is_in_order: bool = in_order and settings.timeout.rule == "signs"
        self.is_fifo: bool = self.is_in_order and slots == 1
        self.policy: WindowPolicy = make_policy(settings.window, learned=learned)
        if settings.window.policy == "just_full":  # at first a tuple for each slot
            self.policy.window = max(self.policy.window, float(min(slots, settings.window.max)))
        self.rtt: RttEstimator = RttEstimator(settings.timeout)
        self.service: ServiceModel = ServiceModel(pool)
        self._teller = StateTeller(bolt, self.policy, self.service, events)
        self.flight: dict[int, FlowTuple] = {}
        self.records_held: int = 0  # records of the tuples in flight
        self.bytes_held: int = 0  # bytes of the tuples in flight
        self.strays: Strays = Strays()
        self.heard_at_s: float = now_s
        self.sends_heartbeats: bool = False
        self.idle_said_at_s: float = -NEVER  # when its last heartbeat came, if nothing waits
        self.begun: Ids = ()  # tuples in progress, by its last heartbeat
        self.arrived: float = NEVER  # tuples that had reached it then, if counted
        self.armed_at_s: float = now_s  # since when the oldest tuple in flight is waited for
        self.slow_since_s: float = now_s  # the same for the tuple that made it slow
        self._is_full = False  # all slots busy, by its last heartbeat
        self.liveness: Liveness = Liveness.ALIVE
        self.rests_until_s: float = -NEVER  # until when it rests
        self.refused_in_a_row: int = 0
        self.suspect_since_s: float = now_s
        self._beat_at_s: float = NEVER  # when its last heartbeat came
        self._paused_s = 0.0  # pauses that are over
        self.alarm_s: float = NEVER  # the spout's next look; set by the alarms
        self.queued_s: float = NOT_QUEUED  # set by the dispatcher, like ``place``
        self.place: int = -1
        self.sent: int = 0
        self.called: int = 0  # calls sent to a topology's bolt, beside tuples
        self.acked, self.records_acked, self.moved_away = counts
        self.times: BoltTimes = BoltTimes(self.service.pool.times)
        self._full_at_s = -NEVER  # when a tuple last filled the window
        self._by_signs = settings.timeout.rule == "signs"
        self._settings = settings
        self._window_max, self._bytes_max = settings.window.max, settings.window.bytes_max
        self.refresh()

    # -- how much it may hold ------------------------------------------------------------

    @property
    def state(self) -> BoltState:
        """NORMAL, SLOW or BUSY, for display: no decision depends on it."""
        return self._teller.state

    @property
    def window(self) -> int:
        """The most tuples that the bolt may hold now; about, if the window is counted in work."""
        return int(self.policy.window)

    @property
    def held(self) -> int:
        """The number of tuples that the bolt holds, as far as can be known."""
        return len(self.flight) + len(self.strays)

    @property
    def is_suspect(self) -> bool:
        """Whether it counts as suspect or down, because it is silent."""
        return self.liveness in SILENT

    @property
    def is_out(self) -> bool:
        """Whether no tuple should wait for it: it is suspect, about to leave, or has only strays in
        its window.
        """
        if self.is_suspect or self._bytes_max < 0:
            return True
        return not (self.flight or self.has_room or self.liveness is Liveness.RESTING)

    @property
    def is_mute(self) -> bool:
        """Whether it sends no heartbeats and has been silent since a tuple expired on it."""
        return self.strays.is_unheard(self.heard_at_s)

    @property
    def watches_signs(self) -> bool:
        """Whether heartbeats and the order of acks decide about its tuples, and not only the
        clock.
        """
        return self._by_signs and self.sends_heartbeats

    def paused_s(self, now_s: float) -> float:
        """How long its process stood still so far, by its heartbeats; for people."""
        gap_s, beat_s = now_s - self._beat_at_s, self._settings.timeout.heartbeat_s
        return self._paused_s + (gap_s - beat_s if gap_s > _PAUSE_BEATS * beat_s else 0.0)

    def work_s(self) -> float:
        """Seconds of work that it holds, all slots together."""
        work_s = self.service.of(self.records_held, tuples=len(self.flight))
        return work_s + self.service.mean_s * len(self.strays)

    def refresh(self) -> None:
        """Recompute ``has_room`` and ``completion_s`` after anything changed."""
        service, policy, strays = self.service, self.policy, self.strays
        held = len(self.flight)
        mean_s = service.mean_s
        # service.of(), without a call: this runs at each sending and each ack.
        fixed = service.fixed_records
        per_record_s = mean_s / (fixed + service.mean_records) if service.samples else 0.0
        work_s = per_record_s * (fixed * held + self.records_held)
        if strays:
            held += len(strays)
            work_s += mean_s * len(strays)
        work_max_s = policy.work_max_s
        if self.bytes_held >= self._bytes_max or self.liveness is not _ALIVE:
            self.has_room: bool = False
        elif work_max_s is None:
            self.has_room = held < int(policy.window)
        else:
            if work_s < work_max_s:
                has_room = held < self._window_max
            else:
                # A large tuple keeps its slot busy, however much work it is; other slots are free.
                has_room = held < self.slots and held < int(policy.window)
            self.has_room = has_room and not (strays and self.is_mute)
        if service.samples >= _SAMPLES_MIN:
            self.completion_s: float = work_s / self.slots + mean_s + service.path_s
        else:
            # While no times are known, the number of tuples that each bolt holds decides.
            pool = service.pool
            service_s = max(mean_s, pool.mean_s) or 1.0
            path_s = service.path_s if service.samples else pool.path_s
            self.completion_s = (held / self.slots + 1) * service_s + path_s

    # -- tuples go and come --------------------------------------------------------------

    def on_sent(self, flow_tuple: FlowTuple, now_s: float, window_limited: bool) -> None:
        """Note that a tuple is sent to the bolt now, perhaps delayed by its window; its time-out
        starts.
        """
        sent = self.sent
        if not self.flight:
            self.armed_at_s = now_s
            if not sent:
                self.service.begin_first_call()
        self.sent = sent = sent + 1
        ordinal = sent + self.called
        flow_tuple.sent(self.bolt, now_s, now_s + self.rtt.rto_s, ordinal, window_limited)
        self.flight[flow_tuple.tuple_id] = flow_tuple
        cut = flow_tuple.cut
        self.records_held += len(cut.records)
        self.bytes_held += cut.size_bytes  # as _hold does, without its call
        self.service.pool.bytes_held += cut.size_bytes
        self.refresh()
        if not self.has_room and self.bytes_held < self._bytes_max:
            self._full_at_s = now_s

    def on_called(self) -> None:
        """Note that a call is sent to it, which counts in no window."""
        self.called += 1

    def _hold(self, size_bytes: int) -> None:
        """Count ``size_bytes`` more in flight, here and in all; less if negative."""
        self.bytes_held += size_bytes
        self.service.pool.bytes_held += size_bytes

    def take_out(self, tuple_id: int) -> FlowTuple | None:
        """Stop waiting for a tuple and return it; None if it was not in flight."""
        flow_tuple = self.flight.pop(tuple_id, None)
        if flow_tuple is not None:
            self.records_held -= len(flow_tuple.cut.records)
            self._hold(-flow_tuple.cut.size_bytes)
        return flow_tuple

    def let_stray(self, tuple_id: int, now_s: float) -> FlowTuple | None:
        """Stop waiting for a tuple that the bolt may still have; None if it was not in flight."""
        if (flow_tuple := self.take_out(tuple_id)) is not None:
            self.strays[tuple_id] = now_s
        return flow_tuple

    def take_all(self) -> list[FlowTuple]:
        """Stop waiting for all tuples; return those that were in flight, oldest first."""
        held = list(self.flight.values())
        self.flight.clear()
        self.records_held = 0
        self._hold(-self.bytes_held)
        return held

    def leave(self) -> None:
        """Note that the bolt went: it gets nothing more, and its strays are forgotten."""
        self._see(Sign.LEFT)
        self.has_room = False
        self.strays.clear()
        self.service.leave()

    def restore(self, flow_tuples: Sequence[FlowTuple], now_s: float) -> None:
        """Wait for these strays again, before all else that it holds."""
        self.moved_away -= len(flow_tuples)
        for flow_tuple in (*flow_tuples, *self.take_all()):
            self.strays.end(flow_tuple.tuple_id)
            self.flight[flow_tuple.tuple_id] = flow_tuple
            self.records_held += len(flow_tuple.cut.records)
            self._hold(flow_tuple.cut.size_bytes)
        self.armed_at_s = now_s

    def on_moved(self) -> None:
        """Note that a tuple it gave back, or did not ack, goes to another bolt."""
        self.moved_away += 1

    def wait_anew(self, now_s: float) -> None:
        """Restart the timer of the oldest tuple in flight."""
        self.armed_at_s = now_s

    def stop_sending(self) -> None:
        """Give it no room again, because it is about to leave."""
        self._bytes_max = -1  # no bolt holds less than nothing, so none has room

    def on_ack(self, flow_tuple: FlowTuple, ack: Ack, now_s: float) -> None:
        """Take the times of a tuple's ack, and update window and state."""
        cut, sent_at_s = flow_tuple.cut, flow_tuple.sent_at_s
        records, rtt_s = len(cut.records), now_s - sent_at_s
        del self.flight[flow_tuple.tuple_id]
        self.records_held -= records
        self.bytes_held -= cut.size_bytes  # as _hold does, without its call
        self.service.pool.bytes_held -= cut.size_bytes
        self.acked += 1
        self.records_acked += records
        self.refused_in_a_row = 0
        self._learn(now_s, rtt_s, ack.wait_s, ack.service_s, records, sink_s=ack.sink_s)
        self.armed_at_s = now_s
        if self.strays:
            self.strays.forget_before(sent_at_s)
        limited = flow_tuple.window_limited and self._full_at_s >= sent_at_s
        signal = self.policy.on_ack(
            AckSample(
                now_s, sent_at_s, rtt_s, ack.wait_s, ack.service_s,
                records, limited, self.service, ack.idle_total_s, self.slots,
            )
        )  # fmt: skip
        if signal is not None:
            self._teller.signal(signal, now_s, rtt_s)
        elif self._teller.state is _BUSY and rtt_s <= (self.policy.threshold_s or rtt_s):
            self._teller.signal(Signal.IN_RANGE, now_s, rtt_s)

    def on_late_ack(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """Note that it processed a tuple whose ack was not waited for any more."""
        self.refused_in_a_row = 0
        self.service.end_first_call()
        self.acked += 1
        self.records_acked += len(flow_tuple.cut.records)
        self.strays.end(flow_tuple.tuple_id)
        if not flow_tuple.is_hedged:
            self.rtt.on_spurious(now_s)

    def on_failed(self) -> None:
        """Note that its call failed, but was not refused."""
        self.refused_in_a_row = 0

    def on_refused(self, sent_at_s: float, now_s: float) -> None:
        """Note that the target refused its tuple: SLOW, the window shrinks; it rests unless other
        slots work.
        """
        self.policy.on_expired(now_s, sent_at_s)
        self._teller.signal(Signal.REFUSED, now_s, None)
        self.armed_at_s = now_s
        if not self.flight or self.slots == 1:
            self.refused_in_a_row += 1  # it rests as long as its slots do (bolts/pauses.py)
            self.rests_until_s = now_s + TARGET.after(self.refused_in_a_row)
            self._see(Sign.REFUSED)

    def _learn(
        self, now_s: float, rtt_s: float, wait_s: float | None, service_s: float | None,
        records: int, *, sink_s: float | None = None,
    ) -> None:  # fmt: skip
        if not self.acked % _RTT_EVERY:
            self.times.keep(rtt_s, wait_s, service_s, sink_s)
        if wait_s is None or service_s is None:
            # The share of one slot in the time since the last ack: an RTT is mostly queue and path.
            busy_s = min(rtt_s, (now_s - self.armed_at_s) * self.slots)
            self.service.on_sample(now_s, busy_s, 0.0, records)
            self.rtt.on_sample(now_s, rtt_s, is_checked=False)
            return
        unqueued_s = rtt_s - wait_s
        self.service.is_told = True
        path_s = unqueued_s - service_s
        self.service.on_sample(now_s, service_s, path_s, records)
        # Each ack restarts the timer of a watched bolt: the wait of single tuples does not count.
        checked = self._by_signs and self.sends_heartbeats
        self.rtt.on_sample(now_s, unqueued_s if checked else rtt_s, is_checked=checked)

    def drop_old_strays(self, now_s: float, *, may_try: bool = True) -> None:
        """Forget the strays whose time has come; ``may_try``: even if the bolt is mute."""
        if may_try or not self.is_mute:
            self.strays.drop_due(self.rtt.rto_s, now_s)
        else:
            self.strays.renew(now_s)

    def on_expired(self, overdue: Sequence[FlowTuple], now_s: float, *, silent: bool) -> None:
        """Note that a time-out fired: BUSY, the window shrinks by one at once (S6), the RTO backs
        off.
        """
        for flow_tuple in overdue:
            self.policy.on_expired(now_s, flow_tuple.sent_at_s)
        self.rtt.back_off(now_s)
        if silent:
            self._teller.signal(Signal.SILENT, now_s, None, silent_s=now_s - self.heard_at_s)
        else:
            self._teller.signal(Signal.EXPIRED, now_s, None)

    def on_heartbeat(self, beat: Heartbeat, now_s: float) -> None:
        """Take what its heartbeat says it holds: strays beyond that are gone."""
        holds, begun = beat.holds, beat.begun
        self.sends_heartbeats = self.strays.are_told = True
        gap_s, beat_s = now_s - self._beat_at_s, self._settings.timeout.heartbeat_s
        if gap_s > _PAUSE_BEATS * beat_s:
            self._paused_s += gap_s - beat_s
        self._beat_at_s = now_s
        self.idle_said_at_s = -NEVER if holds > len(begun) else now_s
        self.begun = begun
        self.arrived = NEVER if beat.arrived is None else beat.arrived
        self._is_full = holds >= self.slots
        if not self._is_full and self.liveness is not _ALIVE:
            self._see(Sign.HAS_SLOT)
        if self.strays:
            self.strays.keep_at_most(holds, before_s=now_s - self._settings.timeout.silence_s)

    def on_heard(self, now_s: float) -> bool:
        """Note that a message came from it; return whether it was suspect until now."""
        self.heard_at_s = now_s
        if self.liveness is _ALIVE:  # the usual case, and asked for each message
            return False
        was_suspect = self.is_suspect
        self._see(Sign.HEARD)
        if was_suspect:
            self.armed_at_s = now_s
        return was_suspect

    def on_answered(self) -> None:
        """Note that it no longer holds a tuple: it acked or failed it, or gave back all that it
        held.
        """
        if self.liveness is not _ALIVE:
            self._see(Sign.ANSWERED)

    def on_silent(self, now_s: float) -> None:
        """Note that it was silent for too long: suspect, it gets no more until a message comes;
        then down.
        """
        if self.is_suspect:
            self._see(Sign.STILL_SILENT)
        else:
            self._see(Sign.SILENT)
            self.suspect_since_s = now_s

    def on_rested(self) -> None:
        """Its rest is over."""
        self._see(Sign.RESTED)

    def _see(self, sign: Sign) -> None:
        self.liveness = LIVENESS[self.liveness, sign]

    def on_overdue(self, now_s: float) -> None:
        """Note that its oldest tuple is overdue although it is alive: it gets nothing more until it
        acks or has a free slot.
        """
        if self.liveness is _ALIVE:
            self.slow_since_s = self.armed_at_s
        self._see(Sign.OVERDUE if self._is_full else Sign.HAS_SLOT)
        self._teller.enter(BoltState.SLOW, "overdue", now_s, None)
