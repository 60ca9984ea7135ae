"""rtt_only: what a bolt's path holds, from round trips and the rate of acks alone."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import pairwise
from statistics import median

import pytest

from flowctl.core.cost import ServiceModel
from flowctl.core.settings import PolicyName, WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window import AckSample, WindowPolicy, make_policy

NEAR_S, FAR_S = 0.002, 0.100  # both ways
SERVICE_S = 0.010


def rtt_only(name: PolicyName = "rtt_only", **values: int) -> WindowPolicy:
    return make_policy(WindowSettings(policy=name, **values))  # type: ignore[arg-type]


class Bolt:
    """A FIFO bolt that tells nothing, always with something to send to it; virtual time."""

    def __init__(self, policy: WindowPolicy, path_s: float, slots: int = 1) -> None:
        self.policy = policy
        self.path_s, self.slots, self.service_s = path_s, slots, SERVICE_S
        self.flush_s = 0.0
        self.sizes: deque[int] = deque([100])  # records, in turn; 100 take service_s
        self.now_s = 0.0
        self.held = 0
        self.held_max = 0
        self.records = 0  # acked
        self.seen: list[tuple[float, float]] = []  # (when, the window then)
        self._free_at_s = [0.0] * slots
        self._due: list[tuple[float, int, float, int]] = []
        self._sent = 0

    def run(self, until_s: float, *, limited: bool = True, most: int = 10_000) -> None:
        """Keep the window full, or ``most`` in flight, and ack."""
        while True:
            while self.held < min(most, int(self.policy.window)):
                self._send()
            at_s, _, sent_at_s, records = self._due[0]
            if at_s > until_s:
                self.now_s = until_s
                return
            heappop(self._due)
            self.now_s, self.held = at_s, self.held - 1
            self.records += records
            rtt_s = at_s - sent_at_s
            self.policy.on_ack(
                AckSample(at_s, sent_at_s, rtt_s, None, None, records, limited, ServiceModel())
            )
            self.seen.append((at_s, self.policy.window))

    def _send(self) -> None:
        records = self.sizes[0]
        self.sizes.rotate(-1)
        slot = min(range(self.slots), key=self._free_at_s.__getitem__)
        begin_s = max(self._free_at_s[slot], self.now_s + self.path_s / 2)
        self._free_at_s[slot] = done_s = begin_s + self.service_s * records / 100
        if self.flush_s:
            done_s = (done_s // self.flush_s + 1) * self.flush_s
        self._sent += 1
        self.held += 1
        self.held_max = max(self.held_max, self.held)
        heappush(self._due, (done_s + self.path_s / 2, self._sent, self.now_s, records))

    def share(self, until_s: float) -> float:
        """Run on; the part of the bolt's capacity that went into what was acked."""
        before, began_s = self.records, self.now_s
        self.run(until_s)
        possible = (until_s - began_s) / self.service_s * self.slots * 100
        return (self.records - before) / possible

    def windows(self, from_s: float = 0.0) -> list[int]:
        return [int(window) for at_s, window in self.seen if at_s >= from_s]


# -- the window that comes out ------------------------------------------------------------


@pytest.mark.parametrize("name", ["rtt_only", "just_full"])
@pytest.mark.parametrize(
    ("path_s", "slots", "holds"),  # holds: (S + L) C / S
    [(NEAR_S, 1, 1.2), (FAR_S, 1, 11.0), (NEAR_S, 4, 4.8), (FAR_S, 4, 44.0)],
)
def test_it_finds_what_path_and_slots_hold(
    name: PolicyName, path_s: float, slots: int, holds: float
) -> None:
    bolt = Bolt(rtt_only(name), path_s, slots)
    bolt.run(2.5)
    found = bolt.windows(2.0)
    assert holds <= min(found)
    assert max(found) <= max(1.25 * holds + slots, holds + 1 + slots)  # the probe, and a row


def test_start_up_doubles_and_stops_at_the_first_queue() -> None:
    far = Bolt(rtt_only(), FAR_S)
    far.run(0.60)
    assert far.share(0.80) > 0.95  # eleven from two: four round trips of 0.11 s, and one more
    assert far.held_max <= 2 * (11 + 1)
    near = Bolt(rtt_only(), NEAR_S)
    near.run(1.0)
    assert near.held_max <= 3


def test_a_window_at_least_doubles_at_most() -> None:
    bolt = Bolt(rtt_only(), 1.0)
    bolt.run(20.0)
    changes = [(a, b) for a, b in pairwise(bolt.windows()) if b > a]
    assert changes
    assert all(after <= 2 * before + 1 for before, after in changes)


def test_a_slow_bolt_is_followed_and_a_quick_one_again() -> None:
    bolt = Bolt(rtt_only(), FAR_S)
    bolt.run(4.0)
    bolt.service_s = 0.050  # holds 3 then
    bolt.run(12.0)
    assert max(bolt.windows(11.0)) <= 5
    assert bolt.share(14.0) > 0.97
    bolt.service_s = 0.005  # holds 21
    bolt.run(22.0)
    assert bolt.share(23.0) > 0.95


def test_a_path_that_became_longer_is_seen() -> None:
    """The base RTT is forgotten: otherwise the window would be too small for ever."""
    bolt = Bolt(rtt_only(), NEAR_S)
    bolt.run(4.0)
    bolt.path_s = FAR_S
    bolt.run(24.0)
    assert bolt.share(26.0) > 0.95


def test_the_base_is_kept_by_dips_so_that_queues_do_not_pile_up() -> None:
    bolt = Bolt(rtt_only(), FAR_S)
    bolt.run(60.0)
    assert min(bolt.windows(2.0)) < 11  # it looked
    assert max(bolt.windows(50.0)) <= 1.25 * 11 + 1
    assert bolt.share(70.0) > 0.98


def test_acks_that_leave_together_do_not_starve_it() -> None:
    bolt = Bolt(rtt_only(), NEAR_S)
    bolt.flush_s = 0.1
    bolt.run(5.0)
    assert bolt.share(15.0) > 0.97
    usual = median(bolt.windows(5.0))
    assert 10 + 9 <= usual <= 3 * 10  # ten a round trip, nine of them at once


def test_small_tuples_do_not_set_the_base_of_large_ones() -> None:
    bolt = Bolt(rtt_only(), NEAR_S)
    bolt.sizes = deque([10, 1000, 1000, 10, 10, 1000])
    bolt.run(5.0)
    assert bolt.share(15.0) > 0.97


# -- what must not move it ----------------------------------------------------------------


def test_rounds_that_the_producer_limits_neither_grow_nor_shrink_it() -> None:
    bolt = Bolt(rtt_only(), FAR_S)
    bolt.run(4.0)
    before = bolt.policy.window
    bolt.run(40.0, limited=False, most=1)
    assert all(window <= before for window in bolt.windows(4.2))
    bolt.run(40.5)
    assert bolt.share(41.0) > 0.95  # the rate was not forgotten


def test_a_window_that_nobody_uses_does_not_grow() -> None:
    bolt = Bolt(rtt_only(initial=4), FAR_S)
    bolt.run(30.0, limited=False)
    assert max(bolt.windows()) <= 4


@pytest.mark.parametrize("name", ["rtt_only", "just_full"])
def test_a_time_out_leaves_one_tuple_until_the_bolt_speaks(name: PolicyName) -> None:
    bolt = Bolt(rtt_only(name), FAR_S)
    bolt.run(4.0)
    before = bolt.policy.window
    bolt.policy.on_expired(4.0, 3.99)
    assert bolt.policy.window == 1
    bolt.policy.on_expired(4.1, 3.995)  # under way with it
    assert bolt.policy.window == 1
    bolt.policy.on_ack(AckSample(4.2, 3.95, 0.25, None, None, 100, True, ServiceModel()))
    assert bolt.policy.window == before
    # What was sent before it spoke says nothing of the window that it has again.
    assert (
        bolt.policy.on_ack(AckSample(4.25, 4.1, 0.15, None, None, 100, True, ServiceModel()))
        is None
    )
    bolt.policy.on_expired(4.3, 3.999)  # still of the same lot
    assert bolt.policy.window == before
    bolt.policy.on_expired(5.3, 4.25)
    assert bolt.policy.window == 1


def test_one_decision_a_round() -> None:
    bolt = Bolt(rtt_only(), FAR_S)
    bolt.run(10.0)
    moved = [at_s for (_, old), (at_s, new) in pairwise(bolt.seen) if new != old]
    assert len(moved) > 10
    assert all(later - earlier >= 0.11 - 1e-9 for earlier, later in pairwise(moved))


def test_bounds_what_was_learned_and_no_threshold() -> None:
    bolt = Bolt(rtt_only(max=8), FAR_S)
    bolt.run(5.0)
    assert max(bolt.windows()) == 8
    assert bolt.policy.threshold_s is None
    learned = make_policy(WindowSettings(policy="rtt_only", initial=3), learned=200.0)
    assert learned.window == 3


def test_a_path_that_holds_less_than_before_is_told_as_slow() -> None:
    policy = rtt_only()
    bolt = Bolt(policy, FAR_S)
    bolt.run(4.0)
    signals = []
    for n in range(40):  # a bolt that takes a tenth as many tuples
        sent_at_s = 4.0 + n
        signals.append(
            policy.on_ack(
                AckSample(sent_at_s + 1, sent_at_s, 1.0, None, None, 9, True, ServiceModel())
            )
        )
    assert Signal.OVER in signals


def test_with_telemetry_just_full_does_not_ask_it() -> None:
    policy = rtt_only("just_full")
    policy.on_ack(AckSample(0.012, 0.0, 0.012, None, None, 100, True, ServiceModel()))
    service = ServiceModel()
    service.on_sample(0.024, 0.010, 0.002, 100)
    policy.on_ack(AckSample(0.024, 0.012, 0.012, 0.0, 0.010, 100, True, service, 0.0, 1))
    assert policy.window == pytest.approx(2.2)
