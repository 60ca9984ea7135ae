"""A gigabyte of text counted by status: read by the bolts, by the driver, or by plain Spark.

The same again with lines and statuses written as Parquet, and then what a bolt of ranges costs the
driver (``range-driver``).  All arms run on one warm Spark with two slots, match the same expression
on the same lines and come in turn; the medians are compared.  flowctl's clock runs from when both
bolts are there to the last ack; Spark's around its action, whose workers are warm.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from flowctl.core.events import FlowEvent
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.ports import Process
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl.wire import stream
from flowctl_files import TextLines, TextRanges
from pyspark_flowctl import SparkBolts
from tests.benchmarks import range_driver
from tests.benchmarks.parts import Stopwatch, local_session, machine

BOLTS = 2
FILES = 8
LINE = '10.{}.{}.7 - - [22/Nov/2026:10:00:00 +0000] "GET /shop/item-{} HTTP/1.1" {} {} "-" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0 Safari/537.36"\n'  # noqa: E501
STATUS = re.compile(r'" (\d{3}) ')
AT_LEAST = 1.5  # of the fastest of plain Spark's Python arms
DRIVER_CPU_MAX = 0.02
SOCKET_MAX = 0.001


class Figures(NamedTuple):
    """What one run took: seconds, CPU seconds of all processes, bytes over the driver's sockets.

    ``began_cpu_s``, ``steady_cpu_s`` and ``driver_cpu_s`` are the driver's: until both bolts are
    there, from then to the last ack, and in all.  The first does not grow with the data; the second
    grows with time, not bytes.
    """

    seconds: float
    cpu_s: float
    socket_bytes: int = 0
    began_cpu_s: float = 0.0
    steady_cpu_s: float = 0.0
    driver_cpu_s: float = 0.0


class DriverWatch(Stopwatch):
    """Takes this process's CPU time as well: when each bolt joins, and with each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.joined_cpu_s: list[float] = []
        self.samples_cpu_s: list[float] = []

    def event(self, event: FlowEvent) -> None:
        super().event(event)
        self.joined_cpu_s += [time.process_time()] * (len(self.joined_s) - len(self.joined_cpu_s))

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        self.samples_cpu_s.append(time.process_time())


def write_lines(place: Path, size_bytes: int) -> tuple[int, int]:
    """Write the log in ``FILES`` files; return its lines and bytes."""
    statuses = (200, 200, 200, 304, 404, 500)
    block = "".join(
        LINE.format(n % 251, n % 241, n * 7919 % 100_000, statuses[n % 6], n * 31 % 50_000)
        for n in range(20_000)
    ).encode()
    blocks = max(1, size_bytes // FILES // len(block))
    for number in range(FILES):
        with (place / f"{number}.log").open("wb") as file:
            for _ in range(blocks):
                file.write(block)
    return FILES * blocks * 20_000, FILES * blocks * len(block)


def count_batch(batch: Any) -> None:
    """What a bolt does with its lines."""
    counts: Counter[str] = Counter()
    search = STATUS.search
    for record in batch:
        found = search(record.value)
        counts[found[1] if found else "none"] += 1


def count_lines(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """What a Spark task does with its lines."""
    counts: Counter[str] = Counter()
    search = STATUS.search
    for line in lines:
        found = search(line)
        counts[found[1] if found else "none"] += 1
    return iter(counts.items())


def count_arrow(batches: Iterator[Any]) -> Iterator[Any]:
    """The same with batches of Arrow."""
    import pyarrow

    counts: Counter[str] = Counter()
    for batch in batches:
        counts.update(dict(count_lines(batch.column(0).to_pylist())))
    yield pyarrow.RecordBatch.from_pydict({"status": list(counts), "n": list(counts.values())})


def write_batch(out: str, batch: Any) -> None:
    """What a bolt does that writes: a file for each batch."""
    import pyarrow.parquet

    lines = [record.value for record in batch]
    table = pyarrow.table({"line": lines, "status": _statuses(lines)})
    pyarrow.parquet.write_table(table, f"{out}/{uuid.uuid4().hex}.parquet")


def with_status(batches: Iterator[Any]) -> Iterator[Any]:
    """What a Spark task does that writes."""
    import pyarrow

    for batch in batches:
        statuses = _statuses(batch.column(0).to_pylist())
        yield pyarrow.RecordBatch.from_arrays(
            [batch.column(0), pyarrow.array(statuses)], names=["line", "status"]
        )


def _statuses(lines: Iterable[str]) -> list[str]:
    search = STATUS.search
    return [found[1] if (found := search(line)) else "none" for line in lines]


@contextmanager
def counted_socket_bytes() -> Iterator[Callable[[], int]]:
    """Count what passes the driver's sockets to bolts; bolts are other processes."""
    plain, seen = stream.PlainStream, [0]
    receive, send = plain.recv_into, plain.send

    def counted_receive(self: Any, buffer: memoryview) -> int | None:
        size = receive(self, buffer)
        seen[0] += size or 0
        return size

    def counted_send(self: Any, data: bytearray) -> int:
        size = send(self, data)
        seen[0] += size
        return size

    plain.recv_into, plain.send = counted_receive, counted_send  # type: ignore[method-assign]
    try:
        yield lambda: seen[0]
    finally:
        plain.recv_into, plain.send = receive, send  # type: ignore[method-assign]


def cpu_below_s() -> float:
    """CPU seconds of all processes below this one that live."""
    below = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            below += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue
    return below


def of_flowctl(spark: Any, producer: Any, records: int, process: Process = count_batch) -> Figures:
    """One job over all lines, with the settings as shipped."""
    watch = DriverWatch()
    below_s, own_s = cpu_below_s(), time.process_time()  # to look at all processes takes CPU too
    with counted_socket_bytes() as seen:
        report = FlowControlSpout(
            name="bench",
            producer=producer,
            bolts=SparkBolts(process, count=BOLTS, spark=spark),
            checkpoint=MemoryCheckpointStore(),
        ).run(view=watch)
        socket_bytes = seen()
    driver_cpu_s = time.process_time() - own_s
    cpu_s = driver_cpu_s + cpu_below_s() - below_s
    assert report.records_acked == records, f"{report.records_acked} of {records} lines"
    began_s = sorted(watch.joined_s)[BOLTS - 1]
    began_cpu_s = watch.joined_cpu_s[BOLTS - 1]
    last = next(n for n, (_, _, acked) in enumerate(watch.samples) if acked == records)
    return Figures(
        watch.samples[last][0] - began_s,
        cpu_s,
        socket_bytes,
        began_cpu_s - own_s,
        watch.samples_cpu_s[last] - began_cpu_s,
        driver_cpu_s,
    )


def of_spark(action: Callable[[], int], records: int) -> Figures:
    began_s, cpu_before_s = time.monotonic(), time.process_time() + cpu_below_s()
    assert action() == records
    return Figures(time.monotonic() - began_s, time.process_time() + cpu_below_s() - cpu_before_s)


def main(arguments: Sequence[str] = ()) -> int:
    """Print the figures; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks ranges", description=__doc__)
    parser.add_argument("--mb", type=int, default=1_000, help="how much text (default: 1,000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="store_true", help="leave out what it is compared with")
    options = parser.parse_args(arguments)
    print(machine())
    with tempfile.TemporaryDirectory(prefix="flowctl-ranges-") as directory:
        place = Path(directory)
        records, size_bytes = write_lines(place, options.mb * 1_000_000)
        spark = local_session(BOLTS)
        counted = _arms(spark, f"{place}/*.log", records)
        written = parquet_arms(spark, place, records)
        if options.only:
            counted, written = {"ranges": counted["ranges"]}, {}
        took = _measured("counted", counted, size_bytes, options.rounds)
        is_met = _tell_driver(took["ranges"], size_bytes)
        if not options.only:
            by_value = median(f.driver_cpu_s / f.cpu_s for f in took.pop("by value"))
            print(f"by value the driver takes {by_value:.0%} of all CPU")
            is_met = _tell_ratio("counted", took) and is_met
            took = _measured("written as Parquet", written, size_bytes, options.rounds)
            is_met = _tell_ratio("written as Parquet", took) and is_met
        spark.stop()
    if not options.only:
        range_driver.main()
    print("all gates of ranges hold" if is_met else "A GATE OF RANGES IS MISSED")
    return int(not is_met)


def _arms(spark: Any, paths: str, records: int) -> dict[str, Callable[[], Figures]]:

    def text_file() -> int:
        lines = spark.sparkContext.textFile(paths, 4 * FILES)
        return int(sum(n for _, n in lines.mapPartitions(count_lines).collect()))

    def map_in_arrow() -> int:
        rows = spark.read.text(paths).mapInArrow(count_arrow, "status string, n long").collect()
        return int(sum(row.n for row in rows))

    return {
        "ranges": lambda: of_flowctl(spark, TextRanges(paths), records),
        "by value": lambda: of_flowctl(spark, TextLines(paths), records),
        "textFile().mapPartitions": lambda: of_spark(text_file, records),
        "read.text().mapInArrow": lambda: of_spark(map_in_arrow, records),
    }


def parquet_arms(spark: Any, place: Path, records: int) -> dict[str, Callable[[], Figures]]:
    """Each line and its status, written as Parquet."""
    paths, out = f"{place}/*.log", place / "out"

    def rows_written() -> int:
        import pyarrow.parquet

        files = list(out.glob("*.parquet"))
        rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
        shutil.rmtree(out)
        return int(rows)

    def ranges() -> Figures:
        out.mkdir()
        took = of_flowctl(spark, TextRanges(paths), records, partial(write_batch, str(out)))
        assert rows_written() == records
        return took

    def map_in_arrow() -> int:
        rows = spark.read.text(paths).mapInArrow(with_status, "line string, status string")
        rows.write.parquet(str(out))
        return records

    def plain() -> Figures:
        took = of_spark(map_in_arrow, records)
        assert rows_written() == records
        return took

    return {"ranges": ranges, "read.text().mapInArrow": plain}


def _measured(
    what: str, arms: Mapping[str, Callable[[], Figures]], size_bytes: int, rounds: int
) -> dict[str, list[Figures]]:
    took: dict[str, list[Figures]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            took[name].append(arm())
            print(
                f"  {what}, {name}: {size_bytes / took[name][-1].seconds / 1e6:.0f} MB/s",
                flush=True,
            )
    for name, figures in took.items():
        seconds = median(f.seconds for f in figures)
        cpu_s = median(f.cpu_s for f in figures)
        print(
            f"{what}, {name}: {size_bytes / seconds / 1e6:.0f} MB/s, {seconds:.1f} s;"
            f" {1e9 * cpu_s / size_bytes:.1f} s of CPU a GB",
            flush=True,
        )
    return took


def _tell_driver(figures: Sequence[Figures], size_bytes: int) -> bool:
    """Print what the driver took; return whether its gates hold."""
    share = median(f.driver_cpu_s / f.cpu_s for f in figures)
    steady_share = median(f.steady_cpu_s / (f.cpu_s - f.began_cpu_s) for f in figures)
    began_cpu_s = median(f.began_cpu_s for f in figures)
    steady = median(f.steady_cpu_s / f.seconds for f in figures) / BOLTS
    socket_share = median(f.socket_bytes for f in figures) / size_bytes
    print(
        f"the driver's CPU {share:.1%} of all, its start included (gate {DRIVER_CPU_MAX:.0%});"
        f" {steady_share:.1%} without, {1e3 * steady:.1f} ms a second and bolt; to start"
        f" {1e3 * began_cpu_s:.0f} ms; over its sockets {socket_share:.4%} of the data (gate"
        f" {SOCKET_MAX:.1%})",
        flush=True,
    )
    return share <= DRIVER_CPU_MAX and socket_share <= SOCKET_MAX


def _tell_ratio(what: str, took: Mapping[str, Sequence[Figures]]) -> bool:
    """Print how fast ranges are beside the best of plain Spark; return whether the gate holds."""
    middle = {name: median(f.seconds for f in figures) for name, figures in took.items()}
    cpu = {name: median(f.cpu_s for f in figures) for name, figures in took.items()}
    plain = [name for name in middle if name != "ranges"]
    ratio = min(middle[name] for name in plain) / middle["ranges"]
    cpu_ratio = min(cpu[name] for name in plain) / cpu["ranges"]
    print(
        f"{what}, ranges beside the best of plain Spark: {ratio:.2f} of its speed (gate"
        f" {AT_LEAST}), {cpu_ratio:.2f} by CPU",
        flush=True,
    )
    return ratio >= AT_LEAST
