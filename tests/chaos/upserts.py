"""Kill the writers of upserts again and again: ``python -m tests.chaos.upserts --kills 10``.

64 partitions of columns are written by ``SqlSink(mode="upsert")`` into PostgreSQL with 20
connections, MariaDB and SQLite, from processes with more threads than connections.  A process is
killed at a random moment, and begins its partitions again some batches before where they were.  A
key belongs to one partition, so its last row is known: in the end the table must have it for each
key.  Then all is loaded a second time, which must fail nowhere.  Exit code 1 if something differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.errors import RetryLater
from flowctl_sql import SqlSink

CONNECTIONS = 20
PROCESSES, THREADS = 4, 8  # more than the connections
BEHIND = 3  # batches that a killed process writes again at least
RUN_S = 600.0  # without a new batch for so long, a run hangs
SCHEMA = "CREATE TABLE upserts (k BIGINT PRIMARY KEY, v BIGINT, line VARCHAR(40))"
ROOT = Path(__file__).parents[2]


class Load(NamedTuple):
    """What is written: ``number`` 2 is the second load, whose values are others."""

    rows: int
    keys: int
    partitions: int
    batch: int
    number: int = 1

    def values_of(self, partition: int) -> Iterator[tuple[int, int]]:
        """The keys and values of a partition, in order: the same at each call."""
        rng = random.Random(partition)
        for at in range(self.rows // self.partitions):
            key = rng.randrange(self.keys // self.partitions) * self.partitions + partition
            yield key, at + self.number * 10**9

    def batches(self, partition: int) -> Iterator[tuple[Batch, Any]]:
        """A partition's batches, each with its columns."""
        import pyarrow

        pairs = list(self.values_of(partition))
        for first in range(0, len(pairs), self.batch):
            keys, values = zip(*pairs[first : first + self.batch], strict=True)
            acked = first - BEHIND * self.batch - 1
            span = Span(
                f"load {self.number}", str(partition), first, first + len(keys) - 1, 1,
                acked if acked >= 0 else None,
            )  # fmt: skip
            records = [Record(first + at, None) for at in range(len(keys))]
            lines = [f"línea {value}" for value in values]
            columns = pyarrow.RecordBatch.from_pydict({"k": keys, "v": values, "line": lines})
            yield Batch(records, span, bolt="b", attempt=1), columns

    def model(self) -> dict[int, int]:
        """The last value of each key."""
        return {
            key: value for part in range(self.partitions) for key, value in self.values_of(part)
        }


def work(load: Load, url: str, place: Path, process: int) -> None:
    """Write every partition of one process; exit 1 at an error that is no refusal."""
    sink = SqlSink(url, table="upserts", schema=SCHEMA, mode="upsert", key=["k"])

    def write(thread: int) -> None:
        slot = process * THREADS + thread
        for partition in range(slot, load.partitions, PROCESSES * THREADS):
            _write_partition(load, sink, place / f"{load.number}-{partition}", partition)
        sink.close()

    failed: list[BaseException] = []

    def guarded(thread: int) -> None:
        try:
            write(thread)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _write_partition(load: Load, sink: SqlSink, mark: Path, partition: int) -> None:
    done = int(mark.read_text() or 0) if mark.exists() else 0
    for number, (batch, columns) in enumerate(load.batches(partition)):
        if number < done - BEHIND:
            continue
        while True:
            try:
                sink.write(columns, batch=batch)
                break
            except RetryLater:
                sink.release()
                time.sleep(random.uniform(0.05, 0.3))
        new = mark.with_suffix(".new")
        new.write_text(str(number + 1))
        new.rename(mark)
    sink.release()  # for those who wait for a connection


class Job:
    """The processes of one load, from outside."""

    def __init__(self, load: Load, url: str, place: Path) -> None:
        self._load, self._place = load, place
        self._options = [str(part) for part in load]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "adapters"), *sys.path]),
            "URL": url,
            "PLACE": str(place),
        }
        self._processes = [self._started(number) for number in range(PROCESSES)]

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.upserts", "--worker", str(number), *self._options],
            env=self._environment,
            cwd=ROOT,
        )

    def _batches_done(self) -> int:
        done = 0
        for mark in self._place.glob(f"{self._load.number}-*"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                done += int(mark.read_text()) if not mark.suffix else 0
        return done

    def run(self, kills: int, rng: random.Random) -> None:
        """Wait until all is written; kill one process at each of ``kills`` random moments."""
        each = -(-(self._load.rows // self._load.partitions) // self._load.batch)
        whole = each * self._load.partitions
        moments = sorted(rng.randrange(whole * 9 // 10) for _ in range(kills))
        newest, since_s = -1, time.monotonic()
        while any(process.poll() is None for process in self._processes):
            done = self._batches_done()
            if done > newest:
                newest, since_s = done, time.monotonic()
            if time.monotonic() > since_s + RUN_S:
                raise RuntimeError(f"{done} of {whole} batches, and no more")
            living = [n for n, each in enumerate(self._processes) if each.poll() is None]
            if moments and done >= moments[0] and living:
                moments.pop(0)
                number = rng.choice(living)
                self._processes[number].kill()
                self._processes[number].wait()
                self._processes[number] = self._started(number)
            time.sleep(0.02)
        if any(process.returncode for process in self._processes) or moments:
            raise RuntimeError(f"a writer failed, or {len(moments)} kills came too late")

    def stop(self) -> None:
        """End what is left."""
        for process in self._processes:
            process.kill()
            process.wait()


def check(load: Load, url: str, place: Path, kills: int, seed: int) -> None:
    """Load twice, the first time with kills, and compare; raises :class:`RuntimeError`."""
    for number in (1, 2):
        current = load._replace(number=number)
        begun_s = time.monotonic()
        job = Job(current, url, place)
        try:
            job.run(kills if number == 1 else 0, random.Random(seed))
        finally:
            job.stop()
        found, model = dict(_rows(url)), current.model()
        if found != model:
            differ = sum(found.get(key) != value for key, value in model.items())
            raise RuntimeError(f"load {number}: {differ} of {len(model)} keys differ")
        print(
            f"load {number}: {load.rows:,} rows on {len(model):,} keys in"
            f" {time.monotonic() - begun_s:.0f} s, {kills if number == 1 else 0} kills: exact",
            flush=True,
        )


def _rows(url: str) -> list[tuple[int, int]]:
    import sqlalchemy

    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        found = connection.execute(sqlalchemy.text("SELECT k, v, line FROM upserts")).fetchall()
    engine.dispose()
    assert all(line == f"línea {value}" for _, value, line in found)
    return [(key, value) for key, value, _ in found]


@contextlib.contextmanager
def database(name: str, place: Path) -> Iterator[str]:
    """The URL of a new database."""
    if name == "sqlite":
        yield f"sqlite:///{place}/out.db"
        return
    sys.path.insert(0, str(ROOT / "tests/integration"))
    server: Any
    if name == "postgresql":
        from sink_parts import Postgres

        (place / "pg").mkdir()
        server = Postgres(place / "pg")
        server.start(f"max_connections={CONNECTIONS}", "superuser_reserved_connections=1")
        url = server.uri
    else:
        from mariadb_parts import MariaDb

        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        server = MariaDb(place / "mariadb", port)
        server.start()
        url = server.url
    try:
        yield url
    finally:
        server.kill()


def main() -> int:
    """Do it for each database that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("databases", nargs="*", default=["postgresql", "mariadb", "sqlite"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    load = Load(options.rows, options.keys, options.partitions, options.batch)
    for name in options.databases:
        with tempfile.TemporaryDirectory() as made, database(name, Path(made)) as url:
            print(f"{name}:", flush=True)
            check(load, url, Path(made), options.kills, options.seed)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        number, *load_of = map(int, sys.argv[2:])
        work(Load(*load_of), os.environ["URL"], Path(os.environ["PLACE"]), number)
    else:
        sys.exit(main())
