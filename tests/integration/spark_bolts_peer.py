"""The spout's side for tests of SparkBolts: a real server, driven by hand."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import time
from collections.abc import Callable
from types import TracebackType

from flowctl.config import ListenSettings
from flowctl.core.messages import Ack, Emission, End, Fail
from flowctl.core.records import Record
from flowctl.ports import BoltNotice, Bolts
from flowctl.wire.auth import KEY_BYTES
from flowctl.wire.server import Joined, Left, Received, RunTerms, SpoutServer

PATIENCE_S = 60.0  # a cold start on a loaded machine; only a hang takes this long


class Peer:
    """Starts bolts, knows who is there, sends them one tuple at a time."""

    def __init__(self, bolts: Bolts) -> None:
        self.bolts = bolts
        self.there: dict[str, Joined] = {}
        self.joins: list[Joined] = []
        self.acks: dict[int, Ack | Fail] = {}
        self.notices: queue.SimpleQueue[BoltNotice] = queue.SimpleQueue()
        self.server = SpoutServer(
            ListenSettings(),
            RunTerms("test", 1, secrets.token_bytes(KEY_BYTES), heartbeat_s=0.25),
            host=bolts.listen_host(),
        )

    def __enter__(self) -> Peer:
        self.bolts.start(self.server.endpoint, self.notices.put)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bolts.stop(timeout_s=5.0)
        self.server.close()

    def until(self, done: Callable[[], bool]) -> None:
        """Poll until ``done``; fail when it takes too long."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline_s, f"hangs; there: {sorted(self.there)}"
            for said in self.server.poll(0.05):
                self._take(said)

    def until_there(self, count: int) -> None:
        self.until(lambda: len(self.there) == count)

    def until_notice(self, kind: str) -> BoltNotice:
        """Return the next notice of this kind; the others are dropped."""
        found: list[BoltNotice] = []

        def look() -> bool:
            while not found and not self.notices.empty():
                notice = self.notices.get()
                found.extend([notice] if notice.kind == kind else [])
            return bool(found)

        self.until(look)
        return found[0]

    def send(self, bolt: str, tuple_id: int, values: list[object]) -> None:
        records = [Record(position, value) for position, value in enumerate(values)]
        self.server.send(bolt, Emission(tuple_id, bolt, 1, "p", records, None, 0))
        self.server.flush()

    def process(self, bolt: str, tuple_id: int, values: list[object]) -> Ack | Fail:
        """Send one tuple, return its ack or fail."""
        self.send(bolt, tuple_id, values)
        self.until(lambda: tuple_id in self.acks)
        return self.acks[tuple_id]

    def kill(self, bolt: str) -> None:
        """SIGKILL the bolt's Python worker, and wait until it is back."""
        before = self.there[bolt]
        os.kill(before.pid, signal.SIGKILL)
        self.until(lambda: bolt in self.there and self.there[bolt].epoch > before.epoch)

    def end(self) -> None:
        """Say END to all that are there."""
        for bolt in list(self.there):
            self.server.send(bolt, End(bolt))
        self.server.flush()

    def _take(self, said: Joined | Received | Left) -> None:
        if isinstance(said, Joined):
            self.there[said.bolt] = said
            self.joins.append(said)
        elif isinstance(said, Left):
            if self.there.get(said.bolt, said).epoch == said.epoch:
                self.there.pop(said.bolt, None)
        else:
            for frame in said.frames:
                if isinstance(frame, Ack | Fail):
                    self.acks[frame.tuple_id] = frame
