"""Workers of a paced target that meet in Redis: the script, the leases, the leader, outages."""

from __future__ import annotations

import io
import logging
from random import Random
from typing import Any

import fakeredis
import pytest
import redis

from flowctl.core.pacing.leases import RATE_MOST, Claim, Decision, Reply, Sums, Table, WorkerReport
from flowctl.errors import CheckpointUnavailableError, ConfigError, InfrastructureError
from flowctl.pacing.client import TTL_S, LeaseSource
from flowctl.pacing.gate import Gate
from flowctl.pacing.target_settings import Limits, PaceSettings
from flowctl_redis.targets import RedisExchange
from tests.pacing_parts import Server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def report(worker: str, *, want: int = 1, holds: int = 0, **more: Any) -> WorkerReport:
    claim = Claim(worker, more.pop("job", ""), more.pop("weight", 1.0), want, RATE_MOST, holds)
    default: dict[str, Any] = {
        "rate": 0.0, "done": Sums(), "ttl_s": 2.0, "known_limit": 4, "budget": None,
    }  # fmt: skip
    return WorkerReport(claim, **(default | more))


# -- the script ------------------------------------------------------------------------------


def test_the_first_worker_leads_and_gets_a_permit(server: Server) -> None:
    reply = server.exchange().exchange(report("a"))
    assert (reply.limit, reply.permits, reply.budget) == (4, 1, 0.0)
    assert reply.now_s == server.now_s
    assert reply.table is not None
    assert [claim.worker for claim in reply.table.claims] == ["a"]


def test_another_does_not_lead_until_the_leader_is_silent(server: Server) -> None:
    exchange = server.exchange()
    exchange.exchange(report("a"))
    assert exchange.exchange(report("b")).table is None
    server.now_s += 1.1
    assert exchange.exchange(report("b")).table is not None


def test_only_the_leaders_decision_counts(server: Server) -> None:
    exchange = server.exchange()
    exchange.exchange(report("a"))
    decision = Decision(9, "why", {"b": (5, 0.0)})
    assert exchange.exchange(report("b", decision=decision)).limit == 4
    reply = exchange.exchange(report("a", decision=decision))
    assert (reply.limit, server.fields()[b"reason"]) == (9, b"why")
    assert exchange.exchange(report("b", want=9, holds=1)).permits == 5


def test_permits_are_never_more_than_the_limit(server: Server) -> None:
    exchange = server.exchange()
    got = [exchange.exchange(report(name)).permits for name in "abcdef"]
    assert (got, server.leased) == ([1, 1, 1, 1, 0, 0], 4)


def test_a_lease_is_smaller_only_when_its_worker_has_said_so(server: Server) -> None:
    exchange = server.exchange()
    exchange.exchange(report("a"))
    exchange.exchange(report("a", holds=1, decision=Decision(4, "", {"a": (4, 0.0)})))
    exchange.exchange(report("b"))
    moved = Decision(4, "", {"a": (2, 0.0), "b": (2, 0.0)})
    assert exchange.exchange(report("a", holds=4, decision=moved)).permits == 2
    assert exchange.exchange(report("b")).permits == 0  # "a" may be using all four
    exchange.exchange(report("a", holds=2))
    assert exchange.exchange(report("b")).permits == 2


def test_leases_of_the_dead_come_back(server: Server) -> None:
    exchange = server.exchange()
    for name in "abcd":
        exchange.exchange(report(name))
    server.now_s += 2.1
    exchange.exchange(report("e"))  # leads now, and sees that they are gone
    decision = Decision(4, "", {"e": (4, 0.0)})
    assert exchange.exchange(report("e", decision=decision)).permits == 4
    assert server.leased == 4


def test_workers_that_are_gone_leave_nothing_behind(server: Server) -> None:
    """A target whose workers come and go for a month: their entries would be read in each turn."""
    exchange = server.exchange()
    for n in range(50):
        exchange.exchange(report(f"worker-{n}"))
        server.now_s += 2.1
    exchange.exchange(report("last"))
    assert [field for field in server.fields() if field.startswith(b"w:")] == [b"w:last"]
    assert server.fields()[b"workers"] == b"1"


def test_who_leaves_gives_back_at_once(server: Server) -> None:
    exchange = server.exchange()
    exchange.exchange(report("a"))
    exchange.exchange(report("a", holds=1, is_leaving=True, want=0))
    assert (server.leased, b"leader" in server.fields()) == (0, False)
    assert not [field for field in server.fields() if field.startswith(b"w:")]


def test_an_emptied_server_gives_back_what_is_held_within_the_limit(server: Server) -> None:
    exchange = server.exchange()
    got = [exchange.exchange(report(n, holds=3, known_limit=8)).permits for n in "abcd"]
    assert (got, server.leased) == ([3, 3, 2, 0], 8)


def test_sums_are_kept_by_job(server: Server) -> None:
    exchange = server.exchange()
    done = Sums(3, 6.5, 0.25, 1, 2, 4.0)
    exchange.exchange(report("a", job="x y|z", done=done))
    reply = exchange.exchange(report("a", job="x y|z", done=done))
    assert reply.table is not None
    assert reply.table.total == Sums(6, 13.0, 0.5, 2, 4, 8.0)
    assert reply.table.claims[0].job == "x y|z"
    assert b"c:x y|z" in server.fields()


def test_parts_of_the_budget_are_never_more_than_it(server: Server) -> None:
    exchange = server.exchange()
    exchange.exchange(report("a", budget=100.0))
    given = Decision(4, "", {"a": (1, 100.0)})
    reply = exchange.exchange(report("a", budget=100.0, decision=given))
    assert (reply.rate, reply.budget) == (100.0, 100.0)
    exchange.exchange(report("b", budget=100.0))
    moved = Decision(4, "", {"a": (1, 60.0), "b": (1, 40.0)})
    exchange.exchange(report("a", budget=100.0, rate=100.0, decision=moved))
    assert exchange.exchange(report("b", budget=100.0)).rate == 0.0
    exchange.exchange(report("a", budget=100.0, rate=60.0))
    assert exchange.exchange(report("b", budget=100.0)).rate == 40.0


def test_what_an_operator_sets_counts_at_once(server: Server) -> None:
    exchange = server.exchange()
    exchange.exchange(report("a"))
    server.client.hset("flowctl:target:{t}", mapping={"set:max": 2, "set:budget": 7})
    reply = exchange.exchange(report("a"))
    assert (reply.limit, reply.budget) == (2, 7.0)
    assert reply.table is not None
    assert reply.table.most == 2


def test_a_wrong_url_is_named() -> None:
    with pytest.raises(ConfigError, match="redis"):
        RedisExchange("http://x", "t")


# -- a worker --------------------------------------------------------------------------------


class Away:
    """An exchange that fails while the server is away, and counts."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._real = server.exchange()
        self.address = "here"

    def exchange(self, asked: WorkerReport) -> Reply:
        self._server.exchanges += 1
        if self._server.is_away:
            raise CheckpointUnavailableError("gone", remedy="Wait.")
        return self._real.exchange(asked)


class Worker:
    """A gate and its source; the test is the thread."""

    def __init__(self, server: Server, **settings: Any) -> None:
        self.server = server
        self.gate = Gate(clock=lambda: server.now_s)
        paced = PaceSettings(target="t", redis="redis://localhost", **settings)
        self.source = LeaseSource(self.gate, paced, Away(server))
        self.gate.source = self.source

    def turn(self) -> None:
        """Wait in line for one more call if there is a permit or not, and exchange."""
        waiter = self.gate.queue(lambda: None)
        self.source.turn()
        self.gate.give_up(waiter)


def test_a_worker_hurries_twice_and_then_waits_for_its_turn(server: Server) -> None:
    worker = Worker(server)
    for _ in range(2):
        assert [worker.source.turn_early() for _ in range(3)] == [True, True, False]
        for _ in range(40):  # much later
            worker.source.turn()


def test_a_thread_that_sleeps_is_woken_by_the_first_who_wants_a_permit(server: Server) -> None:
    woken: list[float] = []
    gate = Gate(clock=lambda: server.now_s)
    paced = PaceSettings(target="t", redis="redis://localhost")
    gate.source = LeaseSource(gate, paced, Away(server), wake=lambda: woken.append(server.now_s))
    assert not gate.try_enter(1.0)
    assert not gate.try_enter(1.0)
    assert len(woken) == 1, "then it is awake, and its next report says it"


def test_after_an_error_the_next_exchange_connects_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Broken:
        def __init__(self) -> None:
            self.is_closed = False

        def eval(self, *_: object) -> None:
            raise redis.ConnectionError("reset")

        def close(self) -> None:
            self.is_closed = True

    def connect(*_: object, **__: object) -> Any:
        made.append(Broken() if not made else fakeredis.FakeRedis())
        return made[-1]

    monkeypatch.setattr("flowctl_redis.targets.new_client", connect)
    exchange = RedisExchange("redis://:secret@localhost", "t")
    assert made == [], "nothing is connected before the first exchange"
    with pytest.raises(InfrastructureError, match="localhost") as caught:
        exchange.exchange(report("a"))
    assert "secret" not in str(caught.value) + exchange.address
    assert made[0].is_closed
    assert exchange.exchange(report("a")).permits == 1
    assert exchange.workers() == 1
    exchange.close()
    exchange.close()


def test_who_calls_nothing_for_two_seconds_leaves_and_who_is_in_a_call_does_not(
    server: Server,
) -> None:
    worker = Worker(server)
    worker.turn()
    waiter = worker.gate.queue(lambda: None)
    assert worker.gate.next_turn(waiter, 1.0, server.now_s) is None
    for _ in range(20):  # one call of five seconds
        server.now_s += 0.25
        worker.source.turn()
    assert server.leased > 0
    worker.gate.leave_done(server.now_s - 5.0, 1.0)
    for _ in range(12):
        server.now_s += 0.25
        worker.source.turn()
    assert (server.leased, worker.gate.permits) == (0, 0)
    worker.turn()
    assert server.leased > 0, "the next call gets a permit again"


def test_a_program_that_ends_gives_its_permits_back_at_once(server: Server) -> None:
    worker = Worker(server)
    worker.turn()
    assert server.leased > 0
    worker.source.leave()
    assert server.leased == 0


def turns(workers: list[Worker], seconds: float) -> None:
    for _ in range(int(seconds * 4)):
        for worker in workers:
            worker.turn()
        workers[0].server.now_s += 0.25


def test_workers_share_the_limit(server: Server) -> None:
    workers = [Worker(server, limits=Limits(in_flight_max=6)) for _ in range(3)]
    turns(workers, 3)
    assert sum(worker.gate.permits for worker in workers) <= 6
    assert server.leased <= 6
    assert all(worker.gate.permits >= 1 for worker in workers)


class Answers:
    """A place with so many workers; keeps what it is told."""

    address = "here"

    def __init__(self, **reply: Any) -> None:
        self.told: list[WorkerReport] = []
        default = {"limit": 9, "permits": 2, "rate": 0.0, "workers": 1, "budget": 0.0}
        self.reply = Reply(0.0, **(default | reply))

    def exchange(self, report: WorkerReport) -> Reply:
        self.told.append(report)
        return self.reply


def leasing(place: Answers, **settings: Any) -> tuple[Gate, LeaseSource, list[float]]:
    """A gate and its source; what the gate's clock says may be changed."""
    now_s = [7.0]
    gate = Gate(clock=lambda: now_s[0])
    paced = PaceSettings(target="t", redis="redis://localhost", **settings)
    source = gate.source = LeaseSource(gate, paced, place)
    gate.queue(lambda: None)
    return gate, source, now_s


@pytest.mark.parametrize(("workers", "ttl_s"), [(1, 2.0), (1000, 2.0), (4000, 8.0)])
def test_where_thousands_share_a_target_leases_last_longer(workers: int, ttl_s: float) -> None:
    """Each asks less often, so that all of them together stay below 5,000 times a second."""
    place = Answers(workers=workers)
    gate, source, now_s = leasing(place)
    assert source.known() == (4, "start", True), "before anybody was asked"
    source.turn()
    source.turn()
    assert place.told[-1].ttl_s == ttl_s
    assert source.known() == (9, "start", True)
    now_s[0] += ttl_s - 0.1
    assert gate.next_turn(gate._waiting[0], 1.0, now_s[0]) is None
    now_s[0] += 0.2
    assert not gate.try_enter(1.0), "the lease has ended"


def test_a_worker_says_what_it_has_used_of_the_budget_and_wants_half_as_much_again() -> None:
    place = Answers(permits=5, rate=40.0, budget=100.0)
    gate, source, now_s = leasing(place, budget=100.0)
    gate.give_up(gate._waiting[0])
    source.turn()
    assert gate.rate.rate == 40.0
    for _ in range(4):
        now_s[0] += 0.25
        assert gate.try_enter(5.0)
        gate.leave_done(now_s[0] - 0.1, 5.0)
        source.turn()
    report = place.told[-1]
    assert report.claim.want_rate == pytest.approx(1.5 * 5.0 / 0.25)
    assert (report.rate, report.budget, report.done.calls) == (40.0, 100.0, 1)
    assert report.done.cost == 5.0, "since its last report"
    now_s[0] += 0.5
    assert gate.try_enter(50.0)
    gate.next_turn(gate.queue(lambda: None), 1.0, now_s[0])
    now_s[0] += 0.25
    source.turn()
    assert place.told[-1].claim.want_rate == RATE_MOST, "somebody waits for budget"
    place.reply = place.reply._replace(budget=0.0, rate=0.0)
    source.turn()
    assert gate.rate.wait_s(now_s[0]) == 0.0, "there is no budget any more"


def test_a_worker_asks_for_as_much_as_it_wanted_of_late() -> None:
    place = Answers(permits=3)
    gate, source, now_s = leasing(place)
    for _ in range(2):
        gate.queue(lambda: None)
    wants = []
    for _ in range(3):
        source.turn()
        wants.append(place.told[-1].claim.want)
        while gate.waiting:
            gate.give_up(gate._waiting[0])
        now_s[0] += 0.25
    assert wants == [3, 3, 3], "the peak since its last report, or the one before"
    source.turn()
    assert place.told[-1].claim.want == 0


def test_who_leads_no_more_decides_no_more() -> None:
    """What it decided last may be old by the time that it leads again."""
    place = Answers()
    _, source, now_s = leasing(place)
    claim = Claim("other", "", 1.0, 3, RATE_MOST, 0)
    table = Table((claim,), {"other": (0, 0.0)}, Sums())
    place.reply = place.reply._replace(table=table)
    source.turn()
    decided = place.told[-1].decision
    assert decided is not None and decided.goals["other"][0] > 0, "told at once"
    place.reply = place.reply._replace(table=None)
    for _ in range(3):
        now_s[0] += 0.25
        source.turn()
    assert place.told[-1].decision is None


def test_permits_that_others_wait_for_go_back_at_once_and_only_then() -> None:
    woken: list[int] = []
    place = Answers(permits=2)
    gate, source, now_s = leasing(place)
    source.wake = lambda: woken.append(len(place.told))
    source.turn()
    gate.give_up(gate._waiting[0])
    assert gate.try_enter(1.0) and gate.try_enter(1.0)
    place.reply = place.reply._replace(permits=1)
    now_s[0] += 0.25
    source.turn()
    assert (gate.permits, place.told[-1].claim.holds, woken) == (1, 2, [])
    gate.leave_failed()
    assert len(woken) == 1, "one of two is given back: not at the next turn only"
    gate.leave_failed()
    assert len(woken) == 1, "it owes nothing any more"
    source.turn_early()
    assert place.told[-1].claim.holds == 1


def test_a_worker_needs_few_exchanges(server: Server) -> None:
    workers = [Worker(server) for _ in range(8)]
    turns(workers, 10)
    assert server.exchanges <= 5 * 10 * len(workers)


def test_a_frozen_worker_uses_no_permit_of_a_lease_that_ended(server: Server) -> None:
    worker = Worker(server)
    turns([worker], 1)
    assert worker.gate.permits >= 1
    server.now_s += TTL_S + 0.1
    assert not worker.gate.try_enter(1)


def test_without_redis_it_goes_on_with_what_it_had_and_says_so_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flowctl")
    workers = [Worker(server, limits=Limits(in_flight_max=6)) for _ in range(2)]
    turns(workers, 3)
    had = [worker.gate.permits for worker in workers]
    server.is_away = True
    turns(workers, 10)
    assert [worker.gate.permits for worker in workers] == had
    assert all(worker.gate.try_enter(1) for worker in workers)
    assert caplog.text.count("pacing_alone") == 2  # each process once
    server.is_away = False
    server.client.flushall()
    for worker in workers:
        worker.gate.leave_failed()
    turns(workers, 3)
    assert caplog.text.count("pacing_shared_again") == 2
    assert 0 < server.leased <= 6


def test_who_never_had_a_lease_begins_alone_with_one_call(server: Server) -> None:
    """Of others, who may use all of the limit, nothing is known."""
    server.is_away = True
    worker = Worker(server)
    turns([worker], 0.5)
    assert worker.gate.permits == 1
    assert worker.source.known() == (1, "learned before", False)


@pytest.mark.parametrize("seed", [None, 1])
def test_an_emptied_server_doubles_what_is_under_way_at_most_and_for_one_call(
    server: Server, seed: int | None
) -> None:
    """Kind: a bound that the page promises and that does not hold.  Seven calls were under way with
    a limit of 4, after FLUSHALL: those who had no permit came first, and took the limit again."""
    limits = Limits(in_flight_max=4)
    workers = [Worker(server, limits=limits) for _ in range(9)]
    turns(workers, 2)
    at_work = [worker for worker in workers if worker.gate.try_enter(1)]
    assert len(at_work) == 4

    def under_way() -> int:
        return sum(worker.gate.in_flight for worker in workers)

    server.client.flushall()
    others = [worker for worker in workers if worker not in at_work]
    order = [*others, *at_work]  # the worst
    if seed is not None:
        Random(seed).shuffle(order)
    for _ in range(4):
        for worker in order:
            worker.turn()
            worker.gate.try_enter(1)
            assert under_way() <= 2 * 4
        server.now_s += 0.25
    if seed is None:
        assert under_way() > 4, "the limit is not the bound then"
    for worker in at_work:
        worker.gate.leave_failed()
    turns(order, 1)
    assert under_way() <= 4 and server.leased <= 4


def test_a_worker_that_is_idle_leaves_and_comes_back(server: Server) -> None:
    worker = Worker(server)
    turns([worker], 1)
    for _ in range(12):
        server.now_s += 0.25
        worker.source.turn()
    assert (worker.gate.permits, server.leased) == (0, 0)
    turns([worker], 1)
    assert worker.gate.permits >= 1


def test_what_is_owed_goes_back_when_its_call_ends(server: Server) -> None:
    exchange = server.exchange()
    worker = Worker(server)
    turns([worker], 1)
    permits = worker.gate.permits
    assert all(worker.gate.try_enter(1) for _ in range(permits))
    server.client.hset("flowctl:target:{t}", "set:max", 1)
    turns([worker], 1)
    assert (worker.gate.permits, server.leased) == (1, permits)
    for _ in range(permits):
        worker.gate.leave_failed()
    turns([worker], 0.5)
    assert server.leased > 0
    assert exchange.exchange(report("b")).permits == 0


def test_a_program_without_logging_is_told_on_stderr_that_it_is_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    server.is_away = True
    turns([Worker(server)], 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("flowctl: target 't' at here: gone")
    assert "learns its own limit" in line
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(io.StringIO())])
    turns([Worker(server)], 1)
    assert capsys.readouterr().err == "", "its log has it"


def test_each_worker_knows_why_the_limit_is_what_it_is(server: Server) -> None:
    leader, other = Worker(server), Worker(server)
    turns([leader], 0.25)
    assert leader.source.known() == (4, "start", True)
    server.client.hset("flowctl:target:{t}", mapping={"limit": 7, "reason": "goodput kept"})
    turns([other], 0.25)
    assert other.source.known() == (7, "goodput kept", True)
    server.is_away = True
    server.now_s += TTL_S + 0.1
    turns([other], 0.25)
    assert not other.source.known().is_shared
