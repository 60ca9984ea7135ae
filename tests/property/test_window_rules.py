"""Every window policy, whatever acks and time-outs come from bolts that tell their times."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.cost import ServiceModel
from flowctl.core.settings import PolicyName, WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window import AckSample, make_policy
from flowctl.core.window.policy import WindowPolicy
from flowctl_lab.baselines import ArcWindow

pytestmark = pytest.mark.on_change()

MAX = 40
NAMES = get_args(PolicyName)
DURATIONS = st.sampled_from([0.0, 0.001, 0.02, 0.5])
STEPS = st.lists(
    st.tuples(
        st.booleans(),  # an ack, or a time-out
        DURATIONS,  # time since the step before
        DURATIONS,  # wait
        st.sampled_from([0.001, 0.01, 0.3]),  # service
        DURATIONS,  # path
        DURATIONS,  # idle time since the ack before
        st.integers(1, 1_000),  # records
        st.booleans(),  # was the window full
    ),
    max_size=80,
)
# A queue that stands: only that shrinks a window that is counted in work.
QUEUED = st.lists(
    st.tuples(
        *(st.just(True), st.sampled_from([0.001, 0.02]), st.just(0.5), st.just(0.01)),
        *(st.just(0.0), st.just(0.0), st.just(100), st.booleans()),
    ),
    min_size=40,
    max_size=80,
)
Step = tuple[bool, float, float, float, float, float, int, bool]


class Bolt:
    """What a consumer would tell its policy."""

    def __init__(self, name: PolicyName, slots: int, **settings: Any) -> None:
        self.policy: WindowPolicy = make_policy(WindowSettings(policy=name, max=MAX, **settings))
        self.now_s = 0.0
        self.sent_at_s = 0.0
        self.service = ServiceModel()
        self._slots = slots
        self._idle_s = 0.0

    def step(self, step: Step, *, limited: bool | None = None) -> Signal | None:
        """Take one step; the signal is the ack's, None of a time-out."""
        is_ack, by_s, wait_s, service_s, path_s, idle_s, records, was_limited = step
        self.now_s += by_s
        rtt_s = wait_s + service_s + path_s
        self.sent_at_s = self.now_s - rtt_s
        if not is_ack:
            self.policy.on_expired(self.now_s, self.sent_at_s)
            return None
        self._idle_s += idle_s
        self.service.on_sample(self.now_s, service_s, path_s, records)
        return self.policy.on_ack(
            AckSample(
                self.now_s,
                self.sent_at_s,
                rtt_s,
                wait_s,
                service_s,
                records,
                was_limited if limited is None else limited,
                self.service,
                self._idle_s,
                self._slots,
            )
        )


@pytest.mark.parametrize("name", NAMES)
@given(initial=st.integers(1, 12), slots=st.integers(1, 4), steps=STEPS)
def test_a_window_stays_within_its_bounds(
    name: PolicyName, initial: int, slots: int, steps: list[Step]
) -> None:
    bolt = Bolt(name, slots, initial=initial)
    for step in steps:
        bolt.step(step)
        assert 1 <= bolt.policy.window <= MAX
        work_max_s = bolt.policy.work_max_s
        assert work_max_s is None or 0 < work_max_s < math.inf


@pytest.mark.parametrize("name", NAMES)
@given(initial=st.integers(1, 12), slots=st.integers(1, 4), steps=STEPS)
def test_a_window_that_nobody_uses_does_not_grow(
    name: PolicyName, initial: int, slots: int, steps: list[Step]
) -> None:
    """Counted in work, it follows the bolt's service time and path, without any margin."""
    bolt = Bolt(name, slots, initial=initial)
    for step in steps:
        before_s = bolt.policy.work_max_s
        bolt.step(step, limited=False)
        if bolt.policy.work_max_s is None:
            assert bolt.policy.window <= initial
        elif bolt.policy.work_max_s != before_s:  # once a round
            service = bolt.service
            plain_s = slots * (service.mean_s + service.path_peak_s)
            assert bolt.policy.work_max_s <= plain_s * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(initial=st.integers(1, 12), slots=st.integers(1, 4), steps=STEPS | QUEUED)
def test_a_window_shrinks_once_a_round(
    name: PolicyName, initial: int, slots: int, steps: list[Step]
) -> None:
    """Never again for what was sent before the last time.

    Counted in work the window follows the bolt's times too: a decrease is what the policy decided,
    the signal.  ``arc`` decides once in an average round trip, after its publication.
    """
    bolt = Bolt(name, slots, initial=initial)
    shrunk_at_s, pause_s = -math.inf, 0.0
    for step in steps:
        before = bolt.policy.window
        signal = bolt.step(step)
        counts_in_work = bolt.policy.work_max_s is not None
        shrank = signal is Signal.OVER if counts_in_work else bolt.policy.window < before
        if not shrank:
            continue
        if isinstance(bolt.policy, ArcWindow):
            assert bolt.now_s >= shrunk_at_s + pause_s
            pause_s = bolt.policy._past_s
        else:
            assert bolt.sent_at_s >= shrunk_at_s, "shrank twice for one round"
        shrunk_at_s = bolt.now_s
