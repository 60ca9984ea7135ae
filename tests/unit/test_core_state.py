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


ALIVE, STALLED, RESTING, SUSPECT, DOWN, STALLED_SUSPECT, STALLED_DOWN, GONE = Liveness
SILENT = (SUSPECT, DOWN, STALLED_SUSPECT, STALLED_DOWN)
WAS_STALLED = (STALLED, STALLED_SUSPECT, STALLED_DOWN)
SPEAKING = (Sign.HEARD, Sign.ANSWERED, Sign.HAS_SLOT)


@pytest.mark.parametrize("before", Liveness)
@pytest.mark.parametrize("sign", Sign)
def test_each_pair_of_liveness_and_sign_obeys_the_rules(before: Liveness, sign: Sign) -> None:
    after = LIVENESS[before, sign]
    if before is GONE or sign is Sign.LEFT:
        assert after is GONE, "who left does not come back: a new connection is a new bolt"
    elif sign is Sign.REFUSED:
        assert after is RESTING
    elif sign in SPEAKING:
        assert after not in SILENT, "who speaks is not suspect"
        if before is RESTING:
            assert after is RESTING, "only time ends a rest"
        else:
            stays = sign is Sign.HEARD and before in WAS_STALLED
            assert after is (STALLED if stays else ALIVE), "an answer or a free slot ends a stall"
    elif sign is Sign.RESTED:
        assert after is (ALIVE if before is RESTING else before)
    elif sign is Sign.OVERDUE:
        assert after is (STALLED if before is ALIVE else before)
    else:
        assert sign in (Sign.SILENT, Sign.STILL_SILENT)
        assert after in SILENT
        assert (after in WAS_STALLED) is (before in WAS_STALLED), "a silence ends no stall"
        was_down = before in (DOWN, STALLED_DOWN)
        is_down = after in (DOWN, STALLED_DOWN)
        assert is_down is (was_down or sign is Sign.STILL_SILENT)
