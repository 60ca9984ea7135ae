"""One connection to a service: HTTP/1.1 by the standard library.

``http.client`` takes a seventh of the CPU that httpx takes for a call, which counts where a job
makes a call for each record.  Proxies and certificates are found as httpx finds them.
"""

from __future__ import annotations

import functools
import http.client
import importlib
import os
import select
import ssl
import time
import zlib
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from flowctl.errors import ConfigError
from flowctl_http.answers import Response, StatusError, shown_url

# Longest time to connect: a service that takes longer is overloaded or down.
CONNECT_TIMEOUT_S: Final = 5.0
# Bound of a whole answer in time-outs: one whose bytes trickle in, each before the time-out, might
# never end.
_ANSWER_WAITS_MAX = 10
# Of an answer, read at a time; and of a request that is sent at once, which is copied for that.
_PART_BYTES: Final = 64 << 10
# What a path may hold beside letters and digits, a percent sign included: it may be quoted already.
_IN_PATHS: Final = "%/:=&?~+!$,;'@()*[]|"
_COMPRESSED: Final = frozenset({"gzip", "x-gzip", "deflate"})
_SUCCESS_MIN, _ERROR_MIN = 200, 300
# What is raised while an answer is read.
_UNREADABLE: Final = (OSError, http.client.HTTPException, zlib.error)


class Request(NamedTuple):
    """A request; ``headers`` are added to those of the sink."""

    method: str
    url: str
    content: bytes
    headers: dict[str, str]


class Connection:
    """A connection to the service of one URL, opened at the first request.

    For one thread at a time.  ``timeout_s`` bounds writing and each wait for a part of an answer.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._timeout_s = timeout_s
        self._raw, self._prefix, login = _connection_to(parts, min(CONNECT_TIMEOUT_S, timeout_s))
        self._headers: dict[str, str] = {"User-Agent": "flowctl", **login, **_user_of(parts)}

    @property
    def is_stale(self) -> bool:
        """Whether a connection that rests was closed by the service, or brought what nobody asked
        for: nothing can be sent over it.
        """
        sock = self._raw.sock
        if sock is None:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, request: Request, headers: Mapping[str, str]) -> Response:
        """Return the answer to ``request``, sent with ``headers`` in place of its own.

        Raises :class:`StatusError` unless the status is 2xx, ``OSError`` and
        ``http.client.HTTPException`` for a failed connection.
        """
        try:
            if self._raw.sock is None:
                self._open()
            answer = self._ask(request, headers)
            return self._answered(answer, request.url)
        except StatusError:
            raise
        except BaseException:
            self.close()  # part of an answer may be there
            raise

    def _open(self) -> None:
        self._raw.connect()
        self._raw.sock.settimeout(self._timeout_s)

    def _ask(self, request: Request, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        # The service may have answered before it had read all, and closed the connection.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._raw.request_at_once(
                request.method,
                self._prefix + _target(request.url),
                request.content or (None if request.method == "GET" else b""),
                merged(self._headers, headers),
            )
        return self._raw.getresponse()

    def _answered(self, answer: http.client.HTTPResponse, url: str) -> Response:
        status, shown = answer.status, shown_url(url)
        headers: Any = answer.headers
        if status < _SUCCESS_MIN:  # 103 and the like: the answer itself is still to come
            raise http.client.BadStatusLine(f"{status}: the answer before the answer")
        is_error = status >= _ERROR_MIN
        try:
            content = self._content(answer)
        except _UNREADABLE as error:
            if not is_error:
                raise
            # A 503 counts, even if the page that explains it could not be read.
            self.close()
            raise StatusError(Response(status, answer.reason, headers, b"", shown)) from error
        response = Response(status, answer.reason, headers, content, shown)
        if is_error:  # also a redirect, which would not take the body along
            raise StatusError(response)
        return response

    def _content(self, answer: http.client.HTTPResponse) -> bytes:
        within_s = _ANSWER_WAITS_MAX * self._timeout_s
        by_s = time.monotonic() + within_s
        parts = []
        while part := answer.read1(_PART_BYTES):
            parts.append(part)
            if time.monotonic() > by_s:
                raise TimeoutError(f"the answer did not end within {within_s:g} s")
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
        answer.close()
        content = b"".join(parts)
        how = (answer.headers.get("Content-Encoding") or "").strip().lower()
        return _decompressed(content, how) if how in _COMPRESSED else content

    def close(self) -> None:
        """Close it; the next request opens it again."""
        self._raw.close()


class _AtOnce(http.client.HTTPConnection):
    """Sends head and body of a small request together: as one packet, with one call."""

    _parts: list[bytes] | None = None

    def send(self, data: Any) -> None:
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)

    def request_at_once(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str]
    ) -> None:
        """As ``request``."""
        parts: list[bytes] = []
        self._parts = parts
        try:
            self.request(method, target, content, headers)
        finally:
            self._parts = None
        if sum(map(len, parts)) <= _PART_BYTES:
            parts = [b"".join(parts)]
        for part in parts:
            super().send(part)


class _AtOnceTls(_AtOnce, http.client.HTTPSConnection):
    pass


@functools.lru_cache
def _target(url: str) -> str:
    """Return path and query as a request has them."""
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe=_IN_PATHS)
    return f"{path}?{quote(parts.query, safe=_IN_PATHS)}" if parts.query else path


def merged(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return ``own`` headers and those ``given``, which replace others whatever their case."""
    names = {name.lower() for name in given}
    return {**{name: own[name] for name in own if name.lower() not in names}, **given}


def _decompressed(content: bytes, how: str) -> bytes:
    # Some call "deflate" what has no header of zlib.
    is_raw = how == "deflate" and content[:1] != b"\x78"
    made = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS | 32)
    return made.decompress(content) + made.flush()


def _connection_to(parts: SplitResult, timeout_s: float) -> tuple[_AtOnce, str, dict[str, str]]:
    """Return a connection, what stands before paths, and headers that go with each request."""
    host, port = parts.hostname or "", parts.port
    is_tls = parts.scheme.lower() == "https"
    if (proxy := _proxy_of(parts.scheme.lower(), parts.netloc.rpartition("@")[2])) is None:
        if is_tls:
            return _tls(host, port, timeout_s), "", {}
        return _AtOnce(host, port, timeout=timeout_s), "", {}
    login = _user_of(proxy, "Proxy-Authorization")
    if is_tls:
        tunnel = _tls(proxy.hostname or "", proxy.port or 80, timeout_s)
        tunnel.set_tunnel(host, port, login)
        return tunnel, "", {}
    through = _AtOnce(proxy.hostname or "", proxy.port or 80, timeout=timeout_s)
    return through, f"http://{parts.netloc.rpartition('@')[2]}", login


def _tls(host: str, port: int | None, timeout_s: float) -> _AtOnceTls:
    return _AtOnceTls(host, port, timeout=timeout_s, context=_context())


@functools.cache
def _context() -> ssl.SSLContext:
    """Return what checks certificates: by ``SSL_CERT_FILE``, or by the system's and certifi's."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        with suppress(ModuleNotFoundError):  # an image without the system's own has httpx's
            context.load_verify_locations(importlib.import_module("certifi").where())
    return context


def _proxy_of(scheme: str, netloc: str) -> SplitResult | None:
    """Return the proxy that the environment names for a service; None: there is none."""
    from urllib.request import getproxies, proxy_bypass

    found = getproxies()
    given = found.get(scheme) or found.get("all")
    if not given or proxy_bypass(netloc):
        return None
    proxy = urlsplit(given if "://" in given else f"http://{given}")
    if proxy.scheme.lower() != "http":
        raise ConfigError(
            "client",
            f"the environment names a proxy of the kind {proxy.scheme}.",
            remedy="Give client=lambda: httpx.Client(proxy=…), or set NO_PROXY.",
        )
    return proxy


def _user_of(parts: SplitResult, header: str = "Authorization") -> dict[str, str]:
    """Return the header for user and password in a URL; none without."""
    if parts.username is None:
        return {}
    login: Any = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {header: f"Basic {b64encode(login.encode()).decode()}"}
