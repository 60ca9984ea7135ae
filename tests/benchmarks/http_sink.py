"""Rows over HTTP on loopback: ``python -m tests.benchmarks http [--rows N] [--single N]``.

ndjson in calls of 500 rows, eight at once, by ``Delivery`` with ``HttpSink`` (what a partition of
``flow_sink(sink=HttpSink(...), calls=8)`` does), and by eight threads with an ``httpx.Client``
each, which write the same rows by ``json.dumps``.  Then single rows, one call after the other,
beside ``http.client`` alone.  Arms alternate, medians of five; the clock is the whole time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from flowctl.delivery.delivery import Delivery
from flowctl.delivery.pacers import TargetPacer
from flowctl.delivery.plan import Plan, Where
from flowctl.pacing.gates import close_gates
from flowctl.pacing.target_settings import Limits
from flowctl_http import HttpSink
from tests.benchmarks.http_service import service
from tests.benchmarks.parts import machine

CALLS = 8
ROWS_PER_CALL = 500
ROUNDS = 5
GATE_ROWS = 0.9  # of the bare client's rows a second
GATE_ABOVE_US = 300.0  # a call of one row in a job, above the bare loop
_NDJSON = {"Content-Type": "application/x-ndjson"}


def row(number: int) -> dict[str, Any]:
    return {
        "id": number, "name": f"name {number}", "price": number * 1.5, "ok": number % 2 == 0,
        "city": "Berlin", "note": "lorem ipsum dolor sit amet",
    }  # fmt: skip


def by_flowctl(url: str, rows: int, calls: int, rows_max: int) -> None:
    sink = HttpSink(url, body="ndjson")
    # What a service takes is known here: how it is learned, the bench of pacing measures.
    pacer = TargetPacer("bench", limits=Limits(in_flight_start=calls, in_flight_max=calls))
    plan = Plan(
        process=lambda batch: sink.write(batch.values, batch=batch),
        rows_max=rows_max,
        calls=calls,
    )
    tally = Delivery(plan, Where("bench", "0"), pacer).run(map(row, range(rows)))
    assert tally.written == rows, tally
    sink.close()
    close_gates()


def by_httpx(url: str, rows: int) -> None:
    def send(numbers: range) -> None:
        with httpx.Client() as client:
            for begin in numbers:
                made = map(row, range(begin, min(begin + ROWS_PER_CALL, rows)))
                content = "".join(f"{json.dumps(each)}\n" for each in made)
                client.post(url, content=content, headers=_NDJSON).raise_for_status()

    step = ROWS_PER_CALL * CALLS
    with ThreadPoolExecutor(CALLS) as threads:
        list(threads.map(send, (range(ROWS_PER_CALL * n, rows, step) for n in range(CALLS))))


def bare(url: str, rows: int) -> None:
    connection = http.client.HTTPConnection(url.partition("//")[2])
    for number in range(rows):
        connection.request("POST", "/", json.dumps(row(number)).encode(), _NDJSON)
        connection.getresponse().read()


def _measured(arms: dict[str, Callable[[], None]]) -> dict[str, tuple[float, float]]:
    """Return the seconds and CPU seconds of each arm, medians of runs that alternate."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for _ in range(ROUNDS):
        for name, run in arms.items():
            at_s, cpu_s = time.monotonic(), time.process_time()
            run()
            runs[name].append((time.monotonic() - at_s, time.process_time() - cpu_s))
    return {name: _medians(each) for name, each in runs.items()}


def _medians(runs: list[tuple[float, float]]) -> tuple[float, float]:
    seconds, cpu = zip(*runs, strict=True)
    return statistics.median(seconds), statistics.median(cpu)


def _told(rows: int, singles: int, url: str) -> Iterator[bool]:
    many = _measured({
        "flowctl": lambda: by_flowctl(url, rows, CALLS, ROWS_PER_CALL),
        "httpx": lambda: by_httpx(url, rows),
    })  # fmt: skip
    ratio = many["httpx"][0] / many["flowctl"][0]
    for name, (seconds, cpu_s) in many.items():
        print(f"ndjson, {name:8}: {rows / seconds:9,.0f} rows/s, {1e6 * cpu_s / rows:.2f} us CPU")
    yield _holds("rows/s of flowctl to httpx", ratio, GATE_ROWS, is_most=False)
    one = _measured({
        "flowctl": lambda: by_flowctl(url, singles, 1, 1),
        "bare": lambda: bare(url, singles),
    })  # fmt: skip
    above_us = 1e6 * (one["flowctl"][0] - one["bare"][0]) / singles
    for name, (seconds, cpu_s) in one.items():
        us, cpu_us = 1e6 * seconds / singles, 1e6 * cpu_s / singles
        print(f"single, {name:8}: {us:6,.0f} us, {cpu_us:.0f} us CPU")
    yield _holds("us a call above http.client", above_us, GATE_ABOVE_US, is_most=True)


def _holds(what: str, found: float, gate: float, *, is_most: bool) -> bool:
    held = found <= gate if is_most else found >= gate
    print(f"{what}: {found:.2f} (gate {gate:g}{'' if held else ': MISSED'})")
    return held


def main(arguments: Sequence[str] = ()) -> int:
    """Print the figures; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks http", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--single", type=int, default=3_000)
    given = parser.parse_args(arguments)
    print(machine())
    with service(0.0) as port:
        held = list(_told(given.rows, given.single, f"http://127.0.0.1:{port}"))
    return 0 if all(held) else 1
