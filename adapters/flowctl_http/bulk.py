"""Documents into OpenSearch or Elasticsearch by ``_bulk``: only refused items are sent again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from flowctl.arguments import check_arguments
from flowctl.bolts.batch import Batch
from flowctl.core.positions import row_number
from flowctl.delivery.item_sink import LEFT_OUT, WRITTEN, Fate, ItemSink, encoded, part_of
from flowctl.errors import ConfigError, JobError
from flowctl.failure.kinds import Kind
from flowctl.failure.tables import STATUSES
from flowctl_http._bodies import Compression
from flowctl_http._client import Client, Headers, Request, checked_url, host_of
from flowctl_http._keys import row_key
from flowctl_http.answers import shown_url

Action: TypeAlias = Literal["index", "create", "update", "delete"]
Document: TypeAlias = Mapping[str, Any]

_ACTIONS = ("index", "create", "update", "delete")
# Statuses from here on are errors.  From 500 on the cluster is full, restarting, or lacks a shard
# for the moment: the document is not to blame.
_ERROR_STATUS_MIN, _SERVER_STATUS_MIN = 300, 500
# Errors that pass, such as a block because a disk is full (403 in older versions).
_REFUSED_TYPES = frozenset({"cluster_block_exception", "es_rejected_execution_exception"})
_CONFLICT, _NOT_FOUND = 409, 404
# Errors by which every document would fail in the same way.
_WRONG_TYPES = frozenset({"index_not_found_exception", "index_closed_exception"})
_REASON_CHARS_MAX = 500


class BulkSink(ItemSink):
    """Writes one document for each row; sends again only the items that were refused.

    ``url`` is the address of the cluster, such as ``https://search:9200``.  ``index`` names the
    index, or is a function of the row.  ``id`` names the column that holds the document's id, or is
    a function of the row.  By default flowctl makes the id from the row's place (``batch.span``),
    so that a row that is sent again replaces itself.  With ``flow_sink`` this works for tasks that
    Spark runs again; for repeats by another application give ``run``, or name a column.  ``action``
    is as in ``_bulk``: "create" leaves existing documents alone (they count in ``batch.left_out``),
    "update" merges.  ``document(row)`` makes the document; by default it is the row.

    An item with 429 (``es_rejected_execution_exception``) or 5xx is a refusal: it lowers the
    target's limit and is sent again.  An item that the index can't take (its mapping forbids it) is
    rejected, with the reason; so is a row with NaN or an infinity, which JSON does not have.
    A missing index, or a missing right to write, ends the run.
    ``headers``, ``timeout_s``, ``client`` and ``compression`` are as for
    :class:`flowctl_http.HttpSink`.

    ``flow_sink`` and ``flow_batch`` never send an accepted document again.  In a bolt of
    ``FlowControlSpout`` the whole tuple comes again after a refusal; ids keep that harmless.

    Raises :class:`ConfigError` for invalid arguments, and
    :class:`flowctl.errors.MissingExtraError` for ``client`` without httpx (extra ``http``).  Can be
    pickled; thread-safe.
    """

    remedy = "Create the index, or give the user the right to write."

    @check_arguments("index", "id", "document", "headers", "client")
    def __init__(
        self,
        url: str,
        *,
        index: str | Callable[[Any], str],
        id: str | Callable[[Any], Any] | None = None,
        action: Action = "index",
        document: Callable[[Any], Document] | None = None,
        headers: Headers | None = None,
        timeout_s: float = 30.0,
        client: Callable[[], Any] | None = None,
        compression: Compression | None = None,
    ) -> None:
        if action not in _ACTIONS:
            raise ConfigError(
                "action", f"{action!r} is unknown.", remedy=f"Give one of {', '.join(_ACTIONS)}."
            )
        if not index:
            raise ConfigError("index", "is empty.", remedy="Name the index, such as 'orders'.")
        self._url = checked_url(url).rstrip("/") + "/_bulk"
        self._index = index
        self._id = id
        self._action = action
        self._document = document
        self._client = Client(
            "BulkSink",
            headers=headers,
            timeout_s=timeout_s,
            client=client,
            compression=compression,
        )

    def __repr__(self) -> str:
        return f"BulkSink({host_of(self._url)})"

    def item(self, row: Any, batch: Batch, index: int) -> bytes:
        """See :class:`flowctl.delivery.item_sink.ItemSink`."""
        return self._lines(row, batch, index)

    def send(self, items: Sequence[Any]) -> list[Fate]:
        """See :class:`flowctl.delivery.item_sink.ItemSink`."""
        content, headers = b"".join(items), {"Content-Type": "application/x-ndjson"}
        response = self._client.send(Request("POST", self._url, content, headers))
        answer = _items(response)
        said = answer.get("items") if isinstance(answer, dict) else None
        if not isinstance(said, list) or len(said) != len(items):
            raise JobError(
                f"the answer to _bulk does not have {len(items)} items.",
                remedy="Is url that of an OpenSearch or Elasticsearch cluster?",
            )
        return [self._fate_of(one) for one in said]

    def close(self) -> None:
        """Close the connections that rest; the next write opens others."""
        self._client.close()

    def _lines(self, row: Any, batch: Batch, index: int) -> bytes:
        name = self._index(row) if callable(self._index) else self._index
        meta = {self._action: {"_index": name, "_id": self._id_of(row, batch, index)}}
        if self._action == "delete":
            return encoded(meta) + b"\n"
        document = row if self._document is None else self._document(row)
        if self._action == "update":
            document = {"doc": document, "doc_as_upsert": True}
        return encoded(meta) + b"\n" + encoded(document) + b"\n"

    def _id_of(self, row: Any, batch: Batch, index: int) -> str:
        if self._id is None:
            return row_key(batch, batch.position(index))
        found = part_of(self._id, row, batch, index)
        if found is None:
            raise batch.row_error(
                index,
                f"row {row_number(batch[index].position)} has no id.",
                remedy="Leave such rows out, or give a function of the row as id.",
            )
        return str(found)

    def _fate_of(self, item: Any) -> Fate:
        """Return what became of an item, by the cluster's answer about it."""
        status, kind, reason = _said(item)
        if status < _ERROR_STATUS_MIN:
            return WRITTEN
        meant = STATUSES.get(status)
        if meant is Kind.FULL or kind in _REFUSED_TYPES or status >= _SERVER_STATUS_MIN:
            return Fate(Kind.FULL, f"{kind or status}: {reason}")
        if self._is_there(status):
            return LEFT_OUT
        is_denied = meant is Kind.NOT_ALLOWED or kind in _WRONG_TYPES
        return Fate(Kind.NOT_ALLOWED if is_denied else Kind.CONTENT, f"{kind}: {reason}")

    def _is_there(self, status: int) -> bool:
        """Whether this error means that an earlier call has done the same."""
        if self._action == "create":
            return status == _CONFLICT
        return self._action == "delete" and status == _NOT_FOUND


def _items(response: Any) -> Any:
    """Return the answer's items; raise :class:`JobError` that shows an answer without them."""
    try:
        return response.json()
    except ValueError:
        start = " ".join(response.text[:_REASON_CHARS_MAX].split())
        raise JobError(
            f"the answer of {shown_url(str(response.url))} to _bulk is not JSON: status"
            f" {response.status_code}, {start or 'an empty body'!r}.",
            remedy="Is url that of an OpenSearch or Elasticsearch cluster, not of a proxy?",
        ) from None


def _said(item: Any) -> tuple[int, str, str]:
    """Return status, type and reason of one item; raise :class:`JobError` if it has no status."""
    results = list(item.values()) if isinstance(item, dict) else []
    result = results[0] if len(results) == 1 and isinstance(results[0], dict) else {}
    status, error = result.get("status"), result.get("error")
    if type(status) is not int or (error and status < _ERROR_STATUS_MIN):
        shown = encoded(item).decode()[:_REASON_CHARS_MAX]
        raise JobError(
            f"an item of the answer to _bulk does not say what became of its document: {shown}.",
            remedy="Is url that of an OpenSearch or Elasticsearch cluster?",
        )
    if not isinstance(error, dict):
        error = {"reason": error}
    cause = error.get("caused_by")
    reason = str(error.get("reason") or "")
    if isinstance(cause, dict) and cause.get("reason"):
        reason = f"{reason}: {cause['reason']}"
    return status, str(error.get("type") or ""), reason[:_REASON_CHARS_MAX]
