"""One local Spark for all integration tests of a run: a session takes 5-9 s to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parents[2]
# What workers must be able to import: ours, and test modules, which are shipped by name.
_WORKER_PATH = [_ROOT, _ROOT / "adapters", Path(__file__).parent]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The local session: 12 slots for bolts and one to spare; a task may fail seven times."""
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
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .getOrCreate()
        )
        yield session
        session.stop()
