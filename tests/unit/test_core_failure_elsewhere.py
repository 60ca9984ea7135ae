"""A tuple that failed goes to another bolt, unless that would be to wait for one that stands still."""

from __future__ import annotations

import pytest

from tests.core_driver import Driver


@pytest.mark.req("S109")
@pytest.mark.parametrize("stands_still", [True, False])
def test_it_goes_back_only_if_the_others_stand_still(stands_still: bool) -> None:
    driver = Driver("a", "b", window_initial=1, window_max=1, tuple_records_max=1)
    for _ in range(20):  # round trips are known
        driver.offer(2)
        for emission in driver.emit():
            driver.wait(0.01)
            driver.ack(emission)
    driver.offer(2)
    ours, theirs = driver.emit()
    driver.fail(ours)
    for _ in range(40):
        driver.wait(0.25)
        driver.beat(theirs.bolt, busy=1)
        driver.beat(ours.bolt)
        if not stands_still and driver.clock() > 1.0 and theirs:
            driver.ack(theirs)
            break
        if emissions := driver.emit():
            break
    else:
        raise AssertionError("it waited for ten seconds")
    emissions = emissions or driver.emit()
    assert [e.bolt for e in emissions] == [ours.bolt if stands_still else theirs.bolt]
