"""An HTTP service that is well, down (503), or takes so many calls at once (429), by the second.

``python -m tests.benchmarks.outage_service LATENCY_S 4:0,12:down,8:10,9:0`` prints its port and
serves until its standard input ends: from the first request on 4 s well, 12 s down, 8 s with a
limit of 10 calls at once, 9 s well; then well for good.  ``GET /log`` gives what it answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.request import urlopen

from tests.benchmarks.service_process import served

_WORDS = {200: "OK", 429: "Too Many Requests", 503: "Service Unavailable"}


class Answered(NamedTuple):
    """One answer: seconds since the first request, status, what was asked for."""

    at_s: float
    status: int
    path: str


class Phase(NamedTuple):
    """So many seconds in which the service is down, or takes ``at_once`` calls (0: any number)."""

    lasts_s: float
    at_once: int
    is_down: bool


def phases_of(text: str) -> list[Phase]:
    """Return the phases that ``4:0,12:down,8:10`` names."""
    parts = [part.split(":") for part in text.split(",")]
    return [Phase(float(s), 0 if how == "down" else int(how), how == "down") for s, how in parts]


@contextmanager
def outage_service(latency_s: float, phases: str) -> Iterator[int]:
    """Run the service in a process of its own; gives its port."""
    with served(__name__, latency_s, phases) as port:
        yield port


def answered(port: int) -> list[Answered]:
    """Return all that the service has answered so far."""
    with urlopen(f"http://127.0.0.1:{port}/log") as answer:
        return [Answered(*each) for each in json.load(answer)]


class _Service:
    def __init__(self, latency_s: float, phases: list[Phase]) -> None:
        self._latency_s = latency_s
        self._phases = phases
        self._began_s: float | None = None
        self._inside = 0
        self._log: list[Answered] = []

    def _phase(self, at_s: float) -> Phase:
        for phase in self._phases:
            if at_s < phase.lasts_s:
                return phase
            at_s -= phase.lasts_s
        return Phase(float("inf"), 0, False)

    async def status(self) -> int:
        now_s = time.monotonic()
        self._began_s = self._began_s or now_s
        phase = self._phase(now_s - self._began_s)
        if phase.is_down:
            return 503
        if phase.at_once and self._inside >= phase.at_once:
            return 429
        self._inside += 1
        await asyncio.sleep(self._latency_s)
        self._inside -= 1
        return 200

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode()
            if path == "/log":
                status, body = 200, json.dumps(self._log).encode()
            else:
                status, body = await self.status(), b""
                at_s = time.monotonic() - (self._began_s or 0.0)
                self._log.append(Answered(at_s, status, path))
            writer.write(
                f"HTTP/1.1 {status} {_WORDS[status]}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _main(latency_s: float, phases: str) -> None:
    service = _Service(latency_s, phases_of(phases))
    server: Any = await asyncio.start_server(service.serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1]), sys.argv[2]))
