"""The job of the cluster's scenarios: lines of a file into PostgreSQL, each begun tuple noted.

``NOTES`` is a folder on the machine's own disk, which no host of a real cluster would share: it
is how the scenarios count and time, and nothing of flowctl goes through it.
"""

import os
import socket
import time

from flowctl import FlowControlSpout
from flowctl_files import TextLines, TextRanges
from flowctl_sql import SqlSink
from pyspark_flowctl import SparkBolts

NOTES = os.environ["NOTES"]
RECORD_S = float(os.environ["RECORD_S"])
NAME = os.environ["JOB"]

sink = SqlSink(
    os.environ["SINK"],
    table="lines",
    schema="CREATE TABLE IF NOT EXISTS lines (job TEXT, line BIGINT, text TEXT)",
)


def load(batch):
    lines = [int(record.value.split()[1]) for record in batch[:]]
    host = socket.gethostname()
    # CLOCK_MONOTONIC is one for all hosts here, whatever their wall clocks say.
    note = f"{time.monotonic():.3f} {batch.span.epoch} {batch.bolt} {host} {lines}\n"
    path = f"{NOTES}/{batch.span.epoch}-{batch.bolt}-{host}-{os.getpid()}"
    with open(path, "a", encoding="ascii") as notes:
        notes.write(note.replace(", ", ","))
    time.sleep(RECORD_S * len(lines))
    rows = [
        {"job": NAME, "line": line, "text": record.value}
        for line, record in zip(lines, batch, strict=True)
    ]
    sink.write(rows, batch=batch)


spout = FlowControlSpout(
    name=NAME,
    producer=(TextRanges if "RANGES" in os.environ else TextLines)(os.environ["LINES"]),
    bolts=SparkBolts(load, count=int(os.environ["BOLTS"])),
    checkpoint=os.environ["REDIS"],
)
