"""The tables of what a bolt is after what was seen of it."""

from __future__ import annotations

import pytest

from flowctl.core.events import BoltState
from flowctl.core.state import LIVENESS, TRANSITIONS, Liveness, Sign, Signal


@pytest.mark.req("S4", "S5", "S6", "S116")
@pytest.mark.parametrize("before", BoltState)
@pytest.mark.parametrize(
    ("signal", "after"),
    [
        (Signal.IN_RANGE, BoltState.NORMAL),
        (Signal.OVER, BoltState.SLOW),
        (Signal.EXPIRED, BoltState.BUSY),
        (Signal.SILENT, BoltState.BUSY),
        (Signal.REFUSED, BoltState.SLOW),
    ],
)
def test_what_a_bolt_did_last_is_what_it_is(
    before: BoltState, signal: Signal, after: BoltState
) -> None:
    assert TRANSITIONS[before, signal] is after


def test_the_tables_are_complete() -> None:
    assert len(TRANSITIONS) == len(BoltState) * len(Signal)
    assert len(LIVENESS) == len(Liveness) * len(Sign)


ALIVE, STALLED, RESTING, SUSPECT, DOWN, GONE = Liveness
SPEAKING = (Sign.HEARD, Sign.ANSWERED, Sign.HAS_SLOT)


@pytest.mark.parametrize("before", Liveness)
@pytest.mark.parametrize("sign", Sign)
def test_each_pair_of_liveness_and_sign_obeys_the_rules(before: Liveness, sign: Sign) -> None:
    after = LIVENESS[before, sign]
    if before is GONE or sign is Sign.LEFT:
        assert after is GONE, "who left does not come back: a new connection is a new bolt"
    elif sign in SPEAKING:
        assert after in (ALIVE, before), "speaking makes nothing worse"
        assert after not in (SUSPECT, DOWN), "who speaks is not suspect"
        if sign is not Sign.HEARD:
            assert after is not STALLED, "an answer or a free slot ends a stall"
        if before is RESTING:
            assert after is RESTING, "only time ends a rest"
    elif sign is Sign.REFUSED:
        assert after is RESTING
    elif sign is Sign.RESTED:
        assert after is (ALIVE if before is RESTING else before)
    elif sign is Sign.SILENT:
        assert after is (DOWN if before is DOWN else SUSPECT)
    elif sign is Sign.STILL_SILENT:
        assert after is DOWN
    else:
        assert sign is Sign.OVERDUE
        assert after is (STALLED if before is ALIVE else before)
