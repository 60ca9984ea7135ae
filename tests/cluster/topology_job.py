"""A topology on the cluster: lines are parsed in one stage and written by another."""

import os
import socket
import time

from flowctl_files import TextLines
from flowctl_storm import SparkStages, Topology

NOTES = os.environ["NOTES"]
RECORD_S = float(os.environ["RECORD_S"])
NAME = os.environ["JOB"]
SINK = os.environ["SINK"]
HOST = os.environ.get("CLUSTER_HOST") or socket.gethostname()


def parse(given, out):
    time.sleep(RECORD_S)
    out({"line": int(given.value.split()[1]), "text": given.value})


def store(given, out):
    import psycopg

    line = given.value["line"]
    with open(f"{NOTES}/1-{out.bolt}-{os.getpid()}", "a", encoding="ascii") as notes:
        notes.write(f"{time.monotonic():.3f} 1 {out.bolt} {HOST} [{line}]\n")
    with psycopg.connect(SINK) as connection:
        connection.execute(
            "INSERT INTO lines VALUES (%s, %s, %s)", (NAME, line, given.value["text"])
        )


topology = Topology(NAME)
topology.spout("lines", TextLines(os.environ["LINES"]))
topology.bolt("parse", parse, count=2).shuffle("lines")
topology.bolt("store", store, count=2).fields("parse", "line")
spout = topology.job(SparkStages(), checkpoint=os.environ["REDIS"])
