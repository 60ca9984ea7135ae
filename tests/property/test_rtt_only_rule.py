"""rtt_only, alone and within just_full, whatever acks and time-outs come."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.cost import ServiceModel
from flowctl.core.settings import PolicyName, WindowSettings
from flowctl.core.window import AckSample, make_policy

MAX = 40
NAMES = st.sampled_from(["rtt_only", "just_full"])
STEPS = st.lists(
    st.tuples(
        st.booleans(),  # an ack, or a time-out
        st.sampled_from([0.0, 0.001, 0.1, 4.0]),  # time since the step before
        st.floats(0.0, 3.0),  # how long ago the tuple was sent
        st.integers(1, 1_000),  # records
        st.booleans(),  # was the window full
    ),
    max_size=80,
)
Steps = list[tuple[bool, float, float, int, bool]]


@given(NAMES, st.integers(1, 12), STEPS)
def test_it_keeps_its_bounds_and_shrinks_once_a_round(
    name: PolicyName, initial: int, steps: Steps
) -> None:
    policy = make_policy(WindowSettings(policy=name, initial=initial, max=MAX))
    now_s, shrunk_at_s = 0.0, -math.inf
    for is_ack, by_s, age_s, records, limited in steps:
        now_s += by_s
        sent_at_s, before = now_s - age_s, policy.window
        if is_ack:
            policy.on_ack(
                AckSample(now_s, sent_at_s, age_s, None, None, records, limited, ServiceModel())
            )
        else:
            policy.on_expired(now_s, sent_at_s)
        assert 1 <= policy.window <= MAX
        if policy.window < before:
            assert sent_at_s >= shrunk_at_s, "shrank twice for one round"
            shrunk_at_s = now_s


@given(NAMES, st.integers(1, 12), STEPS)
def test_unused_it_never_exceeds_what_it_was(name: PolicyName, initial: int, steps: Steps) -> None:
    policy = make_policy(WindowSettings(policy=name, initial=initial, max=MAX))
    now_s = 0.0
    for is_ack, by_s, age_s, records, _ in steps:
        now_s += by_s
        if is_ack:
            policy.on_ack(
                AckSample(now_s, now_s - age_s, age_s, None, None, records, False, ServiceModel())
            )
        else:
            policy.on_expired(now_s, now_s - age_s)
        assert policy.window <= initial


@given(st.integers(1, 12), STEPS)
def test_a_window_at_most_doubles_from_one_decision_to_the_next(initial: int, steps: Steps) -> None:
    policy = make_policy(WindowSettings(policy="rtt_only", initial=initial, max=MAX))
    now_s = 0.0
    for _, by_s, age_s, records, limited in steps:
        now_s += by_s
        before = int(policy.window)
        policy.on_ack(
            AckSample(now_s, now_s - age_s, age_s, None, None, records, limited, ServiceModel())
        )
        assert int(policy.window) <= 2 * before + 1
