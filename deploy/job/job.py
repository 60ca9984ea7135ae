"""The job of compose.yaml: numbers into a table of PostgreSQL, each exactly once."""

import os
import time

from flowctl import FlowControlSpout
from flowctl_sql import SqlSink
from pyspark_flowctl import SparkBolts

sink = SqlSink(
    os.environ["SINK"],
    table="squares",
    schema="CREATE TABLE IF NOT EXISTS squares (n BIGINT, square BIGINT)",
)


def load(batch):
    rows = [{"n": record.value, "square": record.value**2} for record in batch]
    time.sleep(0.02 * len(rows))  # the call that is worth a cluster
    sink.write(rows, batch=batch)


spout = FlowControlSpout(
    name="squares",
    producer=range(1, int(os.environ.get("NUMBERS", "20000")) + 1),
    bolts=SparkBolts(load, count=4),
)
