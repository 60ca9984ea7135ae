"""Stretches: told twice, however many waits lie between; the time in them adds up."""

from __future__ import annotations

import logging

import pytest

from flowctl.runtime.stretches import SlowCalls, Stretch
from tests.loop_parts import Log


@pytest.mark.req("S44")
def test_a_stretch_is_told_at_its_start_and_its_end_and_never_between():
    log = Log()
    stretch = Stretch("began", "ended", logger=log)
    stretch.end(0.0)
    assert log.told == [], "nothing was under way"
    for turn in range(100):
        stretch.begin(10.0 + turn / 1000)
        assert log.events == ["began"]
        stretch.waited(0.001)
    stretch.end(10.1)
    stretch.end(10.2)
    assert log.events == ["began", "ended"]
    fields = log.told[1][2]
    assert (fields["length_s"], fields["waits"]) == (pytest.approx(0.1), 100)


@pytest.mark.req("S44")
def test_the_next_stretch_is_counted_anew_and_the_total_goes_on():
    log = Log()
    stretch = Stretch("began", "ended", logger=log)
    for now_s in (1.0, 2.0):
        stretch.begin(now_s)
        stretch.waited(0.25)
        stretch.end(now_s + 0.25)
    assert log.events == ["began", "ended"] * 2
    assert [fields["waits"] for _, event, fields in log.told if event == "ended"] == [1, 1]
    assert stretch.skipped_s == 0.5


@pytest.mark.req("S44", "S124")
def test_a_long_stretch_is_news_and_a_short_one_is_detail():
    log = Log()
    stretch = Stretch("began", "ended", logger=log)
    for length_s in (0.5, 1.5):
        stretch.begin(0.0)
        stretch.end(length_s)
    debug, info = logging.DEBUG, logging.INFO
    assert [level for level, _, _ in log.told] == [debug, debug, debug, info]


@pytest.mark.req("S39", "S40", "S61")
def test_the_time_is_a_metric_that_is_reset_by_reading_and_null_without_waits():
    stretch = Stretch("began", "ended", logger=Log())
    assert stretch.get_value_and_reset() is None
    stretch.waited(0.25)
    stretch.waited(0.5)
    assert stretch.get_value_and_reset() == 0.75
    assert stretch.get_value_and_reset() is None
    assert stretch.skipped_s == 0.75


@pytest.mark.req("S54")
def test_calls_that_hold_up_the_loop_are_told_once_a_stretch():
    log = Log()
    slow = SlowCalls(limit_s=1.0, logger=log)
    for time_s in (0.1, 1.0, 5.0, 0.1, 2.0):
        slow.took("next_tuple", time_s)
    assert log.events == ["call_blocks_loop"] * 2
    assert [fields["took_s"] for _, _, fields in log.told] == [1.0, 2.0]
    assert slow.count == 3
