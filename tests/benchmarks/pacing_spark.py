"""``python -m tests.benchmarks pacing-spark``: the same service, called by 32 partitions of Spark.

``service``: the oracle is ten partitions without any limit: exactly as many calls as the service
takes.  Then 32 partitions with ``flow_sink``, while the capacity halves and comes back; then the
same partitions without it.  Each arm is measured from when all of its workers have made a call.

``postgres``: 64 partitions, all at once, write through ``SqlSink`` into a PostgreSQL that takes 20
connections.
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from flowctl import Batch
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink
from tests.benchmarks.pacing import (
    AT_ONCE,
    BASE_S,
    FROM_S,
    SLOPE,
    WORKERS,
    Client,
    Figures,
    figures,
    own_redis,
)
from tests.benchmarks.pacing_service import Answered, Service, pacing_service
from tests.benchmarks.parts import machine

_ROWS = 100_000  # of a partition: more than are called for
_START_S = 300.0  # 32 workers start within this on a busy machine
_client = functools.cache(Client)  # one for each process


class Caller:
    """Makes one call for each row, until ``place/stop`` is there; says that it has begun."""

    def __init__(self, port: int, place: Path) -> None:
        self.port = port
        self.place = place

    def __call__(self, batch: Batch) -> None:
        for _ in batch:
            self.call()

    def plain(self, rows: Iterable[Any]) -> None:
        """Without a limit: a refused row is called for again at once."""
        for _ in rows:
            while not self.call_once():
                time.sleep(0.01)  # what a traceback costs

    def call_once(self) -> bool:
        """Return whether the call was taken."""
        try:
            self.call()
        except HTTPError:
            return False
        return True

    def call(self) -> None:
        """Raise HTTPError for 429."""
        if not (self.place / "stop").exists():
            _client(self.port).get()
            (self.place / str(threading.get_native_id())).touch()


class Arm:
    """One job in a thread of its own, which ``end`` stops."""

    def __init__(self, service: Service, partitions: int, run: Callable[[Any, Caller], None]):
        self.service = service
        self.place = Path(tempfile.mkdtemp())
        service.log()
        caller = Caller(service.port, self.place)
        df = _session().range(0, partitions * _ROWS, 1, partitions)
        self.job = threading.Thread(target=run, args=(df, caller))
        self.job.start()
        until_s = time.monotonic() + _START_S
        while len(list(self.place.iterdir())) < partitions and time.monotonic() < until_s:
            time.sleep(0.2)
        self.began_s = time.time()

    def sleep_until(self, at_s: float) -> None:
        """``at_s``: seconds since all have begun."""
        time.sleep(max(0.0, self.began_s + at_s - time.time()))

    def end(self) -> list[Answered]:
        """Return what was answered, times since all have begun."""
        (self.place / "stop").touch()
        log = self.service.log()
        _session().sparkContext.cancelAllJobs()
        self.job.join()
        return [each._replace(at_s=each.at_s - self.began_s) for each in log]


def paced_by(redis: str) -> Callable[[Any, Caller], None]:
    def run(df: Any, caller: Caller) -> None:
        _quietly(df, flow_sink(caller, target="service", redis=redis, rows_max=1))

    return run


def plain(df: Any, caller: Caller) -> None:
    _quietly(df, caller.plain)


def _quietly(df: Any, function: Any) -> None:
    try:
        df.foreachPartition(function)
    except Exception as error:  # cancelled when the arm ends
        if "cancel" not in str(error).lower():
            raise


def _session(slots: int = WORKERS) -> Any:
    """The session of this process; ``slots`` count for the first call."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take python3 on PATH
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    return (
        SparkSession.builder.master(f"local[{slots}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )


def shown(name: str, found: Figures, best: float) -> None:
    print(f"{name:34} {found.goodput:7.1f} {found.goodput / best:7.1%} {found.refused:8.2%}")


def recovery_s(log: Sequence[Answered], from_s: float, until_s: float) -> float:
    """How long after ``from_s`` three seconds are within 5 % of what comes later."""
    level = figures(log, until_s - 12, until_s - 1).goodput
    steps = (step / 2 for step in range(40))
    return next(
        (s for s in steps if figures(log, from_s + s, from_s + s + 3).goodput >= 0.95 * level), 99
    )


def service_arms(for_s: float) -> bool:
    """The service's capacity is used by Spark, halved and given back."""
    with own_redis() as redis, pacing_service(BASE_S, SLOPE, AT_ONCE) as service:
        arm = Arm(service, AT_ONCE, plain)
        arm.sleep_until(FROM_S + for_s)
        best = figures(arm.end(), FROM_S, FROM_S + for_s).goodput
        print(f"{'':34} {'calls/s':>7} {'oracle':>7} {'refused':>8}")
        shown("oracle: ten partitions", Figures(best, 0.0), best)

        arm = Arm(service, WORKERS, paced_by(redis.url))
        halves_s, back_s = FROM_S + for_s, FROM_S + 2 * for_s
        arm.sleep_until(halves_s)
        service.limit(AT_ONCE // 2)
        arm.sleep_until(back_s)
        service.limit(AT_ONCE)
        arm.sleep_until(back_s + for_s)
        log = arm.end()
        found = figures(log, FROM_S, halves_s)
        shown("flow_sink, 32 partitions", found, best)
        print(f"  refused since its start: {figures(log, -_START_S, halves_s).refused:.2%}")
        fell_s, rose_s = recovery_s(log, halves_s, back_s), recovery_s(log, back_s, back_s + for_s)
        shown("  half the capacity", figures(log, halves_s, back_s), best)
        print(f"  at its level after {fell_s:g} s, back after {rose_s:g} s")

        arm = Arm(service, WORKERS, plain)
        arm.sleep_until(FROM_S + for_s)
        shown("nothing, 32 partitions", figures(arm.end(), FROM_S, FROM_S + for_s), best)
    return found.goodput >= 0.9 * best and found.refused <= 0.02 and max(fell_s, rose_s) <= 5


def postgres() -> bool:
    """Each row is there once, and no task failed: a failed one would end the job."""
    sys.path.append(str(Path(__file__).parents[1] / "integration"))
    from sink_parts import Postgres

    partitions, rows, connections = 64, 500, 20
    with tempfile.TemporaryDirectory() as folder, own_redis() as redis, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        server = Postgres(Path(folder), port)
        server.start(f"max_connections={connections}", "superuser_reserved_connections=1")
        server.execute("CREATE TABLE orders (id BIGINT)")
        try:
            sink = flow_sink(
                sink=SqlSink(server.uri, table="orders"), target="pg-of-20", redis=redis.url,
                name="orders", run="once", rows_max=50,
            )  # fmt: skip
            tally = sink.write(_session(partitions).range(0, partitions * rows, 1, partitions))
            [found] = server.execute("SELECT count(*), count(DISTINCT id) FROM orders")
        finally:
            server.kill()
    print(f"{partitions} partitions, {connections} connections: {tally}")
    print(f"  {found[0]} rows, {found[1]} different, of {partitions * rows}")
    return tuple(found) == (partitions * rows, partitions * rows)


def main(arguments: Sequence[str]) -> int:
    """Run the named parts; exit 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks pacing-spark")
    parser.add_argument("part", nargs="?", default="service", choices=["service", "postgres"])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase of service")
    options = parser.parse_args(arguments)
    print(machine())
    held = postgres() if options.part == "postgres" else service_arms(options.seconds)
    _session().stop()
    print("all gates hold" if held else "GATES MISSED")
    return not held
