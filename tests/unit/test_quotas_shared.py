"""Quotas that workers share through Redis: the script's grants, and what people see of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flowctl.errors import QuotaUsedUpError, SpentError
from flowctl.pacing.api import paced
from flowctl.pacing.budgets import costs_of, total_of
from flowctl.pacing.client import PERIOD_S, LeaseSource
from flowctl.pacing.gate import Gate
from flowctl_redis.targets import RedisExchange, RedisTargets
from tests.pacing_parts import Server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


class Exchange(RedisExchange):
    """Counts; away while the server is."""

    def __init__(self, server: Server) -> None:
        super().__init__("redis://localhost", "t", client=server.client)
        self.server = server

    def exchange(self, report: Any) -> Any:
        from flowctl.errors import InfrastructureError

        if self.server.is_away:
            raise InfrastructureError("away.", remedy="Wait.")
        self.server.exchanges += 1
        return super().exchange(report)


class Worker:
    """A process whose callers call one after the other, by the server's clock."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.server = server
        self.settings = paced("t", redis="redis://localhost", **options).settings
        self.gate = Gate(
            clock=lambda: server.now_s, chance=random.Random(1), target="t", patience_s=600.0
        )
        self.gate.wall = lambda: server.now_s
        self.source = LeaseSource(self.gate, self.settings, Exchange(server), lambda: None)
        self.gate.source = self.source
        self.made: list[tuple[float, Any]] = []
        self.waiter: Any = None

    def turn(self) -> None:
        self.source.turn()

    def calls(self, cost: Any, most: int = 10_000) -> int:
        """Make as many calls as may begin now, and wait with the next; return how many."""
        for done in range(most):
            if not self._enter(total_of(cost), costs_of(self.settings.quotas, cost)):
                return done
            self.made.append((self.server.now_s, cost))
            self.gate.leave_done(self.server.now_s, 1)
        return most

    def _enter(self, total: float, costs: tuple[float, ...]) -> bool:
        if self.waiter is None:
            if self.gate.try_enter(total, costs):
                return True
            self.waiter = self.gate.queue(lambda: None)
        try:
            got = self.gate.next_turn(self.waiter, total, self.server.now_s, costs)
        except QuotaUsedUpError:
            self.gate.give_up(self.waiter)
            self.waiter = None
            raise
        if got is None:
            self.waiter = None
        return got is None


def test_workers_together_keep_all_quotas_in_any_minute_and_use_nearly_all_of_one(
    server: Server,
) -> None:
    chance = random.Random(3)
    budget = ["300/min", "90k tokens/min"]
    workers = [Worker(server, budget=budget) for _ in range(3)]
    for tick in range(3 * 4 * 125):
        server.now_s += PERIOD_S / 3 * chance.uniform(0.5, 1.5)
        workers[tick % 3].turn()
        workers[tick % 3].calls({"tokens": chance.choice((100, 200, 800))})
    made = sorted((at_s, cost["tokens"]) for worker in workers for at_s, cost in worker.made)
    begin_s, end_s = made[0][0], made[-1][0]
    assert end_s - begin_s > 120
    for at_s, _ in made:
        minute = [tokens for t, tokens in made if at_s <= t < at_s + 60]
        assert len(minute) <= 300
        assert sum(minute) <= 90_000
    last = [tokens for t, tokens in made if t >= end_s - 60]
    assert max(len(last) / 300, sum(last) / 90_000) >= 0.93
    shares = [sum(cost["tokens"] for _, cost in worker.made) for worker in workers]
    assert min(shares) > 0.5 * max(shares)


def test_a_day_that_is_used_up_is_so_for_all_and_over_when_redis_says(server: Server) -> None:
    one, other = (Worker(server, budget="50/day", name=name) for name in ("a", "b"))
    for _ in range(30):
        for worker, most in ((one, 1), (other, 100)):
            worker.turn()
            try:
                worker.calls(None, most)
            except QuotaUsedUpError:
                assert len(one.made) + len(other.made) == 50
            server.now_s += PERIOD_S
    assert len(one.made) + len(other.made) == 50
    for worker in (one, other):
        with pytest.raises(QuotaUsedUpError) as caught:
            worker.calls(None)
        until_s = caught.value.until_s
        assert server.now_s < until_s <= server.now_s + 86_400
    used = {
        use.quota: (use.amount, use.used, use.left, dict(use.by_job))
        for use in RedisTargets("redis://localhost", client=server.client).read("t").quotas
    }
    jobs = {"a": len(one.made), "b": len(other.made)}
    assert used == {"calls/day": (50, 50, 0, jobs)}
    server.now_s = until_s + 1
    one.calls(None)
    one.turn()
    server.now_s += PERIOD_S
    one.turn()
    assert one.calls(None) > 0


def test_spend_max_is_of_a_job_and_a_larger_one_goes_on(server: Server) -> None:
    def spend(worker: Worker) -> int:
        with pytest.raises(SpentError):
            for _ in range(40):
                worker.turn()
                worker.calls({"$": 0.25})
                server.now_s += PERIOD_S
        return len(worker.made)

    assert spend(Worker(server, spend_max="$2", name="a")) == 8
    assert spend(Worker(server, spend_max="$2", name="b")) == 8
    assert spend(Worker(server, spend_max="$3", name="a")) == 4


def test_what_is_not_used_is_given_back(server: Server) -> None:
    one, other = (Worker(server, budget="9/day") for _ in range(2))
    one.turn()
    one.calls(None, 1)  # wishes
    for _ in range(3):
        one.turn()
        one.calls(None, 1)
        server.now_s += PERIOD_S
    had = len(one.made)
    one.source.leave()
    for _ in range(20):
        other.turn()
        try:
            other.calls(None)
        except QuotaUsedUpError:
            break
        server.now_s += PERIOD_S
    assert had + len(other.made) == 9


def test_while_redis_is_away_each_has_its_part_of_what_is_left(server: Server) -> None:
    workers = [Worker(server, budget="40/day") for _ in range(4)]

    def all_call(times: int, most: int) -> None:
        for _ in range(times):
            for worker in workers:
                worker.turn()
                try:
                    worker.calls(None, most)
                except QuotaUsedUpError:
                    continue
            server.now_s += PERIOD_S

    all_call(8, 1)
    before = [len(worker.made) for worker in workers]
    assert 8 <= sum(before) < 40
    server.is_away = True
    all_call(60, 50)
    assert sum(len(worker.made) for worker in workers) <= 40 + 2 * len(workers)
    assert all(len(w.made) > had for w, had in zip(workers, before, strict=True))
    server.is_away = False
    all_call(20, 50)
    assert sum(len(worker.made) for worker in workers) <= 40 + 2 * len(workers)


def test_quotas_cost_no_exchange(server: Server) -> None:
    worker = Worker(server, budget=["5k/min", "9k tokens/min"])
    began_s = server.now_s
    while server.now_s < began_s + 20:
        worker.turn()
        worker.calls({"tokens": 1})
        server.now_s += PERIOD_S
    assert server.exchanges <= 5 * 20
    assert len(worker.made) > 1000
