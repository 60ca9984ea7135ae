"""just_full: the bolt is kept just full, counted in seconds of work, from what its acks tell."""

from __future__ import annotations

import itertools

import pytest

from flowctl.core.cost import ServiceModel
from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window import AckSample, WindowPolicy, make_policy

SERVICE_S, PATH_S = 0.010, 0.002


class Bolt:
    """Acks of one bolt, one after the other; each tuple is sent when the one before is acked."""

    def __init__(self, policy: WindowPolicy, *, slots: int = 1) -> None:
        self.policy = policy
        self.slots = slots
        self.now_s = 0.0
        self.idle_total_s = 0.0
        self.service = ServiceModel()

    def ack(
        self,
        *,
        wait_s: float = 0.0,
        idle_s: float = 0.0,
        path_s: float = PATH_S,
        service_s: float = SERVICE_S,
        limited: bool = True,
    ) -> Signal | None:
        rtt_s = wait_s + service_s + path_s
        sent_at_s, self.now_s = self.now_s, self.now_s + rtt_s
        self.idle_total_s += idle_s
        self.service.on_sample(self.now_s, service_s, path_s, 100)
        return self.policy.on_ack(
            AckSample(
                self.now_s,
                sent_at_s,
                rtt_s,
                wait_s,
                service_s,
                100,
                limited,
                self.service,
                self.idle_total_s,
                self.slots,
            )
        )


def just_full(**values: float) -> WindowPolicy:
    return make_policy(WindowSettings(policy="just_full", **values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path_s", "slots", "window"),
    # (S + L) C / S + 1, as the bandwidth-delay product says
    [(0.002, 1, 2.2), (0.100, 1, 12.0), (0.002, 4, 5.8)],
)
def test_one_ack_is_enough_to_fill_the_path(path_s: float, slots: int, window: float) -> None:
    bolt = Bolt(just_full(), slots=slots)
    bolt.ack(path_s=path_s)
    assert bolt.policy.window == pytest.approx(window)


def test_idle_time_with_a_full_window_grows_it_by_the_missing_work() -> None:
    bolt = Bolt(just_full())
    for _ in range(4):
        bolt.ack()
    before = bolt.policy.window
    bolt.ack(idle_s=0.005)
    bolt.ack()
    assert bolt.policy.window == pytest.approx(before + 0.005 / SERVICE_S)


def test_what_was_under_way_does_not_grow_it_twice() -> None:
    bolt = Bolt(just_full())
    for _ in range(4):
        bolt.ack(path_s=0.1)
    before = bolt.policy.window
    for _ in range(4):  # four idle acks within one path's time after the decision
        bolt.ack(path_s=0.1, idle_s=0.005)
        bolt.now_s -= 0.1
    assert bolt.policy.window <= before + 3 * 0.005 / SERVICE_S


def test_a_window_that_is_not_used_does_not_grow() -> None:
    bolt = Bolt(just_full())
    for _ in range(50):
        bolt.ack(idle_s=1.0, limited=False)
    assert bolt.policy.window == pytest.approx((SERVICE_S + PATH_S) / SERVICE_S + 1)


def test_a_standing_queue_shrinks_it_but_not_below_half_a_tuple_of_work() -> None:
    bolt = Bolt(just_full())
    signals = [bolt.ack(wait_s=0.1) for _ in range(200)]
    assert Signal.OVER in signals
    assert bolt.policy.window == pytest.approx(1.5, abs=0.01)


def test_it_shrinks_on_sixteen_acks_and_two_rounds_not_before() -> None:
    bolt = Bolt(just_full())
    over = [n for n in range(1, 60) if bolt.ack(wait_s=0.1) is Signal.OVER]
    assert over[0] >= 16
    assert all(later - earlier >= 16 for earlier, later in itertools.pairwise(over))


def test_one_tuple_that_did_not_wait_keeps_it() -> None:
    bolt = Bolt(just_full())
    signals = [bolt.ack(wait_s=0.0 if n % 10 == 0 else 0.1) for n in range(100)]
    assert Signal.OVER not in signals


def test_bounds_and_bolts_that_tell_nothing() -> None:
    bolt = Bolt(just_full(max=8))
    bolt.ack(path_s=10.0)
    assert bolt.policy.window == 8
    dumb = just_full(initial=3)
    dumb.on_ack(AckSample(1.0, 0.5, 0.5, None, None, 100, True, ServiceModel()))
    assert dumb.window == 3


def test_a_bolt_that_comes_back_begins_small_whatever_was_learned() -> None:
    assert make_policy(WindowSettings(policy="just_full"), learned=256.0).window == 2


def test_an_expiry_takes_no_work_away() -> None:
    bolt = Bolt(just_full())
    bolt.ack()
    before = bolt.policy.window
    bolt.policy.on_expired(bolt.now_s, bolt.now_s - 1)
    assert bolt.policy.window == before


def test_a_shortest_path_is_forgotten_and_a_longest_fades() -> None:
    model = ServiceModel()
    model.on_sample(0.0, SERVICE_S, 0.001, 100)
    model.on_sample(0.1, SERVICE_S, 0.101, 100)
    assert (model.path_s, model.path_peak_s) == (0.001, 0.101)
    model.on_sample(0.2, SERVICE_S, 0.001, 100)
    assert model.path_peak_s == pytest.approx(0.001 + 0.98 * 0.1)
    for now_s in (11.0, 22.0, 33.0):
        model.on_sample(now_s, SERVICE_S, 0.05, 100)
    assert model.path_s == 0.05
