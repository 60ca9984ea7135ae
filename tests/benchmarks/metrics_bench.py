"""What metrics cost: a scrape of 1,000 bolts, and a job with and without ``metrics.port``.

    python -m tests.benchmarks metrics [--rounds 40] [--records 20000] [--rate 20]

Twelve bolts in this process, a record a tuple, ``process`` does nothing: so all CPU time is
flowctl's own, and a share of it is at least as large as of a real job's.  Scrapes come from another
process, whose own time does not count.

All figures are CPU time, as others may use the machine.  Even so a run's varies by a tenth, while
a scrape a second costs about a hundredth.  So there are many short runs, with and without in turn,
each compared with its neighbour; and the job is scraped ``--rate`` times a second: what a run takes
more, divided by its scrapes, is what one costs.  A job is limited by one core, so one scrape a
second takes that share of its throughput.  A server that nobody asks counts besides.  The gate is
the upper end of the 95 % interval.
"""

from __future__ import annotations

import argparse
import gzip
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from flowctl.bolts.local import LocalBolts
from flowctl.config import MetricsSettings, Settings
from flowctl.instrumentation import metrics_server
from flowctl.instrumentation.metrics_server import MetricsServer, Scraped
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.instrumentation.views import BaseView
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from tests.benchmarks.parts import MemoryProducer, machine

_BOLTS: Final = 12
_MANY: Final = 1_000
_SCRAPES: Final = 100
_IDLE_S: Final = 3.0  # thirty turns of the server's loop
_MOST: Final = 0.02  # of the throughput, as was asked for
_MOST_S: Final = 0.05  # for a scrape of _MANY bolts, as was asked for
_SCRAPER: Final = """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=1).read()
    except OSError:
        pass
    time.sleep(1 / float(sys.argv[2]))
"""


def _nothing(batch: Any) -> None:
    del batch


def cpu_s(records: int, view: Any = "off", **settings: Any) -> float:
    """Run the job once; return the CPU time that it took, of all threads."""
    spout = FlowControlSpout(
        name="bench",
        producer=MemoryProducer(records, b"x" * 100),
        bolts=LocalBolts(_nothing, count=_BOLTS),
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides({"tuple.records_max": 1, **settings}),
    )
    began_s = time.process_time()
    report = spout.run(view=view)
    assert report.records_acked == records
    return time.process_time() - began_s


@contextmanager
def scraper(port: int, rate: float) -> Iterator[None]:
    """Scrape what listens there, from another process, for as long as the block runs."""
    url = f"http://127.0.0.1:{port}/metrics"
    command = [sys.executable, "-c", _SCRAPER, url, str(rate)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


# -- a scrape of many bolts -------------------------------------------------------------------


class _Last(BaseView):
    """Keeps the last snapshot that has all bolts."""

    seen: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        if len(snapshot.bolts) == _BOLTS:
            self.seen = snapshot


def scrape_times_s() -> list[float]:
    """Return the CPU time of scrapes of a run with ``_MANY`` bolts, compressed as for Prometheus.

    No lock of the run is involved: a scrape reads the newest snapshot, which never changes.
    """
    view = _Last()
    cpu_s(5_000, view)
    assert view.seen is not None
    bolts = [view.seen.bolts[n % _BOLTS] for n in range(_MANY)]
    named = tuple(msgspec.structs.replace(bolt, name=f"b{n}") for n, bolt in enumerate(bolts))
    scraped = Scraped(BaseView())
    scraped.update(msgspec.structs.replace(view.seen, bolts=named))
    app = metrics_server.metrics_app(scraped)
    asked = {"HTTP_ACCEPT_ENCODING": "gzip"}
    times = []
    for _ in range(_SCRAPES):
        began_s = time.thread_time()
        [answer] = app(asked, lambda status, headers: None)
        times.append(time.thread_time() - began_s)
        assert gzip.decompress(answer).count(b'"b999"')
    return times


# -- on against off ---------------------------------------------------------------------------


def idle_share() -> float:
    """Return the CPU time per second of a server that nobody asks."""
    server = MetricsServer(MetricsSettings(port=0), Scraped(BaseView()))
    cpu, wall = time.process_time(), time.monotonic()
    time.sleep(_IDLE_S)
    share = (time.process_time() - cpu) / (time.monotonic() - wall)
    server.close()
    return share


class Watch:
    """Counts what metrics servers of this process answer."""

    def __init__(self) -> None:
        self.answers = 0
        handle = metrics_server.Handler.handle

        def counted(handler: Any) -> None:
            handle(handler)
            self.answers += 1

        metrics_server.Handler.handle = counted  # type: ignore[method-assign]


class Pair(NamedTuple):
    """CPU time of two neighbouring runs, and how often the one with metrics was scraped."""

    on_s: float
    off_s: float
    scrapes: int


def paired(rounds: int, records: int, rate: float, watch: Watch) -> list[Pair]:
    """Run both arms ``rounds`` times, in another order each time.

    The scraper is there during both, so that it disturbs both alike.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    found = []
    with scraper(port, rate):
        for number in range(rounds):
            took = {}
            before = watch.answers
            for is_on in (True, False) if number % 2 else (False, True):
                took[is_on] = cpu_s(records, **({"metrics.port": port} if is_on else {}))
            found.append(Pair(took[True], took[False], watch.answers - before))
    return [pair for pair in found if pair.scrapes]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by ranks: right for any distribution."""
    ordered, count = sorted(values), len(values)
    reach = 0.98 * count**0.5  # 1.96 standard deviations of a binomial with p = 1/2
    low, high = round((count - 1) / 2 - reach), round((count - 1) / 2 + reach)
    return ordered[max(low, 0)], ordered[min(high, count - 1)]


def main(arguments: Sequence[str]) -> int:
    """Print the figures; return 1 if metrics cost more than they may."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks metrics")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=20.0, help="scrapes a second")
    args = parser.parse_args(arguments)
    print(machine())
    times = scrape_times_s()
    print(
        f"a scrape of {_MANY:,} bolts: {median(times) * 1000:.1f} ms of CPU, at most"
        f" {max(times) * 1000:.1f} ms; may take {_MOST_S * 1000:.0f} ms"
    )
    watch = Watch()
    paired(1, 2_000, args.rate, watch)  # imports count once
    pairs = paired(args.rounds, args.records, args.rate, watch)
    idle = idle_share()
    costs = [(pair.on_s - pair.off_s) / pair.scrapes for pair in pairs]
    low, high = interval(costs)
    on_s, off_s = median(pair.on_s for pair in pairs), median(pair.off_s for pair in pairs)
    print(
        f"{len(pairs)} pairs of runs of {args.records:,} tuples: {on_s:.3f} s of CPU with,"
        f" {off_s:.3f} s without, {median(pair.scrapes for pair in pairs):.0f} scrapes;"
        f" {median(costs) * 1000:.2f} ms a scrape ({low * 1000:.2f} to {high * 1000:.2f})\n"
        f"scraped once a second: {median(costs) + idle:.2%} ({low + idle:.2%} to"
        f" {high + idle:.2%}),"
        f" {idle:.2%} of it without being asked; at most {_MOST:.0%}"
    )
    return 0 if high + idle <= _MOST and max(times) <= _MOST_S else 1
