"""The sender's loop on the real core, turn by turn: what it does when, and what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.config import Settings
from flowctl.core.messages import Ack, Emission, End, Fail
from flowctl.core.records import Checkpoint, Record
from flowctl.core.spout import SpoutCore
from flowctl.instrumentation.snapshot import WaitReason
from flowctl.runtime.control import RunControl
from flowctl.runtime.sender import Outlets, Sender
from flowctl.testing.clock import ManualClock
from flowctl.waiting.strategies import BLOCKING_MAX_S, WaitInterrupted
from flowctl.wire.server import Inbound, Joined, Received
from tests.loop_parts import Log

_, BACK_PRESSURE, MAX_PENDING, NO_INPUT, LAST_TUPLES = WaitReason
ONE_EACH = {
    "tuple.records_max": 1,
    "lab.window.policy": "fixed",
    "lab.window.initial": 1,
    "lab.timeout.rto_first_s": 60.0,
    "lab.timeout.silence_max_s": 60.0,
}


class Server:
    """What bolts say is planned; a wait moves the clock to its end, or to what comes first."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.coming: list[Inbound] = []
        self.sent: list[tuple[str, Any]] = []
        self.polled_s: list[float] = []
        self.behind_since_s: float | None = None  # from when on nothing was read
        self.is_carried = False

    @property
    def heard_until_s(self) -> float:
        return self.clock() if self.behind_since_s is None else self.behind_since_s

    def poll(self, timeout_s: float) -> list[Inbound]:
        self.polled_s.append(timeout_s)
        came, self.coming = self.coming, []
        if not came:
            self.clock.advance(timeout_s)
        return came

    def send(self, bolt: str, frame: Any) -> bool:
        self.sent.append((bolt, frame))
        return True

    def drop_bolt(self, bolt: str) -> None:
        self.sent.append((bolt, "dropped"))

    def close_bolt(self, bolt: str) -> None:
        self.sent.append((bolt, "closed"))

    def flush(self) -> None: ...
    def wake(self) -> None: ...


class Lock:
    """Counts how often it is taken."""

    def __init__(self) -> None:
        self.taken = 0
        self.is_held = False

    def __enter__(self) -> None:
        self.taken += 1
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


class TalkingCore(SpoutCore):
    """Has something to say at each turn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.turns = 0

    def take_news(self) -> list[str]:
        self.turns += 1
        return [f"turn {self.turns}"]


class Stand:
    """A sender without its thread."""

    def __init__(self, bolts: int = 2, **overrides: Any) -> None:
        settings = Settings().with_overrides(
            {**ONE_EACH, **{k.replace("__", "."): v for k, v in overrides.items()}}
        )
        self.clock = ManualClock()
        self.core = SpoutCore(settings, checkpoint=Checkpoint())
        self.control = RunControl(self.core, clock=self.clock)
        self.lock = Lock()
        self.control.lock = self.lock  # type: ignore[assignment]
        self.server = Server(self.clock)
        self.log = Log()
        self.sender = Sender(
            self.control,
            self.server,  # type: ignore[arg-type]
            wait=settings.wait,
            logger=self.log,
        )
        self.offered = 0
        if bolts:
            self.join(bolts)

    def join(self, bolts: int) -> None:
        """They come together, so that the turn that takes them does not wait."""
        self.sender._inbound = [Joined(f"b{n}", 1, 1, "h", n) for n in range(1, bolts + 1)]
        self.steps()

    def offer(self, count: int) -> int:
        records = [Record(self.offered + n, "x") for n in range(1, count + 1)]
        taken = self.core.offer("p", records, now_s=self.clock())
        self.offered += taken
        return taken

    def steps(self, count: int = 1) -> None:
        for _ in range(count):
            self.sender.loop.step()

    def reply(self, *, fail: bool = False) -> None:
        """Every bolt answers for all that it was sent: that is what ended the last wait."""
        by_bolt: dict[str, list[Any]] = {}
        for bolt, frame in self.server.sent:
            if isinstance(frame, Emission):
                answer = (
                    Fail(frame.tuple_id, frame.attempt, "no", "", None, False)
                    if fail
                    else Ack(frame.tuple_id, frame.attempt, 0.0, 0.01, 0.0)
                )
                by_bolt.setdefault(bolt, []).append(answer)
        self.server.sent.clear()
        self.sender._inbound = [Received(bolt, 1, frames) for bolt, frames in by_bolt.items()]

    @property
    def waits(self) -> tuple[float, float, float]:
        waits = self.control.spout_waits()
        return (waits.backpressure_s, waits.max_pending_s, waits.no_input_s)


@pytest.mark.req("S36", "S55")
def test_it_is_active_from_the_first_bolt_until_the_stop_and_takes_acks_after_it():
    stand = Stand(bolts=0)
    stand.offer(5)
    stand.steps(3)
    assert stand.waits == (0, 0, 0), "while bolts start, nothing is held up"
    stand.join(2)
    assert len(stand.server.sent) == 2
    stand.reply()
    stand.control.stopping.set()
    with pytest.raises(WaitInterrupted):
        stand.steps()
    assert stand.server.sent == [] and stand.core.counters.tuples_acked == 2
    assert stand.control.finished.is_set(), "nothing is in flight"
    assert stand.log.events.count("spout_activated") == 1
    assert stand.log.events.count("spout_deactivated") == 1
    stand.sender.loop.close()
    assert stand.log.events.count("spout_deactivated") == 1


@pytest.mark.req("S39", "S44", "S59")
def test_full_windows_are_back_pressure():
    stand = Stand()
    stand.offer(5)
    stand.steps(2)
    assert len(stand.server.sent) == 2, "one window each, no more was asked of the core"
    assert stand.sender.waits_for() is BACK_PRESSURE
    assert stand.waits == (2 * BLOCKING_MAX_S, 0, 0)
    assert stand.sender.loop.empty_emit_streak == 0
    stand.steps(10)
    assert stand.log.events.count("backpressure_began") == 1
    stand.reply()
    stand.steps()
    assert len(stand.server.sent) == 2
    assert stand.log.events.count("backpressure_ended") == 1


@pytest.mark.req("S40", "S60")
def test_a_source_that_gives_nothing_is_a_spout_wait():
    stand = Stand()
    stand.offer(1)
    stand.steps(3)
    assert stand.sender.waits_for() is NO_INPUT
    assert stand.waits == (0, 0, 3 * BLOCKING_MAX_S)
    assert stand.sender.loop.empty_emit_streak == 3
    stand.control.reader_done.set()
    stand.steps()
    assert stand.sender.waits_for() is LAST_TUPLES, "the source is not what is slow"
    assert stand.control.spout_waits().last_tuples_s == BLOCKING_MAX_S


@pytest.mark.req("S37", "S40", "S59")
def test_the_bound_on_tuples_in_flight_is_a_limit_of_pending():
    stand = Stand(lab__window__initial=9, dispatch__in_flight_max=3)
    stand.offer(9)
    stand.steps(2)
    assert len(stand.server.sent) == 3
    assert stand.sender.waits_for() is MAX_PENDING
    assert stand.waits == (0, 1.0, 0)
    assert stand.sender.loop.empty_emit_streak == 2


@pytest.mark.req("S40", "S94")
def test_the_bound_on_uncommitted_records_is_one_and_does_not_hold_up_a_retry():
    stand = Stand(buffer__uncommitted_max=2)
    assert stand.offer(5) == 2
    stand.steps(2)
    assert stand.sender.waits_for() is MAX_PENDING
    assert stand.waits == (0, 1.0, 0)
    stand.reply(fail=True)
    stand.steps(4)  # its back-off is over meanwhile
    sent = [frame.attempt for _, frame in stand.server.sent if isinstance(frame, Emission)]
    assert sent == [2, 2]
    stand.reply()
    stand.steps()
    assert stand.sender.waits_for() is NO_INPUT, "there is room, and nothing was read"


@pytest.mark.req("S40", "S44")
def test_a_store_that_is_away_is_a_limit_once_the_reader_waits_for_it():
    stand = Stand()
    stand.control.store_away_since_s = 0.0
    stand.steps()
    assert stand.sender.waits_for() is NO_INPUT
    stand.control.reader_waits = True
    stand.control.room.notify = lambda: None  # type: ignore[method-assign]
    stand.steps()
    assert stand.sender.waits_for() is MAX_PENDING


@pytest.mark.req("S31")
def test_a_wait_ends_at_the_cores_next_deadline():
    stand = Stand(lab__timeout__rto_first_s=0.3, lab__timeout__rule="clock")
    stand.offer(5)
    stand.steps()
    assert stand.server.polled_s[-1] == pytest.approx(0.3)
    stand.steps(2)
    assert stand.core.counters.tuples_expired > 0


@pytest.mark.req("S31", "S33")
def test_literal_waits_by_configuration():
    stand = Stand(
        lab__wait__spout_strategy="progressive",
        lab__wait__backpressure_strategy="park",
        lab__wait__backpressure_park_us=700,
    )
    stand.offer(5)
    stand.steps(3)
    assert [s for s in stand.server.polled_s if s] == [0.0007] * 3
    stand.reply()
    stand.steps()
    stand.reply()
    stand.steps(6)
    assert stand.server.polled_s[-3:] == [0.001] * 3


@pytest.mark.req("S69")
def test_what_came_with_one_poll_is_taken_at_once_each_to_its_bolt():
    stand = Stand(bolts=3)
    stand.offer(3)
    stand.steps()
    stand.reply()
    before = stand.lock.taken
    assert stand.sender.receive() == 3
    assert stand.lock.taken == before + 1, "one hold of the lock"
    assert [bolt.acked for bolt in stand.core.bolts.values()] == [1, 1, 1]


@pytest.mark.req("S38")
def test_after_several_messages_it_looks_again_before_it_waits():
    stand = Stand()
    stand.offer(2)
    stand.steps()
    stand.reply()
    del stand.server.polled_s[:]
    stand.steps()
    assert stand.server.polled_s == [], "what the wait brought, and no wait after it"
    stand.steps()
    assert stand.server.polled_s == [0.0, BLOCKING_MAX_S]


@pytest.mark.req("S45")
@pytest.mark.parametrize("strategy", ["blocking", "progressive", "park"])
def test_the_end_is_heard_in_every_wait(strategy: str):
    stand = Stand(lab__wait__spout_strategy=strategy, lab__wait__backpressure_strategy=strategy)
    stand.offer(5)
    poll, polls = stand.server.poll, []

    def poll_and_finish(timeout_s: float) -> list[Inbound]:
        polls.append(timeout_s)
        if timeout_s:
            stand.control.finished.set()
        return poll(timeout_s)

    stand.server.poll = poll_and_finish  # type: ignore[method-assign]
    stand.sender.run()
    assert [timeout_s > 0 for timeout_s in polls] in ([False, True], [False, False, True])
    assert stand.control.error is None
    assert not stand.sender.loop.was_active
    assert stand.log.events.count("backpressure_ended") == 1


@pytest.mark.req("S6")
def test_an_ack_that_waits_to_be_read_lets_nothing_expire():
    stand = Stand(bolts=2, lab__timeout__rto_first_s=3.0, lab__timeout__silence_max_s=3.0)
    stand.offer(2)
    stand.steps()
    stand.server.behind_since_s = stand.clock()
    stand.clock.advance(20.0)  # the loop had much to read from others
    stand.steps()
    assert stand.core.counters.tuples_expired == 0
    stand.server.behind_since_s = None
    stand.reply()
    stand.steps()
    assert (stand.core.counters.tuples_expired, stand.core.counters.tuples_acked) == (0, 2)
    stand.offer(1)
    stand.steps()
    stand.clock.advance(100.0)  # after a round trip of 20 s
    stand.sender._inbound = []
    stand.steps()  # nothing waits to be read: this bolt says nothing
    assert stand.core.counters.tuples_expired == 1


def test_behind_a_relay_that_stands_still_nobody_is_judged_and_the_loop_does_not_spin() -> None:
    stand = Stand(lab__timeout__rto_first_s=10.0)
    stand.offer(2)
    stand.steps()
    stand.server.behind_since_s = stand.clock()
    stand.server.is_carried = True
    stand.clock.advance(20.0)
    stand.sender._inbound = []
    polls = len(stand.server.polled_s)
    began_s = stand.clock()
    for _ in range(50):
        stand.sender.receive()
        stand.sender.next_tuple()
        stand.sender._park(1.0)
    assert len(stand.server.polled_s) - polls <= 101
    assert stand.clock() - began_s >= 0.5, "each turn waits"
    assert stand.core.counters.tuples_expired == 0


def test_what_the_core_says_is_told_in_order_and_without_the_lock() -> None:
    control = RunControl(TalkingCore(Settings()), clock=ManualClock())
    lock = Lock()
    control.lock = lock  # type: ignore[assignment]
    told: list[tuple[object, bool]] = []
    outlets = Outlets(news=lambda news: told.append((news, lock.is_held)))
    server: Any = Server(ManualClock())
    sender = Sender(control, server, outlets=outlets, logger=Log())
    for _ in range(2):
        sender.next_tuple()
    sender.take_rest()
    assert told == [("turn 1", False), ("turn 2", False), ("turn 3", False)]


def test_a_bolt_that_is_to_leave_is_sent_the_end_and_its_connection_is_closed() -> None:
    stand = Stand()
    stand.core.book.orders.append(End("b2"))
    stand.steps()
    assert stand.server.sent == [("b2", End("b2")), ("b2", "closed")]
