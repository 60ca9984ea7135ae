"""A job from a file of lines to SQLite, inside the test's process, with a store in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fault_parts import assert_exact, write_lines

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.instrumentation.snapshot import Report
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextLines
from flowctl_sql import SqlSink
from tests.runtime_parts import Witness


class Lines:
    """A file of lines, and a sink that is compared with it."""

    def __init__(self, place: Path, count: int) -> None:
        self.input = write_lines(place / "in.log", count)
        self.database = place / "out.db"
        self.store = MemoryCheckpointStore()
        self.witness = Witness()
        self.sink = SqlSink(
            f"sqlite:///{self.database}",
            table="lines",
            schema="CREATE TABLE lines (file TEXT, line INTEGER, text TEXT)",
        )

    def load(self, batch: Batch) -> None:
        rows = [
            {"file": batch.span.partition, "line": record.position[1], "text": record.value}
            for record in batch
        ]
        self.sink.write(rows, batch=batch)

    def spout(self, bolts: Any = None, **settings: Any) -> FlowControlSpout:
        return FlowControlSpout(
            name="lines",
            producer=TextLines(str(self.input)),
            bolts=bolts or LocalBolts(self.load, count=4),
            checkpoint=self.store,
            settings=Settings().with_overrides(settings),
        )

    def run(self, bolts: Any = None, **settings: Any) -> Report:
        return self.spout(bolts, **settings).run(view=self.witness)

    def assert_exact(self) -> None:
        assert_exact(self.database, self.input)
