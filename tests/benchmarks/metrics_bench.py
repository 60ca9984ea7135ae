"""What metrics cost: one job with and without ``metrics.port``, scraped every second.

    python -m tests.benchmarks metrics [--rounds 7] [--records 150000]

Twelve bolts in this process, a record a tuple, ``process`` does nothing: so all CPU time is
flowctl's own, and a share of it is at least as large as of a real job's.  A scrape a second is
fifteen times what Prometheus asks for by default; it comes from another process, as its own time
does not count.

Two figures: CPU time with and without, the arms alternating in another order each round; and, in
the same runs, that of the threads that answer scrapes.  The second is the gate: on a machine
that others load, the first varies by a tenth from run to run, either way.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.instrumentation import metrics_server
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from tests.benchmarks.parts import MemoryProducer, machine

_BOLTS: Final = 12
_MOST: Final = 0.02  # of the throughput, as was asked for
_SCRAPER = """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=1).read()
        print(flush=True)
    except OSError:
        pass
    time.sleep(1)
"""


def _nothing(batch: Any) -> None:
    del batch


def cpu_s(records: int, **settings: Any) -> float:
    """Run the job once; return the CPU time that it took, of all threads."""
    spout = FlowControlSpout(
        name="bench",
        producer=MemoryProducer(records, b"x" * 100),
        bolts=LocalBolts(_nothing, count=_BOLTS),
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides({"tuple.records_max": 1, **settings}),
    )
    began_s = time.process_time()
    report = spout.run(view="off")
    assert report.records_acked == records
    return time.process_time() - began_s


def scraped_cpu_s(records: int) -> tuple[float, int]:
    """The same while its metrics are scraped; also return how often they were."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"
    command = [sys.executable, "-c", _SCRAPER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as scraper:
        took_s = cpu_s(records, **{"metrics.port": port})
        scraper.kill()
        scrapes = len(scraper.communicate()[0])
    return took_s, scrapes


def _timed_answers() -> list[float]:
    """Return a list that gets the CPU time of each answer of the metrics server."""
    answers: list[float] = []
    handle = metrics_server._Handler.handle

    def timed(handler: Any) -> None:
        began_s = time.thread_time()
        handle(handler)
        answers.append(time.thread_time() - began_s)

    metrics_server._Handler.handle = timed  # type: ignore[method-assign]
    return answers


def main(arguments: Sequence[str]) -> int:
    """Print the figures; return 1 if metrics cost more than they may."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks metrics")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=150_000)
    args = parser.parse_args(arguments)
    print(machine())
    answers = _timed_answers()
    scraped_cpu_s(2_000)  # imports count once
    answers.clear()
    off: list[float] = []
    on: list[float] = []
    scrapes = 0
    for number in range(args.rounds):
        for is_on in (True, False) if number % 2 else (False, True):
            if is_on:
                took_s, seen = scraped_cpu_s(args.records)
                on.append(took_s)
                scrapes += seen
            else:
                off.append(cpu_s(args.records))
    print(
        f"{args.records} tuples, CPU of a run: at least {min(off):.2f} s without metrics,"
        f" {min(on):.2f} s with; medians {median(off):.2f} s, {median(on):.2f} s"
    )
    scrape_s = median(answers)
    share = sum(answers) / (sum(on) - sum(answers))
    print(
        f"{scrapes} scrapes, {scrape_s * 1000:.1f} ms each: {share:.1%} of the run's CPU; at most"
        f" {_MOST:.0%}"
    )
    return 0 if answers and share <= _MOST else 1
