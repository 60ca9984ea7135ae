"""A service of a fixed latency in a process of its own, and a client, on asyncio's streams alone.

``python -m tests.benchmarks.http_service LATENCY_S AT_ONCE`` prints its port and serves until its
standard input ends.  At most AT_ONCE requests are worked on together (0: any number), the others
wait in line: its limit is AT_ONCE / LATENCY_S a second.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tests.benchmarks.service_process import served

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_BACKLOG = 1024  # all connections may come at once


class Client:
    """GET over connections that are kept; for one event loop.  As many calls at once as asked."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, path: str) -> bytes:
        """Return the answer's body; raises OSError for any status but 200."""
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            writer.close()
            raise OSError(head.partition(b"\r\n")[0].decode())
        body = await reader.readexactly(int(head.rpartition(b"Content-Length: ")[2].strip()))
        self._free.append((reader, writer))
        return body


@contextmanager
def service(latency_s: float, at_once: int = 0) -> Iterator[int]:
    """Run the service in a process of its own; gives its port."""
    with served(__name__, latency_s, at_once) as port:
        yield port


async def _serve(latency_s: float, at_once: int) -> None:
    room: Any = asyncio.Semaphore(at_once) if at_once else nullcontext()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if has_body := head.partition(b"content-length:")[2]:
                    await reader.readexactly(int(has_body.partition(b"\r\n")[0]))
                async with room:
                    await asyncio.sleep(latency_s)
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=_BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), int(sys.argv[2])))
