"""Rows into a service over HTTP, one request for each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from flowctl.arguments import check_arguments
from flowctl.bolts.batch import Batch
from flowctl.delivery.item_sink import NotInJsonError, columns_of, encoded, wanted_of
from flowctl.errors import ConfigError, JobError
from flowctl.failure.callables import check_plain
from flowctl_http._bodies import FORMS, Compression, Form, body_of
from flowctl_http._client import Client, Headers, Request, checked_url, host_of
from flowctl_http._keys import call_key

_METHODS = ("POST", "PUT", "PATCH", "DELETE")
_MULTI_STATUS = 207
_SHOWN_CHARS_MAX = 300
# First bytes of an HTML page.  The content type is not enough: Flask and others label any text as
# HTML.
_PAGES = ("<!doctype html", "<html")


class HttpSink:
    """Sends the rows of a call in one request, with a key by which the service knows a repeat.

    ``url`` is the address of the service; ``method`` is POST, PUT, PATCH or DELETE.  ``body`` is
    "json", the list of rows, or "ndjson", a row a line; or a function of the rows that makes bytes,
    text, or anything that JSON can hold.  JSON has no NaN and no infinity: rows with one are
    rejected.  ``compression`` is that of the body, "gzip" or "zstd" (extra ``zstd``), if the
    service takes it.  ``headers`` is a mapping, or a function that returns one for each request
    (for tokens that expire); headers may replace ``Content-Type``.  ``on_response(response,
    batch)`` gets each answer of success (a :class:`Response`).  It may ``batch.reject(index, why)``
    rows that the service did not accept, or raise ``RetryLater(again=[…])`` with the indices of
    rows to send again.  Without it a 207 (some rows may have failed) and an HTML page (from a
    proxy, or for a login) are faults.

    ``timeout_s`` bounds connecting (at most 5 s), writing and each wait for a part of the answer;
    all of the answer may take ten times as long.
    Connections are kept alive, as many as there were calls at once, and proxies and certificates
    are those of the environment.  HTTP/1.1 can't tell a second answer to a request, if it comes
    late, from the answer to the next one, so with a service that has this defect use
    ``client=lambda: httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))``.
    ``client()`` makes an ``httpx.Client`` of your own on the worker, for other certificates and
    proxies, or HTTP/2; then ``timeout_s`` is not used, answers and errors are those of httpx, and a
    call takes five times as much CPU.

    Each request has the header ``idempotency_header`` (None: no such header) with a hash of the
    job, the partition, the positions of its rows, the method and the path of ``url``.  If the same
    rows are sent again in one request, the key is the same, so a service that keeps such keys takes
    them once.  Rows that are sent again may be divided into requests differently, with other keys:
    give ``rows_max=1``, or use a service that identifies each row by an id.  Keys are as reliable
    as ``batch.span`` (see ``flow_sink``).

    408, 425, 429, 502, 503, 504, a missing connection and time-outs are refusals: flowctl waits
    (``Retry-After``) and lowers the target's limit.  401 and 403 end the run; if ``headers`` is a
    function, the request is sent once more with new headers first.  Any other answer of 400 and
    above is a fault; its dead letter has the first 200 characters of the body.

    Raises :class:`ConfigError` for invalid arguments, and
    :class:`flowctl.errors.MissingExtraError` for ``client`` without httpx (extra ``http``).  Can be
    pickled; thread-safe.
    """

    # Whoever has columns of values hands them over: no dict is made of a row.
    takes_columns: ClassVar[bool] = True

    @check_arguments("body", "headers", "on_response", "idempotency_header", "client")
    def __init__(
        self,
        url: str,
        *,
        method: str = "POST",
        body: Form | Callable[[Sequence[Any]], Any] = "json",
        headers: Headers | None = None,
        on_response: Callable[[Any, Batch], None] | None = None,
        timeout_s: float = 10.0,
        idempotency_header: str | None = "Idempotency-Key",
        client: Callable[[], Any] | None = None,
        compression: Compression | None = None,
    ) -> None:
        if isinstance(body, str) and body not in FORMS:
            raise ConfigError(
                "body", f"{body!r} is not known.", remedy=f"Give {' or '.join(map(repr, FORMS))}."
            )
        if method not in _METHODS:
            raise ConfigError(
                "method", f"{method!r} can't be used.", remedy=f"Give one of {', '.join(_METHODS)}."
            )
        for name, given in (("body", body), ("on_response", on_response), ("client", client)):
            if given is not None and not isinstance(given, str):
                check_plain(given, name)
        self._url = checked_url(url)
        self._method = method
        self._body = body or "json"
        self._on_response = on_response
        self._key_header = idempotency_header
        self._client = Client(
            "HttpSink",
            headers=headers,
            timeout_s=timeout_s,
            client=client,
            compression=compression,
        )

    def __repr__(self) -> str:
        return f"HttpSink({host_of(self._url)})"

    def write(self, rows: Iterable[Any], *, batch: Batch) -> None:
        """Send ``rows``; ``rows[i]`` belongs to ``batch[i]``, None stands for no row.

        Or ``rows`` is a ``pyarrow.RecordBatch`` whose row ``i`` belongs to ``batch[i]``.

        The time it takes counts as ``batch.in_sink()``.  On return the service has answered for
        all of them.  Raises :class:`StatusError` for an answer that is none of success, ``OSError``
        and ``http.client.HTTPException`` for a failed connection, and :class:`UnrunnableError` if
        there is not one item for each record.
        """
        content, kind = self._content(columns_of(rows), batch)
        if not kind:
            return
        headers = {"Content-Type": kind}
        if self._key_header is not None:
            place = f"{self._method} {urlsplit(self._url).path}"
            headers[self._key_header] = call_key(batch, place)
        with batch.in_sink():
            response = self._client.send(Request(self._method, self._url, content, headers))
        if self._on_response is not None:
            self._on_response(response, batch)
        else:
            _refuse_unclear(response)

    def _content(self, rows: Any, batch: Batch) -> tuple[bytes, str]:
        """Return the body and its content type, which is "" if there is no row to send."""
        if isinstance(self._body, str):
            content = body_of(rows, batch, self._body)
            return content, FORMS[self._body] if content else ""
        wanted = [row for _, row in wanted_of(rows, batch)]
        return _encoded(self._body(wanted)) if wanted else (b"", "")

    def close(self) -> None:
        """Close the connections that rest; the next write opens others."""
        self._client.close()


def _refuse_unclear(response: Any) -> None:
    """Raise :class:`JobError` for an answer that doesn't confirm that the rows were accepted."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if response.status_code == _MULTI_STATUS:
        problem = "the answer has the status 207: some rows may have failed"
    elif kind == "text/html" and response.text.lstrip()[:20].lower().startswith(_PAGES):
        start = " ".join(response.text[:_SHOWN_CHARS_MAX].split())
        problem = f"the answer is a page, with the status {response.status_code}: {start!r}"
    else:
        return
    raise JobError(
        f"{problem}.",
        remedy="Is url that of the service, not of a proxy or a login? If it does answer so, give"
        " on_response=, which decides about the rows.",
    )


def _encoded(body: Any) -> tuple[bytes, str]:
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    if isinstance(body, str):
        return body.encode(), "text/plain; charset=utf-8"
    try:
        return encoded(body), FORMS["json"]
    except NotInJsonError as error:
        raise JobError(f"the body can't be sent: {error}.", remedy="Send None or a text.") from None
