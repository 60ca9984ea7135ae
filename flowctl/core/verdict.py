"""What time means for a bolt: one judgement, asked for its next alarm and for what to do about it.

Each rule is a time from which on something holds.  The alarm is the earliest of them; what holds at
``now_s`` is what to act on.  So an alarm can't ring for nothing, and nothing is due unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from flowctl.core.consumer import NEVER, AdaptiveFlowConsumer
from flowctl.core.settings import TimeoutSettings
from flowctl.core.state import Liveness
from flowctl.core.tuples import FlowTuple, Ids

# Asked at each alarm: a member of an enum costs .2 us.
_RESTING: Final = Liveness.RESTING
_STALLED: Final = Liveness.STALLED
# A bolt that beats and is busy gets so many times as long as all that it holds should take before
# the spout gives up on it: of records whose costs follow Pareto's law with exponent 1.1, two in a
# thousand take more than thirty times the mean.
_PATIENCE_RATIO: Final = 30.0
# While no bolt has acked anything nobody knows what a tuple takes, and another bolt would not be
# faster: eight times the longest time-out, as calls of five minutes are not rare (a model).
_PATIENCE_FIRST: Final = 8.0
# Four processes may share a core and still send their heartbeats.  Where more bolts begin at once,
# each has to wait for its turn that much longer until its first call, which imports, is over: of
# forty on two cores that import pandas many were silent for seconds, again and again.  It is the
# most that counts, not those that are left: the others are at work by then.
_FIRST_CALLS: Final = 4


class Verdict(NamedTuple):
    """What holds of a bolt, and when to ask again if nothing happens.

    ``next_s`` at or before now: something holds.  ``hopeless``: tuples that were waited for long
    enough; the bolt may be at work on them.  ``lost``: tuples that it can't have.
    """

    next_s: float
    is_rested: bool = False  # the target refused it, and its rest is over
    is_silent: bool = False  # nothing was heard for too long: suspect
    is_down: bool = False  # suspect, and silent for longer
    is_overdue: bool = False  # its oldest tuple has no ack within its time-out
    hopeless: Sequence[FlowTuple] = ()
    lost: Sequence[FlowTuple] = ()


def verdict(
    consumer: AdaptiveFlowConsumer, timeout: TimeoutSettings, now_s: float = -NEVER
) -> Verdict:
    """Judge ``consumer`` at ``now_s``; without that only ``next_s`` says something.  Pure."""
    if consumer.liveness is _RESTING:
        rests_s = consumer.rests_until_s
        judged = _of_flight(consumer, timeout, now_s)
        return judged._replace(next_s=min(rests_s, judged.next_s), is_rested=rests_s <= now_s)
    return _of_flight(consumer, timeout, now_s)


def _of_flight(consumer: AdaptiveFlowConsumer, timeout: TimeoutSettings, now_s: float) -> Verdict:
    flight = consumer.flight
    if not flight:
        return Verdict(consumer.strays.due_s(consumer.rtt.rto_s))
    if consumer.is_suspect:
        down_s = consumer.suspect_since_s + timeout.suspect_s
        return Verdict(down_s, is_down=down_s <= now_s)
    if not consumer.watches_signs:
        # Not always the oldest's: new ones become shorter.
        expires_s = min(flow_tuple.deadline_s for flow_tuple in flight.values())
        if expires_s > now_s:
            return Verdict(expires_s)
        return Verdict(expires_s, hopeless=[t for t in flight.values() if t.deadline_s <= now_s])
    return _by_signs(consumer, timeout, now_s)


def _by_signs(consumer: AdaptiveFlowConsumer, timeout: TimeoutSettings, now_s: float) -> Verdict:
    flight, heard_s = consumer.flight, consumer.heard_at_s
    overdue_s = consumer.armed_at_s + consumer.rtt.rto_s
    # Silence alone takes long to mean something; with work overdue, or stalled, it is soon enough.
    silent_s = heard_s + timeout.silence_max_s
    if consumer.liveness is _STALLED:
        silent_s = heard_s + _soon_s(consumer, timeout)
    next_s = min(overdue_s, silent_s)
    oldest_s = next(iter(flight.values())).sent_at_s
    # Nearly always: the patience with a bolt need not be worked out, as it is never less than this.
    if now_s < next_s <= oldest_s + timeout.rto_max_s:
        return Verdict(next_s)
    # A bolt of several slots may continue to ack and never finish one of its tuples (S48).
    wait_s = patience_s(consumer, timeout)
    next_s = min(next_s, oldest_s + wait_s)
    if next_s > now_s:
        return Verdict(next_s)
    short_s = heard_s + _soon_s(consumer, timeout)
    if short_s <= now_s:
        return Verdict(next_s, is_silent=True)
    hopeless = [t for t in flight.values() if t.sent_at_s + wait_s <= now_s]
    lost = [
        t
        for t in flight.values()
        if t.sent_at_s + wait_s > now_s and _has_lost(consumer, t, timeout)
    ]
    return Verdict(next_s, is_overdue=overdue_s <= now_s, hopeless=hopeless, lost=lost)


def _soon_s(consumer: AdaptiveFlowConsumer, timeout: TimeoutSettings) -> float:
    """How long a bolt may be silent that should have answered: longer if many began at once."""
    silence_s, service = timeout.silence_s, consumer.service
    if service.is_in_first_call and service.pool.first_calls_most > _FIRST_CALLS:
        silence_s *= service.pool.first_calls_most / _FIRST_CALLS
    return min(silence_s, timeout.silence_max_s)


def _has_lost(
    consumer: AdaptiveFlowConsumer, flow_tuple: FlowTuple, timeout: TimeoutSettings
) -> bool:
    """Whether it said that nothing waits there when this tuple, not begun, must have come.

    A heartbeat that left before the tuple came arrives at most one round trip after it was
    sent; while that is not known, some heartbeats later.  A bolt that counts what comes knows
    better: on a narrow link a tuple takes as long as all that goes before it to any bolt.
    """
    if flow_tuple.tuple_id in consumer.begun or flow_tuple.ordinal > consumer.arrived:
        return False
    service = consumer.service
    there_s = service.path_peak_s if service.samples else timeout.silence_s
    return consumer.idle_said_at_s >= flow_tuple.sent_at_s + there_s


def lost_by_beats(
    consumer: AdaptiveFlowConsumer, said_s: float, begun: Ids, timeout: TimeoutSettings
) -> list[FlowTuple]:
    """What two heartbeats in a row do not know of: the newest, and one of ``said_s`` and ``begun``.

    Both said that nothing waits there.  The time-out alone would notice it late: it is as long as
    the longest tuples, and each ack of another slot restarts it.  One heartbeat is not enough, as
    the bolt may hold the tuple's ack back for a moment, to send it with others.
    """
    service = consumer.service
    there_s = service.path_peak_s if service.samples else timeout.silence_s
    lost = []
    for flow_tuple in consumer.flight.values():
        if flow_tuple.sent_at_s + there_s > said_s:
            break  # those after it were sent later
        if flow_tuple.tuple_id not in begun and _has_lost(consumer, flow_tuple, timeout):
            lost.append(flow_tuple)
    return lost


def patience_s(consumer: AdaptiveFlowConsumer, timeout: TimeoutSettings) -> float:
    """How long a tuple may be at a bolt that says that it is busy, or of which nothing is known."""
    service = consumer.service
    mean_s = service.mean_s or service.pool.mean_s
    if not mean_s:
        return _PATIENCE_FIRST * timeout.rto_max_s
    work_s = consumer.work_s() or mean_s * consumer.held
    return max(timeout.rto_max_s, _PATIENCE_RATIO * work_s / consumer.slots)
