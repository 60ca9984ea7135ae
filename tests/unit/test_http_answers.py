"""A service that answers one request twice: whose answer is the second one taken for?"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the client of these sinks, an extra")

import httpx

from flowctl.testing import batch
from flowctl_http import HttpSink

_ANSWER = "HTTP/1.1 {} X\r\nContent-Length: 0\r\n\r\n"


class Twice:
    """Says 200 twice to the first request, in one piece, and 400 to each further one."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.connections = self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            with peer, peer.makefile("rb") as said:
                while self._answer(peer, said):
                    pass

    def _answer(self, peer: socket.socket, said: Any) -> bool:
        head = b"".join(iter(said.readline, b"\r\n")) if said.peek(1) else b""
        if not head:
            return False
        size = int(head.lower().partition(b"content-length:")[2].split()[0])
        said.read(size)
        self.requests += 1
        answer = _ANSWER.format(200) * 2 if self.requests == 1 else _ANSWER.format(400)
        peer.sendall(answer.encode())
        return True

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.fixture
def service() -> Iterator[Twice]:
    service = Twice()
    yield service
    service.close()


def write(sink: HttpSink, value: int) -> None:
    sink.write([value], batch=batch([value]))


def test_without_connections_that_are_kept_no_answer_is_mixed_up(service: Twice) -> None:
    """What the docstring of HttpSink recommends for such a service."""
    limits = httpx.Limits(max_keepalive_connections=0)
    sink = HttpSink(service.url, client=lambda: httpx.Client(limits=limits))
    write(sink, 1)
    for value in (2, 3):
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            write(sink, value)
    sink.close()
    assert (service.requests, service.connections) == (3, 3)
