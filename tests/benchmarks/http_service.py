"""A service of a fixed latency in a process of its own, and a client, on asyncio's streams alone.

``python -m tests.benchmarks.http_service LATENCY_S AT_ONCE`` prints its port and serves until its
standard input ends.  At most AT_ONCE requests are worked on together (0: any number), the others
wait in line: its limit is AT_ONCE / LATENCY_S a second.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
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
    command = [sys.executable, "-m", __name__, str(latency_s), str(at_once)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT, text=True
    ) as child:
        try:
            assert child.stdout is not None
            yield int(child.stdout.readline())
        finally:
            child.kill()


async def _serve(latency_s: float, at_once: int) -> None:
    room: Any = asyncio.Semaphore(at_once) if at_once else nullcontext()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
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
