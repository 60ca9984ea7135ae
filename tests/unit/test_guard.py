"""The shared sink guard, alone: a closed-form sink and virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.events import FlowEvent, SinkCapChanged
from flowctl.core.records import Record, Span
from flowctl.core.sink_guard.epoch import Epoch, WindowedMinimum
from flowctl.core.sink_guard.guard import SinkGuard
from tests.core_driver import Driver

BOLTS = 24  # tuples in flight without a cap
OWN_S = 0.012  # what a tuple takes beside the sink
ONE_S = 0.002  # what it takes in a serial sink, alone
NEEDED = 7  # tuples in flight that fill that sink: (OWN_S + ONE_S) / ONE_S


class World:
    """Tuples that take OWN_S and then wait their turn in a serial sink, or a private one."""

    def __init__(self, one_s: Callable[[float], float] = lambda _: ONE_S, *, tells: bool = True):
        self.events: deque[FlowEvent] = deque()
        self.guard = SinkGuard(self.events)
        self.now_s = 0.0
        self.in_flight = 0
        self.acked = 0
        self.most = BOLTS
        self.is_shared = True
        self.tells = tells
        self._one_s = one_s
        self._free_at_s = 0.0
        self._due: list[tuple[float, int, float, float]] = []  # acked, number, sent, in the sink
        self._entering: list[tuple[float, int, float]] = []
        self._sent = 0

    def run(self, until_s: float) -> float:
        """Go on; return the goodput."""
        began_s, before = self.now_s, self.acked
        while self.now_s < until_s:
            while self.in_flight < self.most and self.guard.has_room(self.in_flight):
                self._send()
            self._ack()
        return (self.acked - before) / (self.now_s - began_s)

    def _send(self) -> None:
        # All take the same time before the sink, so they enter it in the order of sending.
        enters_s = self.now_s + OWN_S * (0.9 + 0.2 * (self._sent % 7) / 6)
        one_s = self._one_s(self.now_s)
        begins_s = max(enters_s, self._free_at_s) if self.is_shared else enters_s
        self._free_at_s = begins_s + one_s
        leaves_s = begins_s + one_s
        heappush(self._due, (leaves_s, self._sent, self.now_s, leaves_s - enters_s))
        self._sent += 1
        self.in_flight += 1

    def _ack(self) -> None:
        self.now_s, _, sent_at_s, sink_s = heappop(self._due)
        self.guard.on_ack(
            self.now_s,
            sent_at_s=sent_at_s,
            records=1,
            sink_s=sink_s if self.tells else None,
            wait_s=0.0,
            in_flight=self.in_flight,
            was_limited=self.in_flight >= self.most and self.most == BOLTS,
        )
        self.in_flight -= 1
        self.acked += 1

    @property
    def caps(self) -> list[int | None]:
        return [event.after for event in self.events if isinstance(event, SinkCapChanged)]


def test_without_sink_times_it_stays_off() -> None:
    world = World(tells=False)
    world.run(10.0)
    assert world.guard.cap == inf
    assert not world.events


def test_a_quick_sink_of_ones_own_stays_off() -> None:
    world = World()
    world.is_shared = False
    world.run(10.0)
    assert not world.events


def test_finds_the_smallest_cap_that_keeps_the_goodput() -> None:
    world = World()
    world.run(5.0)
    assert NEEDED <= world.guard.cap <= NEEDED + 3
    assert world.run(30.0) >= 0.98 / ONE_S  # probes included
    first = world.events[0]
    assert isinstance(first, SinkCapChanged)
    assert (first.before, first.reason) == (None, "the sink is slow")


def test_tries_less_often_the_longer_nothing_changes() -> None:
    world = World()
    world.run(60.0)
    moves = len(world.events)
    world.run(120.0)
    assert len(world.events) - moves <= 6


def test_follows_a_sink_that_becomes_slower() -> None:
    world = World(lambda now_s: ONE_S if now_s < 10.0 else 3 * ONE_S)
    world.run(10.0)
    before = world.guard.cap
    world.run(15.0)
    needed = (OWN_S + 3 * ONE_S) / (3 * ONE_S)
    assert needed <= world.guard.cap <= needed + 2 < before
    assert world.run(30.0) >= 0.97 / (3 * ONE_S)


def test_goes_off_when_the_sink_is_quick_again() -> None:
    def one_s(now_s: float) -> float:
        return ONE_S if now_s < 10.0 else ONE_S / 10

    world = World(one_s)
    world.run(10.0)
    assert world.guard.cap < BOLTS
    world.run(13.0)
    assert world.guard.cap == inf
    assert world.caps[-1] is None
    without = World(one_s, tells=False)
    without.run(13.0)
    assert world.run(20.0) >= 0.99 * without.run(20.0)


def test_goes_off_when_the_cap_is_not_reached_any_more() -> None:
    world = World()
    world.run(5.0)
    assert world.guard.cap < BOLTS
    world.most = 2  # as from a source that has little
    world.run(10.0)
    assert world.guard.cap == inf


def test_the_cap_is_never_below_one() -> None:
    # The sink is all there is: one tuple in flight keeps it nearly full.
    world = World(lambda _: 1.0)
    world.run(3000.0)
    assert world.caps
    assert min(cap for cap in world.caps if cap is not None) >= 1
    assert world.guard.cap <= 3


def test_a_sink_that_is_slow_by_itself_is_not_blamed_for_long() -> None:
    # Its time varies by five, but fewer tuples in flight only give less goodput.
    def goodput(*, tells: bool) -> float:
        world = World(lambda now_s: ONE_S * (1 if int(now_s * 1000) % 10 < 5 else 5), tells=tells)
        world.is_shared = False
        rate = world.run(60.0)
        assert bool(world.events) == tells
        assert len(world.events) <= 10
        return rate

    assert goodput(tells=True) >= 0.995 * goodput(tells=False)


# -- parts -----------------------------------------------------------------------------------


def test_the_least_sink_time_is_of_groups_and_is_forgotten() -> None:
    least = WindowedMinimum()
    assert least.value == inf
    for sink_s in (0.0, 4.0, 4.0, 4.0):  # one call found nothing to write
        least.add(0.0, sink_s, 1)
    assert least.value == 3.0
    for at_s in range(80):
        least.add(float(at_s), 5.0, 1)
    assert least.value == 3.0  # slow calls: a few of them are no reason to forget
    for at_s in range(1100):
        least.add(80.0 + at_s, 5.0, 1)
    assert least.value == 5.0


def test_an_epoch_begins_with_what_was_sent_after_the_change() -> None:
    epoch = Epoch()
    epoch.begin(10.0)
    for at_s, sent_at_s in ((10.1, 9.9), (10.2, 10.0), (10.3, 10.1), (10.4, 10.2)):
        epoch.add(
            at_s, 5, sent_at_s=sent_at_s, sink_s=0.05, wait_s=None, in_flight=2, is_bound=True
        )
    assert epoch.acks == 2  # the first was sent before it, the second is its zero of time
    assert epoch.goodput == pytest.approx(10 / 0.2)
    assert epoch.sink == pytest.approx(0.01)
    assert epoch.needed(0.0) == pytest.approx(2 * 0.15 / 0.2)


def test_a_batch_measures_only_with_a_clock() -> None:
    batch = Batch([Record(1, "x")], Span("job", "p", 1, 1, 1), bolt="b1", attempt=1)
    with batch.in_sink():
        pass
    assert batch.sink_s is None


# -- in the core -----------------------------------------------------------------------------


def test_the_core_holds_back_and_no_window_grows_from_it() -> None:
    driver = Driver("a", "b", window_initial=1)
    driver.offer(100)
    guard = driver.core.guard
    assert guard is not None
    guard.in_use, guard.cap = True, 0  # at the very start nobody knows what the limit is
    assert driver.emit() == []
    guard.cap = 1
    for _ in range(30):
        (emission,) = driver.emit()  # it fills its bolt's window, but the cap is the limit
        driver.wait(0.01)
        driver.ack(emission, wait_s=0.0, service_s=0.01, sink_s=0.005)
    assert (driver.window("a"), driver.window("b")) == (1, 1)
    guard.cap = inf
    for _ in range(30):
        emissions = driver.emit()
        driver.wait(0.01)
        for emission in emissions:
            driver.ack(emission, wait_s=0.0, service_s=0.01, sink_s=0.005)
    assert driver.window("a") > 1  # without a cap it would


def test_the_setting_turns_it_off() -> None:
    assert Driver("a", dispatch_sink_guard=False).core.guard is None
