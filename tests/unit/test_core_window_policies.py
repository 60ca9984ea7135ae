"""aimd, vegas, gradient2 and arc against traces that were computed by hand."""

from __future__ import annotations

import random

import pytest

import flowctl_lab.baselines  # noqa: F401  # adds them
from flowctl.core.cost import ServiceModel
from flowctl.core.settings import PolicyName, WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window import AckSample, WindowPolicy, make_policy
from tests.core_driver import Driver, FifoBolts

NAMES: tuple[PolicyName, ...] = ("aimd", "vegas", "gradient2", "arc")
ROUND_SAMPLED: tuple[PolicyName, ...] = ("aimd", "vegas", "gradient2")


def make(name: PolicyName, initial: int, *, most: int = 256) -> WindowPolicy:
    return make_policy(WindowSettings(policy=name, initial=initial, max=most))


def ack(now_s: float, rtt_s: float, *, limited: bool = True) -> AckSample:
    return AckSample(now_s, now_s - rtt_s, rtt_s, None, None, 1, limited, ServiceModel())


class Rounds:
    """Rounds of one ack each: every tuple is sent when the one before it was acked."""

    def __init__(self, policy: WindowPolicy) -> None:
        self.policy = policy
        self.now_s = 100.0
        self._signal: Signal | None = None

    def take(self, *rtts_s: float, limited: bool = True) -> list[float]:
        """The window after each."""
        windows = []
        for rtt_s in rtts_s:
            self._signal = self._take(rtt_s, limited)
            windows.append(self.policy.window)
        return windows

    def lose(self) -> float:
        """The window after the loss of a tuple that was sent after the last ack."""
        self.policy.on_expired(self.now_s + 1, self.now_s)
        self.now_s += 1
        return self.policy.window

    def says(self) -> Signal | None:
        """What the last ack meant."""
        return self._signal

    def _take(self, rtt_s: float, limited: bool) -> Signal | None:
        sent_at_s, self.now_s = self.now_s, self.now_s + rtt_s
        return self.policy.on_ack(
            AckSample(self.now_s, sent_at_s, rtt_s, None, None, 1, limited, ServiceModel())
        )


# -- aimd ---------------------------------------------------------------------------------


def test_aimd_adds_one_a_round_and_loses_a_tenth_rounded_down() -> None:
    rounds = Rounds(make("aimd", 10))
    assert rounds.take(0.1, 0.1, 4.9) == [11, 12, 13]  # however long a queue makes the RTT
    assert [rounds.lose() for _ in range(3)] == [11, 9, 8]  # 11.7, 9.9, 8.1


def test_aimd_takes_an_rtt_over_five_seconds_for_a_loss() -> None:
    rounds = Rounds(make("aimd", 10))
    assert rounds.take(5.5) == [9]
    assert rounds.says() is Signal.OVER
    assert rounds.policy.threshold_s == 5.0


# -- vegas --------------------------------------------------------------------------------


def test_vegas_moves_by_the_queue_that_the_rtt_tells() -> None:
    rounds = Rounds(make("vegas", 2))
    assert rounds.take(0.1) == [2]  # becomes the base
    assert rounds.take(0.1, 0.1) == [8, 14]  # no queue: six at once
    assert rounds.take(0.125) == [14]  # 14 x 0.2 = 2.8, so 3: from three to six is right
    assert rounds.take(0.2, 0.2) == [13, 12]  # 7.0 and 6.5, so 7: too many
    assert rounds.says() is Signal.OVER
    assert rounds.take(0.2) == [12]  # 6: right
    assert rounds.says() is Signal.IN_RANGE
    assert rounds.take(0.114) == [13]  # 12 x 0.123 = 1.5, so 2: one more
    assert rounds.lose() == 12


def test_vegas_steps_grow_with_the_order_of_magnitude() -> None:
    rounds = Rounds(make("vegas", 100))
    assert rounds.take(0.1, 0.1) == [100, 112]  # 6 x 2
    assert rounds.take(0.2) == [110]  # a queue of 56, above 12
    assert rounds.take(0.104) == [112]  # 110 x 0.038 = 4.2, so 5: below 6
    assert rounds.lose() == 110


def test_vegas_threshold_is_the_rtt_of_the_longest_queue() -> None:
    rounds = Rounds(make("vegas", 6))
    rounds.take(0.1, 0.12)
    assert rounds.policy.threshold_s is None  # all six queued would still be six
    rounds = Rounds(make("vegas", 14))
    rounds.take(0.1, 0.17)
    assert rounds.policy.threshold_s == pytest.approx(0.175)  # 14 (1 - 0.1 / 0.175) = 6
    assert rounds.says() is Signal.IN_RANGE
    rounds.take(0.18)
    assert rounds.says() is Signal.OVER


def test_vegas_takes_a_new_base_after_22_windows_and_a_half_even_one_with_a_queue() -> None:
    rounds = Rounds(make("vegas", 20))
    rounds.take(0.1, *[0.3] * 448, limited=False)
    assert rounds.take(0.3) == [20]  # the 450th is the new base and moves nothing
    assert rounds.take(0.3) == [26]  # the queue that stands there is not seen any more


def test_vegas_does_not_take_a_new_base_before() -> None:
    rounds = Rounds(make("vegas", 20))
    rounds.take(0.1, *[0.3] * 447, limited=False)
    assert rounds.take(0.3) == [19]  # the 449th: 20 x 0.67, a queue of 14


# -- gradient2 ----------------------------------------------------------------------------


def test_gradient2_grows_by_a_fifth_of_four_while_the_rtt_is_steady() -> None:
    rounds = Rounds(make("gradient2", 10))
    assert rounds.take(0.1, 0.1) == pytest.approx([10.8, 11.6])


def test_gradient2_compares_with_one_and_a_half_times_the_long_average() -> None:
    rounds = Rounds(make("gradient2", 10))
    rounds.take(0.1, 0.1)
    # Mean 0.2, so 0.3 / 0.4: 0.8 x 11.6 + 0.2 (0.75 x 11.6 + 4).
    assert rounds.take(0.4) == pytest.approx([11.82])
    assert rounds.policy.threshold_s == pytest.approx(0.3)
    assert rounds.says() is Signal.OVER
    # Mean 0.25, so 0.375 / 0.4: 0.8 x 11.82 + 0.2 (0.9375 x 11.82 + 4).
    assert rounds.take(0.4) == pytest.approx([12.47225])


def test_gradient2_takes_at_most_half_so_that_eight_stays_eight() -> None:
    rounds = Rounds(make("gradient2", 8))
    rounds.take(*[0.1] * 9, limited=False)
    assert rounds.take(10.0) == pytest.approx([8.0])  # 0.8 x 8 + 0.2 (0.5 x 8 + 4)


def test_gradient2_average_is_slow_after_ten_samples() -> None:
    rounds = Rounds(make("gradient2", 10))
    rounds.take(*[0.1] * 10, 0.7)
    assert rounds.policy.threshold_s == pytest.approx(1.5 * (0.1 + 0.6 * 2 / 601))


def test_gradient2_average_that_is_far_too_long_decays() -> None:
    rounds = Rounds(make("gradient2", 10))
    rounds.take(*[1.0] * 10, 0.1)
    assert rounds.policy.threshold_s == pytest.approx(1.495507, abs=1e-6)  # not yet decayed
    rounds.take(0.1)  # 0.95 x 0.997005 = 0.947155; less 0.847155 x 2 / 601
    assert rounds.policy.threshold_s == pytest.approx(1.5 * 0.944336, abs=1e-5)


def test_gradient2_loses_a_tenth() -> None:
    rounds = Rounds(make("gradient2", 10))
    assert [rounds.lose() for _ in range(2)] == pytest.approx([9.0, 8.1])


# -- arc ----------------------------------------------------------------------------------


def test_arc_decides_once_per_average_rtt() -> None:
    arc = make("arc", 4)
    assert arc.on_ack(ack(1.0, 0.25)) is Signal.IN_RANGE  # the first: something to compare with
    assert arc.on_ack(ack(1.125, 0.25)) is None
    assert arc.window == 4
    assert arc.on_ack(ack(1.25, 0.25)) is Signal.IN_RANGE  # 0.25 s later, not above 0.25
    assert arc.window == 5
    assert arc.on_ack(ack(1.5, 0.5)) is Signal.OVER  # above 0.25 plus no deviation at all
    assert arc.window == 4  # 4.5
    # Average 0.25 + 0.4 x 0.25 = 0.35, variance 0.6 x 0.4 x 0.25^2 = 0.015.
    assert arc.threshold_s == pytest.approx(0.35 + 2.5 * 0.015**0.5)
    assert arc.on_ack(ack(1.84, 0.5)) is None  # 0.35 s have not passed
    assert arc.on_ack(ack(1.86, 0.5)) is Signal.IN_RANGE  # slower, but within the deviations
    assert arc.window == 4
    # Average 0.35 + 0.4 x 0.15 = 0.41, variance 0.6 (0.015 + 0.4 x 0.15^2) = 0.0144.
    assert arc.threshold_s == pytest.approx(0.41 + 2.5 * 0.12)


def test_arc_takes_the_mean_since_the_last_decision() -> None:
    arc = make("arc", 4)
    arc.on_ack(ack(1.0, 0.5))
    arc.on_ack(ack(1.25, 0.75))
    arc.on_ack(ack(1.5, 0.25))  # the mean is 0.5, the first ack counted in
    assert arc.window == 5
    arc.on_ack(ack(1.75, 0.75))
    arc.on_ack(ack(2.0, 0.5))  # 0.625, though the last one is quick
    assert arc.window == 4


def test_arc_grows_if_the_window_was_full_at_any_time_since() -> None:
    arc = make("arc", 4)
    arc.on_ack(ack(1.0, 0.5, limited=True))
    arc.on_ack(ack(1.5, 0.25, limited=False))
    assert arc.window == 5
    arc.on_ack(ack(2.0, 0.125, limited=False))
    assert arc.window == 5


def test_arc_shrinks_for_a_loss_at_the_next_decision() -> None:
    arc = make("arc", 10)
    arc.on_ack(ack(1.0, 0.5))
    arc.on_expired(1.25, 0.0)
    assert arc.window == 10
    arc.on_ack(ack(1.5, 0.25))  # quick and full, but for the loss
    assert arc.window == 9
    arc.on_ack(ack(2.0, 0.125))
    assert arc.window == 10  # forgotten
    arc.on_expired(3.0, 2.0)  # a decision is due, no ack needed
    assert arc.window == 9


def test_arc_has_nothing_to_decide_before_the_first_ack() -> None:
    arc = make("arc", 10)
    arc.on_expired(5.0, 1.0)
    assert (arc.window, arc.threshold_s) == (10, None)


# -- all of them --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_window_stays_within_its_bounds(name: PolicyName) -> None:
    rounds = Rounds(make(name, 4, most=9))
    assert max(rounds.take(*[0.5] * 50)) == 9
    windows = [rounds.lose() for _ in range(50)]
    assert windows == sorted(windows, reverse=True)
    assert windows[-1] == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_first_window_is_the_configured_or_the_learned_one_within_the_bounds(
    name: PolicyName,
) -> None:
    settings = WindowSettings(policy=name, initial=3, max=20)
    windows = [make_policy(settings, learned=learned).window for learned in (None, 17, 99, 0.2)]
    assert windows == [3, 17, 20, 1]
    assert make(name, 30, most=8).window == 8


@pytest.mark.parametrize("name", NAMES)
def test_a_window_that_nobody_fills_does_not_grow(name: PolicyName) -> None:
    rounds = Rounds(make(name, 4))
    assert max(rounds.take(*[0.5, 0.4, 0.3] * 20, limited=False)) == 4
    assert max(rounds.take(*[0.3] * 20)) > 4  # it would have


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_shrinks_the_window(name: PolicyName) -> None:
    rounds = Rounds(make(name, 10))
    rounds.take(0.5, limited=False)
    assert rounds.lose() < 10


@pytest.mark.parametrize("name", ROUND_SAMPLED)
def test_losses_of_what_was_in_flight_together_count_once(name: PolicyName) -> None:
    policy = make(name, 10)
    policy.on_expired(2.0, 1.0)
    once = policy.window
    policy.on_expired(2.5, 1.5)
    assert policy.window == once
    policy.on_expired(4.0, 2.1)
    assert policy.window < once


@pytest.mark.parametrize("name", ROUND_SAMPLED)
def test_the_sample_of_a_round_is_its_mean_rtt_with_all_its_acks(name: PolicyName) -> None:
    one, many = make(name, 14), make(name, 14)
    for policy in (one, many):
        assert policy.on_ack(ack(1.0, 0.5)) is not None
    assert one.on_ack(ack(2.5, 1.25)) is not None
    # Sent before the decision at 1.0; they count, and so does that their window was full.
    assert many.on_ack(ack(1.25, 1.5, limited=False)) is None
    assert many.on_ack(ack(1.5, 1.75, limited=True)) is None
    assert many.on_ack(ack(1.75, 0.5, limited=False)) is not None
    assert (many.window, many.threshold_s) == (one.window, one.threshold_s)
    assert many.window != 14


@pytest.mark.parametrize("name", NAMES)
def test_any_times_are_taken_and_the_same_ones_give_the_same_windows(name: PolicyName) -> None:
    def trace() -> list[float]:
        policy, windows, now_s = make(name, 4, most=50), [], 0.0
        dice = random.Random("any times")
        for _ in range(2_000):
            now_s += dice.choice([0.0, 0.01, 1.0])
            if dice.random() < 0.05:
                policy.on_expired(now_s, now_s - dice.choice([0.5, 3.0]))
            else:
                policy.on_ack(ack(now_s, dice.choice([0.0, 0.01, 0.1, 9.0])))
            windows.append(policy.window)
        return windows

    windows = trace()
    assert 1 <= min(windows) < max(windows) <= 50
    assert trace() == windows


@pytest.mark.parametrize("name", NAMES)
def test_behind_the_core_both_bolts_are_kept_busy(name: PolicyName) -> None:
    driver = Driver("a", "b", window_policy=name)
    driver.offer(5_000)
    fifo = FifoBolts(driver, {"a": lambda now_s: 0.01, "b": lambda now_s: 0.02})
    fifo.run(1_500)
    assert driver.clock() == pytest.approx(1_500 * 0.01 / 1.5, rel=0.02)
