"""What many connections cost the driver: ``python -m tests.benchmarks crowd``.

The same job through 12, 1,000 and 3,000 real connections (sockets on loopback, bolts that do
nothing, in two processes, windows of 16): CPU of the driver a tuple, how long all need to join, and
what expired.  The arms alternate and the medians are compared, as ratios: the machine is shared.

Between the last bolt's coming and the first tuple each run stands idle for two seconds: what the
driver takes then, for heartbeats and the view, it takes by the second and not by the tuple.  It is
stated, and so is the rest of the CPU a tuple; the gate is on all of it.

With 3,000 bolts a window's worth of each is a sixth of the job, so much of it is the start and the
end.  The longer job shows what a tuple costs in between; the gate is on both.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from flowctl import FlowControlSpout, Settings
from flowctl.core.events import BoltAdded, FlowEvent
from flowctl.instrumentation.snapshot import Report, Snapshot
from flowctl.ports import Endpoint, SourceChunk
from flowctl.testing.stores import MemoryCheckpointStore
from tests.benchmarks.parts import ChildBolts, MemoryProducer

FEW: Final = 12
CROWDS: Final = (1_000, 3_000)
WINDOW: Final = 16
TUPLES: Final = 300_000  # 3 to 6 s
LONGER: Final = 5  # times as many, in one round
RATIO_MAX: Final = 1.25  # driver's CPU a tuple in a crowd, to that with 12
JOIN_MAX_S: Final = 5.0
IDLE_S: Final = 2.0  # two heartbeats of each of 1,000 bolts, and two looks of the view
_FILES_BESIDES: Final = 500


def crowd_bolts(count: int, *, record_s: float = 0.0) -> ChildBolts:
    """Peers that speak the wire; see crowd_peers.  ``record_s``: how long a record of a range
    takes.
    """

    def told(endpoint: Endpoint, names: Sequence[str]) -> bytes:
        bare = msgspec.structs.replace(endpoint, reader=None)
        return msgspec.msgpack.encode((bare, names, record_s))

    return ChildBolts(["-m", "tests.benchmarks.crowd_peers"], told, count=count)


class _GatedProducer(MemoryProducer):
    """Gives one record, for bolts start when there is work, and no more before ``opened``."""

    def __init__(self, count: int, value: object, opened: threading.Event) -> None:
        super().__init__(count, value)
        self._opened = opened

    def poll(self, max_records: int) -> SourceChunk | None:
        if self._next and not self._opened.wait(0.01):
            return SourceChunk("memory", [])
        return super().poll(max_records if self._opened.is_set() else 1)


class Watch:
    """A view that opens the source when all are there, and takes times and CPU times."""

    def __init__(self, bolts: int, opened: threading.Event) -> None:
        self._missing = bolts
        self._opened = opened
        self._joined_s: list[float] = []
        self._samples: list[tuple[float, float, int]] = []  # time, CPU time, tuples
        self._idle_since: tuple[float, float] | None = None  # time, CPU time
        self.idle_share: float = 0.0  # of a core, with all there and nothing to do
        self.report: Report | None = None

    def start(self, job: str, headline: str) -> None: ...

    def message(self, text: str) -> None: ...

    def update(self, snapshot: Snapshot) -> None:
        now_s, cpu_s = time.monotonic(), time.process_time()
        self._samples.append((now_s, cpu_s, snapshot.tuples_acked))
        if self._missing or self._opened.is_set():
            return
        since_s, since_cpu_s = self._idle_since = self._idle_since or (now_s, cpu_s)
        if now_s - since_s >= IDLE_S:
            self.idle_share = (cpu_s - since_cpu_s) / (now_s - since_s)
            self._opened.set()

    def event(self, event: FlowEvent) -> None:
        if isinstance(event, BoltAdded):
            self._joined_s.append(event.at_s)
            self._missing -= 1

    def stop(self, report: Report) -> None:
        self.report = report

    @property
    def join_s(self) -> float:
        """From the first bolt that came to the last."""
        return max(self._joined_s) - min(self._joined_s)

    def cost(self) -> tuple[float, float]:
        """CPU seconds of this process a tuple, and tuples a second, while tuples were acked."""
        first = next(s for s in self._samples if s[2] > 1)
        last = next(s for s in self._samples if s[2] == self._samples[-1][2])
        tuples = last[2] - first[2]
        return (last[1] - first[1]) / tuples, tuples / (last[0] - first[0])


class Outcome(NamedTuple):
    """One run."""

    cpu_s: float
    tuples_per_s: float
    join_s: float
    idle_share: float
    expired: int
    lost: int

    @property
    def beside_idle_s(self) -> float:
        """CPU seconds a tuple, without what the same time would have cost idle."""
        return self.cpu_s - self.idle_share / self.tuples_per_s


def run(bolts: int, *, tuples: int = TUPLES, window: int = WINDOW, **overrides: Any) -> Outcome:
    """One run with so many connections."""
    opened = threading.Event()
    watch = Watch(bolts, opened)
    fixed = {"lab.window.policy": "fixed", "lab.window.initial": window, "tuple.records_max": 1}
    FlowControlSpout(
        name="crowd",
        producer=_GatedProducer(tuples, b"x" * 100, opened),
        bolts=crowd_bolts(bolts),
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides({**fixed, **overrides}),
    ).run(view=watch)
    report = watch.report
    assert report is not None
    assert report.outcome == "finished", report.error
    cpu_s, tuples_per_s = watch.cost()
    expired, lost = report.tuples_expired, report.bolts_lost
    return Outcome(cpu_s, tuples_per_s, watch.join_s, watch.idle_share, expired, lost)


@contextlib.contextmanager
def _busy(processes: int) -> Any:
    """Other programs that want the cores."""
    spin = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def raise_file_limit(bolts: int) -> None:
    """Let this process have so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = bolts + _FILES_BESIDES
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def main(arguments: Sequence[str] = ()) -> int:
    """Print the figures; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks crowd", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tuples", type=int, default=TUPLES)
    parser.add_argument("--bolts", type=int, nargs="*", default=list(CROWDS))
    parser.add_argument("--busy", type=int, default=4, help="programs beside it, last row")
    args = parser.parse_args(arguments)
    raise_file_limit(max(args.bolts))
    arms = {bolts: [] for bolts in (FEW, *args.bolts)}  # type: dict[int, list[Outcome]]
    for _ in range(args.rounds):
        for bolts, outcomes in arms.items():
            outcomes.append(run(bolts, tuples=args.tuples))
    ok = True
    for bolts, outcomes in arms.items():
        ok = _print(f"{bolts:5,} connections", outcomes, arms[FEW]) and ok
    ends = (FEW, max(args.bolts))
    longer = {bolts: [run(bolts, tuples=LONGER * args.tuples)] for bolts in ends}
    for bolts, outcomes in longer.items():
        ok = _print(f"{bolts:5,} connections, {LONGER} times as long", outcomes, longer[FEW]) and ok
    if args.busy:
        with _busy(args.busy):
            outcomes = [run(args.bolts[0], tuples=args.tuples)]
        expired = outcomes[0].expired
        ok = ok and not expired
        print(
            f"{args.bolts[0]:5,} connections beside {args.busy} busy programs:"
            f" {expired} tuples expired (gate 0{': MISSED' if expired else ''}),"
            f" {outcomes[0].tuples_per_s:,.0f} tuples/s"
        )
    return 0 if ok else 1


def _print(label: str, outcomes: Sequence[Outcome], few: Sequence[Outcome]) -> bool:
    cpu_s = median(o.cpu_s for o in outcomes)
    beside_s = median(o.beside_idle_s for o in outcomes)
    ratio = cpu_s / median(o.cpu_s for o in few)
    beside_ratio = beside_s / median(o.beside_idle_s for o in few)
    join_s = median(o.join_s for o in outcomes)
    expired = sum(o.expired for o in outcomes)
    rate = median(o.tuples_per_s for o in outcomes)
    idle = median(o.idle_share for o in outcomes)
    ok = ratio <= RATIO_MAX and join_s <= JOIN_MAX_S and not expired
    print(
        f"{label}: {1e6 * cpu_s:5.1f} us of driver CPU a tuple, {ratio:.2f} of that with {FEW}"
        f" (gate {RATIO_MAX}); idle {idle:.1%} of a core, and without that {1e6 * beside_s:5.1f} us"
        f" a tuple, {beside_ratio:.2f}; {rate:7,.0f} tuples/s; all joined in {join_s:.2f} s"
        f" (gate {JOIN_MAX_S:g}); {expired} expired{'' if ok else ': MISSED'}",
        flush=True,
    )
    return ok


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
