"""A diamond on real Spark whose workers are killed: exact in a sink, nothing left in the ledger."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowctl.config import Settings
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Batched, Collector, Input, Topology, TopologyJob, TopologyReport
from flowctl_storm.hub.core import TopologyCore
from tests.runtime_parts import Witness
from tests.topology_driver import Numbers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def telling(place: Path) -> Callable[[str], None]:
    """Return what a worker calls to say its process id, once."""
    told: set[str] = set()
    folder = str(place)

    def tell(bolt: str) -> None:
        import os
        from pathlib import Path

        if bolt not in told:
            told.add(bolt)
            new = Path(folder, f"{bolt}.{os.getpid()}")
            new.write_text(str(os.getpid()))
            new.rename(Path(folder, bolt))  # at once, so that nobody reads half of it

    return tell


def diamond(place: Path, roots: int, pause_s: float) -> Topology:
    """spout → b1, b2 → b3; b3 writes into SQLite, and each worker says who it is.

    b1 and b2 take ``pause_s`` for a record, so that a small run is not over before its kill.
    """
    database = str(place / "out.db")
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE got (n INTEGER, way TEXT, times INTEGER, PRIMARY KEY (n, way))"
        )
    connection.close()
    tell = telling(place)

    def way(name: str) -> Callable[[Input, Collector], None]:
        def pass_on(given: Input, out: Collector) -> None:
            import time

            tell(out.bolt)
            if pause_s:
                time.sleep(pause_s)
            out([given.value, name])

        return pass_on

    def store(inputs: Sequence[Input], out: Collector) -> None:
        import sqlite3

        tell(out.bolt)
        connection = sqlite3.connect(database, timeout=60)
        with connection:
            connection.executemany(
                "INSERT INTO got VALUES (?, ?, 1)"
                " ON CONFLICT (n, way) DO UPDATE SET times = times + 1",
                [given.value for given in inputs],
            )
        connection.close()

    made = Topology("diamond")
    made.spout("s", Numbers(roots))
    made.bolt("b1", way("b1"), count=2).shuffle("s")
    made.bolt("b2", way("b2"), count=2).least_loaded("s")
    made.bolt("b3", Batched(store), count=2).fields("b1", 0).fields("b2", 0)
    return made


class Killer:
    """Kills the worker of a bolt when ``measure`` (default: roots done) has come so far."""

    def __init__(
        self,
        place: Path,
        job: TopologyJob,
        plan: Sequence[tuple[int, str]],
        measure: Callable[[TopologyCore], int] = lambda core: core.tree_figures().complete,
    ) -> None:
        self.killed: list[tuple[str, int]] = []
        self._place = place
        self._job = job
        self._plan = plan
        self._measure = measure
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for at, bolt in self._plan:
            while self._done() < at and not self._over.is_set():
                time.sleep(0.002)
            pid = self._living(bolt)
            if pid is None:
                return
            os.kill(pid, signal.SIGKILL)
            self.killed.append((bolt, self._done()))

    def _living(self, bolt: str) -> int | None:
        """The pid of ``bolt``, waited for if it was just ended: a busy machine makes it silent.

        None: the run is over.
        """
        while not self._over.is_set():
            pid = int((self._place / bolt).read_text())
            if any(pid == child.pid for child in psutil.Process().children(recursive=True)):
                return pid
            time.sleep(0.05)
        return None

    def _done(self) -> int:
        core = self._job.core
        return self._measure(core) if core is not None else 0


def run_and_kill(
    spark: Any,
    place: Path,
    roots: int,
    plan: Sequence[tuple[int, str]],
    pause_s: float = 0.0,
    **settings: Any,
) -> tuple[TopologyReport, Killer]:
    from flowctl_storm import SparkStages

    made = diamond(place, roots, pause_s)
    job = made.job(
        SparkStages(spark=spark),
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides(settings),
    )
    with Killer(place, job, plan) as killer:
        report = job.run(view=Witness())
    assert report.trees is not None
    print(f"killed {killer.killed}; {report.trees}")
    return report, killer


def check(place: Path, report: TopologyReport, killer: Killer, roots: int, kills: int) -> None:
    assert len(killer.killed) == kills
    # On a quick machine the last one may be killed when all of its work is done.
    assert report.bolts_lost >= max(1, kills - 1)
    assert report.trees is not None
    assert (report.trees.complete, report.trees.ledger_now) == (roots, 0)
    assert report.records_saved == roots
    with sqlite3.connect(place / "out.db") as connection:
        found = connection.execute("SELECT COUNT(*), MIN(n), MAX(n) FROM got").fetchone()
        assert found == (2 * roots, 1, roots)  # each root by both ways, none lost, none invented
    connection.close()


@pytest.mark.req("S70", "S81")
def test_a_diamond_whose_worker_is_killed_is_exact(spark: Any, tmp_path: Path) -> None:
    roots = 10_000
    report, killer = run_and_kill(spark, tmp_path, roots, [(roots // 4, "b1.1")], 0.0005)
    check(tmp_path, report, killer, roots, kills=1)


@pytest.mark.on_change("spark", "topology")
@pytest.mark.slow
@pytest.mark.req("S70", "S81")
def test_a_large_diamond_with_two_workers_killed_is_exact(spark: Any, tmp_path: Path) -> None:
    roots = 100_000
    plan = [(roots // 5, "b2.1"), (roots // 2, "b3.2")]
    report, killer = run_and_kill(spark, tmp_path, roots, plan)
    check(tmp_path, report, killer, roots, kills=2)


@pytest.mark.req("S88", "S105")
def test_at_most_once_with_workers_killed_no_effect_is_doubled(spark: Any, tmp_path: Path) -> None:
    roots = 10_000
    mode = {"guarantee.mode": "at_most_once", "tuple.records_max": 100}
    plan = [(roots // 5, "b1.1"), (roots // 3, "b3.2")]
    report, killer = run_and_kill(spark, tmp_path, roots, plan, 0.0005, **mode)
    assert len(killer.killed) == 2
    assert report.trees is not None
    assert (report.trees.replayed, report.trees.pending_now) == (0, 0)
    assert report.records_dropped > 0, "the deaths cost nothing: no tuple was at them"
    assert report.records_acked + report.records_dropped == report.records_saved == roots
    with sqlite3.connect(tmp_path / "out.db") as connection:
        most, both_ways = connection.execute(
            "SELECT MAX(times), (SELECT COUNT(*) FROM (SELECT n FROM got GROUP BY n"
            " HAVING COUNT(*) = 2)) FROM got"
        ).fetchone()
    connection.close()
    assert most == 1
    assert report.records_acked <= both_ways  # whose ack was lost had its effect all the same


@pytest.mark.on_change("spark", "topology")
def test_a_join_on_spark_holds_over_the_death_of_its_worker(spark: Any, tmp_path: Path) -> None:
    from flowctl_storm import SparkStages

    place, tell = str(tmp_path), telling(tmp_path)

    class Join:
        def __init__(self) -> None:
            self.first: dict[int, Any] = {}

        def execute(self, given: Any, out: Any) -> None:
            tell(out.bolt)
            other = self.first.pop(given.value[0], None)
            if other is None:
                self.first[given.value[0]] = given
                return
            out.emit(given.value[0], anchors=(other, given))
            out.ack(other)
            out.ack(given)

    def sink(given: Input, out: Collector) -> None:
        from pathlib import Path

        with Path(place, "joined").open("a") as file:
            file.write(f"{given.value}\n")

    half = 5_000
    made = Topology("join")
    # The second half of the numbers are the partners of the first, which are held till then.
    made.spout("s", Numbers(2 * half), translate=lambda _, record: [record.value % half, 0])
    made.bolt("join", Join, count=2).fields("s", 0)
    made.bolt("sink", sink).shuffle("join")
    job = made.job(SparkStages(spark=spark), checkpoint=MemoryCheckpointStore())

    def held(core: TopologyCore) -> int:
        return core.stage_figures()[0].held_now

    with Killer(tmp_path, job, [(half // 2, "join.1")], held) as killer:
        report = job.run(view=Witness())
    assert report.trees is not None
    assert (report.trees.complete, report.trees.ledger_now) == (2 * half, 0)
    joined = (tmp_path / "joined").read_text().split()
    assert set(joined) == {str(n) for n in range(half)}
    assert len(killer.killed) == 1
    assert report.trees.failed == report.trees.expired == 0  # nothing had to go again from the top
