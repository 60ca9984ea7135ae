"""Connections to one service, kept alive: one client per thread of a process."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from flowctl.arguments import check_numbers
from flowctl.errors import ConfigError, MissingExtraError, without_secrets
from flowctl.failure.classify import meaning_of
from flowctl.failure.kinds import Kind

# Longest time to connect: a service that takes longer is overloaded or down.
CONNECT_TIMEOUT_S = 5.0

# Bound of a whole answer in time-outs: one whose bytes trickle in, each before the time-out, might
# never end.
_ANSWER_WAITS_MAX = 10

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]


class Request(NamedTuple):
    """A request; ``headers`` are added to those of the sink."""

    method: str
    url: str
    content: bytes
    headers: dict[str, str]


class Client:
    """Sends requests; can be pickled, and connects at the first request.  Thread-safe.

    ``headers`` may be a function, called for each request, for tokens that expire.
    ``client`` makes an ``httpx.Client`` on the worker: for certificates, proxies, HTTP/2.
    """

    def __init__(
        self,
        name: str,
        *,
        headers: Headers | None,
        timeout_s: float,
        client: Callable[[], Any] | None,
    ) -> None:
        check_numbers(timeout_s=timeout_s)
        _httpx(name)
        self._name = name
        self._headers = headers
        self._timeout_s = float(timeout_s)
        self._make = client
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def send(self, request: Request) -> Any:
        """Return the fully read ``httpx.Response``; raise ``HTTPStatusError`` for 4xx and 5xx.

        A redirect is an error too, since the body would not be sent along.  If access is denied
        (401, 403) and ``headers`` is a function, the request is sent once more, perhaps with a
        newer token.
        """
        try:
            return self._send(request)
        except _httpx(self._name).HTTPStatusError as error:
            if not callable(self._headers) or meaning_of(error).kind is not Kind.NOT_ALLOWED:
                raise
        return self._send(request)

    def _send(self, request: Request) -> Any:
        given = self._headers() if callable(self._headers) else self._headers
        client = self._client()
        response = client.send(
            client.build_request(
                request.method,
                request.url,
                content=request.content,
                headers={**request.headers, **(given or {})},
            ),
            stream=True,
        )
        try:
            if self._make is None:  # a client made by the user has its own limits
                response.stream = _bounded(response.stream, _ANSWER_WAITS_MAX * self._timeout_s)
            response.read()
        except _httpx(self._name).HTTPError:
            # A 503 counts, even if the page that explains it could not be read.
            response.raise_for_status()
            raise
        finally:
            response.close()
        response.raise_for_status()
        return response

    def _client(self) -> Any:
        client = getattr(self._local, "client", None)
        if client is None:
            client = self._make() if self._make is not None else self._new()
            self._local.client = client
        return client

    def _new(self) -> Any:
        httpx = _httpx(self._name)
        timeout = httpx.Timeout(self._timeout_s, connect=min(CONNECT_TIMEOUT_S, self._timeout_s))
        # Each thread makes one call at a time, so one connection is enough.
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        return httpx.Client(timeout=timeout, limits=limits)

    def close(self) -> None:
        """Close this thread's connections; the next request opens others."""
        client = getattr(self._local, "client", None)
        if client is not None:
            self._local.client = None
            client.close()


def _bounded(stream: Any, within_s: float) -> Any:
    """Return ``stream`` such that it raises ``httpx.ReadTimeout`` after ``within_s`` in all."""
    import httpx

    by_s = time.monotonic() + within_s

    class Bounded(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for part in stream:
                if time.monotonic() > by_s:
                    raise httpx.ReadTimeout(f"the answer did not end within {within_s:g} s")
                yield part

        def close(self) -> None:
            stream.close()

    return Bounded()


def checked_url(url: str) -> str:
    """Return ``url``; raise :class:`ConfigError` unless it is an HTTP URL."""
    if not str(url).lower().startswith(("http://", "https://")):
        shown = without_secrets(str(url))
        raise ConfigError(
            "url", f"{shown!r} is not an HTTP address.", remedy="Give http://… or https://…"
        )
    return url


def host_of(url: str) -> str:
    """Return the host of ``url``, for messages: paths and queries may hold a secret."""
    return urlsplit(url).hostname or ""


def _httpx(name: str) -> Any:
    try:
        return importlib.import_module("httpx")
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise MissingExtraError(name, "httpx", "http") from None
