"""For the tests of loops: waits that take no time, tasks that write down what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flowctl.config import WaitSettings
from flowctl.runtime.loops import SpoutLoop
from flowctl.runtime.queues import BoundedQueue, PendingEmits
from flowctl.runtime.tasks import Ports
from flowctl.runtime.wait import WaitInterrupted, make_wait_strategy
from flowctl.testing.clock import ManualClock


class Parked:
    """A Parking that moves a clock and remembers how long it was asked for."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.times_s: list[float] = []
        self.is_interrupted = False

    def __call__(self, timeout_s: float) -> None:
        if self.is_interrupted:
            raise WaitInterrupted
        self.times_s.append(timeout_s)
        self.clock.advance(timeout_s)


class Log:
    """A logger in a list."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str, dict[str, Any]]] = []

    def log(self, level: int, event: str, /, **fields: Any) -> None:
        self.told.append((level, event, fields))

    @property
    def events(self) -> list[str]:
        return [event for _, event, _ in self.told]


@dataclass
class Message:
    task_id: int | None
    body: Any = None


@dataclass
class House:
    """The ports of one loop, and what stands behind them."""

    inbox_size: int = 100
    settings: WaitSettings = field(default_factory=WaitSettings)
    accepts: Callable[[Any], bool] = lambda item: True

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.park = Parked(self.clock)
        self.log = Log()
        self.is_active = True
        self.inbox: BoundedQueue[Any] = BoundedQueue(self.inbox_size)
        self.sent: list[Any] = []
        self.handled: list[Any] = []
        self.emits: PendingEmits[Any] = PendingEmits(self.transfer)

    def transfer(self, item: Any) -> bool:
        if not self.accepts(item):
            return False
        self.sent.append(item)
        return True

    def ports(self, handle: Callable[[Any], None] | None = None) -> Ports[Any]:
        return Ports(
            inbox=self.inbox,
            handle=handle or self.handled.append,
            emits=self.emits,
            is_active=lambda: self.is_active,
            strategy=partial(make_wait_strategy, self.settings, park=self.park),
            park=self.park,
            clock=self.clock,
            logger=self.log,
        )


class Spout:
    """Emits ``plan`` copies at each ``next_tuple``: a number, or a list of them, 0 at its end."""

    def __init__(self, house: House, plan: int | list[int] = 1, *, task_id: int = 1) -> None:
        self.task_id = task_id
        self.calls: list[str] = []
        self.house = house
        self.plan = plan

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def activate(self) -> None:
        self.calls.append("activate")

    def deactivate(self) -> None:
        self.calls.append("deactivate")

    def next_tuple(self) -> None:
        self.calls.append("next_tuple")
        count = self.plan if isinstance(self.plan, int) else (self.plan or [0]).pop(0)
        if count:
            number = self.house.emits.emitted_count
            self.house.emits.emit((self.task_id, number, copy) for copy in range(count))

    def ack(self, message_id: Any) -> None:
        self.calls.append(f"ack {message_id}")

    def fail(self, message_id: Any) -> None:
        self.calls.append(f"fail {message_id}")

    @property
    def asked(self) -> int:
        return self.calls.count("next_tuple")


class Bolt:
    """Emits ``fan_out`` copies of what it executes."""

    def __init__(self, house: House, fan_out: int = 1, *, task_id: int = 1) -> None:
        self.task_id = task_id
        self.calls: list[Any] = []
        self.house = house
        self.fan_out = fan_out

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def execute(self, message: Any) -> None:
        self.calls.append(message)
        self.house.emits.emit((message, copy) for copy in range(self.fan_out))


def spout_loop(house: House, *tasks: Spout, handle: Any = None, **settings: Any) -> SpoutLoop[Any]:
    settings.setdefault("pending", ())
    return SpoutLoop(tasks, house.ports(handle), **settings)


def steps(loop: Any, count: int) -> None:
    for _ in range(count):
        loop.step()
