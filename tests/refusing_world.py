"""A core, bolts of one slot and a target that refuses now and then, in virtual time.

By value and by reference: the same records, the same target, the bolts' real claims, batches and
pauses.  So what ranges take longer is what the core and the bolts make of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from flowctl.bolts.pauses import Pauses
from flowctl.bolts.range_claims import RangeClaims
from flowctl.bolts.range_pace import BatchPace
from flowctl.config import Settings
from flowctl.core.driver import pump
from flowctl.core.messages import (
    Ack,
    Emission,
    Fail,
    Heartbeat,
    Order,
    Processed,
    Progress,
    RangeEmission,
    RangeFail,
    Revoke,
    Revoked,
    Split,
    SplitAnswer,
)
from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Record
from flowctl.core.spout import SpoutCore

PATH_S = 0.001  # from the core to a bolt, or back
HEARTBEAT_S = 0.25
LINE_BYTES = 5  # of a line, as positions of ranges
Process = Callable[[list[int]], Fail | None]


class RefusesNowAndThen:
    """Every seventh call is refused, every hundredth record is bad.

    ``is_data_error``: whether the error looks like one of a value.
    """

    def __init__(self, *, is_data_error: bool, call_s: float = 20e-6) -> None:
        self.call_s = call_s
        self.calls = self.refused = self.failed = 0
        self.done: Counter[int] = Counter()
        self._is_data_error = is_data_error

    def __call__(self, records: list[int], tuple_id: int, attempt: int) -> Fail | None:
        self.calls += 1
        if self.calls % 7 == 0:
            self.refused += 1
            return Fail(tuple_id, attempt, "busy", is_refused=True)
        for index, record in enumerate(records):
            if record % 100 == 5:
                self.failed += 1
                is_data_error = self._is_data_error
                error = "bad" if is_data_error else "unknown"
                return Fail(
                    tuple_id, attempt, error, record_index=index, is_data_error=is_data_error
                )
        self.done.update(records)
        return None


class World:
    """One run; :meth:`run` once."""

    def __init__(self, target: RefusesNowAndThen, records: int, *, bolts: int, by: str) -> None:
        self.target, self.records = target, records
        self.now_s = 0.0
        self.letters: Counter[int] = Counter()
        self.log: list[Any] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._alarm_s: float | None = None
        if by == "ranges":
            self.core: Any = RangeCore(Settings(), has_dead_letter=True)
            self.core.offer_extents(
                {"p": Extent(0, records * LINE_BYTES, size_bytes=records * LINE_BYTES)}
            )
        else:
            self.core = SpoutCore(Settings(), has_dead_letter=True)
        self._left = 0 if by == "ranges" else records
        kind = RangeBolt if by == "ranges" else ValueBolt
        self.bolts = {f"b{n + 1}": kind(f"b{n + 1}", self) for n in range(bolts)}

    # -- the loop ------------------------------------------------------------------------

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._events, (max(at_s, self.now_s), self._number, what))

    def run(self, *, until_s: float) -> float:
        """Run to the end; return how long it took."""
        for bolt in self.bolts.values():
            self.core.add_bolt(bolt.name, slots=1, epoch=1, now_s=0.0, in_order=True)
            self.at(HEARTBEAT_S, bolt.beat)
        self._offer()
        self._pump()
        while not self.core.is_drained:
            self.now_s, _, what = heappop(self._events)
            assert self.now_s < until_s, "stuck"
            what()
            self._offer()
            self._pump()
        return self.now_s

    def _offer(self) -> None:
        if self._left:
            first = self.records - self._left
            few = [Record(n, n) for n in range(first, min(first + 10_000, self.records))]
            self._left -= self.core.offer("p", few, now_s=self.now_s)
        if not self._left and not self.core.book.input_ended:
            self.core.end_of_input(now_s=self.now_s)

    def _pump(self) -> None:
        turn = pump(self.core, self.now_s)
        for emission in turn.emissions:
            bolt = self.bolts[emission.bolt]
            self.at(self.now_s + PATH_S, lambda b=bolt, e=emission: b.take(e))
        for order in turn.orders:
            bolt = self.bolts[order.bolt]
            self.at(self.now_s + PATH_S, lambda b=bolt, o=order: b.obey(o))
        self.log += [(self.now_s, event) for event in turn.events]
        for dead in turn.dead:
            self.letters.update(record.position for record in dead.records)
            self.at(self.now_s, lambda n=dead.gave_up.tuple_id: self._kept(n))
        if turn.next_s is not None and turn.next_s != self._alarm_s:
            self._alarm_s = turn.next_s
            self.at(turn.next_s, lambda: None)

    def _kept(self, tuple_id: int) -> None:
        self.core.on_dead_lettered(tuple_id, now_s=self.now_s)

    def tell(self, what: Callable[[], Any]) -> None:
        self.at(self.now_s + PATH_S, what)


class _Bolt:
    """One slot, which waits as real ones do."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.pauses = Pauses()
        self.queue: deque[Any] = deque()
        self.is_busy = False
        self.idle_s, self.idle_since_s = 0.0, 0.0

    def beat(self) -> None:
        said = Heartbeat(int(self.is_occupied), len(self.queue))
        self.say("on_heartbeat", said)
        self.world.at(self.world.now_s + HEARTBEAT_S, self.beat)

    @property
    def is_occupied(self) -> bool:
        """Whether its slot is at work, or waits although it could be: that is not idle."""
        is_waiting = not self.pauses.is_free and self.pauses.wait_s(self.name, self.world.now_s) > 0
        return self.is_busy or is_waiting

    def say(self, call: str, message: Any) -> None:
        world = self.world
        on = getattr(world.core, call)
        world.tell(lambda: on(self.name, 1, message, now_s=world.now_s))

    def must_wait(self) -> bool:
        """Whether its slot may not call now; then it looks again when it may."""
        if self.pauses.is_free:
            return False
        wait_s = self.pauses.wait_s(self.name, self.world.now_s)
        if wait_s > 0:
            self.world.at(self.world.now_s + wait_s + 1e-9, self.go_on)
        return wait_s > 0

    def may_begin(self) -> bool:
        """As it says; a call follows at once."""
        if self.must_wait():
            return False
        self.pauses.begun(self.name, self.world.now_s)
        return True

    def learn(self, fail: Fail | None) -> None:
        if fail is None:
            self.pauses.succeeded(self.name)
        elif fail.is_refused:
            self.pauses.refused(self.name, fail.after_s, self.world.now_s)
        else:
            self.pauses.failed(self.name)

    def go_on(self) -> None:
        raise NotImplementedError


class ValueBolt(_Bolt):
    """Gets tuples."""

    def take(self, emission: Emission) -> None:
        self.queue.append((emission, self.world.now_s))
        self.go_on()

    def obey(self, order: Order) -> None:
        assert isinstance(order, Revoke)
        given = [e.tuple_id for e, _ in self.queue if e.tuple_id in order.tuple_ids]
        self.queue = deque(one for one in self.queue if one[0].tuple_id not in given)
        self.say("on_revoked", Revoked(given))

    def go_on(self) -> None:
        if self.is_busy or not self.queue or not self.may_begin():
            return
        self.is_busy = True
        emission, came_s = self.queue.popleft()
        began_s = self.world.now_s
        self.world.at(
            began_s + self.world.target.call_s, lambda: self._end(emission, came_s, began_s)
        )

    def _end(self, emission: Emission, came_s: float, began_s: float) -> None:
        world, sent = self.world, (emission.tuple_id, emission.attempt)
        fail = world.target([record.value for record in emission.records], *sent)
        self.learn(fail)
        if fail is not None:
            self.say("on_fail", fail)
        else:
            self.say("on_ack", Ack(*sent, began_s - came_s, world.now_s - began_s, 0.0))
        self.is_busy = False
        self.go_on()


class RangeBolt(_Bolt):
    """Gets ranges of lines of ``LINE_BYTES`` each."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.pace = BatchPace()
        self.held: dict[int, RangeClaims] = {}
        self.now: RangeEmission | None = None

    def take(self, emission: RangeEmission) -> None:
        self.held[emission.tuple_id] = RangeClaims(emission.start, emission.stop)
        self.queue.append(emission)
        self.go_on()

    @property
    def is_occupied(self) -> bool:
        return super().is_occupied or self.now is not None

    def obey(self, order: Order) -> None:
        if isinstance(order, Split):
            claims = self.held.get(order.tuple_id)
            stop = claims.split(order.request, order.keep) if claims is not None else 0
            self.say("on_split", SplitAnswer(order.tuple_id, order.request, stop))
            self.go_on()
            return
        assert isinstance(order, Revoke)
        given = [e.tuple_id for e in self.queue if e.tuple_id in order.tuple_ids]
        self.queue = deque(e for e in self.queue if e.tuple_id not in given)
        self.say("on_revoked", Revoked(given))

    def go_on(self) -> None:
        if self.is_busy:
            return
        while self.now is None or self.held[self.now.tuple_id].is_finished:
            self.now = None
            if not self.queue or self.must_wait():
                return
            self.now = self.queue.popleft()
        if not self.may_begin():
            return
        claims = self.held[self.now.tuple_id]
        first = claims.claimed
        lines = -(-first // LINE_BYTES), -(-claims.stop // LINE_BYTES)
        count = min(self.pace.next_of(lines[1] - lines[0]), lines[1] - lines[0])
        through = min((lines[0] + count) * LINE_BYTES, claims.stop)
        if lines[0] + count == lines[1]:
            through = claims.stop
        claims.claim(through)
        self.is_busy = True
        records, began_s = list(range(lines[0], lines[0] + count)), self.world.now_s
        self.world.at(
            began_s + (self.world.target.call_s if records else 0.0),
            lambda: self._end(records, first, began_s),
        )

    def _end(self, records: list[int], first: int, began_s: float) -> None:
        world, emission = self.world, self.now
        assert emission is not None
        claims = self.held[emission.tuple_id]
        sent = (emission.tuple_id, emission.attempt)
        fail = world.target(records, *sent) if records else None
        service_s = world.now_s - began_s
        if fail is not None:
            self._report(claims, at_once=True)
            claims.failed()
            at = fail.record_index
            position = records[at] * LINE_BYTES if at is not None else None
            one = Record(records[0] * LINE_BYTES, records[0]) if len(records) == 1 else None
            self.say(
                "on_range_fail", RangeFail(fail, first, claims.claimed, len(records), position, one)
            )
            self.learn(fail)
        else:
            if records:
                self.learn(None)
                self.pace.took(len(records), service_s)
            claims.done(
                Processed(records=len(records), service_s=service_s, call_s=self.pace.dear_s)
            )
            self._report(claims, at_once=claims.is_finished)
        self.is_busy = False
        if claims.is_finished:
            self.now = None
        self.go_on()

    def _report(self, claims: RangeClaims, *, at_once: bool) -> None:
        told = claims.progress(self.world.now_s, at_once=at_once)
        if told is None:
            return
        emission = self.now
        assert emission is not None
        start, through, did = told
        self.say(
            "on_progress", Progress(emission.tuple_id, emission.attempt, start, through, 0.0, did)
        )
