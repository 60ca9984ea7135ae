"""Serves the page of a run to browsers, and what is new of it as server-sent events.

It reads: only GET and HEAD are answered.  On loopback whoever is on the machine may look, under a
name of loopback only; on any other address a token is asked for, which is of this page alone.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Condition, Lock, Thread
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from flowctl.errors import ConfigError

# Connections at once: each has a thread.  A browser keeps two, and more than a team's would be a
# mistake or a stranger.
CONNECTIONS_MAX: Final = 32
# A browser that takes nothing for this long [s] is gone; nor may a client that sends no request
# keep a thread.
_PATIENCE_S: Final = 5.0
# While nothing is new, a line this often [s] shows which browsers are still there.
_ALIVE_EVERY_S: Final = 15.0
# How long a run's end waits for open browsers to be shown it [s]; they are ready within some ms.
_LAST_WORD_S: Final = 1.0
_TOKEN_BYTES: Final = 24  # 192 bits: nobody guesses it
_ALL_ADDRESSES: Final = ("0.0.0.0", "::")
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Feed:
    """The newest state of a run, for any number of readers.  Thread-safe.

    There is no queue: who is slow gets what is newest when ready, and misses what was between.
    ``whole`` returns what a reader begins with.
    """

    def __init__(self, whole: Callable[[], bytes]) -> None:
        self.whole = whole
        self._changed = Condition()
        self._newest, self._version = b"", 0
        self._readers: dict[int, int] = {}  # which version each of them was sent
        self._is_closed = False

    def publish(self, newest: bytes) -> None:
        """Show ``newest`` to all readers; never waits for one."""
        with self._changed:
            self._newest = newest
            self._version += 1
            self._changed.notify_all()

    def newest(self) -> bytes:
        """Return what was published last."""
        return self._newest

    def close(self) -> None:
        """End all readers."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def settle(self, timeout_s: float) -> None:
        """Wait until each reader was sent the newest, for ``timeout_s`` [s] at most."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(sent == self._version for sent in self._readers.values()), timeout_s
            )

    def read(self, send: Callable[[bytes], None]) -> None:
        """Call ``send`` with the whole, then with what is new, until the feed is closed.

        Returns when ``send`` raises OSError: the reader is gone.
        """
        reader = id(send)
        with self._changed:
            version = self._version
            self._readers[reader] = -1
        try:
            send(b"event: whole\ndata: " + self.whole() + b"\n\n")
            while (found := self._await(reader, version)) is not None:
                send(b"data: " + found[1] + b"\n\n" if found[0] != version else b":\n\n")
                version = found[0]
        except OSError:
            return
        finally:
            with self._changed:
                del self._readers[reader]
                self._changed.notify_all()

    def _await(self, reader: int, version: int) -> tuple[int, bytes] | None:
        """Note that ``reader`` has ``version``; return what is newer, or after a while the same;
        None: closed.
        """
        with self._changed:
            self._readers[reader] = version
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._is_closed or self._version != version, _ALIVE_EVERY_S
            )
            return None if self._is_closed else (self._version, self._newest)


class Site:
    """What the handlers of one server share: the page, its feed, and who may read it."""

    def __init__(self, feed: Feed, *, html: Callable[[], bytes], policy: str) -> None:
        self.feed = feed
        self.html = html  # as it is when it is asked for
        self.policy = policy
        self.token = ""  # "": whoever is on the machine may read

    def knows_host(self, header: str) -> bool:
        """Whether a request for this ``Host`` may be answered.

        On loopback a web page from elsewhere could reach this server under a name of its own whose
        address it changes to 127.0.0.1.  Elsewhere the token guards: a browser sends it to no other
        name.  Any port goes, as that of a tunnel is its own.
        """
        try:
            host = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return bool(self.token) or is_loopback(host)

    def knows(self, token: str) -> bool:
        """Whether ``token`` is the page's; takes as long for any wrong one."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


class PageServer:
    """Serves ``site`` on ``port`` (0: any free one) of ``host`` from daemon threads,
    :data:`CONNECTIONS_MAX` at most.

    Raises :class:`ConfigError` for an address that can't be used.  The page of an earlier run of
    this process that is over makes way.
    """

    def __init__(self, host: str, port: int, site: Site) -> None:
        _let_go()
        if not is_loopback(host):
            site.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._feed = site.feed
        self._server = _listen(host, port, site)
        self.port: int = self._server.server_address[1]
        if host in _ALL_ADDRESSES:
            host = socket.gethostname()  # one that a browser can use
        place = f"[{host}]" if ":" in host else host
        query = f"?token={site.token}" if site.token else ""
        self.url: str = f"http://{place}:{self.port}/{query}"
        self._thread = Thread(target=self._serve, name="flowctl-page", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """The run is over: show that to open browsers, and stay until the next page or the end."""
        self._feed.settle(_LAST_WORD_S)
        with _lock:
            _left.append(self)

    def close(self) -> None:
        """Stop to listen, and end all connections; waits for the thread, not for browsers."""
        self._feed.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.1)  # how long a close waits


_lock = Lock()
_left: list[PageServer] = []  # of runs that are over; a notebook would collect one with each cell


def _let_go() -> None:
    with _lock:
        over, _left[:] = list(_left), []
    for server in over:
        server.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    """One connection, one answer."""

    site: Site
    timeout = _PATIENCE_S
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "flowctl", ""

    def do_GET(self) -> None:
        """Answer the page, its events or its newest state."""
        url = urlsplit(self.path)
        if not self.site.knows_host(self.headers.get("Host", "")):
            self._answer(421, b"This page is at another address.\n")
        elif self._may(url.query):
            self._show(url.path)

    do_HEAD = do_GET

    def _refuse_method(self) -> None:
        self._answer(405, b"This page reads only.\n", ("Allow", "GET, HEAD"))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse_method

    def _may(self, query: str) -> bool:
        """Whether the request has the token, in a cookie; one in the address becomes a cookie."""
        site = self.site
        if not site.token:
            return True
        given = parse_qs(query).get("token", [""])[0]
        if given and site.knows(given):
            # HttpOnly: no script reads it.  Strict: no page from elsewhere sends it.
            cookie = f"{self._cookie}={site.token}; HttpOnly; SameSite=Strict; Path=/"
            self._answer(303, b"", ("Location", "./"), ("Set-Cookie", cookie))
            return False
        cookies = SimpleCookie()
        with suppress(CookieError):
            cookies.load(self.headers.get("Cookie", ""))
        if self._cookie in cookies and site.knows(cookies[self._cookie].value):
            return True
        self._answer(403, b"The address of this page has a token, which the run printed.\n")
        return False

    @property
    def _cookie(self) -> str:
        # A browser sends a cookie to all ports of a host, and each run has a token of its own.
        return f"flowctl-page-{self.connection.getsockname()[1]}"

    def _show(self, path: str) -> None:
        site = self.site
        if path == "/":
            csp = f"{site.policy}; frame-ancestors 'self'"
            self._answer(
                200, site.html(), ("Content-Security-Policy", csp), kind="text/html; charset=utf-8"
            )
        elif path == "/state":
            self._answer(200, site.feed.newest() or b"null", kind="application/json")
        elif path == "/events" and self.command == "GET":
            self._head(200, "text/event-stream", ("X-Accel-Buffering", "no"))
            site.feed.read(self._send)
        else:
            self._answer(404, b"/, /events, /state\n")

    def _send(self, data: bytes) -> None:
        self.wfile.write(data)

    def _answer(
        self, status: int, body: bytes, *headers: tuple[str, str], kind: str = "text/plain"
    ) -> None:
        self._head(status, kind, ("Content-Length", str(len(body))), *headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, kind: str, *headers: tuple[str, str]) -> None:
        self.close_connection = True
        self.send_response(status)
        common = (
            ("Content-Type", kind),
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),  # the address may have the token
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        )
        for name, value in (*common, *headers):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a browser that looks is not news."""


class _Server(ThreadingHTTPServer):
    """At most :data:`CONNECTIONS_MAX` threads; what breaks in one is the browser's affair."""

    daemon_threads = True
    block_on_close = False  # an end waits for no browser

    def __init__(self, *args: Any) -> None:
        self._free = BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(*args)

    def server_bind(self) -> None:
        # As HTTPServer does, without a look-up of the machine's name, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for the request if there are not too many."""
        if not self._free.acquire(blocking=False):
            request.setblocking(False)  # the answer fits the socket's buffer, or is lost
            with suppress(OSError):
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread is to be had
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that went away is not news."""


def _listen(host: str, port: int, site: Site) -> ThreadingHTTPServer:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    handler = type("Handler", (_Handler,), {"site": site})
    server = type("Server", (_Server,), {"address_family": family})
    try:
        listening: ThreadingHTTPServer = server((host, port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            "page",
            f"can't listen on {host}:{port}: {getattr(error, 'strerror', None) or error}.",
            remedy="Choose a free port, or 0 for any; the host is an address of this machine.",
        ) from None
    return listening
