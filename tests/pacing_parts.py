"""A target in closed form, called in a closed loop, and the law that paces it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from types import SimpleNamespace

import fakeredis
import pytest

from flowctl.core.pacing.law import Bounds, TargetLaw
from flowctl.core.pacing.sample import Sample
from flowctl_redis.targets import RedisExchange

TICK_S = 0.25
CALL_S = 0.05


class Target:
    """So many callers in a closed loop; refused permits rest for half a second."""

    def __init__(
        self,
        law: TargetLaw,
        *,
        call_s: Callable[[int], float] = lambda _: CALL_S,
        takes: int = 10_000,
        callers: int = 64,
    ) -> None:
        self.law = law
        self.call_s = call_s
        self.takes = takes
        self.callers = callers
        self.now_s = TICK_S
        self.done = self.refused = 0
        self.said: list[tuple[int, str]] = []
        self._resting: list[float] = []

    def run(self, for_s: float) -> float:
        """Go on; return calls a second."""
        before, until_s = self.done, self.now_s + for_s
        while self.now_s < until_s:
            self._tick()
        return (self.done - before) / for_s

    def _tick(self) -> None:
        self._resting = [until_s for until_s in self._resting if until_s > self.now_s]
        wanted = min(self.law.limit, self.callers)
        by_rate = ceil(min(1e6, self.law.rate) * self.call_s(1))  # Little's law
        used = min(wanted, by_rate + len(self._resting))
        sent = max(0, used - len(self._resting))
        taken = min(sent, self.takes)
        refused = sent - taken
        self._resting += [self.now_s + 0.5] * refused
        call_s = self.call_s(taken) if taken else 0.0
        calls = int(taken / call_s * TICK_S) if taken else 0
        self.done += calls
        self.refused += refused
        is_held = self.law.limit < self.callers
        sample = Sample(
            TICK_S, calls, calls, calls * call_s, refused, used, is_held, used < wanted,
            len(self._resting),
        )  # fmt: skip
        self.see(sample)

    def see(self, sample: Sample) -> None:
        """The law is shown a sample."""
        self.law.on_sample(self.now_s, sample)
        self.said.append((self.law.limit, self.law.reason))
        self.now_s += TICK_S

    @property
    def limits(self) -> list[int]:
        """What the law decided after each sample."""
        return [limit for limit, _ in self.said]


def law(leave: float = 0.0, known: int | None = None, **bounds: int) -> TargetLaw:
    return TargetLaw(Bounds(**bounds), leave=leave, tick_s=TICK_S, known=known)


def serial(slots: int) -> Callable[[int], float]:
    return lambda inside: CALL_S * max(1.0, inside / slots)


class Server:
    """A fakeredis whose clock, that of the workers too, a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_800_000_000.0
        self.client = fakeredis.FakeRedis()
        self.is_away = False
        self.exchanges = 0
        clock = SimpleNamespace(time=lambda: self.now_s)
        monkeypatch.setattr("fakeredis.commands_mixins.server_mixin.time", clock)

    def exchange(self) -> RedisExchange:
        return RedisExchange("redis://localhost", "t", client=self.client)

    def fields(self) -> dict[bytes, bytes]:
        return self.client.hgetall("flowctl:target:{t}")

    @property
    def leased(self) -> int:
        return int(float(self.fields()[b"leased"]))
