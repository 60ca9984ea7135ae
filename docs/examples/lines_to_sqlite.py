"""Every line of some log files into SQLite, with its file and line number.

    flowctl run docs/examples/lines_to_sqlite.py:spout

Kill it at any moment and run it again: it goes on where it was, and no line is lost or doubled.
``LOGS`` (a glob), ``DATABASE`` and ``FLOWCTL_REDIS_URL`` in the environment change what it reads
and where it writes.
"""

import os

from flowctl import Batch, FlowControlSpout
from flowctl_files import TextLines
from flowctl_sql import SqlSink
from pyspark_flowctl import SparkBolts

sink = SqlSink(
    f"sqlite:///{os.environ.get('DATABASE', 'lines.db')}",
    table="lines",
    schema="CREATE TABLE lines (file TEXT, line INTEGER, text TEXT)",
)


def load(batch: Batch) -> None:
    """Write one tuple's lines; runs on a Spark worker."""
    rows = [
        {"file": batch.span.partition, "line": record.position[1], "text": record.value}
        for record in batch
    ]
    sink.write(rows, batch=batch)


spout = FlowControlSpout(
    name="lines-to-sqlite",
    producer=TextLines(os.environ.get("LOGS", "logs/*.log"), errors="replace"),
    bolts=SparkBolts(load, count=12),
)
