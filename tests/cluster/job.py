"""The job of the cluster's scenarios: lines of files into PostgreSQL, each begun batch noted.

``flowctl run`` takes its ``spout``; as a program it is what ``PROGRAM`` names, in a Spark session
of its own.  ``NOTES`` is a folder on the machine's own disk, which no host of a real cluster would
share: it is how the scenarios count and time, and nothing of flowctl goes through it.
"""

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from flowctl import FlowControlSpout, Settings
from flowctl_files import TextLines, TextRanges
from flowctl_sql import SqlSink
from pyspark_flowctl import SparkBolts, apply, flow_sink

NOTES = os.environ["NOTES"]
RECORD_S = float(os.environ["RECORD_S"])
NAME = os.environ["JOB"]
BOLTS = os.environ["BOLTS"]
HOLD = int(os.environ.get("HOLD", "0"))  # nobody goes on before so many bolts have begun

_SCHEMA = "CREATE TABLE IF NOT EXISTS lines (job TEXT, line BIGINT, text TEXT)"
sink = SqlSink(os.environ["SINK"], table="lines", schema=_SCHEMA)


def begin(batch, texts):
    """Note what a bolt begins, and take as long as it takes; return the lines' numbers."""
    lines = [int(text.split()[1]) for text in texts]
    host, bolt = (
        os.environ.get("CLUSTER_HOST") or socket.gethostname(),
        batch.bolt.rpartition("/")[2],
    )
    # CLOCK_MONOTONIC is one for all hosts here, whatever their wall clocks say.
    note = f"{time.monotonic():.3f} {batch.span.epoch} {bolt} {host} {lines}\n"
    path = f"{NOTES}/{batch.span.epoch}-{bolt}-{host}-{os.getpid()}"
    with open(path, "a", encoding="ascii") as notes:
        notes.write(note.replace(", ", ","))
    while HOLD and len({name.split("-")[1] for name in os.listdir(NOTES)}) < HOLD:
        time.sleep(0.5)  # of 200 bolts, that is 400 looks a second
    time.sleep(RECORD_S * len(lines))
    return lines


def load(batch):
    values = [record.value for record in batch[:]]
    texts = [value if isinstance(value, str) else value.value for value in values]  # of a Row
    lines = begin(batch, texts)
    rows = [
        {"job": NAME, "line": line, "text": text} for line, text in zip(lines, texts, strict=True)
    ]
    for _ in batch:  # which records it has worked on
        pass
    sink.write(rows, batch=batch)


def read(batch):
    texts = [record.value["value"] for record in batch]
    return list(zip(begin(batch, texts), texts, strict=True))


spout = FlowControlSpout(
    name=NAME,
    producer=(TextRanges if "RANGES" in os.environ else TextLines)(os.environ["LINES"]),
    bolts=SparkBolts(load, count=BOLTS if BOLTS == "auto" else int(BOLTS)),
    checkpoint=os.environ["REDIS"],
    # Small tuples, so that much happens in a short run; no copies at the end of the input, so that
    # what runs twice does so by a fault.
    settings=Settings().with_overrides({"tuple.records_max": 10, "hedge.enabled": False}),
)


def write_rows(spark):
    """A DataFrame through ``flow_sink``."""
    rows = spark.read.text(os.environ["LINES"])
    print(flow_sink(load, target="pg", redis=os.environ["REDIS"], name=NAME).write(rows))


def apply_rows(spark):
    """A DataFrame through ``apply``; what it returns goes to the sink at the end."""
    rows = spark.read.text(os.environ["LINES"])
    made = apply(
        rows, read, schema="line long, text string", name=NAME, out=os.environ["OUT"],
        bolts=int(BOLTS), checkpoint=os.environ["REDIS"], view="plain",
    )  # fmt: skip
    import psycopg

    with psycopg.connect(os.environ["SINK"]) as connection, connection.cursor() as cursor:
        cursor.execute(_SCHEMA)
        found = [(NAME, row.line, row.text) for row in made.collect()]
        cursor.executemany("INSERT INTO lines VALUES (%s, %s, %s)", found)


def beside_jobs(spark):
    """The run beside jobs of the program's own, as one of a scheduler's two pools."""
    from pyspark import InheritableThread

    failed = []

    def work():
        try:
            spout.run(view="plain")
        except BaseException as error:
            failed.append(error)

    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "bolts")
    run = InheritableThread(target=work)
    run.start()
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "mine")
    done = 0
    while run.is_alive():
        done += spark.sparkContext.parallelize(range(100), 4).count() == 100
    run.join()
    if failed:  # an error that ends only its thread leaves the program with exit code 0
        raise failed[0]
    _tell(done)


def follow_executors(spark):
    """The run with dynamic allocation; how many executors before, at most, and after it."""
    store = spark.sparkContext._jsc.sc().statusStore()
    counts, over = [], threading.Event()

    def watch():
        while not over.wait(0.2):
            counts.append(store.executorList(True).size() - 1)  # one is the driver

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            time.sleep(1)
            spout.run(view="plain")
            by_s = time.monotonic() + 60  # the idle time-out is 2 s
            while not watching.done() and counts[-1:] != [0] and time.monotonic() < by_s:
                time.sleep(0.2)
        finally:
            over.set()
        watching.result()  # an error of its ends the program, too
    _tell([counts[0], max(counts), counts[-1]])


def _tell(found):
    with open(os.environ["TOLD"], "w", encoding="ascii") as told:
        json.dump(found, told)


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(os.environ["CLUSTER_MASTER"]).getOrCreate()
    programs = (write_rows, apply_rows, beside_jobs, follow_executors)
    {program.__name__: program for program in programs}[os.environ["PROGRAM"]](spark)
    spark.stop()
