"""What integration tests share: one local Spark, as a session takes 5-9 s to start; a job of lines.

Tests that are about our threads ask for ``no_thread_is_left``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fault_parts import OUR_DAEMON, QUICK_JVM, until
from lines_parts import Lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of the JVM that only builds the command of the next one.
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JVM)

_ROOT = Path(__file__).parents[2]
# What workers must be able to import: ours, and test modules, which are shipped by name.
_WORKER_PATH = [_ROOT, _ROOT / "adapters", Path(__file__).parent]


@pytest.fixture(scope="session", autouse=True)
def sink_jobs_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where ``tests.sink_jobs`` writes on workers.

    They get the environment of the JVM, which starts with the first session of the process, in
    whatever test that is.
    """
    folder = tmp_path_factory.mktemp("sink_jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINK_JOBS_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A local session: 12 slots for bolts and one to spare; a task may fail seven times.

    Of each module its own: some modules need a session with other settings.
    """
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # else workers take python3 on PATH
        known = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join([*map(str, _WORKER_PATH), known]))
        session = (
            SparkSession.builder.master("local[13,8]")
            .appName("flowctl-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            # Saves about 40 % of the start-up CPU; the JVM does little here.
            .config("spark.driver.extraJavaOptions", QUICK_JVM)
            # As a session of our own has it: a worker costs .1 s of CPU time, not .5.  Tests with
            # workers as Spark starts them are test_spark_bolts and those with other programs.
            .config(*OUR_DAEMON)
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    """A job of 3,000 lines."""
    return Lines(tmp_path, 3_000)


def _ours() -> set[threading.Thread]:
    """The threads of ours, but for the event loop, which lasts as long as the process."""
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("flowctl-") and thread.name != "flowctl-async"
    }


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """All threads of ours that began in the test end with it."""
    before = _ours()  # the page of a run that is over stays
    yield
    left = [thread.name for thread in _ours() - before]
    until(lambda: not _ours() - before, f"the end of {left}", patience_s=20)
