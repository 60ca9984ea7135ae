"""``python -m tests.benchmarks pacing``: a limit that many processes share, against what people do.

32 processes call an HTTP service (a process of its own) that answers 429 above ten calls at once
and slows with load.  One after the other: the oracle (a semaphore of ten over all processes),
``paced``, nothing, one worker, ten workers that retry with random exponential waits (tenacity's
rule), and a limit of ten in each process.  Then ``paced`` while the capacity halves and comes back,
and with a budget.
"""

from __future__ import annotations

import argparse
import http.client
import importlib
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.error import HTTPError

from flowctl import paced
from flowctl_redis.embedded import find_binary
from flowctl_redis.targets import RedisExchange
from tests.benchmarks.pacing_service import Answered, Service, pacing_service
from tests.benchmarks.parts import machine

WORKERS = 32
AT_ONCE = 10
BASE_S, SLOPE = 0.1, 0.02
FROM_S = 5.0  # what is measured begins so late: a start is shown by itself
Work = Callable[["Client", float], None]


class Client:
    """One kept connection; raises HTTPError for 429."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def get(self, path: str = "/") -> bytes:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise HTTPError(path, answer.status, answer.reason, answer.headers, None)
        return body


class Crowd:
    """One process for each work, until ``for_s`` are over."""

    def __init__(self, service: Service, works: Sequence[Work], for_s: float) -> None:
        service.log()
        self.service = service
        importlib.import_module("redis")  # here, not in each of the forked processes
        context = multiprocessing.get_context("fork")
        begin_s = context.Value("d", 0.0)  # when all are there: forks are slow on a busy machine
        self.children = [
            context.Process(target=_child, args=(service.port, work, begin_s, for_s))
            for work in works
        ]
        for child in self.children:
            child.start()
        self.began_s = time.time() + 0.2
        begin_s.value = self.began_s
        self.until_s = self.began_s + for_s

    def sleep_until(self, at_s: float) -> None:
        """``at_s``: seconds since the beginning."""
        time.sleep(max(0.0, self.began_s + at_s - time.time()))

    def end(self) -> list[Answered]:
        """Return what the service answered, times since the beginning."""
        for child in self.children:
            child.join(max(1.0, self.until_s + 20 - time.time()))
            child.kill()
        return [each._replace(at_s=each.at_s - self.began_s) for each in self.service.log()]


def run(service: Service, works: Sequence[Work], for_s: float) -> list[Answered]:
    """Run them to the end."""
    return Crowd(service, works, for_s).end()


def _child(port: int, work: Work, begin_s: Any, for_s: float) -> None:
    while not begin_s.value or time.time() < begin_s.value:
        time.sleep(0.01)
    work(Client(port), begin_s.value + for_s)
    os._exit(0)


def with_semaphore(room: Any) -> Work:
    def work(client: Client, until_s: float) -> None:
        while time.time() < until_s:
            with room:
                client.get()

    return work


def with_paced(target: str, redis: str | None, **more: Any) -> Work:
    def work(client: Client, until_s: float) -> None:
        while time.time() < until_s:
            with paced(target, redis=redis, **more) as call:
                call.run(client.get)

    return work


def with_nothing(client: Client, until_s: float) -> None:
    """A failed call is done again at once, as a retried row is."""
    while time.time() < until_s:
        try:
            client.get()
        except HTTPError:
            time.sleep(0.01)  # what a traceback costs


def with_retries(client: Client, until_s: float) -> None:
    """tenacity's wait_random_exponential(multiplier=.1, max=5)."""
    while time.time() < until_s:
        for attempt in range(100):
            try:
                client.get()
                break
            except HTTPError:
                time.sleep(random.uniform(0, min(5.0, 0.1 * 2**attempt)))


class Figures(NamedTuple):
    goodput: float
    refused: float


def figures(log: Sequence[Answered], from_s: float, until_s: float) -> Figures:
    """Of what began between the two; goodput in calls/s."""
    seen = Counter(each.status for each in log if from_s <= each.at_s < until_s)
    total = sum(seen.values()) or 1
    return Figures(seen[200] / (until_s - from_s), seen[429] / total)


def compare(service: Service, redis: str, for_s: float) -> bool:
    """All arms, one after the other."""
    room = multiprocessing.get_context("fork").Semaphore(AT_ONCE)
    arms: dict[str, list[Work]] = {
        "oracle: a semaphore of ten over all": [with_semaphore(room)] * WORKERS,
        "paced": [with_paced("compare", redis)] * WORKERS,
        "nothing": [with_nothing] * WORKERS,
        "one worker, as coalesce(1)": [with_nothing],
        "ten workers that retry, as coalesce(10)": [with_retries] * 10,
        "a limit of ten in each process": [with_retries] * WORKERS,
    }
    best, ok = 0.0, True
    print(f"{'':42} {'calls/s':>8} {'oracle':>7} {'refused':>8}   and in the first {FROM_S:g} s")
    for name, works in arms.items():
        log = run(service, works, for_s)
        found, start = figures(log, FROM_S, for_s), figures(log, 0, FROM_S)
        best = best or found.goodput
        share = found.goodput / best
        print(
            f"{name:42} {found.goodput:8.1f} {share:7.1%} {found.refused:8.2%} {start.refused:8.2%}"
        )
        if name == "paced":
            ok = share >= 0.9 and figures(log, 0, for_s).refused <= 0.02
    return ok


def halved(service: Service, redis: str) -> bool:
    """The capacity halves for 20 s, and comes back."""
    crowd = Crowd(service, [with_paced("halved", redis)] * WORKERS, 55)
    crowd.sleep_until(15)
    service.limit(AT_ONCE // 2)
    crowd.sleep_until(35)
    service.limit(AT_ONCE)
    log = crowd.end()
    ok = True
    for name, from_s, until_s in (("halves", 15.0, 35.0), ("comes back", 35.0, 55.0)):
        level = figures(log, until_s - 12, until_s - 1).goodput
        took_s = next(
            s / 2 for s in range(40)
            if figures(log, from_s + s / 2, from_s + s / 2 + 3).goodput >= 0.95 * level
            and figures(log, from_s + s / 2, from_s + s / 2 + 3).refused <= 0.1
        )  # fmt: skip
        whole = figures(log, from_s, until_s)
        print(f"{name}: at {level:.1f} calls/s after {took_s:g} s; refused {whole.refused:.2%}")
        ok = ok and took_s <= 5
    return ok


def budget(redis: str) -> bool:
    """A thousand calls' worth a second: cost 10 a call, 100 calls/s."""
    with pacing_service(0.02, 0.0, 1000) as service:
        log = run(service, [with_paced("budget", redis, budget=1000, cost=10)] * WORKERS, 25)
    used = figures(log, FROM_S, 24).goodput * 10
    at_s = sorted(each.at_s for each in log)
    most = max(10 * (bisect_left(at_s, at + 1.0) - i) for i, at in enumerate(at_s))
    print(f"budget of 1,000 a second: used {used:.0f}, at most {most} in any second")
    return 970 <= used <= 1000 and most <= 1000 + 10 * WORKERS


def stopped(service: Service, redis: str, number: signal.Signals) -> bool:
    """Half of the workers are killed, or frozen, with their permits."""
    name = f"target-{number.name}"
    crowd = Crowd(service, [with_paced(name, redis)] * 8, 20)
    crowd.sleep_until(8)
    for child in crowd.children[:4]:
        assert child.pid is not None
        os.kill(child.pid, number)
    stopped_s = time.time()
    client = RedisExchange(redis, name)
    while client.workers() > 4 and time.time() < stopped_s + 10:
        time.sleep(0.02)
    took_s = time.time() - stopped_s
    crowd.sleep_until(15)
    for child in crowd.children[:4]:
        if number == signal.SIGSTOP and child.pid is not None:
            os.kill(child.pid, signal.SIGCONT)
    log = crowd.end()
    found = figures(log, 10, 15)
    print(f"{number.name} of 4 of 8 workers: their permits are back after {took_s:.1f} s;", end="")
    print(f" the others do {found.goodput:.1f} calls/s")
    return took_s <= 3


def redis_lost(service: Service) -> bool:
    """Redis is killed, and restarted empty 6 s later."""
    with own_redis() as redis:
        crowd = Crowd(service, [with_paced("lost", redis.url)] * WORKERS, 35)
        crowd.sleep_until(12)
        redis.kill()
        crowd.sleep_until(18)
        redis.start()
        log = crowd.end()
    phases = (("before", 5, 12), ("away", 12, 18), ("back", 18, 23), ("later", 23, 35))
    found = {name: figures(log, from_s, until_s) for name, from_s, until_s in phases}
    for name, each in found.items():
        print(f"Redis {name}: {each.goodput:.1f} calls/s, refused {each.refused:.2%}")
    later = found["later"]
    return later.goodput >= 0.9 * found["before"].goodput and later.refused <= 0.02


def uncontended() -> bool:
    """What a call costs where nobody waits, in CPU time."""
    calls = 20_000
    costs = []
    for _ in range(5):
        before = time.process_time()
        for _ in range(calls):
            with paced("uncontended") as call:
                call.run(int)
        costs.append((time.process_time() - before) / calls * 1e6)
    print(f"a call costs {min(costs):.1f} us of CPU")
    return min(costs) <= 20


class own_redis:
    """A server without persistence, on a port of its own; it may be killed and started again."""

    def __enter__(self) -> own_redis:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self._port}"
        self.start()
        return self

    def start(self) -> None:
        binary = find_binary()
        assert binary is not None
        command = [str(binary), "--port", str(self._port), "--bind", "127.0.0.1"]
        self._process = subprocess.Popen(
            [*command, "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL
        )
        while socket.socket().connect_ex(("127.0.0.1", self._port)):
            time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()


def main(arguments: Sequence[str]) -> int:
    """Run the named parts; exit 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks pacing", description=__doc__)
    from tests.benchmarks import pacing_jobs  # it is built on this module

    names = ["cost", "compare", "halved", "budget", "killed", "stopped", "redis"]
    names += ["weights", "headroom"]
    parser.add_argument("parts", nargs="*", default=names, metavar="|".join(names))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each arm of compare")
    options = parser.parse_args(arguments)
    print(machine())
    with own_redis() as redis, pacing_service(BASE_S, SLOPE, AT_ONCE) as service:
        parts: dict[str, Callable[[], bool]] = {
            "cost": uncontended,
            "compare": lambda: compare(service, redis.url, options.seconds),
            "halved": lambda: halved(service, redis.url),
            "budget": lambda: budget(redis.url),
            "killed": lambda: stopped(service, redis.url, signal.SIGKILL),
            "stopped": lambda: stopped(service, redis.url, signal.SIGSTOP),
            "redis": lambda: redis_lost(service),
            "weights": lambda: pacing_jobs.weights(service, redis.url),
            "headroom": lambda: pacing_jobs.headroom(service, redis.url),
        }
        missed = [name for name in options.parts if not parts[name]()]
    print(f"GATES MISSED: {', '.join(missed)}" if missed else "all gates hold")
    return 1 if missed else 0
