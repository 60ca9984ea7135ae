"""SparkBolts on other sessions: its own, Spark Connect, and several executors.

Each in a process of its own: one process holds one kind of session.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from fault_parts import QUICK_JVM, run_as_program
from spark_bolts_peer import Peer

from flowctl.bolts.batch import Batch
from flowctl.core.messages import Ack
from pyspark_flowctl.bolts import SparkBolts

pytestmark = [pytest.mark.spark, pytest.mark.on_change("spark")]


def accept(batch: Batch) -> None:
    for _ in batch:
        pass


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def own_session() -> None:
    from pyspark import SparkContext

    before = signal.getsignal(signal.SIGINT)
    with Peer(SparkBolts(accept, count=3)) as peer:
        peer.until_there(3)
        for _ in range(6):
            peer.kill("b2")
        assert isinstance(peer.process("b2", 1, ["x"]), Ack)
        assert SparkContext._active_spark_context is not None
        assert SparkContext._active_spark_context.master.startswith("local[4,")
        peer.end()
        peer.until_there(0)
    assert SparkContext._active_spark_context is None, "its own session must be stopped"
    assert signal.getsignal(signal.SIGINT) is before, "Ctrl-C must stay ours"
    assert "PYSPARK_PYTHON" not in os.environ
    # And again, in the same process: the JVM is there already.
    with Peer(SparkBolts(accept, count=1)) as peer:
        peer.until_there(1)
        peer.end()
        peer.until_there(0)


def connect() -> None:
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.remote("local[4]")
        .config("spark.driver.extraJavaOptions", QUICK_JVM)
        .getOrCreate()
    )
    with Peer(SparkBolts(accept, count=3)) as peer:
        assert peer.server.endpoint.host == "127.0.0.1"
        peer.until_there(3)
        assert isinstance(peer.process("b1", 1, ["x"]), Ack)
        peer.kill("b3")
        assert isinstance(peer.process("b3", 2, ["x"]), Ack)
        peer.there.pop("b2")  # it hears no END: it has to be cancelled
        peer.end()
        peer.until_there(0)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("flowctl-b")]
    assert session.range(5).count() == 5
    session.stop()


def executors() -> None:
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local-cluster[3,2,512]")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", QUICK_JVM)
        .config("spark.driver.extraJavaOptions", QUICK_JVM)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    with Peer(SparkBolts(accept, count=6)) as peer:
        peer.until_there(6)
        executor_of = {bolt: parent(parent(peer.there[bolt].pid)) for bolt in peer.there}
        assert len(set(executor_of.values())) == 3
        victim = executor_of["b1"]
        hit = {bolt for bolt, executor in executor_of.items() if executor == victim}
        os.kill(victim, signal.SIGKILL)
        peer.until(lambda: all(b in peer.there and peer.there[b].epoch > 1 for b in hit))
        peer.until_there(6)
        unhit = set(executor_of) - hit
        assert all(peer.there[bolt].epoch == 1 for bolt in unhit)
        assert isinstance(peer.process("b1", 1, ["x"]), Ack)
        peer.end()
        peer.until_there(0)
    session.stop()


def test_a_session_of_its_own_is_quiet_and_stopped() -> None:
    done = run_as_program(__file__, "own_session")
    assert done.stderr == "", "nothing of Spark's may reach the terminal"


def test_bolts_run_on_spark_connect() -> None:
    run_as_program(__file__, "connect")


def test_bolts_of_a_killed_executor_come_back() -> None:
    run_as_program(__file__, "executors")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("fine")
