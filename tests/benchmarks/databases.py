"""A DataFrame into PostgreSQL, and columns into SQLite and MariaDB, beside what one would pick.

``python -m tests.benchmarks databases`` (part of ``sql``): a million rows of seven columns, from
Spark with its own settings: ``flow_sink(sink=SqlSink(…))``, which is exactly once, beside Spark's
JDBC writer with ``reWriteBatchedInserts``, ``mapInArrow`` with COPY of pyarrow's CSV, and psycopg's
executemany in ``foreachPartition``, which are not.  Then ``SqlSink`` alone: into SQLite beside a
bare executemany, into MariaDB beside PyMySQL's inserts of many rows.  Arms take turns, medians
count, and each arm's rows are counted.

The JDBC driver's jar is ``FLOWCTL_JDBC_JAR``, or Debian's or Maven's; without one that arm is left
out.
"""

from __future__ import annotations

import argparse
import os
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl_sql import SqlSink
from tests.benchmarks.parts import machine

ROWS = 1_000_000
ROUNDS = 5
SLOTS = 2
PER_WRITE = 10_000  # rows of a transaction: as many as Spark has in a batch of Arrow
JOB = "flow_sink(SqlSink)"
JDBC, COPY, PLAIN, UPSERT = "JDBC writer, batched", "mapInArrow + COPY", "executemany", "upsert"
# Of the rows a second of another arm.
GATES = {JOB: ((JDBC, 0.9), (COPY, 0.7)), UPSERT: ((JDBC, 0.5), (COPY, 0.5))}
ALONE_GATES = {"SQLite": 0.9, "MariaDB": 0.8}
_SELECT = (
    "id", "CAST(id % 1000 AS INT) AS account", "id / 7 AS amount", "concat('name ', id) AS name",
    "concat('https://example.org/', id % 977) AS url",
    "timestamp_micros(1790000000000000 + id * 977) AS at", "id % 3 = 0 AS paid",
)  # fmt: skip
_COLUMNS = ("id", "account", "amount", "name", "url", "at", "paid")
_DDL = (
    "CREATE TABLE loaded (id BIGINT{key}, account INT, amount DOUBLE PRECISION,"
    " name VARCHAR(40), url VARCHAR(60), at {time}, paid BOOLEAN)"
)
_JARS = ("/usr/share/java/postgresql*.jar", "~/.m2/repository/org/postgresql/postgresql/*/*.jar")


def find_jar() -> str | None:
    """Return the path of PostgreSQL's JDBC driver; None: there is none."""
    named = os.environ.get("FLOWCTL_JDBC_JAR")
    found = [named] if named else []
    for pattern in _JARS:
        path = Path(pattern).expanduser()
        top = Path(path.anchor)
        found += map(str, sorted(top.glob(str(path.relative_to(top)))))
    return next(iter(found), None)


def _flow_sink(uri: str, **options: Any) -> Callable[[Any], None]:
    from pyspark_flowctl import flow_sink

    return lambda df: flow_sink(
        sink=SqlSink(uri, table="loaded", **options), target="bench"
    ).write(df)  # fmt: skip


def _jdbc(port: int) -> Callable[[Any], None]:
    url = f"jdbc:postgresql://127.0.0.1:{port}/postgres?reWriteBatchedInserts=true&user=postgres"
    properties = {"driver": "org.postgresql.Driver", "batchsize": str(PER_WRITE)}
    return lambda df: df.write.jdbc(url, "loaded", mode="append", properties=properties)


def _copy(uri: str) -> Callable[[Any], None]:
    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import psycopg
        import pyarrow
        from pyarrow import csv

        options = csv.WriteOptions(include_header=False)
        with psycopg.connect(uri) as connection:
            for zoned in batches:
                # As a time with a zone each would take 1 us more.
                at = zoned.schema.get_field_index("at")
                local = zoned.column(at).cast(pyarrow.timestamp("us"))
                batch = zoned.set_column(at, "at", local)
                out = pyarrow.BufferOutputStream()
                csv.write_csv(batch, out, options)
                with connection.cursor().copy("COPY loaded FROM STDIN (FORMAT csv)") as copy:
                    copy.write(memoryview(out.getvalue()))
                connection.commit()
                yield pyarrow.RecordBatch.from_pydict({"rows": [len(batch)]})

    return lambda df: df.mapInArrow(write, "rows long").collect()


def _executemany(uri: str) -> Callable[[Any], None]:
    def write(rows: Iterator[Any]) -> None:
        from itertools import islice

        import psycopg

        statement = f"INSERT INTO loaded VALUES ({', '.join(['%s'] * len(_COLUMNS))})"
        with psycopg.connect(uri) as connection:
            while some := list(map(tuple, islice(rows, PER_WRITE))):
                connection.cursor().executemany(statement, some)
                connection.commit()

    return lambda df: df.foreachPartition(write)


@contextmanager
def _postgres() -> Iterator[Any]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
    from sink_parts import Postgres

    with tempfile.TemporaryDirectory() as place:
        server = Postgres(Path(place))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _session(jar: str | None) -> Any:
    """Spark with its own settings."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    builder = SparkSession.builder.master(f"local[{SLOTS}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if jar is not None:
        builder = builder.config("spark.jars", jar)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def into_postgres(rows: int, rounds: int) -> bool:
    """Compare the ways of a DataFrame into PostgreSQL."""
    jar = find_jar()
    spark = _session(jar)
    with _postgres() as server:
        arms = {JOB: _flow_sink(server.uri), COPY: _copy(server.uri)}
        if jar is None:
            print("no jar of PostgreSQL's JDBC driver: FLOWCTL_JDBC_JAR=… names one")
        else:
            arms[JDBC] = _jdbc(server.port)
        arms[PLAIN] = _executemany(server.uri)
        arms[UPSERT] = _flow_sink(server.uri, mode="upsert", key=["id"])
        df = spark.range(rows, numPartitions=SLOTS).selectExpr(*_SELECT)

        def run(name: str) -> float:
            key = " PRIMARY KEY" if name == UPSERT else ""
            server.execute("DROP TABLE IF EXISTS loaded")
            server.execute(_DDL.format(key=key, time="TIMESTAMP"))
            begun_s = time.monotonic()
            arms[name](df)
            took_s = time.monotonic() - begun_s
            [found] = server.execute("SELECT count(*), count(DISTINCT id) FROM loaded")
            assert tuple(found) == (rows, rows), (name, found)
            return took_s

        for name in arms:  # workers, connections, the JVM's compiler
            run(name)
        took = _in_turns(list(arms), run, rounds)
    spark.stop()
    return _told("PostgreSQL", rows, took, {name: GATES.get(name, ()) for name in arms})


def _in_turns(arms: list[str], run: Callable[[str], float], rounds: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        for name in arms[:: 1 if number % 2 else -1]:
            took[name].append(run(name))
    return took


def _told(
    what: str,
    rows: int,
    took: dict[str, list[float]],
    gates: dict[str, Sequence[tuple[str, float]]],
) -> bool:
    """Print rows a second, and the medians of the rounds' ratios; return whether gates hold."""
    ok = True
    for name, runs in took.items():
        print(f"{what}, {name}: {rows / median(runs):,.0f} rows/s")
        for other, gate in gates.get(name, ()):
            if other not in took:
                continue
            pairs = zip(took[other], runs, strict=True)
            ratio = median(theirs / ours for theirs, ours in pairs)
            ok = ok and ratio >= gate
            missed = "" if ratio >= gate else ": MISSED"
            print(f"  {ratio:.2f} of {other} (gate {gate}{missed})")
    return ok


# -- SqlSink alone, without Spark ----------------------------------------------------------------


def _batches(rows: int) -> list[Any]:
    import pyarrow

    numbers = range(rows)
    table = pyarrow.table(
        {
            "id": pyarrow.array(numbers),
            "account": pyarrow.array([n % 1000 for n in numbers], pyarrow.int32()),
            "amount": [n / 7 for n in numbers],
            "name": [f"name {n}" for n in numbers],
            "url": [f"https://example.org/{n % 977}" for n in numbers],
            "at": pyarrow.array([1790000000000000 + n * 977 for n in numbers]).cast(
                pyarrow.timestamp("us")
            ),
            "paid": [n % 3 == 0 for n in numbers],
        }
    )
    found: list[Any] = table.to_batches(max_chunksize=PER_WRITE)
    return found


def _by_sink(url: str, batches: list[Any], job: str) -> None:
    sink, first = SqlSink(url, table="loaded"), 0
    for columns in batches:
        count = len(columns)
        records = [Record(first + at, None) for at in range(count)]
        span = Span(job, "p", first, first + count - 1, 1, first - 1 if first else None)
        sink.write(columns, batch=Batch(records, span, bolt="b", attempt=1))
        first += count
    sink.close()


def _tuples(columns: Any) -> list[tuple[Any, ...]]:
    return list(zip(*[column.to_pylist() for column in columns.columns], strict=True))


def into_sqlite(rows: int, rounds: int) -> bool:
    """Compare with executemany into one file."""
    import warnings

    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on SQLite's times
    batches = _batches(rows)

    def run(name: str) -> float:
        with tempfile.TemporaryDirectory() as place:
            connection = sqlite3.connect(f"{place}/out.db", isolation_level=None)
            connection.execute(_DDL.format(key="", time="TEXT"))
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            begun_s = time.monotonic()
            if name == "SqlSink":
                _by_sink(f"sqlite:///{place}/out.db", batches, "bench")
            else:
                for columns in batches:
                    connection.execute("BEGIN IMMEDIATE")
                    statement = "INSERT INTO loaded VALUES (?, ?, ?, ?, ?, ?, ?)"
                    connection.executemany(statement, _tuples(columns))
                    connection.execute("COMMIT")
            took_s = time.monotonic() - begun_s
            assert connection.execute("SELECT count(*) FROM loaded").fetchone() == (rows,)
            connection.close()
        return took_s

    took = _in_turns(["SqlSink", PLAIN], run, rounds)
    return _told("SQLite", rows, took, {"SqlSink": [(PLAIN, ALONE_GATES["SQLite"])]})


def into_mariadb(rows: int, rounds: int) -> bool:
    """Compare with PyMySQL, which puts many rows into one INSERT."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
    import pymysql
    from mariadb_parts import MariaDb, find_mariadbd

    if find_mariadbd() is None:
        print("no MariaDB: python .ci/get_mariadb.py")
        return True
    batches = _batches(rows)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as place:
        server = MariaDb(Path(place) / "mariadb", port)
        server.start()

        def run(name: str) -> float:
            server.execute("DROP TABLE IF EXISTS loaded")
            server.execute(_DDL.format(key="", time="DATETIME(6)"))
            begun_s = time.monotonic()
            if name == "SqlSink":
                _by_sink(server.url, batches, f"bench {begun_s}")
            else:
                connection = pymysql.connect(
                    host="127.0.0.1", port=port, user="root", database="test"
                )
                statement = "INSERT INTO loaded VALUES (%s, %s, %s, %s, %s, %s, %s)"
                for columns in batches:
                    connection.cursor().executemany(statement, _tuples(columns))
                    connection.commit()
                connection.close()
            took_s = time.monotonic() - begun_s
            assert server.execute("SELECT count(*) FROM loaded") == [(rows,)]
            return took_s

        try:
            took = _in_turns(["SqlSink", "inserts of many rows"], run, rounds)
        finally:
            server.kill()
    gates = {"SqlSink": [("inserts of many rows", ALONE_GATES["MariaDB"])]}
    return _told("MariaDB", rows, took, gates)


def main(arguments: Sequence[str] = ()) -> int:
    """Print the figures; return 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks databases")
    parts = {"postgresql": into_postgres, "sqlite": into_sqlite, "mariadb": into_mariadb}
    parser.add_argument("parts", nargs="*", default=list(parts))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    print(machine())
    ok = True
    for name in options.parts:
        # A database alone shows its rate with fewer rows.
        rows = options.rows if name == "postgresql" else options.rows // 5
        ok = parts[name](rows, options.rounds) and ok
    return 0 if ok else 1
