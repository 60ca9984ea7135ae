"""``flowctl targets``: list, show, set, reset."""

from __future__ import annotations

import json
from types import SimpleNamespace
from urllib.request import urlopen

import fakeredis
import pytest
from click.testing import CliRunner

from flowctl import adapters
from flowctl.cli.targets import targets
from flowctl.config import MetricsSettings
from flowctl.core.pacing.leases import RATE_MOST, Claim, Decision, Reply, Sums, WorkerReport
from flowctl.errors import CheckpointCorruptError, CheckpointUnavailableError, ConfigError
from flowctl.instrumentation.metrics_server import Scraped, served
from flowctl.instrumentation.prometheus import ScrapedTargets
from flowctl.instrumentation.views import BaseView
from flowctl_redis.targets import RedisExchange, RedisTargets
from tests.unit.test_view_plain import SNAPSHOT


class Server:
    """A fakeredis whose clock the test moves; the command talks to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_800_000_000.0
        self.client = fakeredis.FakeRedis()
        clock = SimpleNamespace(time=lambda: self.now_s)
        monkeypatch.setattr("fakeredis.commands_mixins.server_mixin.time", clock)
        made = SimpleNamespace(RedisTargets=lambda url: RedisTargets(url, client=self.client))
        monkeypatch.setattr(adapters, "load_adapter", lambda *_: made)
        monkeypatch.setenv("FLOWCTL_REDIS_URL", "redis://here")

    def stored(self, field: bytes) -> bytes | None:
        return self.client.hget("flowctl:target:{pg-main}", field)  # type: ignore[return-value]

    def report(self, job: str, done: Sums, decision: Decision | None = None) -> Reply:
        exchange = RedisExchange("redis://here", "pg-main", client=self.client)
        claim = Claim(f"w-{job}", job, 3.0, 1, RATE_MOST, 1, 1)
        return exchange.exchange(WorkerReport(claim, 0.0, done, 60.0, 4, None, decision=decision))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Two jobs of one target, over 20 s: 8 calls under way, one in 200 refused."""
    server = Server(monkeypatch)
    for _ in range(4):
        server.report("etl", Sums(199, 199.0, 40.0, 1, 0, 2.0))
        server.report("adhoc", Sums())
        server.now_s += 5
    server.report("etl", Sums(199, 199.0, 40.0, 1, 0, 2.0), Decision(8, "goodput kept", {}))
    return server


def run(*arguments: str) -> str:
    done = CliRunner().invoke(targets, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_list(server: Server) -> None:
    line = run("list").splitlines()[0]
    assert line.startswith("pg-main  limit 8 · used ")
    assert "0.5% refused" in line
    assert line.endswith("2 workers")
    server.now_s += 60
    assert run("list") == "pg-main  limit 8 · not used for 60 s\n"


def test_used_is_what_was_under_way_in_the_last_seconds(server: Server) -> None:
    tree = json.loads(run("show", "pg-main", "--json"))
    used = tree["recent"]["call_s"] / tree["recent_s"]
    assert used == pytest.approx(8.0)


def test_show_says_why_and_who(server: Server) -> None:
    text = run("show", "pg-main")
    assert "why: goodput kept" in text
    assert "etl: 1 permit for 1 worker, weight 3; in all 995 calls" in text
    assert "adhoc: 1 permit" in text


def test_set_bounds_running_workers_and_none_undoes_it(server: Server) -> None:
    run("set", "pg-main", "--max", "3", "--budget", "100")
    reply = server.report("etl", Sums())
    assert (reply.limit, reply.budget) == (3, 100.0)
    assert "set by hand: max 3" in run("show", "pg-main")
    run("set", "pg-main", "--max", "none", "--budget", "none")
    reply = server.report("etl", Sums())
    assert (reply.limit, reply.budget) == (8, 0.0)


def test_reset_is_seen_by_the_leader(server: Server) -> None:
    run("reset", "pg-main")
    table = server.report("etl", Sums()).table
    assert table is not None
    assert table.resets == 1
    assert server.stored(b"limit") == b"8"  # the leader's: it begins again by itself


def test_reset_counts_also_if_nobody_leads(server: Server) -> None:
    """The next leader would begin with the limit that is stored."""
    server.now_s += 60
    run("reset", "pg-main")
    assert run("list") == "pg-main  nothing learned · not used for 60 s\n"
    assert "etl: " in run("show", "pg-main")
    reply = server.report("etl", Sums())
    assert reply.limit == 4  # where it begins
    assert reply.table is not None and reply.table.total == Sums()


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("TARGET", ("show", "other")),
        ("TARGET", ("reset", "other")),
        ("--max", ("set", "pg-main")),
        ("--max", ("set", "pg-main", "--max", "2.5")),
        ("--max", ("set", "pg-main", "--max", "x")),
        ("--budget", ("set", "pg-main", "--budget", "-1")),
        ("--min", ("set", "pg-main", "--min", "5", "--max", "4")),
    ],
)
def test_a_mistake_is_named(server: Server, field: str, arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        run(*arguments)
    assert caught.value.field == field


def test_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    Server(monkeypatch)
    assert run("list") == "No targets.\n"


@pytest.mark.parametrize("field", [{"total": "1 2"}, {"limit": "abc"}, {"w:x": "1|2|3"}])
def test_a_damaged_target_is_named_and_the_others_are_shown(
    server: Server, field: dict[str, str]
) -> None:
    server.client.hset("flowctl:target:{odd}", mapping={"limit": "8", **field})
    done = CliRunner().invoke(targets, ["list"], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout.startswith("pg-main  limit 8")
    assert "target 'odd' in flowctl:target:{odd} is damaged" in done.stderr
    with pytest.raises(CheckpointCorruptError):
        run("show", "odd")


def test_targets_are_metrics_of_prometheus(server: Server) -> None:
    pytest.importorskip("prometheus_client", reason="the extra metrics")
    from prometheus_client import CollectorRegistry, generate_latest

    stored = RedisTargets("redis://here", client=server.client)
    scraped = ScrapedTargets(lambda: [stored.read(name) for name in stored.names()])
    registry = CollectorRegistry()
    registry.register(scraped)
    lines = generate_latest(registry).decode().splitlines()
    assert 'flowctl_target_limit_calls{target="pg-main"} 8.0' in lines
    assert 'flowctl_target_used_calls{target="pg-main"} 8.0' in lines
    assert 'flowctl_target_calls_total{job="etl",target="pg-main"} 995.0' in lines
    assert 'flowctl_target_refused_total{job="etl",target="pg-main"} 5.0' in lines
    assert 'flowctl_target_waited_seconds_total{job="etl",target="pg-main"} 10.0' in lines
    assert scraped.unready() == ""


def test_targets_are_served_where_nobody_runs_a_job(server: Server) -> None:
    pytest.importorskip("prometheus_client", reason="the extra metrics")

    class Asked(Exception):
        pass

    def ask(address: str) -> None:
        with urlopen(address.rsplit(maxsplit=1)[-1]) as answer:
            assert b"flowctl_target_limit_calls" in answer.read()
        raise Asked

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Asked):
        patch.setattr("flowctl.cli.targets.click.echo", ask)
        targets.main(["metrics", "--port", "0"], standalone_mode=False)


def test_a_run_serves_the_targets_of_its_redis_beside_its_own_metrics(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client", reason="the extra metrics")
    with served(MetricsSettings(port=0), BaseView()) as view:
        assert isinstance(view, Scraped)
        view.update(SNAPSHOT)
        text = _metrics(view.address)
        assert 'flowctl_target_limit_calls{target="pg-main"} 8.0' in text
        assert 'flowctl_target_refused_total{job="etl",target="pg-main"} 5.0' in text
        assert "flowctl_calls_refused" in text

        def away(self: RedisTargets) -> list[str]:
            raise CheckpointUnavailableError("no connection")

        monkeypatch.setattr(RedisTargets, "names", away)
        text = _metrics(view.address)
        assert "flowctl_target_limit_calls" not in text and "flowctl_calls_refused" in text, (
            "a run's own are there"
        )


def test_a_run_without_a_redis_serves_its_own_metrics(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client", reason="the extra metrics")
    monkeypatch.delenv("FLOWCTL_REDIS_URL")
    with served(MetricsSettings(port=0), BaseView()) as view:
        assert isinstance(view, Scraped)
        view.update(SNAPSHOT)
        assert "flowctl_target_limit_calls" not in _metrics(view.address)


def _metrics(address: str) -> str:
    with urlopen(f"{address}/metrics") as answer:
        return str(answer.read(), "utf-8")


def test_a_rate_that_was_learned_is_shown_and_reset_with_the_rest(server: Server) -> None:
    assert "rate" not in run("show", "pg-main")
    server.report("etl", Sums(), Decision(8, "it is a rate", {}, 12.5))
    assert "rate: 12.5 a second, learned" in run("show", "pg-main").splitlines()
    assert json.loads(run("show", "pg-main", "--json"))["rate"] == 12.5
    server.now_s += 60
    run("reset", "pg-main")
    assert server.stored(b"rate") is None
