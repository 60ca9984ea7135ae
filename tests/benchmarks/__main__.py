"""``make bench``: every figure that the README quotes, with the machine it was taken on."""

from __future__ import annotations

import argparse
import os
import platform
import sys

from tests.benchmarks import core_bench, makespan, throughput


def main() -> int:
    """Run the named parts (default: all); exit 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", default=[], metavar="core|throughput|makespan")
    parts = parser.parse_args().parts or ["core", "throughput", "makespan"]
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}"
    )
    ok = True
    if "core" in parts:
        ok = core_bench.main() and ok
    if {"throughput", "makespan"} & set(parts):
        spark = _session()
        if "throughput" in parts:
            ok = throughput.main(spark) and ok
        if "makespan" in parts:
            ok = makespan.main(spark) and ok
        spark.stop()
    print("all gates hold" if ok else "A GATE IS MISSED")
    return 0 if ok else 1


def _session() -> object:
    """A local Spark with a slot per bolt, its workers warm."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    spark = (
        SparkSession.builder.master("local[12,8]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.parallelize(range(48), 48).foreach(lambda _: __import__("time").sleep(0.2))
    return spark


if __name__ == "__main__":
    raise SystemExit(main())
