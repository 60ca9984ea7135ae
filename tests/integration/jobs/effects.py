"""A driver to be killed: each record's effect is a line in a file, in a mode of guarantee.

Run as ``python effects.py``; settings come by environment: SOURCE (``files:PATH``, ``ranges:PATH``,
``kafka:SERVERS/TOPIC/GROUP``, GROUP may be empty, or ``kafka-ranges:SERVERS/TOPIC``), JOB, MODE,
STAGES (1, or 3: a topology), EFFECTS, RECORD_S, FLOWCTL_REDIS_URL.
"""

from __future__ import annotations

import os
import time

from flowctl import Batch, FlowControlSpout, FlowProducer, LocalBolts, RangeProducer, Settings
from flowctl_files import TextLines, TextRanges
from flowctl_redis import RedisCheckpointStore
from flowctl_storm import Collector, Input, LocalStages, Topology

effects = os.open(os.environ["EFFECTS"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
record_s = float(os.environ["RECORD_S"])


def text_of(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def process(batch: Batch) -> None:
    for record in batch:
        time.sleep(record_s)
        os.write(effects, f"{text_of(record.value)}\n".encode())  # one write: a line is whole


def producer() -> FlowProducer | RangeProducer:
    kind, _, where = os.environ["SOURCE"].partition(":")
    if kind == "files":
        return TextLines(where)
    if kind == "ranges":
        return TextRanges(where)
    from flowctl_kafka import KafkaRanges, KafkaTopics

    if kind == "kafka-ranges":
        servers, topic = where.split("/")
        quick = {"fetch.wait.max.ms": 10}
        return KafkaRanges(topic, servers=servers, until_end=True, config=quick)
    servers, topic, group = where.split("/")
    return KafkaTopics(
        topic,
        servers=servers,
        group=group or None,
        until_end=True,
        commit_s=0.1,
        config={"session.timeout.ms": 6000},
    )


def passing(given: Input, out: Collector) -> None:
    out(given.value)


def write(given: Input, out: Collector) -> None:
    time.sleep(record_s)
    os.write(effects, f"{text_of(given.value)}\n".encode())


def topology() -> Topology:
    made = Topology(os.environ["JOB"], max_pending=100)
    source = producer()
    assert isinstance(source, FlowProducer)
    made.spout("s", source)
    made.bolt("first", passing, count=2).shuffle("s")
    made.bolt("second", passing, count=2).least_loaded("first")
    made.bolt("third", write, count=3).shuffle("second")
    return made


if __name__ == "__main__":
    store = RedisCheckpointStore(os.environ["FLOWCTL_REDIS_URL"])
    mode = {"guarantee.mode": os.environ["MODE"]}
    settings = Settings().with_overrides(
        {**mode, "tuple.records_max": 20, "checkpoint.interval_s": 0.05}
    )
    report = os.environ.get("REPORT")
    if os.environ["STAGES"] == "3":
        job = topology().job(LocalStages(), checkpoint=store, settings=settings)
        job.run(view="off", report_path=report)
    else:
        FlowControlSpout(
            name=os.environ["JOB"],
            producer=producer(),
            bolts=LocalBolts(process, count=3),
            checkpoint=store,
            settings=settings,
        ).run(view="off", report_path=report)
