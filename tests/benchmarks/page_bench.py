"""What the page costs with 1,000 bolts and four updates a second: the driver, and a browser.

    python -m tests.benchmarks page [--seconds 15] [--bolts 1000] [--readers 3]
    python -m tests.benchmarks page --on-off 7 [--records 2000000]

The second one runs a job of 100-byte records so many times with all of it (page,
event log, what is shown elsewhere) and as often without any, in turns, and compares the medians.

A fake run: all CPU time of this process is the page's own (its state, its JSON, its server).
Readers take the events in another process, as browsers do; then one browser without a window, where
there is Chromium, draws them, and its processes' CPU time is counted.  A real run of 1,000 bolts
has one snapshot a second.  The gates are what was asked for.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psutil

from flowctl import FileCheckpointStore, FlowControlSpout, Records
from flowctl.bolts.local import LocalBolts
from flowctl.core.events import BoltState
from flowctl.instrumentation.page import PageState, PageView
from flowctl.instrumentation.snapshot import BoltView, Snapshot, WaitReason
from flowctl.instrumentation.views import BaseView, Page
from tests.benchmarks.parts import machine

_PER_S: Final = 4.0
_DRIVER_MOST: Final = 0.05  # of a core
_BROWSER_MOST: Final = 0.30
_SHOWN_MOST: Final = 0.03  # of a run's throughput
_STARTS_S: Final = 5.0  # a browser has begun to draw by then
_READER: Final = """
import sys, urllib.request
from threading import Thread
def read():
    with urllib.request.urlopen(sys.argv[1] + "events") as events:
        for line in events:
            pass
for _ in range(int(sys.argv[2])):
    Thread(target=read).start()
"""


def snapshots(bolts: int) -> Iterator[Snapshot]:
    """Yield what a run of so many bolts reports, four times a second of its own time; some bolts
    are slow, and rates differ each time.
    """
    drawn = random.Random(7)
    number = 0
    while True:
        number += 1
        views = tuple(
            BoltView(
                name=f"b{n}", state=BoltState.NORMAL, up=True, window=8, in_flight=3,
                ack_rtt_p50_s=0.04, service_p50_s=0.03, acked=number, share=1 / bolts,
                records_acked=100 * number,
                records_per_s=(5.0 if n % 97 == 0 else 100.0) * (0.8 + 0.4 * drawn.random()),
            )
            for n in range(bolts)
        )  # fmt: skip
        yield Snapshot(
            job="bench", elapsed_s=number / _PER_S, phase="running", bolts=views, progress=0.5,
            records_acked=100 * bolts * number, records_per_s=100.0 * bolts, eta_s=60.0,
            held_up_by=WaitReason.BACKPRESSURE, held_up_share=0.9,
        )  # fmt: skip


def share(view: PageView, made: Sequence[Snapshot]) -> float:
    """Show ``made`` at four a second; return the CPU time of this process per second."""
    cpu_s, began_s = time.process_time(), time.monotonic()
    for number, snapshot in enumerate(made):
        view.update(snapshot)
        time.sleep(max(0.0, began_s + (number + 1) / _PER_S - time.monotonic()))
    return (time.process_time() - cpu_s) / (time.monotonic() - began_s)


def _cpu_s(root: psutil.Process) -> float:
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def browser_share(view: PageView, made: Sequence[Snapshot], browser: str) -> float:
    """Return the CPU time per second of a browser that shows the page."""
    with tempfile.TemporaryDirectory() as place:
        command = [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--window-size=1600,1200",
            f"--user-data-dir={place}", view.url,
        ]  # fmt: skip
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
            starting = int(_STARTS_S * _PER_S)
            share(view, made[:starting])
            root = psutil.Process(process.pid)
            cpu_s, began_s = _cpu_s(root), time.monotonic()
            share(view, made[starting:])
            found = (_cpu_s(root) - cpu_s) / (time.monotonic() - began_s)
            children = root.children(recursive=True)
            process.terminate()
            psutil.wait_procs(children, timeout=10)
        return found


class Unseen:
    """A store that keeps checkpoints and nothing that a run shows."""

    survives = True

    def __init__(self, inner: FileCheckpointStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("show", "shown", "all_shown", "directory", "inner"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def throughput(records: int, place: str, *, is_on: bool) -> float:
    """Return the records a second of a run on two threads, with all that is shown, or none."""
    store = FileCheckpointStore(place)
    page = Page(beside="quiet")
    spout = FlowControlSpout(
        name=f"bench-{is_on}-{time.monotonic_ns()}",
        producer=Records(b"x" * 100 for _ in range(records)),
        bolts=LocalBolts(len, count=2),
        checkpoint=store if is_on else Unseen(store),
        settings={} if is_on else {"lab.events.bytes_max": 0},
    )
    return spout.run(view=page if is_on else "quiet").records_per_s


def on_off(pairs: int, records: int) -> int:
    """Print both medians; 1 if showing costs more than its gate."""
    found: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as place:
        for number in range(2 * pairs):
            is_on = number % 4 in (1, 2)  # off on, on off: neither is always the second
            found[is_on].append(throughput(records, place, is_on=is_on))
    on, off = statistics.median(found[True]), statistics.median(found[False])
    print(machine())
    print(f"off {off:10,.0f} records/s   on {on:10,.0f} records/s   costs {1 - on / off:.1%}")
    return 0 if on >= (1 - _SHOWN_MOST) * off else 1


def main(arguments: Sequence[str]) -> int:
    """Print both shares; 1 if one is above its gate."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks page")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--bolts", type=int, default=1_000)
    parser.add_argument("--readers", type=int, default=3)
    parser.add_argument("--on-off", type=int, metavar="PAIRS")
    parser.add_argument("--records", type=int, default=2_000_000)
    given = parser.parse_args(arguments)
    if given.on_off:
        return on_off(given.on_off, given.records)
    source = snapshots(given.bolts)
    made = [next(source) for _ in range(int((2 * given.seconds + _STARTS_S) * _PER_S))]
    here = int(given.seconds * _PER_S)
    view = PageView(BaseView(), PageState(resume=""), Page())
    view.start("bench", f"{given.bolts} bolts")
    readers = [sys.executable, "-c", _READER, view.url, str(given.readers)]
    with subprocess.Popen(readers, stderr=subprocess.DEVNULL) as process:
        driver = share(view, made[:here])
        process.kill()
    print(machine())
    print(f"{given.bolts} bolts, {_PER_S:g} updates a second, {given.readers} readers:")
    print(f"  driver   {driver:6.1%} of a core (at most {_DRIVER_MOST:.0%})")
    is_good = driver <= _DRIVER_MOST
    if browser := shutil.which("chromium") or shutil.which("google-chrome"):
        found = browser_share(view, made[here:], browser)
        print(f"  browser  {found:6.1%} of a core (at most {_BROWSER_MOST:.0%})")
        is_good &= found <= _BROWSER_MOST
    return 0 if is_good else 1
