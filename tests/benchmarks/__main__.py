"""``make bench``: every figure that the README quotes, with the machine it was taken on."""

from __future__ import annotations

import argparse
import sys

from tests.benchmarks import (
    async_bench,
    control,
    core_bench,
    makespan,
    outage,
    sql_sink,
    stages,
    throughput,
    topology_bench,
)
from tests.benchmarks.parts import local_session, machine


def main() -> int:
    """Run the named parts (default: all but control and stages); exit 1 if a gate is missed."""
    if sys.argv[1:2] == ["control"]:  # has arguments of its own
        return control.main(sys.argv[2:])
    if sys.argv[1:2] == ["stages"]:
        return stages.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        default=[],
        metavar="async|core|topology|throughput|makespan|outage|sql|control ...|stages ...",
    )
    all_parts = ["core", "topology", "async", "throughput", "makespan", "outage", "sql"]
    parts = parser.parse_args().parts or all_parts
    print(machine())
    ok = True
    if "core" in parts:
        ok = core_bench.main() and ok
    if "topology" in parts:
        ok = topology_bench.main() and ok
    if "async" in parts:
        ok = async_bench.main() and ok
    ok = _on_spark(parts) and ok
    print("all gates hold" if ok else "A GATE IS MISSED")
    return 0 if ok else 1


def _on_spark(parts: list[str]) -> bool:
    ok = True
    if {"throughput", "makespan"} & set(parts):
        spark = local_session()
        if "throughput" in parts:
            ok = throughput.main(spark) and ok
        if "makespan" in parts:
            ok = makespan.main(spark) and ok
        spark.stop()
    for name, bench in (("outage", outage), ("sql", sql_sink)):
        if name in parts:
            spark = local_session(bench.BOLTS)
            ok = bench.main(spark) and ok
            spark.stop()
    return ok


if __name__ == "__main__":
    raise SystemExit(main())
