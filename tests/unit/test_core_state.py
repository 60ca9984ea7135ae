"""The transition table."""

from __future__ import annotations

import pytest

from flowctl.core.events import BoltState
from flowctl.core.state import TRANSITIONS, Signal


@pytest.mark.req("S4", "S5", "S6", "S116")
@pytest.mark.parametrize("before", BoltState)
@pytest.mark.parametrize(
    ("signal", "after"),
    [
        (Signal.IN_RANGE, BoltState.NORMAL),
        (Signal.OVER, BoltState.SLOW),
        (Signal.EXPIRED, BoltState.BUSY),
        (Signal.SILENT, BoltState.BUSY),
    ],
)
def test_what_a_bolt_did_last_is_what_it_is(
    before: BoltState, signal: Signal, after: BoltState
) -> None:
    assert TRANSITIONS[before, signal] is after


def test_the_table_is_complete() -> None:
    assert len(TRANSITIONS) == len(BoltState) * len(Signal)
