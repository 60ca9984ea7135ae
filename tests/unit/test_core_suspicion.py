"""What a missing ack means: slow, lost, suspect, down; and what is given up on."""

from __future__ import annotations

import pytest

from flowctl.core.events import BoltState, StateChanged, TupleLost
from flowctl.core.messages import Emission
from flowctl.core.records import AckOutcome
from flowctl.core.state import Liveness
from tests.core_driver import Driver


def beating(*bolts: str, **values: object) -> Driver:
    driver = Driver(*bolts, **values)
    for bolt in bolts:
        driver.beat(bolt)
    return driver


def wait_beating(driver: Driver, by_s: float, **load: dict[str, int]) -> None:
    """Let time pass in heartbeats of the bolts named, each with its load."""
    for _ in range(round(by_s / 0.25)):
        driver.clock.advance(0.25)
        for bolt, counts in load.items():
            driver.beat(bolt, **counts)
        driver.wait(0)


BUSY_WITH_ONE = {"busy": 1}


def test_a_silent_bolt_is_suspect_then_down_and_gets_nothing_until_it_speaks() -> None:
    driver = beating("a", "b", window_policy="fixed", window_initial=2)
    driver.offer(4)
    on_a = [e for e in driver.emit() if e.bolt == "a"]
    a = driver.core.bolts["a"]
    wait_beating(driver, 3.0, b=BUSY_WITH_ONE)
    assert (a.liveness, a.state) == (Liveness.SUSPECT, BoltState.BUSY)
    assert len(a.flight) == 1  # only the oldest is sent elsewhere on a suspicion
    assert not driver.emit()  # b is full
    wait_beating(driver, 0.25, b=BUSY_WITH_ONE)
    assert (a.liveness, len(a.flight)) == (Liveness.DOWN, 0)
    driver.offer(10)
    wait_beating(driver, 5.0, b=BUSY_WITH_ONE)
    assert all(e.bolt == "b" for e in driver.emit())
    driver.beat("a")
    assert a.liveness is Liveness.ALIVE
    assert a.state is BoltState.BUSY  # until its next ack in range
    # Nobody else has got it yet, so it is waited for here again: no work is done twice.
    assert driver.ack(on_a[0]) is AckOutcome.ACKED
    assert "a" in {e.bolt for e in driver.emit()}


def test_a_suspicion_is_an_event_with_its_reason() -> None:
    driver = beating("a")
    driver.offer(1)
    driver.emit()
    driver.wait_for_deadline()
    (busy,) = driver.events(StateChanged)
    assert (busy.after, busy.reason) == (BoltState.BUSY, "no heartbeat")


def test_tuples_of_a_down_bolt_wait_for_a_bolt_that_speaks_not_for_the_dead_one() -> None:
    """The black-hole loop: dead bolts are the only ones with free windows."""
    driver = beating("a", "b", window_policy="fixed", window_initial=2)
    driver.offer(4)
    emissions = driver.emit()
    wait_beating(driver, 4.0)
    assert driver.emit() == []  # both are silent: nobody gets anything
    driver.beat("b")
    for emission in emissions:
        if emission.bolt == "b":
            driver.ack(emission)
    assert {e.bolt for e in driver.emit()} == {"b"}


def test_a_bolt_that_is_alive_and_busy_is_asked_to_give_back_and_nothing_is_doubled() -> None:
    driver = beating("a", "b", window_policy="fixed", window_initial=2)
    driver.offer(4)
    on_a = [e.tuple_id for e in driver.emit() if e.bolt == "a"]
    for emission_id in list(driver.core.bolts["b"].flight):
        driver.ack(sent(driver, "b", emission_id))
    wait_beating(driver, 3.0, a={"busy": 1, "queued": 1}, b={})
    assert driver.core.bolts["a"].state is BoltState.SLOW
    assert [(o.bolt, o.tuple_ids) for o in driver.orders()] == [("a", on_a)]
    assert driver.emit() == []  # b is idle, but a may be at work on them
    driver.give_back("a", on_a[1])
    (moved,) = driver.emit()
    assert (moved.tuple_id, moved.bolt) == (on_a[1], "b")
    assert driver.core.counters.tuples_revoked == 1
    assert driver.core.counters.tuples_failed == 0  # nobody's fault
    assert driver.ack(sent(driver, "a", on_a[0])) is AckOutcome.ACKED


def sent(driver: Driver, bolt: str, tuple_id: int) -> Emission:
    flow_tuple = driver.core.book.pending[tuple_id]
    return Emission(tuple_id, bolt, flow_tuple.attempt, "p", flow_tuple.cut.records, None, 0)


def test_but_not_waited_for_without_end() -> None:
    """Eight times the longest time-out, as nobody knows yet what a tuple takes."""
    driver = beating("a", "b", window_initial=1, timeout_rto_max_s=1.3)
    driver.offer(1)
    (emission,) = driver.emit()
    wait_beating(driver, 9.0, a=BUSY_WITH_ONE, b={})
    assert driver.emit() == []
    wait_beating(driver, 6.0, a=BUSY_WITH_ONE, b={})
    (replay,) = driver.emit()
    assert (replay.tuple_id, replay.bolt) == (emission.tuple_id, "b")


def test_a_bolt_that_says_it_is_idle_has_lost_the_tuple() -> None:
    driver = beating("a", "b", window_initial=1)
    driver.offer(1)
    driver.emit()
    wait_beating(driver, 3.0, a={}, b={})
    assert driver.orders() == []
    (replay,) = driver.emit()
    assert replay.bolt == "b"


def test_heartbeats_tell_it_long_before_a_time_out_of_minutes() -> None:
    """The time-out would take longer: each ack of another slot restarts it."""
    driver = Driver("a", slots=2, timeout_rto_first_s=50.0)
    driver.beat("a")
    driver.offer(2)
    begun, lost = driver.emit()
    for _ in range(5):
        driver.clock.advance(0.25)
        driver.beat("a", busy=1, begun=[begun.tuple_id])
    assert [e.tuple_id for e in driver.events(TupleLost)] == [lost.tuple_id]
    assert list(driver.core.bolts["a"].flight) == [begun.tuple_id]


def test_one_heartbeat_is_not_enough() -> None:
    """An ack that waits for others to go with it comes after a heartbeat that knows no more."""
    driver = Driver("a", slots=2, timeout_rto_first_s=50.0)
    driver.beat("a")
    driver.offer(2)
    driver.emit()
    driver.clock.advance(2.0)
    driver.beat("a", busy=2, begun=list(driver.core.bolts["a"].flight))
    driver.clock.advance(0.25)
    driver.beat("a")
    assert not driver.events(TupleLost)


def test_an_idle_report_from_before_the_sending_says_nothing_of_it() -> None:
    driver = beating("a", "b", window_initial=1, timeout_rto_first_s=0.1, timeout_rto_min_s=0.1)
    driver.offer(1)
    driver.emit()
    driver.wait(0.1)  # expired before the next heartbeat could come
    assert driver.emit() == []
    assert [o.bolt for o in driver.orders()] == ["a"]


def test_a_bolt_that_turns_silent_is_seen_before_a_long_time_out() -> None:
    driver = beating("a", timeout_rto_first_s=50.0)
    driver.offer(1)
    driver.emit()
    assert driver.core.next_deadline_s() == 3.0
    driver.wait_for_deadline()
    assert driver.core.bolts["a"].is_suspect


def test_silence_settings_in_any_order_do_not_hang() -> None:
    driver = beating("a", timeout_silence_s=5.0, timeout_silence_max_s=1.0)
    driver.offer(1)
    driver.emit()
    driver.wait_for_deadline()
    assert driver.core.bolts["a"].is_suspect


# -- strays: tuples that nobody waits for and the bolt may still hold -------------------------


def test_a_lost_tuple_does_not_block_a_bolt_that_says_it_is_idle() -> None:
    driver = beating("a", window_policy="fixed", window_initial=1)
    driver.offer(1)
    driver.emit()
    wait_beating(driver, 3.0, a={})
    assert driver.core.bolts["a"].held == 0
    assert driver.core.counters.tuples_lost == 1
    assert len(driver.emit()) == 1


def test_what_a_bolt_says_it_holds_keeps_its_room() -> None:
    driver = beating("a", window_policy="fixed", window_initial=2, timeout_rto_max_s=0.5)
    driver.offer(9)
    driver.emit()
    wait_beating(driver, 10.0, a={"busy": 1})  # one is lost, it hangs in the other
    assert len(driver.core.bolts["a"].strays) == 1
    assert driver.emit() == []  # it hangs: what it got now would only wait there
    driver.beat("a")
    assert len(driver.emit()) == 2


@pytest.mark.req("S48")
def test_nor_a_bolt_that_tells_nothing() -> None:
    driver = Driver("a", window_policy="fixed", window_initial=1)
    driver.offer(1)
    driver.emit()
    for _ in range(6):
        driver.wait_for_deadline()
        if driver.emit():
            break
    assert driver.core.bolts["a"].held == 1
    assert driver.core.counters.tuples_moved == 1


@pytest.mark.req("S7")
def test_a_tuple_does_not_wait_for_a_bolt_that_hangs_for_ever() -> None:
    """b is alive and never done: a, which failed the tuple once, is the only bolt left."""
    driver = beating("a", "b", window_policy="fixed", window_initial=1, timeout_rto_max_s=0.6)
    driver.offer(2)
    on_a, on_b = driver.emit()
    driver.fail(on_a)
    wait_beating(driver, 1.0, a={}, b=BUSY_WITH_ONE)
    assert driver.emit() == []  # b may get through
    wait_beating(driver, 20.0, a={}, b=BUSY_WITH_ONE)
    done = []
    for _ in range(2):
        (emission,) = driver.emit()
        assert emission.bolt == "a"
        driver.ack(emission)
        done.append(emission.tuple_id)
    assert sorted(done) == [on_a.tuple_id, on_b.tuple_id]
    assert driver.core.is_drained


def test_acks_of_later_sendings_show_that_a_stray_is_gone() -> None:
    driver = Driver("a", window_policy="fixed", window_initial=2)
    driver.offer(9)
    _, second = driver.emit()
    driver.clock.advance(0.5)
    driver.ack(second)
    driver.clock.advance(2.0)
    (older,) = driver.emit()
    driver.wait(0.5)  # the first expires
    strays = driver.core.bolts["a"].strays
    assert len(strays) == 1
    driver.ack(older)  # was sent before the first was given up: says nothing
    assert len(strays) == 1
    driver.clock.advance(0.1)
    newer = driver.emit()[-1]
    driver.clock.advance(0.1)
    driver.ack(newer)
    assert not strays


def test_a_shorter_time_out_of_a_newer_tuple_is_heard() -> None:
    driver = Driver("a", window_initial=3, timeout_rto_first_s=30.0)
    driver.offer(2)
    driver.emit(1)
    (second,) = driver.emit()
    driver.clock.advance(0.1)
    driver.ack(second)
    driver.offer(1)
    driver.emit()
    assert driver.core.next_deadline_s() == pytest.approx(1.1)  # not the first one's 30 s


class SlowToFail:
    """Two bolts that beat, and each of whose calls raises after 75 s: later than the 60 s for which
    a tuple is waited for."""

    def __init__(self, **settings: object) -> None:
        self.driver = beating("a", "b", retry_attempts_max=3, **settings)
        self.driver.offer(2)
        for emission in self.driver.emit():
            self.driver.wait(0.1)
            self.driver.ack(emission, service_s=0.1)
        self.calls: dict[str, list[Emission]] = {"a": [], "b": []}
        self.ends_s = dict.fromkeys(self.calls, 0.0)

    def run(self, until_s: float) -> None:
        driver = self.driver
        while driver.clock() < until_s and driver.core.gave_up is None:
            driver.clock.advance(0.25)
            for emission in driver.emit():
                self.calls[emission.bolt].append(emission)
            for bolt, calls in self.calls.items():
                self._work(bolt, calls)
            driver.wait(0)

    def _work(self, bolt: str, calls: list[Emission]) -> None:
        now_s = self.driver.clock()
        if calls and not self.ends_s[bolt]:
            self.ends_s[bolt] = now_s + 75.0
        if calls and now_s >= self.ends_s[bolt]:
            self.ends_s[bolt] = 0.0
            self.driver.fail(calls.pop(0))
        begun = [calls[0].tuple_id] if calls else []
        self.driver.beat(bolt, busy=len(begun), queued=max(0, len(calls) - 1), begun=begun)


def test_a_record_whose_every_call_raises_later_than_it_is_waited_for_is_given_up() -> None:
    """The kind: a fault that nobody waits for any more is one all the same.  It was counted for
    nobody, and the record went from bolt to bolt for ever."""
    slow = SlowToFail()
    slow.driver.offer(1)
    slow.run(until_s=1_000.0)
    assert slow.driver.core.gave_up is not None
    assert slow.driver.core.gave_up.attempts == 3
    assert len(slow.driver.log_emitted) == 2 + 4


def test_a_target_that_fails_every_call_late_is_noticed_and_no_record_is_blamed() -> None:
    slow = SlowToFail(window_policy="fixed", window_initial=1)
    slow.driver.offer(200)
    slow.run(until_s=1_000.0)
    assert slow.driver.core.gave_up is None
    assert slow.driver.core.target_down is not None


@pytest.mark.parametrize("is_done", [True, False])
def test_a_late_fault_of_what_was_done_or_given_up_meanwhile_changes_nothing(
    is_done: bool,
) -> None:
    driver = beating("a", "b", retry_attempts_max=1)
    driver.offer(1)
    (first,) = driver.emit()
    wait_beating(driver, 3.25, b={})
    (moved,) = driver.emit()
    assert (first.bolt, moved.bolt, moved.tuple_id) == ("a", "b", first.tuple_id)
    if is_done:
        driver.ack(moved)
    else:
        driver.fail(moved)
    failed = driver.core.counters.tuples_failed
    assert driver.fail(first) is AckOutcome.DUPLICATE
    assert driver.core.counters.tuples_failed == failed
    assert (driver.core.gave_up is None) is is_done


def test_a_late_refusal_changes_nothing() -> None:
    """It says that the target was full then, and nothing of the tuple."""
    driver = beating("a", "b")
    driver.offer(1)
    (first,) = driver.emit()
    wait_beating(driver, 3.25, b={})
    (moved,) = driver.emit()
    assert driver.fail(first, is_refused=True) is AckOutcome.DUPLICATE
    assert driver.ack(moved) is AckOutcome.ACKED
