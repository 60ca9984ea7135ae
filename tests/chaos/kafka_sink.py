"""Kill driver and workers of a job that writes into Kafka, then count what is in the topic.

    python -m tests.chaos.kafka_sink [--records 1000000] [--kills 12]

Four bolts, each a process of its own that is started again when it dies, read text by reference and
write a record for each line by ``KafkaSink`` into librdkafka's mock cluster, which is in this
process and is read while it is written.  Exit code 1 if a record is missing; those that are there
twice are counted.
"""

from __future__ import annotations

import argparse
import importlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from confluent_kafka import TopicPartition

from flowctl.bolts.batch import Batch
from flowctl.runtime.file_store import FileCheckpointStore
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl_files import TextRanges
from flowctl_kafka import KafkaSink
from tests.chaos.ranges import BOLTS, ProcessBolts
from tests.kafka_parts import MockKafka

TOPIC = "chaos"
_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 900.0
_SILENT_S = 3.0  # after the last run: no more records will come


class Write:
    """Writes each line as a record, at a pace that leaves the kills time to fall into it."""

    def __init__(self, servers: str, line_s: float) -> None:
        self._sink = KafkaSink(TOPIC, servers=servers, value=str)
        self._line_s = line_s

    def __call__(self, batch: Batch) -> None:
        time.sleep(self._line_s * len(batch))
        self._sink.write(batch.values, batch=batch)


def job(place: Path, servers: str, line_s: float) -> None:
    """One driver, in a process of its own."""
    FlowControlSpout(
        name="chaos",
        producer=TextRanges(str(place / "in.txt")),
        bolts=ProcessBolts(Write(servers, line_s)),
        checkpoint=FileCheckpointStore(place / "checkpoints"),
    ).run(view="off")


class Reader(threading.Thread):
    """Counts how often each line is in the topic, until it is stopped."""

    def __init__(self, kafka: MockKafka, records: int) -> None:
        super().__init__(daemon=True)
        self.times = bytearray(records)
        self.read_at_s = time.monotonic()
        self._client = kafka.client("chaos")
        self._client.assign(
            [TopicPartition(TOPIC, number, 0) for number in range(kafka.PARTITIONS)]
        )

    def run(self) -> None:
        """Read for ever."""
        while True:
            for message in self._client.consume(10_000, timeout=0.1):
                if message.error() is None:
                    self.times[int(message.value())] += 1
                    self.read_at_s = time.monotonic()


def kill_one(driver: psutil.Popen, is_driver: bool) -> str:
    """Kill the driver, or one of its workers; return which ("": there was none)."""
    if driver.poll() is not None:
        return ""
    workers = driver.children()
    victim = driver if is_driver else random.choice(workers) if workers else None
    if victim is None:
        return ""
    victim.kill()
    victim.wait()
    if is_driver:  # its workers write on for a moment, and notice that it is gone
        _, alive = psutil.wait_procs(workers, timeout=20)
        for one in alive:
            one.kill()
    return "driver" if is_driver else "worker"


def main() -> int:
    """The command; 1 if a record is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=12, help="of the driver and a worker in turn")
    parser.add_argument("--seconds", type=float, default=40.0, help="of work for each bolt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        job(Path(given.job[0]), given.job[1], float(given.job[2]))
        return 0
    random.seed(given.seed)
    with tempfile.TemporaryDirectory(prefix="flowctl-chaos-") as temporary:
        return chaos(Path(temporary), given.records, given.kills, given.seconds)


def chaos(place: Path, records: int, kills: int, seconds: float) -> int:
    """Run the job to its end through all kills; return the exit code."""
    with (place / "in.txt").open("w") as file:
        file.writelines(f"{number}\n" for number in range(records))
    kafka = MockKafka()
    reader = Reader(kafka, records)
    reader.start()
    told = [str(place), kafka.servers, str(seconds * BOLTS / records)]
    command = [sys.executable, "-m", "tests.chaos.kafka_sink", "--job", *told]
    log = (place / "log").open("w")
    killed: list[str] = []
    driver = psutil.Popen(command, cwd=_ROOT, stdout=log, stderr=subprocess.STDOUT)
    while len(killed) < kills and driver.poll() is None:
        before = sum(map(bool, reader.times))
        while sum(map(bool, reader.times)) == before and driver.poll() is None:
            time.sleep(0.1)  # something has to be written between two kills
        time.sleep(random.uniform(0, seconds / kills))
        if who := kill_one(driver, len(killed) % 2 == 0):
            killed.append(who)
        if who == "driver":
            driver = psutil.Popen(command, cwd=_ROOT, stdout=log, stderr=subprocess.STDOUT)
    code = driver.wait(_TIMEOUT_S)
    while time.monotonic() < reader.read_at_s + _SILENT_S:
        time.sleep(0.1)
    missing = reader.times.count(0)
    again = sum(times - 1 for times in reader.times if times)
    print(
        f"{records} records, {killed.count('driver')} kills of the driver and"
        f" {killed.count('worker')} of a worker: {missing} are missing, {again} are there again"
        f" ({again / records:.2%}), one of them {max(reader.times)} times; the last run ended"
        f" with {code}"
    )
    if code:
        print((place / "log").read_text()[-2_000:])
    return int(bool(missing or code or len(killed) < kills))


if __name__ == "__main__":
    # What is pickled has to be found by the bolts, by this name.
    sys.exit(importlib.import_module("tests.chaos.kafka_sink").main())
