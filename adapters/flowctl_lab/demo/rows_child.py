"""The driver of ``demo --ranges``: ``python -m flowctl_lab.demo.rows_child DIRECTORY``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from flowctl.adapters import load_adapter
from flowctl.cli.exiting import leave
from flowctl.cli.main import explain
from flowctl.errors import EXIT_FINISHED, EXIT_INTERRUPTED, FlowctlError
from flowctl.instrumentation.logging import configure
from flowctl_lab.demo.rows import JOB, SCHEMA, Parse, RowsPlan


def main(directory: str) -> int:
    """Run the job of the plan in ``directory`` once; return the exit code."""
    configure(flow_events=False)
    place = Path(directory)
    plan = RowsPlan.load(place)
    parse = Parse(plan.seconds * plan.bolts / plan.records)
    how: dict[str, Any] = {"name": JOB, "out": str(place / "out"), "bolts": plan.bolts}
    how["view"] = plan.view
    try:
        if plan.local:
            _on_threads(place, parse, how)
        else:
            _on_spark(place, plan, parse, how)
    except FlowctlError as error:
        return explain(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FINISHED


def _on_threads(place: Path, parse: Parse, how: dict[str, Any]) -> None:
    pyarrow: Any = importlib.import_module("pyarrow")
    kinds = {"id": pyarrow.int64(), "client": pyarrow.string(), "status": pyarrow.int32()}
    apply = load_adapter("flowctl_apply.parquet_apply", "parquet").apply_parquet
    apply(str(place / "in"), parse, schema=pyarrow.schema(list(kinds.items())), **how)


def _on_spark(place: Path, plan: RowsPlan, parse: Parse, how: dict[str, Any]) -> None:
    load_adapter("pyspark_flowctl.java", "spark").ensure_java()
    sql: Any = importlib.import_module("pyspark.sql")
    spark = (
        sql.SparkSession.builder.master(f"local[{plan.bolts + 1},8]")
        .appName("flowctl demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    apply = load_adapter("pyspark_flowctl.apply_rows", "spark").apply
    rows = spark.read.parquet(str(place / "in"))
    apply(rows, parse, schema=SCHEMA, **how).groupBy("status").count().orderBy("status").show()
    spark.stop()


if __name__ == "__main__":
    leave(main(*sys.argv[1:]))
