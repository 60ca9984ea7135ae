"""A target that refuses now and then, and bad records: by reference as fast as by value."""

from __future__ import annotations

import pytest

from tests.refusing_world import RefusesNowAndThen, World

pytestmark = pytest.mark.on_change()

RECORDS = 6_000
GOOD = {n for n in range(RECORDS) if n % 100 != 5}
# How many calls came before, and how long each takes [s]: what is refused differs in each.
CASES = [(0, 20e-6), (2, 1e-5), (3, 0.005), (5, 200e-6), (6, 1e-5), (6, 0.001)]


def time_s(by: str, calls_before: int, call_s: float, *, is_data_error: bool) -> float:
    target = RefusesNowAndThen(is_data_error=is_data_error, call_s=call_s)
    target.calls = calls_before
    world = World(target, RECORDS, bolts=4, by=by)
    took_s = world.run(until_s=120.0)
    assert set(target.done) == GOOD
    assert by == "value" or max(target.done.values()) == 1, "ranges have no copies"
    assert len(world.letters) == RECORDS - len(GOOD)
    return took_s


@pytest.mark.parametrize("is_data_error", [True, False], ids=["data-error", "unknown-error"])
def test_ranges_take_no_longer_than_records_by_value(is_data_error: bool) -> None:
    """A range was split for a bolt that might not be sent anything, and each that was given back
    cost its bolt a wait of two seconds: 35 s where the same by value took 10.  And where the error
    said nothing, good records waited behind bad ones for ever: by value too.  The kinds: work goes
    only to who may be sent it; what waits is not overtaken again and again."""
    by_value, by_reference = (
        [time_s(by, *case, is_data_error=is_data_error) for case in CASES]
        for by in ("value", "ranges")
    )
    assert sum(by_reference) <= 1.5 * sum(by_value)
    # While it counts as down it is asked every two seconds, until a part without a bad record asks.
    assert max(*by_value, *by_reference) < (20.0 if is_data_error else 40.0)
