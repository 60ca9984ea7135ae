"""A Spark job that writes a DataFrame through ``flow_sink``."""

import os
import socket
import time

from pyspark.sql import SparkSession

from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink

NOTES = os.environ["NOTES"]
RECORD_S = float(os.environ["RECORD_S"])
NAME = os.environ["JOB"]

sink = SqlSink(
    os.environ["SINK"],
    table="lines",
    schema="CREATE TABLE IF NOT EXISTS lines (job TEXT, line BIGINT, text TEXT)",
)


def load(batch):
    lines = [record.value.line for record in batch[:]]
    host = socket.gethostname()
    note = f"{time.monotonic():.3f} 1 p{batch.span.partition.rpartition('/')[2]} {host} {lines}\n"
    with open(f"{NOTES}/{host}-{os.getpid()}", "a", encoding="ascii") as notes:
        notes.write(note.replace(", ", ","))
    time.sleep(RECORD_S * len(lines))
    rows = [record.value.asDict() for record in batch]
    sink.write(rows, batch=batch)


if __name__ == "__main__":
    spark = SparkSession.builder.master("spark://master:7077").getOrCreate()
    rows = spark.read.text(os.environ["LINES"]).selectExpr(
        f"'{NAME}' AS job", "CAST(split(value, ' ')[1] AS BIGINT) AS line", "value AS text"
    )
    print(flow_sink(load, target="pg", redis=os.environ["REDIS"], name=NAME).write(rows))
    spark.stop()
