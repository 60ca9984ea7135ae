"""Refusals as real clients raise them, against loopback servers and ports where nobody listens."""

from __future__ import annotations

import sqlite3
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flowctl.failure.classify import Meaning, refusal_of
from flowctl.failure.kinds import Kind

NOW_S = 1_800_000_000.0  # in 2027


def judge(error: BaseException) -> Meaning | None:
    return refusal_of(error, wall_clock=lambda: NOW_S)


class Busy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, _, after = self.path.strip("/").partition("/")
        self.send_response(int(status))
        if after == "date":
            self.send_header("Retry-After", self.date_time_string(int(NOW_S)))
            self.send_header("Date", self.date_time_string(int(NOW_S - 9)))
        elif after:
            self.send_header("Retry-After", after)
        self.end_headers()

    def send_header(self, keyword: str, value: str) -> None:
        if (keyword, self.path.endswith("date")) != ("Date", True) or "2027" in value:
            super().send_header(keyword, value)  # without the Date of today

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def _by_urllib(url: str) -> None:
    urllib.request.urlopen(url, timeout=5).close()


def _by_requests(url: str) -> None:
    requests = pytest.importorskip("requests", reason="not needed by anything here")
    requests.get(url, timeout=5).raise_for_status()


def _by_httpx(url: str) -> None:
    httpx = pytest.importorskip("httpx", reason="not needed by anything here")
    httpx.get(url, timeout=5).raise_for_status()


CLIENTS = [_by_urllib, _by_requests, _by_httpx]


def _raised(call: Any, *arguments: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        call(*arguments)
    return caught.value


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("429/3", Meaning(Kind.FULL, "HTTP 429", 3.0)),
        ("503/date", Meaning(Kind.FULL, "HTTP 503", 9.0)),
        ("503", Meaning(Kind.FULL, "HTTP 503", None)),
        ("404", None),
        ("500", None),
    ],
)
def test_a_real_answer(server: str, client: Any, path: str, expected: Meaning | None):
    assert judge(_raised(client, f"{server}/{path}")) == expected


@pytest.mark.parametrize("client", CLIENTS)
def test_nobody_listens(free_port: int, client: Any):
    assert judge(_raised(client, f"http://127.0.0.1:{free_port}/")) is not None


@pytest.mark.parametrize("client", CLIENTS)
def test_no_such_scheme_is_a_fault(client: Any):
    assert judge(_raised(client, "nonsense://x/")) is None


def test_a_real_redis_that_is_not_there(free_port: int):
    redis = pytest.importorskip("redis", reason="the store's client, an extra")
    assert judge(_raised(redis.Redis(port=free_port, retry=None).ping)) is not None
    assert judge(redis.AuthenticationError("no")) is None
    assert judge(redis.BusyLoadingError("loading")) is not None


def test_a_real_postgres_that_is_not_there(free_port: int):
    psycopg = pytest.importorskip("psycopg", reason="the driver for PostgreSQL, for tests")
    error = _raised(psycopg.connect, f"host=127.0.0.1 port={free_port}")
    assert judge(error) is not None
    assert judge(psycopg.errors.TooManyConnections("no")) is not None
    assert judge(psycopg.errors.UniqueViolation("no")) is None


def test_a_real_grpc_that_is_not_there(free_port: int):
    grpc = pytest.importorskip("grpc", reason="comes with Spark Connect")
    with grpc.insecure_channel(f"127.0.0.1:{free_port}") as channel:
        error = _raised(lambda: channel.unary_unary("/x/y")(b"", timeout=5))
    assert judge(error) == Meaning(Kind.FULL, "gRPC UNAVAILABLE", None)


def test_a_real_sqlite_that_is_locked(tmp_path: Path):
    one, two = (sqlite3.connect(tmp_path / "x.db", timeout=0) for _ in range(2))
    one.execute("BEGIN EXCLUSIVE")
    assert judge(_raised(two.execute, "BEGIN IMMEDIATE")) is not None
    assert judge(_raised(one.execute, "SELECT * FROM nothing")) is None
    one.close()
    two.close()
