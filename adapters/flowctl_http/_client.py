"""Connections to one service, kept alive and used again by whoever calls next."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from flowctl.arguments import check_numbers
from flowctl.errors import ConfigError, MissingExtraError, without_secrets
from flowctl.failure.classify import meaning_of
from flowctl.failure.kinds import Kind
from flowctl_http._bodies import Compression, checked_compression, compressed
from flowctl_http._connection import Connection, Request, merged

__all__ = ["Client", "Headers", "Request", "checked_url", "host_of"]

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]


_SETTINGS = ("_headers", "_timeout_s", "_make", "_compression")


class _Sender(Protocol):
    """Sends a request, and raises for any status but 2xx; for one thread at a time.

    One that failed can be used again: it opens another connection.
    """

    @property
    def is_stale(self) -> bool: ...
    def send(self, request: Request, headers: Mapping[str, str]) -> Any: ...
    def close(self) -> None: ...


class Client:
    """Sends requests to one service.  Can be pickled, and connects at the first request.

    ``headers`` may be a function, called for each request, for tokens that expire.
    ``client`` makes an ``httpx.Client`` on the worker: for certificates, proxies, HTTP/2.
    ``compression`` is that of requests.
    Thread-safe: there are as many connections as there were calls at once.
    """

    def __init__(
        self,
        name: str,
        *,
        headers: Headers | None,
        timeout_s: float,
        client: Callable[[], Any] | None,
        compression: Compression | None = None,
    ) -> None:
        check_numbers(timeout_s=timeout_s)
        self._compression = checked_compression(compression)
        if client is not None:
            _httpx(name)
        self._headers = headers
        self._timeout_s = float(timeout_s)
        self._make = client
        self._forget()

    def _forget(self) -> None:
        self._free: list[_Sender] = []  # append and pop need no lock
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _SETTINGS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def send(self, request: Request) -> Any:
        """Return the answer, read to its end; raise an error with ``response`` unless it is 2xx.

        They are a :class:`Response` and a :class:`StatusError`, with a ``client`` of the user's
        those of httpx.  A redirect is an error too, since the body would not be sent along.  If
        access is denied (401, 403) and ``headers`` is a function, the request is sent once more,
        perhaps with a newer token.
        """
        content, headers = compressed(request.content, request.headers, self._compression)
        request = Request(request.method, request.url, content, headers)
        try:
            return self._send(request)
        except Exception as error:
            is_answered = getattr(error, "response", None) is not None
            if not (callable(self._headers) and is_answered):
                raise
            if meaning_of(error).kind is not Kind.NOT_ALLOWED:
                raise
        return self._send(request)

    def _send(self, request: Request) -> Any:
        given = self._headers() if callable(self._headers) else self._headers
        headers = request.headers if not given else merged(request.headers, given)
        sender = self._taken(request.url)
        try:
            return sender.send(request, headers)
        finally:
            self._free.append(sender)

    def _taken(self, url: str) -> _Sender:
        """Return a connection that nobody uses."""
        if self._process != os.getpid():  # a fork must not read its parent's answers
            self._forget()
        while self._free:
            try:
                sender = self._free.pop()
            except IndexError:  # another thread took it
                break
            if not sender.is_stale:
                return sender
            sender.close()
        return Connection(url, self._timeout_s) if self._make is None else _Given(self._make())

    def close(self) -> None:
        """Close the connections that nobody uses now; the next request opens others."""
        while self._free:
            self._free.pop().close()


class _Given:
    """A client of the user's."""

    is_stale = False  # it looks itself

    def __init__(self, client: Any) -> None:
        self._client = client

    def send(self, request: Request, headers: Mapping[str, str]) -> Any:
        method, url, content, _ = request
        response = self._client.request(method, url, content=content, headers=dict(headers))
        response.raise_for_status()
        return response

    def close(self) -> None:
        self._client.close()


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
