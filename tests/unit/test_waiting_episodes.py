"""Episodes: told twice, however many waits lie between; the time in them adds up."""

from __future__ import annotations

import logging

import pytest
import structlog

from flowctl.waiting.idling import LONG_S, Episode, SlowCalls
from tests.loop_parts import Log


@pytest.mark.req("S44")
def test_an_episode_is_told_at_its_start_and_its_end_and_never_between():
    log = Log()
    episode = Episode("began", "ended", logger=log, bolt="b1")
    episode.end(0.0)
    assert log.told == [], "nothing was under way"
    for turn in range(100):
        episode.begin(10.0 + turn / 1000)
        episode.waited(0.001, 10.001 + turn / 1000)
    episode.end(10.1)
    episode.end(10.2)
    assert log.events == ["began", "ended"]
    fields = log.told[1][2]
    assert (fields["length_s"], fields["waits"]) == (pytest.approx(0.1), 100)
    assert fields["bolt"] == log.told[0][2]["bolt"] == "b1"


@pytest.mark.req("S44")
def test_the_next_episode_is_counted_anew_and_the_total_goes_on():
    log = Log()
    episode = Episode("began", "ended", logger=log)
    for now_s in (1.0, 2.0):
        episode.begin(now_s)
        episode.waited(0.25, now_s + 0.25)
        episode.end(now_s + 0.25)
    assert log.events == ["began", "ended"] * 2
    assert [fields["waits"] for _, event, fields in log.told if event == "ended"] == [1, 1]
    assert episode.waited_s == 0.5


@pytest.mark.req("S44", "S124")
def test_a_long_episode_is_news_while_it_lasts_and_a_short_one_is_detail():
    log = Log()
    episode = Episode("began", "ended", logger=log)
    debug, info = logging.DEBUG, logging.INFO
    for turn in range(30):
        episode.begin(turn * LONG_S / 10)
        episode.waited(LONG_S / 10, (turn + 1) * LONG_S / 10)
        assert (
            log.told == [] if turn < 9 else [entry[:2] for entry in log.told] == [(info, "began")]
        )
    episode.end(3 * LONG_S)
    episode.begin(0.0)
    episode.waited(0.5, 0.5)
    episode.end(0.5)
    assert [entry[:2] for entry in log.told[1:]] == [
        (info, "ended"),
        (debug, "began"),
        (debug, "ended"),
    ]


@pytest.mark.req("S39", "S40")
def test_the_time_waited_adds_up_over_all_episodes():
    episode = Episode("began", "ended", logger=Log())
    assert episode.waited_s == 0.0
    for waited_s in (0.25, 0.5):
        episode.begin(1.0)
        episode.waited(waited_s, 2.0)
        episode.end(2.0)
    assert episode.waited_s == 0.75


@pytest.mark.req("S54")
def test_calls_that_hold_up_the_loop_are_told_once_an_episode():
    log = Log()
    slow = SlowCalls(limit_s=1.0, logger=log)
    for time_s in (0.1, 1.0, 5.0, 0.1, 2.0):
        slow.took("next_tuple", time_s)
    assert log.events == ["call_blocks_loop"] * 2
    assert [fields["took_s"] for _, _, fields in log.told] == [1.0, 2.0]
    assert slow.count == 3


@pytest.mark.req("S44", "S121")
def test_episodes_go_to_the_programs_own_structlog():
    with structlog.testing.capture_logs() as told:
        episode = Episode("began", "ended", bolt="b1")
        episode.begin(0.0)
        episode.waited(9.0, 9.0)
        episode.end(9.0)
    assert [(entry["log_level"], entry["event"], entry["bolt"]) for entry in told] == [
        ("info", "began", "b1"),
        ("info", "ended", "b1"),
    ]


def test_without_a_configured_structlog_they_go_to_the_standard_library(caplog):
    structlog.reset_defaults()
    with caplog.at_level(logging.DEBUG, logger="flowctl"):
        episode = Episode("began", "ended")
        episode.begin(0.0)
        episode.end(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "began ",
        "ended length_s=1.0 waits=0",
    ]
