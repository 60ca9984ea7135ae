"""``make bench``: every figure that the README quotes, with the machine it was taken on."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence

from tests.benchmarks import (
    async_bench,
    control,
    core_bench,
    crowd,
    databases,
    flow_sink_bench,
    http_sink,
    law,
    makespan,
    metrics_bench,
    outage,
    pacing,
    pacing_spark,
    page_bench,
    partitions,
    quota,
    range_driver,
    range_link,
    ranges,
    restart,
    slow_stage,
    sql_sink,
    stages,
    streaming,
    throughput,
    topology_bench,
    wire_bench,
)
from tests.benchmarks.parts import local_session, machine

_OWN_ARGUMENTS: dict[str, Callable[[Sequence[str]], int]] = {
    "control": control.main,
    "crowd": crowd.main,
    "databases": databases.main,
    "flow-sink": flow_sink_bench.main,
    "http": http_sink.main,
    "law": law.main,
    "metrics": metrics_bench.main,
    "page": page_bench.main,
    "pacing": pacing.main,
    "pacing-spark": pacing_spark.main,
    "partitions": partitions.main,
    "quota": quota.main,
    "range-driver": range_driver.main,
    "range-link": range_link.main,
    "ranges": ranges.main,
    "restart": restart.main,
    "slow-stage": slow_stage.main,
    "stages": stages.main,
    "streaming": streaming.main,
    "wire": wire_bench.main,
}


def main() -> int:
    """Run the named parts; by default those without arguments.  Exit 1 if a gate is missed."""
    own = _OWN_ARGUMENTS.get(sys.argv[1] if sys.argv[1:] else "")
    if own is not None:
        return own(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        default=[],
        metavar="async|core|topology|throughput|makespan|outage|sql"
        "|crowd ...|databases ...|flow-sink ...|http ...|law ...|metrics ...|page ...|pacing ..."
        "|pacing-spark ...|partitions ...|quota ..."
        "|range-driver ...|range-link ...|ranges ...|restart ...|slow-stage ..."
        "|wire ...|control ...|stages ..."
        "|streaming ...",
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
    if "sql" in parts:  # with Spark's own settings, which are those of a JVM
        command = [sys.executable, "-m", "tests.benchmarks", "databases"]
        ok = subprocess.run(command, check=False).returncode == 0 and ok
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
