"""A topology's stages on Spark Connect: workers come, one is killed, every root is done."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from fault_parts import QUICK_JVM, run_as_program

pytestmark = pytest.mark.spark
ROOTS = 2_000
KILL_AT = ROOTS // 4


@pytest.mark.on_change("spark", "topology")
def test_a_topology_runs_on_spark_connect_and_survives_a_worker() -> None:
    """In a process of its own: one process holds one kind of session."""
    run_as_program(__file__)


def run_on_connect(place: Path) -> None:
    from pyspark.sql import SparkSession

    from flowctl.testing.stores import MemoryCheckpointStore
    from flowctl_storm import Collector, Input, SparkStages, Topology
    from pyspark_flowctl.java import ensure_java
    from tests.topology_driver import Numbers

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.remote("local[4]")
        .config("spark.driver.extraJavaOptions", QUICK_JVM)
        .getOrCreate()
    )
    folder = str(place)

    def double(given: Input, out: Collector) -> None:
        import os
        import time
        from pathlib import Path

        Path(folder, out.bolt).write_text(str(os.getpid()))
        time.sleep(0.001)  # so that it is at work when it is killed
        out(2 * given.value)

    def store(given: Input, out: Collector) -> None:
        from pathlib import Path

        with Path(folder, f"got.{out.bolt}").open("a") as file:
            file.write(f"{given.value}\n")

    made = Topology("connect")
    made.spout("numbers", Numbers(ROOTS))
    made.bolt("double", double, count=2).shuffle("numbers")
    made.bolt("store", store, count=1).shuffle("double")
    job = made.job(SparkStages(spark=session), checkpoint=MemoryCheckpointStore())

    over = threading.Event()

    def kill_one() -> None:
        while job.core is None or job.core.tree_figures().complete < KILL_AT:
            if over.wait(0.002):
                return
        while not (pid := (place / "double.1").read_text()):  # it is being written again
            if over.wait(0.002):
                return
        os.kill(int(pid), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    report = job.run(view="off")
    over.set()
    killer.join()

    assert report.trees is not None
    assert (report.trees.complete, report.trees.ledger_now) == (ROOTS, 0)
    assert (report.records_saved, report.bolts_lost) == (ROOTS, 1)
    got = [int(line) for path in place.glob("got.*") for line in path.read_text().split()]
    assert set(got) == {2 * n for n in range(1, ROOTS + 1)}
    assert not [t.name for t in threading.enumerate() if t.name.startswith("flowctl-b")]
    assert session.range(5).count() == 5, "the user's session must live on"
    session.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run_on_connect(Path(folder))
    print("fine")
