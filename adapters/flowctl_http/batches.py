"""The batch APIs of OpenAI and Anthropic, for ``apply``: half the price, answers within a day.

Both speak plain HTTP here; docs/howto/batch-apis.md says which fields are used.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from flowctl.arguments import check_arguments, check_numbers, check_whole
from flowctl.batch_ports import Answer, BatchState, Found
from flowctl.delivery.item_sink import encoded
from flowctl.errors import ConfigError, JobError, RetryLater, UnrunnableError
from flowctl.failure.callables import check_plain
from flowctl.failure.classify import meaning_of
from flowctl.failure.kinds import Kind
from flowctl.failure.tables import CODES, STATUSES
from flowctl_http._client import Client, Headers, Request, checked_url, host_of

_decode = msgspec.json.decode
_JSON: Final = {"Content-Type": "application/json"}
# Half of what the services take: the driver holds a batch twice while it sends it.
_BYTES_MAX: Final = 100 << 20
_POLL_S: Final = 30.0  # batches take minutes to hours
# An answer that was lost belongs to a request that ended within its time-out, or never will; then
# a list shows the batch within seconds.
_SETTLE_S: Final = 120.0
_TIMEOUT_S: Final = 60.0
# By how much the service's clock may be behind [s].
_CLOCK_S: Final = 3600.0
_ERROR_STATUS_MIN, _SERVER_STATUS_MIN = 400, 500
# What codes of errors mean, beside those that all know.
_OPENAI_CODES: Final = {"model_not_found": Kind.NOT_ALLOWED}


class _Batches:
    """What both have in common: settings, and calls that answer in JSON."""

    def __init__(
        self,
        given: _Given,
        *,
        url: str,
        headers: Headers,
        timeout_s: float,
        client: Callable[[], Any] | None,
    ) -> None:
        for name, function in (("request", given.request), ("result", given.result)):
            if not callable(function):
                raise ConfigError(name, f"{function!r} can't be called.", remedy="Give a function.")
            check_plain(function, name)
        check_whole(rows_max=given.rows_max, bytes_max=given.bytes_max)
        if given.at_once is not None:
            check_whole(at_once=given.at_once)
        check_numbers(poll_s=given.poll_s, settle_s=given.settle_s)
        self.request: Callable[[Any], Any] = given.request
        self.result: Callable[[Any, Any], Any] = given.result
        self.rows_max: int = given.rows_max
        self.bytes_max: int = given.bytes_max
        self.at_once: int | None = given.at_once
        self.poll_s: float = given.poll_s
        self.settle_s: float = given.settle_s
        self._url = checked_url(url).rstrip("/")
        self._client = Client(
            type(self).__name__, headers=headers, timeout_s=timeout_s, client=client
        )

    def _bytes(self, path: str) -> bytes:
        return self._sent(Request("GET", self._url + path, b"", {}))

    def _json(self, path: str) -> Any:
        return _understood(self._bytes(path), path)

    def _post(self, path: str, content: bytes, headers: dict[str, str]) -> Any:
        return _understood(self._sent(Request("POST", self._url + path, content, headers)), path)

    def _sent(self, request: Request) -> bytes:
        try:
            content: bytes = self._client.send(request).content
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status < _SERVER_STATUS_MIN:
                raise
            # No row is to blame, as none was judged: the call is made again.
            raise RetryLater(f"status {status}", after_s=meaning_of(error).after_s) from error
        return content


class _Given(msgspec.Struct, kw_only=True):
    """What users give for either service."""

    request: Any
    result: Any
    rows_max: int
    bytes_max: int
    at_once: int | None
    poll_s: float
    settle_s: float


class OpenAIBatch(_Batches):
    """The Batch API of OpenAI, and of those that speak it, in place of the function of ``apply``.

    ``request(row)`` returns the body of a request to ``endpoint``, as a dict; None for a row that
    is to have none, and no result.  ``result(row, body)`` gets the body of the answer, as a dict,
    and returns a row, a list of rows, or None.  ``headers`` hold the key: ``{"Authorization":
    "Bearer …"}``; or a function that returns them.

    A batch has at most ``rows_max`` requests and ``bytes_max`` bytes (the service takes 50,000 and
    200 MB), and ``at_once`` batches are under way (None: as many as there are).  ``poll_s`` is how
    often the service is asked whether one has ended.  A submit whose answer was lost is looked for
    by its metadata, and repeated only if the batch is not there after ``settle_s``.  ``timeout_s``
    and ``client`` are as for :class:`flowctl_http.HttpSink`.

    A request that was answered with an error that its row is to blame for (400, 413, 415, 422) is
    rejected with the error; others, and those that expired, are asked again in a later batch, until
    ``attempts_max``.  An error by which no request can succeed (401, 403, no money) ends the run,
    saved.

    Raises :class:`ConfigError` for invalid arguments, and
    :class:`flowctl.errors.MissingExtraError` for ``client`` without httpx (extra ``http``).
    """

    @check_arguments("request", "result", "headers", "endpoint", "client")
    def __init__(
        self,
        request: Callable[[Any], Mapping[str, Any] | None],
        result: Callable[[Any, Any], Any],
        *,
        headers: Headers,
        url: str = "https://api.openai.com",
        endpoint: str = "/v1/chat/completions",
        rows_max: int = 50_000,
        bytes_max: int = _BYTES_MAX,
        at_once: int | None = None,
        poll_s: float = _POLL_S,
        settle_s: float = _SETTLE_S,
        timeout_s: float = _TIMEOUT_S,
        client: Callable[[], Any] | None = None,
    ) -> None:
        if not endpoint.startswith("/"):
            raise ConfigError(
                "endpoint",
                f"{endpoint!r} does not begin with '/'.",
                remedy="Give a path such as '/v1/chat/completions'.",
            )
        given = _Given(
            request=request, result=result, rows_max=rows_max, bytes_max=bytes_max,
            at_once=at_once, poll_s=poll_s, settle_s=settle_s,
        )  # fmt: skip
        super().__init__(given, url=url, headers=headers, timeout_s=timeout_s, client=client)
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"OpenAIBatch({host_of(self._url)}, {self._endpoint})"

    def line(self, key: str, request: Any) -> bytes:
        """See :class:`flowctl.batch_ports.BatchService`."""
        asked = {"custom_id": key, "method": "POST", "url": self._endpoint, "body": request}
        return encoded(asked) + b"\n"

    def submit(self, lines: Sequence[bytes], mark: str) -> str:
        """See :class:`flowctl.batch_ports.BatchService`."""
        content, headers = _form(mark, lines)
        file = self._post("/v1/files", content, headers)
        wanted = {
            "input_file_id": file["id"],
            "endpoint": self._endpoint,
            "completion_window": "24h",
            "metadata": {"flowctl": mark},
        }
        id: str = self._post("/v1/batches", encoded(wanted), dict(_JSON))["id"]
        return id

    def find(self, mark: str, requests: int, *, since_s: float, known: Container[str]) -> Found:
        """See :class:`flowctl.batch_ports.BatchService`."""
        for batch in self._newest():
            if (batch.get("metadata") or {}).get("flowctl") == mark:
                return Found(batch["id"])
            if batch["created_at"] < since_s - _CLOCK_S:
                break
        return Found("")

    def _newest(self) -> Iterator[Any]:
        path = "/v1/batches?limit=100"
        while True:
            page = self._json(path)
            yield from page["data"]
            if not page.get("has_more") or not page["data"]:
                return
            path = f"/v1/batches?limit=100&after={page['data'][-1]['id']}"

    def poll(self, id: str) -> BatchState:
        """See :class:`flowctl.batch_ports.BatchService`."""
        batch = self._json(f"/v1/batches/{id}")
        status = batch["status"]
        if status == "failed":
            return _failed(id, (batch.get("errors") or {}).get("data") or [])
        has_ended = status in ("completed", "expired", "cancelled")
        return BatchState.ENDED if has_ended else BatchState.WORKING

    def fetch(self, id: str) -> Iterator[Answer]:
        """See :class:`flowctl.batch_ports.BatchService`."""
        batch = self._json(f"/v1/batches/{id}")
        for kind in ("output_file_id", "error_file_id"):
            if batch.get(kind):
                content = self._bytes(f"/v1/files/{batch[kind]}/content")
                yield from map(_of_openai, _lines(content))


def _of_openai(line: Any) -> Answer:
    key, error, response = line["custom_id"], line.get("error"), line.get("response")
    if response is not None and not error and response["status_code"] < _ERROR_STATUS_MIN:
        return Answer(key, encoded(response["body"]))
    body = (response or {}).get("body")
    said = error or (body.get("error") if isinstance(body, dict) else None) or {}
    code, text = str(said.get("code") or ""), said.get("message") or ""
    status = int((response or {}).get("status_code") or 0)
    if code == "batch_cancelled":  # by people, who don't want the rest
        return Answer(key, b"", f"{code}: {text}", Kind.CONTENT)
    kind = _OPENAI_CODES.get(code) or CODES.get(code) or STATUSES.get(status, Kind.FAULT)
    return Answer(
        key, b"", f"{status or ''} {code or said.get('type') or ''}: {text}".strip(), kind
    )


def _failed(id: str, errors: list[Any]) -> BatchState:
    """Return what a batch that was not accepted means; raise unless it is for lack of room."""
    if any(error.get("code") == "token_limit_exceeded" for error in errors):
        return BatchState.REFUSED
    said = "; ".join(f"{error.get('code')}: {error.get('message')}" for error in errors[:3])
    raise UnrunnableError(
        "fn",
        f"batch {id} was not accepted: {said or 'no reason was given'}.",
        remedy="Correct the requests, and give the job another name.",
    )


def _form(mark: str, lines: Sequence[bytes]) -> tuple[bytes, dict[str, str]]:
    """Return the upload of a file as a form, and its headers."""
    begin = f"--{mark}\r\nContent-Disposition: form-data; "
    head = (
        f'{begin}name="purpose"\r\n\r\nbatch\r\n{begin}name="file"; filename="{mark}.jsonl"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    content = b"".join([head.encode(), *lines, f"\r\n--{mark}--\r\n".encode()])
    return content, {"Content-Type": f"multipart/form-data; boundary={mark}"}


# -- Anthropic -----------------------------------------------------------------------------------

# What types of errors mean; those that are not here are faults.
_TYPES: Final = {
    "invalid_request_error": Kind.CONTENT,
    "request_too_large": Kind.CONTENT,
    "authentication_error": Kind.NOT_ALLOWED,
    "billing_error": Kind.NOT_ALLOWED,
    "permission_error": Kind.NOT_ALLOWED,
    "not_found_error": Kind.NOT_ALLOWED,  # the model
    "rate_limit_error": Kind.FULL,
    "overloaded_error": Kind.FULL,
}


class AnthropicBatch(_Batches):
    """The Message Batches API of Anthropic, in place of the function of ``apply``.

    ``request(row)`` returns the ``params`` of a message (``model``, ``max_tokens``, ``messages``)
    as a dict; None for a row that is to have none, and no result.  ``result(row, message)`` gets
    the message and returns a row, a list of rows, or None.  ``headers`` hold the key:
    ``{"x-api-key": …}``; ``anthropic-version`` is added.

    The other arguments are as for :class:`OpenAIBatch`; the service takes 100,000 requests or
    256 MB.  A batch has no name of its own there: a submit whose answer was lost is looked for
    among the batches that were created since and have as many requests, and known by its first
    ``custom_id`` once it has ended.

    Raises :class:`ConfigError` for invalid arguments, and
    :class:`flowctl.errors.MissingExtraError` for ``client`` without httpx (extra ``http``).
    """

    @check_arguments("request", "result", "headers", "client")
    def __init__(
        self,
        request: Callable[[Any], Mapping[str, Any] | None],
        result: Callable[[Any, Any], Any],
        *,
        headers: Headers,
        url: str = "https://api.anthropic.com",
        rows_max: int = 100_000,
        bytes_max: int = _BYTES_MAX,
        at_once: int | None = None,
        poll_s: float = _POLL_S,
        settle_s: float = _SETTLE_S,
        timeout_s: float = _TIMEOUT_S,
        client: Callable[[], Any] | None = None,
    ) -> None:
        given = _Given(
            request=request, result=result, rows_max=rows_max, bytes_max=bytes_max,
            at_once=at_once, poll_s=poll_s, settle_s=settle_s,
        )  # fmt: skip
        own = _Versioned(headers)
        super().__init__(given, url=url, headers=own, timeout_s=timeout_s, client=client)

    def __repr__(self) -> str:
        return f"AnthropicBatch({host_of(self._url)})"

    def line(self, key: str, request: Any) -> bytes:
        """See :class:`flowctl.batch_ports.BatchService`."""
        return encoded({"custom_id": key, "params": request}) + b","

    def submit(self, lines: Sequence[bytes], mark: str) -> str:
        """See :class:`flowctl.batch_ports.BatchService`."""
        content = b'{"requests":[' + b"".join(lines)[:-1] + b"]}"
        id: str = self._post("/v1/messages/batches", content, dict(_JSON))["id"]
        return id

    def find(self, mark: str, requests: int, *, since_s: float, known: Container[str]) -> Found:
        """See :class:`flowctl.batch_ports.BatchService`."""
        is_sure = True
        for batch in self._newest():
            created_s = datetime.fromisoformat(batch["created_at"].replace("Z", "+00:00"))
            if created_s.timestamp() < since_s - _CLOCK_S:
                break
            if batch["id"] in known or sum(batch["request_counts"].values()) != requests:
                continue
            if batch["processing_status"] != "ended":
                is_sure = False  # its ids are known once it has ended
            elif batch.get("results_url"):
                answer = next(self._results(batch), None)
                if answer is not None and answer.key.startswith(f"{mark}-"):
                    return Found(batch["id"])
        return Found("", is_sure)

    def _newest(self) -> Iterator[Any]:
        path = "/v1/messages/batches?limit=1000"
        while True:
            page = self._json(path)
            yield from page["data"]
            if not page.get("has_more") or not page["data"]:
                return
            path = f"/v1/messages/batches?limit=1000&after_id={page['last_id']}"

    def poll(self, id: str) -> BatchState:
        """See :class:`flowctl.batch_ports.BatchService`."""
        batch = self._json(f"/v1/messages/batches/{id}")
        has_ended = batch["processing_status"] == "ended"
        return BatchState.ENDED if has_ended else BatchState.WORKING

    def fetch(self, id: str) -> Iterator[Answer]:
        """See :class:`flowctl.batch_ports.BatchService`."""
        yield from self._results(self._json(f"/v1/messages/batches/{id}"))

    def _results(self, batch: Any) -> Iterator[Answer]:
        if not batch.get("results_url"):
            raise JobError(
                f"batch {batch['id']} has no results any more: the service keeps them for 29 days.",
                remedy="Give the job another name, to ask again.",
            )
        # By its path: the address is the one that was given, also behind a gateway.
        path = f"/v1/messages/batches/{batch['id']}/results"
        yield from map(_of_anthropic, _lines(self._bytes(path)))


class _Versioned:
    """Headers with the version of the API; can be pickled."""

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def __call__(self) -> Mapping[str, str]:
        given = self._headers() if callable(self._headers) else self._headers
        return {"anthropic-version": "2023-06-01", **given}


def _of_anthropic(line: Any) -> Answer:
    key, result = line["custom_id"], line["result"]
    kind = result["type"]
    if kind == "succeeded":
        return Answer(key, encoded(result["message"]))
    if kind == "errored":
        said = result["error"].get("error", result["error"])
        text = f"{said.get('type')}: {said.get('message')}"
        return Answer(key, b"", text, _TYPES.get(said.get("type"), Kind.FAULT))
    # Canceled by people, who don't want the rest; or expired, which the next batch may do.
    return Answer(key, b"", kind, Kind.CONTENT if kind == "canceled" else Kind.FAULT)


def _lines(content: bytes) -> Iterable[Any]:
    return map(_decode, filter(None, content.split(b"\n")))


def _understood(content: bytes, path: str) -> Any:
    try:
        found = _decode(content)
    except msgspec.MsgspecError:
        found = None
    if not isinstance(found, dict):
        shown = " ".join(content[:200].decode(errors="replace").split())
        raise JobError(
            f"the answer to {path.partition('?')[0]} is not what a batch API says: {shown!r}.",
            remedy="Is url that of the service, not of a proxy?",
        )
    return found
