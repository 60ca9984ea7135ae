"""Run scenarios on a cluster of namespaces and print a table of figures.

    python -m tests.cluster [SCENARIO ...] [--list] [--seed 1] [--keep] [--lanes 2]

Exits with 1 if a row is not exact, or misses its gate (seconds until work goes on elsewhere).
Scenarios run in two lanes, each with a cluster of its own, as most of a row is a wait: for timers,
for links that are out.  With one lane each row also tells its CPU time.  Where no namespaces can be
made it says why, and the hosts are loopback addresses (``--loopback``: everywhere): scenarios that
need more are skipped, by name.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster import deployed, loopback, network, relays, scenarios, setups
from tests.cluster.cost import ended_s, living_s
from tests.cluster.drive import Cluster
from tests.cluster.parts import LONG, NEEDS, SCENARIOS, Figures
from tests.cluster.services import Postgres, Spark, Valkey, install, python_of, until, wheel

# Importing them registers what they define, in this order.
_MODULES = (scenarios, deployed, relays, setups)
_COLUMNS: tuple[tuple[str, int], ...] = (
    ("records", 7),
    ("rerun", 6),
    ("elsewhere", 9),
    ("stalled", 7),
    ("lost", 5),
    ("doubled", 7),
    ("took", 6),
    ("cpu", 5),
)
_HEAD = " ".join([f"{'scenario':<34}", *(f"{name:>{width}}" for name, width in _COLUMNS)])


@contextlib.contextmanager
def cluster(folder: Path, built: Path, *, has_links: bool) -> Iterator[Cluster]:
    """A cluster with everything running, flowctl from a wheel, and two Workers registered."""
    folder.mkdir()
    with (network if has_links else loopback).network(folder) as hosts:
        # m has the second driver too
        for home in {hosts[name].home for name in ("d", "m", "w1", "w2")}:
            install(home, built)
        parts = Cluster(
            folder, hosts, Spark(hosts, folder), Valkey(hosts["r"]), Postgres(hosts["p"])
        )
        parts.valkey.start()
        parts.postgres.start()
        for name in ("m", "w1", "w2"):
            parts.spark.start(name)
        until(lambda: all(map(parts.spark.registered, ("w1", "w2"))), "Workers register")
        until(lambda: _makes_table(parts), "PostgreSQL takes connections")
        yield parts


_TABLE = """
import sys, psycopg
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS lines (job TEXT, line BIGINT, text TEXT)")
"""


def _makes_table(parts: Cluster) -> bool:
    driver = parts.hosts["d"]
    if said := parts.postgres.has_ended():
        raise OSError(f"PostgreSQL has ended: {said}")
    with contextlib.suppress(RuntimeError):
        driver.run(python_of(driver), "-c", _TABLE, parts.postgres.url)
        return True
    return False


def main() -> int:
    """Run what is named, or everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which things die")
    parser.add_argument("--lanes", type=int, default=2, help="clusters that share the scenarios")
    parser.add_argument("--loopback", action="store_true", help="no namespaces: 127.77.0.1 to 6")
    parser.add_argument("--keep", action="store_true", help="keep the logs of all hosts")
    args = parser.parse_args()
    if args.list:
        for name, function in SCENARIOS.items():
            print(f"{name:<34} {(function.__doc__ or '').splitlines()[0]}")
        return 0
    if unknown := set(args.scenarios) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    names, has_links = args.scenarios or list(SCENARIOS), not args.loopback
    if has_links and (reason := network.unavailable()):
        print(f"on loopback addresses: {reason}")
        has_links = False
    if not has_links:
        if reason := loopback.unavailable():
            print(f"skipped: {reason}")
            return 0
        names = _possible(names)
    else:
        network.remove_left_behind()
    # As Ctrl-C: the hosts are removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    lanes = min(args.lanes, len(names)) if has_links else 1  # there is one 127.77.0.1
    folder = Path(tempfile.mkdtemp(prefix="flowctl-cluster-"))
    try:
        return _Rows(names, folder, args.seed, has_links=has_links).run(lanes)
    finally:
        if args.keep:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _possible(names: list[str]) -> list[str]:
    """Return those that loopback addresses are enough for; name the others."""
    for name in names:
        if name in NEEDS:
            print(f"{name:<34} skipped: it needs {NEEDS[name]}")
    return [name for name in names if name not in NEEDS]


class _Rows:
    """The scenarios that are left, taken by the lanes one by one."""

    def __init__(self, names: Sequence[str], folder: Path, seed: int, *, has_links: bool) -> None:
        # What takes long begins first: nothing shorter is left to run beside it at the end.
        self._left = deque(sorted(names, key=lambda name: name not in LONG))
        self._folder = folder
        self._seed = seed
        self._has_links = has_links
        self._failed: list[str] = []
        self._has_cpu = False
        self._left_running_s = 0.0  # CPU time of Spark's daemons and the servers

    def run(self, lanes: int) -> int:
        """Run all of them; return the exit code."""
        began_s, count = time.monotonic(), len(self._left)
        self._has_cpu = lanes == 1  # of one lane: what the other spends is not its own
        built = wheel(self._folder)
        print(_HEAD, flush=True)
        with ThreadPoolExecutor(lanes) as pool:
            running = [pool.submit(self._lane, f"lane{n}", built) for n in range(lanes)]
            try:
                for lane in running:
                    lane.result()
            except KeyboardInterrupt:
                self._left.clear()
                print("stopping: the rows that run end first, then their hosts are removed")
                raise
        took_s = time.monotonic() - began_s
        passed = count - len(self._failed) - len(self._left)
        print(
            f"{passed} passed, {len(self._failed)} failed, in {took_s / 60:.1f} min,"
            f" of which {(ended_s() + self._left_running_s) / 60:.1f} min of CPU time"
        )
        return 0 if passed == count else 1

    def _lane(self, name: str, built: Path) -> None:
        with cluster(self._folder / name, built, has_links=self._has_links) as parts:
            while self._left:
                with contextlib.suppress(IndexError):  # the other lane took the last
                    self._row(self._left.popleft(), parts)
            self._left_running_s += _living_s(parts)

    def _row(self, name: str, parts: Cluster) -> None:
        at_s, before_s = time.monotonic(), ended_s() + _living_s(parts)
        try:
            parts.spark.settle()
            found = SCENARIOS[name](parts, random.Random(f"{name} {self._seed}"))
        except Exception as error:  # the others may still show something
            found = Figures(0, 0, problem=f"{type(error).__name__}: {error}")
        if found.problem:
            self._failed.append(name)
        took_s, cpu_s = time.monotonic() - at_s, ended_s() + _living_s(parts) - before_s
        print(_row(name, found, took_s, f"{cpu_s:.0f}s" if self._has_cpu else ""), flush=True)


def _living_s(parts: Cluster) -> float:
    return living_s(pid for host in parts.hosts.values() for pid in host.sessions)


def _row(name: str, found: Figures, took_s: float, cpu: str) -> str:
    elsewhere, stalled = map(_seconds, (found.elsewhere_s, found.stalled_s))
    row = f"{name:<34} {found.records:>7} {found.rerun:>6} {elsewhere:>9} {stalled:>7}"
    row += f" {found.lost:>5} {found.doubled:>7} {took_s:>5.0f}s {cpu:>5}  {found.note}"
    return f"{row}\n    FAILED: {found.problem}" if found.problem else row


def _seconds(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s:.1f} s"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
