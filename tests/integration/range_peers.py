"""A bolt of ranges against a spout that is moved by hand."""

from __future__ import annotations

import asyncio
import threading

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.messages import Progress, RangeEmission, RangeFail
from tests.integration.wire_peers import PATIENCE_S, Spout, ThreadBolt
from tests.range_parts import Told


def range_of(tuple_id: int, start: int, stop: int) -> RangeEmission:
    return RangeEmission(tuple_id, "b1", 1, "p", (), None, 0, None, start, stop, "")


def told(s: Spout, tuple_id: int) -> Told:
    return Told(
        [frame for frame in s.frames("b1", Progress) if frame.tuple_id == tuple_id],
        [frame for frame in s.frames("b1", RangeFail) if frame.tuple_id == tuple_id],
    )


def started(s: Spout, reader, process, *, slots: int = 1) -> ThreadBolt:
    endpoint = msgspec.structs.replace(s.endpoint, reader=reader)
    bolt = ThreadBolt(endpoint, "b1", process, slots=slots)
    s.until(lambda: s.joined("b1"))
    return bolt


class Gate:
    """A process that waits in each call until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.seen: list[int] = []

    def __call__(self, batch: Batch) -> None:
        self.begun.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        self.seen += [record.position for record in batch]

    async def slowly(self, batch: Batch) -> None:
        await asyncio.to_thread(self, batch)
