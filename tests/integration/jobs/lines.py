"""Lines of files into SQLite, on threads or on Spark; the environment says what goes wrong.

``LOGS`` and ``DATABASE`` as in docs/examples/lines_to_sqlite.py.  ``BOLTS``: threads, ``async``
for an ``async def process`` on them, or ``spark``.  ``COUNT`` bolts of ``SLOTS``.  ``TUPLE_S``:
what a tuple costs, until the file ``hurry`` is there.  ``READ_AS``: the user that opens the files.
``FAULT``: what ``process`` does at a record that holds the word poison.  ``PLACE``: a directory of
the test's own, which gets the journal and marks.
"""

import asyncio
import os
import threading
import time
from pathlib import Path

from flowctl import Batch, FlowControlSpout, LocalBolts
from flowctl.core.records import Checkpoint
from flowctl.ports import Bolts, Process
from flowctl_files import TextLines
from flowctl_lab.demo import journal
from flowctl_sql import SqlSink

PLACE = Path(os.environ["PLACE"])
TUPLE_S = float(os.environ.get("TUPLE_S", "0"))
FAULT = os.environ.get("FAULT", "")
COUNT = int(os.environ.get("COUNT", "4"))
SLOTS = int(os.environ.get("SLOTS", "1"))
HOLD_S = 600.0  # longer than a test waits: such a tuple never ends by itself

sink = SqlSink(
    f"sqlite:///{os.environ['DATABASE']}",
    table="lines",
    schema="CREATE TABLE lines (file TEXT, line INTEGER, text TEXT)",
)


def load(batch: Batch) -> None:
    """Note that the tuple is begun, take the time it costs, meet the poison, write."""
    journal.enter(PLACE, batch)
    if not (PLACE / "hurry").exists():
        time.sleep(TUPLE_S)
    for record in batch:
        if "poison" in record.value:
            meet_poison(record.value)
    sink.write(rows_of(batch), batch=batch)


async def load_async(batch: Batch) -> None:
    """The same without poison; the sink, which blocks, is called in a thread."""
    journal.enter(PLACE, batch)
    if not (PLACE / "hurry").exists():
        await asyncio.sleep(TUPLE_S)
    await asyncio.to_thread(sink.write, rows_of(batch), batch=batch)


def rows_of(batch: Batch) -> list[dict[str, object]]:
    return [
        {"file": batch.span.partition, "line": record.position[1], "text": record.value}
        for record in batch
    ]


def meet_poison(text: str) -> None:
    """What ``FAULT`` says; nothing without one: the mended process."""
    if FAULT == "raise":
        raise ValueError(f"can't take {text!r}")
    if FAULT == "die":
        os._exit(9)
    if FAULT == "once":
        mark = PLACE / f"seen-{text.split(maxsplit=1)[0]}"
        if not mark.exists():
            mark.touch()
            raise ValueError(f"not at the first time: {text!r}")
    if FAULT == "hang":
        (PLACE / "hangs").touch()
        time.sleep(HOLD_S)


def unshippable() -> Process:
    """A process that holds a lock, which can't travel."""
    lock = threading.Lock()

    def locked(batch: Batch) -> None:
        with lock:
            load(batch)

    return locked


def _bolts() -> Bolts:
    process = unshippable() if FAULT == "unshippable" else load
    if os.environ.get("BOLTS") == "spark":
        from pyspark_flowctl import SparkBolts

        return SparkBolts(process, count=COUNT, slots=SLOTS)
    if os.environ.get("BOLTS") == "async":
        return LocalBolts(load_async, count=COUNT, slots=SLOTS)
    return LocalBolts(process, count=COUNT, slots=SLOTS)


class Lines(TextLines):
    """Opened as the user of ``READ_AS``, if that is given."""

    def open(self, checkpoint: Checkpoint) -> None:
        if "READ_AS" not in os.environ:
            super().open(checkpoint)
            return
        user = int(os.environ["READ_AS"])
        before = os.getresuid()
        os.setresuid(user, user, before[2])
        try:
            super().open(checkpoint)
        finally:
            os.setresuid(*before)


spout = FlowControlSpout(
    name=os.environ.get("JOB", "lines"),
    producer=Lines(
        os.environ["LOGS"], max_line_bytes=int(os.environ.get("MAX_LINE_BYTES", "8388608"))
    ),
    bolts=_bolts(),
)
