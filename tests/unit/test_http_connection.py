"""The connections of HttpSink and BulkSink, against services that answer byte by byte as told."""

from __future__ import annotations

import gzip
import http.client
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from flowctl.errors import ConfigError
from flowctl.failure.classify import refusal_of
from flowctl_http._client import Client, Request
from flowctl_http.answers import Response, StatusError
from tests.search_service import serve

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Raw:
    """A service: ``answers`` are what it writes to one request after the other, then it closes.

    ``heads`` are those of the requests, ``bodies`` what came with them.
    """

    def __init__(self, answers: list[bytes]) -> None:
        self.answers = answers
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.has_closed = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.url = f"http://{self.netloc}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while self.answers:
            peer, _ = self._server.accept()
            self.connections += 1
            with peer, peer.makefile("rb") as said:
                while self.answers and self._answer(peer, said):
                    pass
            self.has_closed.set()
        self._server.close()

    def _answer(self, peer: socket.socket, said: Any) -> bool:
        head = b"".join(iter(said.readline, b"\r\n")) if said.peek(1) else b""
        if not head:
            return False
        _, has_size, size = head.lower().partition(b"content-length:")
        self.bodies.append(said.read(int(size.split()[0])) if has_size else b"")
        self.heads.append(head.decode())
        answer = self.answers.pop(0)
        peer.sendall(answer)
        return answer == OK


def client(**given: Any) -> Client:
    return Client("HttpSink", **{"headers": None, "timeout_s": 5.0, "client": None, **given})


def post(client: Client, url: str, content: bytes = b"x", **headers: str) -> Response:
    answer: Response = client.send(Request("POST", url, content, headers))
    return answer


def test_what_the_service_closed_meanwhile_is_opened_again() -> None:
    """Kind: the first call after a pause would be a refusal, as a service closes what rests."""
    service = Raw([OK, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbye", OK])
    ours = client()
    post(ours, service.url)
    assert post(ours, service.url).content == b"bye"
    assert service.has_closed.wait(5)
    assert post(ours, service.url).text == "ok"
    assert service.connections == 2


def test_a_second_answer_that_nobody_asked_for_is_no_answer_to_the_next_request() -> None:
    service = Raw([OK + OK, OK])
    ours = client()
    post(ours, service.url)
    assert service.has_closed.wait(5)
    assert post(ours, service.url).content == b"ok"
    assert service.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",  # it ends too early
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",  # not yet an answer
        b"",
        b"hello\r\n\r\n",
    ],
)
def test_what_is_no_whole_answer_is_a_refusal(answer: bytes) -> None:
    service = Raw([answer, OK])
    ours = client()
    with pytest.raises((OSError, http.client.HTTPException)) as caught:
        post(ours, service.url)
    assert refusal_of(caught.value) is not None
    assert post(ours, service.url).content == b"ok"  # and nothing of it is left


def test_answers_in_parts_and_compressed_ones_are_read() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
    )
    assert post(client(), Raw([chunked]).url).content == b"abcde"
    packed = gzip.compress('{"a": "\u00fc"}'.encode())
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    assert post(client(), Raw([head + packed]).url).json() == {"a": "\u00fc"}
    latin = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=latin-1\r\n\r\n\xfc"
    assert post(client(), Raw([latin]).url).text == "\u00fc"


def test_an_early_answer_counts_though_the_service_did_not_read_all() -> None:
    """Kind: a 413 would look like a lost connection, and be sent again for ever."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        peer, _ = server.accept()
        peer.recv(100)
        peer.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 20):
            pass
        peer.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(StatusError, match="413 Too Large"):
        post(client(), f"http://127.0.0.1:{server.getsockname()[1]}", b"x" * 5_000_000)
    server.close()


def test_user_path_and_headers_are_sent_as_they_are_meant() -> None:
    service = Raw([OK, OK])
    url = f"http://me:s%2Fcret@{service.netloc}/a b/\u00fc?q=1 2&r=%20#part"
    ours = client(headers={"content-type": "text/csv"})
    with ThreadPoolExecutor(1) as thread:  # a connection may be used by any thread
        thread.submit(post, ours, url, **{"Content-Type": "application/json"}).result()
    post(ours, url)
    head = service.heads[0]
    assert head.startswith("POST /a%20b/%C3%BC?q=1%202&r=%20 HTTP/1.1\r\n")
    assert "Authorization: Basic bWU6cy9jcmV0\r\n" in head
    assert head.lower().count("content-type") == 1 and "text/csv" in head
    assert service.connections == 1


def test_an_error_shows_no_secret_and_travels() -> None:
    with serve(lambda *_: (429, {"Retry-After": "3"}, b"wait")) as service:
        url = service.url.replace("//", "//me:secret@") + "/rows?token=hidden"
        with pytest.raises(StatusError) as caught:
            post(client(), url)
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == f"429 Too Many Requests for {service.url}/rows"
    assert (error.response.headers["retry-after"], error.response.text) == ("3", "wait")
    assert refusal_of(error).after_s == 3.0  # type: ignore[union-attr]


@contextmanager
def proxies(monkeypatch: pytest.MonkeyPatch, **named: str) -> Iterator[None]:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    for name, url in named.items():
        monkeypatch.setenv(f"{name}_proxy", url)
    yield


def test_the_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Raw([OK])
    with proxies(monkeypatch, http=f"http://me:pw@{service.netloc}"):
        post(client(), "http://api.example.com/v1?a=1")
    assert service.heads[0].startswith("POST http://api.example.com/v1?a=1 HTTP/1.1\r\n")
    assert "Host: api.example.com\r\n" in service.heads[0]
    assert "Proxy-Authorization: Basic bWU6cHc=\r\n" in service.heads[0]
    tunnel = Raw([b"HTTP/1.1 403 Forbidden\r\n\r\n"])
    with proxies(monkeypatch, https=f"http://{tunnel.netloc}"), pytest.raises(OSError, match="403"):
        post(client(), "https://api.example.com/v1")
    assert tunnel.heads[0].startswith("CONNECT api.example.com:443 HTTP/1.")
    with proxies(monkeypatch, http="http://127.0.0.1:1", no="127.0.0.1"):
        assert post(client(), Raw([OK]).url).content == b"ok"
    with proxies(monkeypatch, all="socks5://here:1"), pytest.raises(ConfigError, match="socks5"):
        post(client(), "http://api.example.com")


def test_a_process_that_was_forked_reads_none_of_its_parents_answers() -> None:
    with serve(lambda *_: (200, {}, b"ok")) as service:
        ours = client()
        post(ours, service.url)
        if not (child := os.fork()):
            status = 1
            try:
                status = int(post(ours, service.url).status_code != 200)
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        post(ours, service.url)
        assert service.connections == 2


def test_as_many_connections_as_calls_at_once() -> None:
    here = threading.Barrier(4)
    answer: Callable[..., Any] = lambda *_: (200, {}, b"ok")  # noqa: E731
    with serve(answer) as service, ThreadPoolExecutor(4) as threads:
        ours = client(headers=lambda: {"X": str(here.wait(5))})
        for _ in range(3):
            list(threads.map(lambda _: post(ours, service.url), range(4)))
        assert service.connections <= 4
        ours.close()
