"""``python -m tests.benchmarks pacing``: a limit that many processes share, against what people do.

32 processes call an HTTP service (a process of its own) that answers 429 above ten calls at once
and slows with load.  One after the other: the oracle (a semaphore of ten over all processes),
``paced``, nothing, one worker, ten workers that retry with random exponential waits (tenacity's
rule), and a limit of ten in each process.  Then ``paced`` while the capacity halves and comes back,
and with a budget.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.error import HTTPError

from flowctl import paced
from tests.benchmarks.pacing_service import Answered, Service

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


def run(service: Service, works: Sequence[Work], for_s: float) -> list[Answered]:
    """Run one process for each work; return what the service answered."""
    service.log()
    context = multiprocessing.get_context("fork")
    until_s = time.time() + for_s
    children = [context.Process(target=_child, args=(service.port, w, until_s)) for w in works]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return service.log()


def _child(port: int, work: Work, until_s: float) -> None:
    work(Client(port), until_s)
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
        "paced": [with_paced("bench", redis)] * WORKERS,
        "nothing": [with_nothing] * WORKERS,
        "one worker, as coalesce(1)": [with_nothing],
        "ten workers that retry, as coalesce(10)": [with_retries] * 10,
        "ten at once in each process": [with_nothing] * WORKERS,
    }
    best, ok = 0.0, True
    print(f"{'':42} {'calls/s':>8} {'oracle':>7} {'refused':>8}   first {FROM_S:g} s: refused")
    for name, works in arms.items():
        began_s = time.time()
        log = run(service, works, for_s)
        found = figures(log, began_s + FROM_S, began_s + for_s)
        start = figures(log, began_s, began_s + FROM_S)
        best = best or found.goodput
        share = found.goodput / best
        print(
            f"{name:42} {found.goodput:8.1f} {share:7.1%} {found.refused:8.2%} {start.refused:8.2%}"
        )
        if name == "paced":
            whole = figures(log, began_s, began_s + for_s)
            ok = share >= 0.9 and whole.refused <= 0.02
    return ok
