"""Both ends of the wire for tests: a spout driven by hand, bolts in threads and processes."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.bolts.worker import BoltSummary, run_bolt
from flowctl.config import ListenSettings
from flowctl.core.messages import Ack, Emission, End, Fail
from flowctl.core.records import Record
from flowctl.ports import Endpoint
from flowctl.wire.auth import KEY_BYTES
from flowctl.wire.frames import ToBolt
from flowctl.wire.server import Inbound, Joined, Left, Received, RunTerms, SpoutServer

# Far more than anything here takes; only a hang gets there.
PATIENCE_S = 20.0
_ROOT = Path(__file__).parents[2]
_BOLT_PROGRAM = """
import sys, time, msgspec
from flowctl.bolts.worker import run_bolt
from flowctl.ports import Endpoint
endpoint = msgspec.msgpack.decode(bytes.fromhex(sys.stdin.readline()), type=Endpoint)
def process(batch):
    {process}
run_bolt(endpoint, {bolt!r}, process)
"""
F = TypeVar("F")


class Spout:
    """A :class:`SpoutServer` and all that it has reported so far."""

    def __init__(
        self,
        *,
        heartbeat_s: float = 0.05,
        host: str = "127.0.0.1",
        expected: Container[str] | None = None,
        **listen: Any,
    ) -> None:
        self.server = SpoutServer(
            ListenSettings(**listen),
            RunTerms(
                "test",
                5,
                secrets.token_bytes(KEY_BYTES),
                heartbeat_s=heartbeat_s,
                expected=expected,
            ),
            host=host,
        )
        self.endpoint = self.server.endpoint
        self.inbound: list[Inbound] = []

    def poll(self, timeout_s: float = 0.05) -> list[Inbound]:
        came = self.server.poll(timeout_s)
        self.inbound += came
        return came

    def until(self, condition: Callable[[], Any]) -> Any:
        """Poll until ``condition`` gives something true; return it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (result := condition()):
            assert time.monotonic() < deadline_s, f"not in {PATIENCE_S} s: {self.inbound[-5:]}"
            self.poll()
        return result

    def joined(self, bolt: str) -> list[Joined]:
        return [m for m in self.inbound if isinstance(m, Joined) and m.bolt == bolt]

    def left(self, bolt: str) -> list[Left]:
        return [m for m in self.inbound if isinstance(m, Left) and m.bolt == bolt]

    def frames(self, bolt: str, kind: type[F]) -> list[F]:
        return [
            frame
            for m in self.inbound
            if isinstance(m, Received) and m.bolt == bolt
            for frame in m.frames
            if isinstance(frame, kind)
        ]

    def acks(self, bolt: str) -> list[int]:
        return [frame.tuple_id for frame in self.frames(bolt, Ack)]

    def fails(self, bolt: str) -> list[Fail]:
        return self.frames(bolt, Fail)

    def send(self, bolt: str, *frames: ToBolt) -> None:
        for frame in frames:
            assert self.server.send(bolt, frame)
        self.server.flush()

    def end(self, bolt: str) -> None:
        self.send(bolt, End(bolt))
        self.server.close_bolt(bolt)


@contextmanager
def spout(**settings: Any) -> Iterator[Spout]:
    """A spout that is closed at the end, whatever happens."""
    opened = Spout(**settings)
    try:
        yield opened
    finally:
        opened.server.close()


def tuple_of(tuple_id: int, *values: Any, attempt: int = 1) -> Emission:
    """A tuple of partition "p" with the positions 0, 1, …"""
    records = [Record(place, value) for place, value in enumerate(values or ("x",))]
    return Emission(tuple_id, "b1", attempt, "p", records, None, 0)


class ThreadBolt:
    """run_bolt in a thread of this process."""

    def __init__(
        self, endpoint: Endpoint, bolt: str, process: Callable[[Batch], Any], *, slots: int = 1
    ) -> None:
        self.summary: BoltSummary | None = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.summary = run_bolt(endpoint, bolt, process, slots=slots)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, name=f"test-{bolt}", daemon=True)
        self.thread.start()

    def wait(self) -> BoltSummary:
        """Join; return the summary or raise what run_bolt raised."""
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.summary is not None
        return self.summary


@contextmanager
def process_bolt(
    endpoint: Endpoint, bolt: str, process: str = "pass"
) -> Iterator[subprocess.Popen[str]]:
    """run_bolt in a process of its own; ``process`` is the body of its function of ``batch``."""
    program = _BOLT_PROGRAM.format(process=process, bolt=bolt)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, cwd=_ROOT, text=True
    ) as child:
        try:
            assert child.stdin is not None
            child.stdin.write(msgspec.msgpack.encode(endpoint).hex() + "\n")
            child.stdin.flush()
            yield child
        finally:
            child.kill()
