"""Gates that share a target over Redis: ``paced(…, redis=…)`` in one process."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest

from flowctl import ConfigError, paced
from flowctl.pacing import gates
from flowctl.pacing.client import LeaseSource
from flowctl.pacing.gate import Gate


@pytest.fixture(autouse=True)
def no_gates() -> Iterator[None]:
    gates.close_gates()
    yield
    gates.close_gates()


def gate_of(target: str) -> Gate:
    return next(gate for settings, gate in gates._gates.values() if settings.target == target)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> fakeredis.FakeServer:
    """Where ``redis=`` leads."""
    server = fakeredis.FakeServer()
    monkeypatch.setattr(
        "flowctl_redis.targets.new_client", lambda *_, **__: fakeredis.FakeRedis(server=server)
    )
    return server


def workers_at(server: fakeredis.FakeServer) -> int:
    fields = fakeredis.FakeRedis(server=server).hkeys("flowctl:target:{t}")
    return sum(field.startswith(b"w:") for field in fields)


URL = "redis://localhost"


def test_a_target_with_a_url_is_shared_and_known_as_that(server: fakeredis.FakeServer) -> None:
    with paced("t", redis=URL) as call:
        call.run(int)
        (figures,) = gates.figures()
    assert (figures.is_shared, figures.limit, figures.calls) == (True, 4, 1)
    assert workers_at(server) == 1
    with paced("t", name="other") as call:
        call.run(int)
    shared, alone = gates.figures()
    assert (shared.is_shared, alone.is_shared) == (True, False)
    assert shared.process == alone.process


def test_the_next_job_of_a_process_may_give_a_target_another_weight(
    server: fakeredis.FakeServer,
) -> None:
    """The first one's lease is given back before the second one asks."""
    changed = paced("t", redis=URL, weight=3.0)
    with paced("t", redis=URL), pytest.raises(ConfigError, match="weight"):
        gates.renew_gate(changed.settings)
    old = gate_of("t")
    gates.renew_gate(changed.settings)
    assert workers_at(server) == 0
    with changed as call:
        call.run(int)
    assert gate_of("t") is not old
    same = gate_of("t")
    gates.renew_gate(changed.settings)
    assert gate_of("t") is same, "it has these settings"


def test_a_process_that_ends_gives_all_its_leases_back(server: fakeredis.FakeServer) -> None:
    for job in ("a", "b"):
        with paced("t", redis=URL, name=job) as call:
            call.run(int)
    assert workers_at(server) == 2
    gates._leave()  # as atexit does
    assert workers_at(server) == 0


def test_gates_that_are_closed_leave_their_targets(server: fakeredis.FakeServer) -> None:
    with paced("t", redis=URL) as call:
        call.run(int)
    source = gate_of("t").source
    assert isinstance(source, LeaseSource)
    gates.close_gates()
    source.join(60)
    assert workers_at(server) == 0
    assert gates.figures() == []


def test_processes_of_multiprocessing_leave_too(
    server: fakeredis.FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end without atexit."""
    at_end: list[Any] = []
    util = SimpleNamespace(Finalize=lambda _, call, exitpriority: at_end.append(call))
    monkeypatch.setitem(sys.modules, "multiprocessing.util", util)
    with paced("t", redis=URL) as call:
        call.run(int)
    (leave,) = at_end
    leave()
    assert workers_at(server) == 0


def test_threads_that_ask_first_and_at_once_name_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A view took them for two processes, and added up their limits."""
    with paced("t"):
        pass
    gates._process.cache_clear()
    barrier, names = threading.Barrier(8), set[str]()

    def slow_name(size: int) -> str:
        threading.Event().wait(0.01)  # as a thread that loses the interpreter there
        return token_hex(size)

    token_hex = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", slow_name)

    def ask() -> None:
        barrier.wait()
        names.update(told.process for told in gates.figures())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 1
