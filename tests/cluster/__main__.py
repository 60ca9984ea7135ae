"""Run scenarios on a cluster of namespaces and print a table of figures.

    python -m tests.cluster [SCENARIO ...] [--list] [--seed 1] [--keep]

Exits with 1 if a row is not exact.  Where no namespaces can be made it says why, and the hosts are
loopback addresses (``--loopback``: everywhere): scenarios that need more are skipped, by name.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import loopback, network, relays, scenarios, setups
from tests.cluster.drive import Cluster
from tests.cluster.parts import NEEDS, SCENARIOS, Figures
from tests.cluster.services import Postgres, Spark, Valkey, install, python_of, until, wheel

# Importing them registers what they define, in this order.
_MODULES = (scenarios, relays, setups)
_COLUMNS = (
    ("records", 7),
    ("rerun", 6),
    ("elsewhere", 9),
    ("stalled", 7),
    ("lost", 5),
    ("doubled", 7),
    ("took", 6),
)
_HEAD = " ".join([f"{'scenario':<34}", *(f"{name:>{width}}" for name, width in _COLUMNS)])


@contextlib.contextmanager
def cluster(folder: Path, *, has_links: bool) -> Iterator[Cluster]:
    """A cluster with everything running, and two Workers registered."""
    built = wheel(folder)
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
    folder = Path(tempfile.mkdtemp(prefix="flowctl-cluster-"))
    try:
        return _run(names, folder, args.seed, has_links=has_links)
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


def _run(names: list[str], folder: Path, seed: int, *, has_links: bool) -> int:
    began_s = time.monotonic()
    failed = 0
    with cluster(folder, has_links=has_links) as parts:
        print(f"cluster up after {time.monotonic() - began_s:.0f} s\n{_HEAD}", flush=True)
        for name in names:
            at_s = time.monotonic()
            try:
                parts.spark.settle()
                found = SCENARIOS[name](parts, random.Random(f"{name} {seed}"))
            except Exception as error:  # the others may still show something
                found = Figures(0, 0, problem=f"{type(error).__name__}: {error}")
            print(_row(name, found, time.monotonic() - at_s), flush=True)
            failed += bool(found.problem)
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _row(name: str, found: Figures, took_s: float) -> str:
    elsewhere, stalled = map(_seconds, (found.elsewhere_s, found.stalled_s))
    row = f"{name:<34} {found.records:>7} {found.rerun:>6} {elsewhere:>9} {stalled:>7}"
    row += f" {found.lost:>5} {found.doubled:>7} {took_s:>5.0f}s  {found.note}"
    return f"{row}\n    FAILED: {found.problem}" if found.problem else row


def _seconds(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
