"""Who may read the page of a run, and that no browser holds up the run."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flowctl import Page
from flowctl.bolts.local import LocalBolts
from flowctl.errors import CheckpointUnavailableError, ConfigError
from flowctl.instrumentation.page_server import CONNECTIONS_MAX, Feed, PageServer, Site
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import FailingStore, ListProducer, Witness


class Served:
    """A page that is served, and requests to it."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.whole = b'{"job":"all of it"}'
        self.feed = Feed(lambda: self.whole)
        self.site = Site(self.feed, html=lambda: b"<html>", policy="default-src 'none'")
        self.server = PageServer(host, 0, self.site)

    def ask(
        self, path: str = "/", method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return found

    def events(self, **headers: str) -> Any:
        """Return an open stream of events, just after its headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        connection.request("GET", "/events", headers=headers)
        return connection.getresponse()


def next_of(stream: Any) -> tuple[str, Any]:
    """The next event of a stream: its kind, and its data."""
    kind = ""
    while line := stream.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            data = json.loads(value)
    return kind, data


@pytest.fixture
def page() -> Iterator[Served]:
    served = Served()
    yield served
    served.server.close()


@pytest.fixture
def guarded() -> Iterator[Served]:
    """Listens on all addresses, so it has a token."""
    served = Served("0.0.0.0")
    yield served
    served.server.close()


def test_the_page_its_state_and_its_events(page: Served) -> None:
    status, headers, body = page.ask()
    assert (status, body) == (200, b"<html>")
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert page.ask("/state")[2] == b"null"
    page.feed.publish(b'{"at":1}')
    assert page.ask("/state")[2] == b'{"at":1}'
    stream = page.events()
    assert stream.getheader("Content-Type") == "text/event-stream"
    assert next_of(stream) == ("whole", {"job": "all of it"})
    page.feed.publish(b'{"at":2}')
    assert next_of(stream) == ("", {"at": 2})
    assert page.ask("/other")[0] == 404
    assert page.ask("/", "HEAD")[2] == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_reads_only(page: Served, method: str) -> None:
    status, headers, _ = page.ask("/state", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "[", ""])
@pytest.mark.parametrize("path", ["/", "/state", "/events"])
def test_no_page_from_elsewhere_reads_it_under_a_name_of_its_own(
    page: Served, host: str, path: str
) -> None:
    page.feed.publish(b'{"secret":1}')
    status, _, body = page.ask(path, Host=host)
    assert status == 421 and b"secret" not in body


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8080", "127.0.0.7"])
def test_a_tunnel_may_have_another_port(page: Served, host: str) -> None:
    assert page.ask(Host=host)[0] == 200


def test_on_other_addresses_a_stranger_without_the_token_gets_nothing(guarded: Served) -> None:
    token = guarded.site.token
    assert len(token) >= 32 and token in guarded.server.url
    guarded.feed.publish(b'{"secret":1}')
    wrong = [{}, {"Cookie": f"flowctl-page-{guarded.server.port}=wrong"}, {"Cookie": "a;=;\x80"}]
    for headers in wrong:
        for path in ("/", "/state", "/events", "/?token=", "/state?token=wrong", "/?token=\xfc"):
            status, told, body = guarded.ask(path.replace("\xfc", "%FC"), **headers)
            assert (status, b"secret" in body, "Set-Cookie" in told) == (403, False, False)


def test_the_token_in_the_address_becomes_a_cookie_that_no_script_reads(guarded: Served) -> None:
    status, headers, _ = guarded.ask(f"/?token={guarded.site.token}")
    assert (status, headers["Location"]) == (303, "./"), "it leaves the address bar"
    cookie, *flags = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict"} <= set(flags)
    assert guarded.ask(Cookie=cookie)[0] == 200
    assert next_of(guarded.events(Cookie=cookie))[0] == "whole"


def test_each_page_has_a_token_of_its_own_and_on_loopback_none_is_needed(
    page: Served, guarded: Served
) -> None:
    other = Served("0.0.0.0")
    try:
        assert other.site.token != guarded.site.token
    finally:
        other.server.close()
    assert page.site.token == ""


def test_a_browser_that_takes_nothing_holds_up_nobody_and_then_gets_the_newest() -> None:
    feed = Feed(lambda: b"0")
    sent: list[bytes] = []
    is_reading, may_go_on = threading.Event(), threading.Event()

    def send(data: bytes) -> None:
        sent.append(data)
        is_reading.set()
        may_go_on.wait(30)

    reader = threading.Thread(target=feed.read, args=(send,), daemon=True)
    reader.start()
    assert is_reading.wait(30)
    for number in range(1, 1001):
        feed.publish(b"%d" % number)  # returns, although the reader is stuck
    may_go_on.set()
    feed.settle(30)
    feed.close()
    reader.join(30)
    assert sent == [b"event: whole\ndata: 0\n\n", b"data: 1000\n\n"], "what was between is dropped"


def test_a_browser_that_is_gone_is_forgotten() -> None:
    feed = Feed(lambda: b"0")

    def send(data: bytes) -> None:
        raise BrokenPipeError

    feed.read(send)
    feed.publish(b"1")
    feed.settle(30)  # returns at once: nobody is to be waited for


def test_connections_are_bounded(page: Served) -> None:
    streams = [page.events() for _ in range(CONNECTIONS_MAX)]
    try:
        assert page.ask()[0] == 503
    finally:
        for stream in streams:
            stream.close()


def test_bytes_that_are_no_request_break_nothing(page: Served) -> None:
    for data in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", page.server.port), 30) as stranger:
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
    assert page.ask()[0] == 200


def test_a_port_that_is_taken_is_named(page: Served) -> None:
    with pytest.raises(
        ConfigError, match=rf"page: can't listen on 127\.0\.0\.1:{page.server.port}"
    ):
        PageServer("127.0.0.1", page.server.port, page.site)


def spout_of(bolts: LocalBolts) -> FlowControlSpout:
    return FlowControlSpout(
        name="job", producer=ListProducer(20), bolts=bolts, checkpoint=MemoryCheckpointStore()
    )


class Browser(Witness):
    """The view beside a page: it opens the page when it is told where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.stream: Any = None
        self.port = 0

    def message(self, text: str) -> None:
        if text.startswith("page at "):
            self.port = int(text.rstrip("/").rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            connection.request("GET", "/events")
            self.stream = connection.getresponse()


def test_a_run_shows_itself_and_stays_as_it_ended_until_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    browsers = [Browser(), Browser()]
    for browser in browsers:
        monkeypatch.setattr("flowctl.runtime.launch.make_view", lambda _: browser)  # noqa: B023
        spout_of(LocalBolts(lambda batch: None, count=2)).run(view="page")
        phases = [next_of(browser.stream)[1]["phase"]]
        while phases[-1] != "finished":
            phases.append(next_of(browser.stream)[1]["phase"])
        # A second browser, that comes late, sees how it ended.
        connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=30)
        connection.request("GET", "/")
        html = connection.getresponse().read().decode()
        assert html.startswith("<!doctype html>") and '"phase":"finished"' in html
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", browsers[0].port), 30)


def test_a_page_at_a_port_that_is_taken_is_refused_before_anything_is_done(page: Served) -> None:
    done: list[object] = []
    with pytest.raises(ConfigError, match="page: can't listen"):
        spout_of(LocalBolts(done.append, count=1)).run(
            view=Page(port=page.server.port, beside="quiet")
        )
    assert not done


def test_a_run_that_did_not_begin_shows_why_and_leaves_its_port_to_the_next_try() -> None:
    class Away(FailingStore):
        def acquire(self, job: str) -> int:
            raise CheckpointUnavailableError("nobody answers.", remedy="Start it.")

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spout = spout_of(LocalBolts(lambda batch: None, count=1))
    spout.checkpoint = Away()
    for _ in range(2):
        with pytest.raises(CheckpointUnavailableError):
            spout.run(view=Page(port=port, beside="quiet"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/state")
        said = json.loads(connection.getresponse().read())
        assert said["phase"] == "failed" and "nobody answers" in said["verdict"]["remedy"]
