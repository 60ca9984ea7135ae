"""The job that the chaos runs kill: docs/examples/lines_to_sqlite.py, with a journal of its own.

Runs under ``flowctl run``; settings come from the environment, as its driver is a process of
its own.
"""

import os
import time
from pathlib import Path

from flowctl import Batch, FlowControlSpout
from flowctl_files import TextLines
from flowctl_lab.demo import journal
from flowctl_sql import SqlSink
from pyspark_flowctl import SparkBolts

JOURNAL = Path(os.environ["JOURNAL"])
RECORD_S = float(os.environ.get("RECORD_S", "0"))  # what a record costs, beside the sink

sink = SqlSink(
    f"sqlite:///{os.environ['DATABASE']}",
    table="lines",
    schema="CREATE TABLE lines (file TEXT, line INTEGER, text TEXT)",
)


def load(batch: Batch) -> None:
    """Note that the tuple is begun, take the time it costs, write it."""
    journal.enter(JOURNAL, batch)
    time.sleep(RECORD_S * len(batch))
    rows = [
        {"file": batch.span.partition, "line": record.position[1], "text": record.value}
        for record in batch
    ]
    sink.write(rows, batch=batch)


spout = FlowControlSpout(
    name=os.environ["JOB"],
    producer=TextLines(os.environ["LOGS"], errors="replace"),
    bolts=SparkBolts(load, count=12),
)
