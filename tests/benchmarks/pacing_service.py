"""An HTTP service with a hard limit that slows down with load, in a process of its own.

``python -m tests.benchmarks.pacing_service BASE_S SLOPE AT_ONCE`` prints its port and serves until
its standard input ends.  A call takes BASE_S * (1 + SLOPE * others inside) seconds; above AT_ONCE
it answers 429.  ``GET /limit/5`` changes AT_ONCE; ``GET /log`` gives what it answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.request import urlopen

from tests.benchmarks.service_process import served

_WORDS = {200: "OK", 429: "Too Many Requests"}


class Answered(NamedTuple):
    """One answer: Unix seconds of its arrival, status, calls inside with it, cost asked for."""

    at_s: float
    status: int
    inside: int
    path: str


class Service:
    """The parent's side of a running service."""

    def __init__(self, port: int) -> None:
        self.port = port

    def limit(self, at_once: int) -> None:
        """Take so many calls at once from now on."""
        urlopen(f"http://127.0.0.1:{self.port}/limit/{at_once}").close()

    def log(self) -> list[Answered]:
        """Return and forget all that was answered so far."""
        with urlopen(f"http://127.0.0.1:{self.port}/log") as answer:
            return [Answered(*each) for each in json.load(answer)]


@contextmanager
def pacing_service(base_s: float, slope: float, at_once: int) -> Iterator[Service]:
    """Run the service in a process of its own."""
    with served(__name__, base_s, slope, at_once) as port:
        yield Service(port)


class _Serving:
    def __init__(self, base_s: float, slope: float, at_once: int) -> None:
        self._base_s, self._slope, self._at_once = base_s, slope, at_once
        self._inside = 0
        self._log: list[Answered] = []

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = await self._answer(head.split(b" ")[1].decode())
                text = f"HTTP/1.1 {status} {_WORDS[status]}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(text.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, path: str) -> tuple[int, bytes]:
        if path == "/log":
            log, self._log = self._log, []
            return 200, json.dumps(log).encode()
        if path.startswith("/limit/"):
            self._at_once = int(path.rpartition("/")[2])
            return 200, b""
        is_refused = self._inside >= self._at_once
        status = 429 if is_refused else 200
        self._log.append(Answered(time.time(), status, self._inside + (not is_refused), path))
        if not is_refused:
            self._inside += 1
            await asyncio.sleep(self._base_s * (1 + self._slope * (self._inside - 1)))
            self._inside -= 1
        return status, b"ok"

    async def serve(self) -> None:
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_Serving(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])).serve())
