"""Rows into DynamoDB and Kinesis: only those come again that the service did not take."""

from __future__ import annotations

import datetime
import importlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

from flowctl.arguments import check_arguments, check_numbers
from flowctl.bolts.batch import Batch
from flowctl.delivery.item_sink import (
    WRITTEN,
    BadItemError,
    Fate,
    ItemSink,
    encoded,
    part_of,
    parts_of,
)
from flowctl.errors import ConfigError, MissingExtraError
from flowctl.failure.callables import check_plain
from flowctl.failure.kinds import Kind
from flowctl.failure.tables import AWS_CODES

Action: TypeAlias = Literal["put", "delete"]

# What a call takes, by the services' own documents.
_DYNAMO_ITEMS: Final = 25
_KINESIS_RECORDS: Final = 500
_KINESIS_CALL_BYTES: Final = 5 << 20
_KINESIS_RECORD_BYTES: Final = 1 << 20
_KEY_CHARS: Final = 256
_CONNECT_TIMEOUT_S: Final = 5.0


class _AwsSink(ItemSink):
    """A sink with a client of boto3, one for each process: it is thread-safe.

    botocore's own retries are off, as flowctl makes them.
    """

    def __init__(
        self,
        service: str,
        *,
        region: str | None,
        endpoint_url: str | None,
        timeout_s: float,
        client: Callable[[], Any] | None,
    ) -> None:
        check_numbers(timeout_s=timeout_s)
        if client is not None:
            check_plain(client, "client")
        self._service = service
        self._region = region
        self._endpoint_url = endpoint_url
        self._timeout_s = float(timeout_s)
        self._make = client
        self._lock = threading.Lock()
        self._client: Any = None
        _boto3(type(self).__name__)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def close(self) -> None:
        """Close this process's connections; the next write opens others."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._made() if self._make is None else self._make()
            return self._client

    def _made(self) -> Any:
        boto3 = _boto3(type(self).__name__)
        config = importlib.import_module("botocore.config").Config(
            connect_timeout=min(_CONNECT_TIMEOUT_S, self._timeout_s),
            read_timeout=self._timeout_s,
            retries={"total_max_attempts": 1},
        )
        try:
            # A session of its own: the default one must not be used by several threads.
            return boto3.session.Session().client(
                self._service,
                region_name=self._region,
                endpoint_url=self._endpoint_url,
                config=config,
            )
        except importlib.import_module("botocore.exceptions").NoRegionError:
            raise ConfigError(
                "region", "is not known.", remedy="Give region='eu-central-1', or AWS_REGION."
            ) from None
        except ValueError as error:
            raise ConfigError("endpoint_url", f"{error}.", remedy="Give https://…") from None


class DynamoSink(_AwsSink):
    """Puts one item for each row into a table of DynamoDB, by ``batch_write_item``.

    ``table`` is its name.  ``document(row)`` makes the item, a dict; by default it is the row.
    ``action`` "delete" deletes the items with the keys of the rows.  An item replaces the one with
    its key, so a row that is sent again changes nothing; of two rows of a call with one key the
    last wins.

    Numbers are exact: a float becomes the decimal number that Python prints for it.  Dates and
    times, which DynamoDB does not have, become texts (ISO 8601).  NaN, infinities and other types
    are rejected, with the column's name.

    Unprocessed items, and calls that were throttled, are refusals: only those rows come again, and
    the target's limit is lowered.  An item that the service finds invalid fails its call: its row
    is found by halving, and becomes a dead letter.  A missing table or right ends the run.

    ``region`` and the credentials are found as boto3 does, on the worker; ``endpoint_url`` is for
    other addresses, ``client()`` makes a client of your own.  ``timeout_s`` bounds each call.

    Raises :class:`ConfigError` for invalid arguments, and
    :class:`flowctl.errors.MissingExtraError` without boto3 (extra ``aws``).  Can be pickled;
    thread-safe.
    """

    remedy = "Create the table, or give the user the right to write."

    @check_arguments("table", "document", "region", "endpoint_url", "client")
    def __init__(
        self,
        table: str,
        *,
        document: Callable[[Any], Mapping[str, Any]] | None = None,
        action: Action = "put",
        region: str | None = None,
        endpoint_url: str | None = None,
        timeout_s: float = 10.0,
        client: Callable[[], Any] | None = None,
    ) -> None:
        if not table:
            raise ConfigError("table", "is empty.", remedy="Name the table.")
        if action not in ("put", "delete"):
            raise ConfigError("action", f"{action!r} is unknown.", remedy="Give put or delete.")
        super().__init__(
            "dynamodb", region=region, endpoint_url=endpoint_url, timeout_s=timeout_s, client=client
        )
        if document is not None:
            check_plain(document, "document")
        self._table = table
        self._document = document
        self._action = action
        self._keys: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"DynamoSink({self._table})"

    def item(self, row: Any, batch: Batch, index: int) -> tuple[str, dict[str, Any]]:
        """Return the item's key, as text, and the request for it."""
        fields = row if self._document is None else self._document(row)
        keys = self._key_names()
        if missing := next((name for name in keys if fields.get(name) is None), None):
            raise BadItemError(f"it has no {missing!r}, which is in the table's key")
        if self._action == "delete":
            fields = {name: fields[name] for name in keys}
        item = {name: _typed(value, name) for name, value in fields.items()}
        key = encoded([repr(item[name]) for name in keys]).decode()
        if self._action == "delete":
            return key, {"DeleteRequest": {"Key": item}}
        return key, {"PutRequest": {"Item": item}}

    def _key_names(self) -> tuple[str, ...]:
        if self._keys is None:
            found = self._connected().describe_table(TableName=self._table)["Table"]["KeySchema"]
            self._keys = tuple(one["AttributeName"] for one in found)
        return self._keys

    def cut(self, items: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Divide the items into calls, none of which has a key twice: that is refused."""
        first, seen = 0, set[str]()
        for at, (key, _) in enumerate(items):
            if at - first == _DYNAMO_ITEMS or key in seen:
                yield items[first:at]
                first, seen = at, set()
            seen.add(key)
        yield items[first:]

    def send(self, items: Sequence[Any]) -> list[Fate]:
        """See :class:`flowctl.delivery.item_sink.ItemSink`."""
        wanted = [request for _, request in items]
        answer = self._connected().batch_write_item(RequestItems={self._table: wanted})
        left = [one for found in (answer.get("UnprocessedItems") or {}).values() for one in found]
        refused = Fate(Kind.FULL, f"{len(left)} of {len(items)} items were not processed")
        return [refused if request in left else WRITTEN for request in wanted]


class KinesisSink(_AwsSink):
    """Puts one record for each row into a stream of Kinesis, by ``put_records``.

    ``partition_key`` names a column, or is a function of the row: records with one key go to one
    shard.  ``data`` names a column, or is a function of the row, and gives bytes, text, or anything
    that JSON can hold; by default it is the row.

    A record that its shard did not take (``ProvisionedThroughputExceededException``,
    ``InternalFailure``) is a refusal: only that row comes again, and the target's limit is lowered.
    A record of more than 1 MiB is rejected.  A missing stream or right ends the run.  Kinesis keeps
    what comes twice: after a kill, or a call whose answer was lost, records may be there again.
    Records are in no order over calls.

    The other arguments are as for :class:`DynamoSink`.
    """

    remedy = "Create the stream, or give the user the right to write."

    @check_arguments("stream", "partition_key", "data", "region", "endpoint_url", "client")
    def __init__(
        self,
        stream: str,
        *,
        partition_key: str | Callable[[Any], Any],
        data: str | Callable[[Any], Any] | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        timeout_s: float = 10.0,
        client: Callable[[], Any] | None = None,
    ) -> None:
        if not stream:
            raise ConfigError("stream", "is empty.", remedy="Name the stream.")
        if not partition_key:
            raise ConfigError("partition_key", "is empty.", remedy="Name a column.")
        super().__init__(
            "kinesis", region=region, endpoint_url=endpoint_url, timeout_s=timeout_s, client=client
        )
        for name, given in (("partition_key", partition_key), ("data", data)):
            if callable(given):
                check_plain(given, name)
        self._stream = stream
        self._partition_key = partition_key
        self._data = data

    def __repr__(self) -> str:
        return f"KinesisSink({self._stream})"

    def item(self, row: Any, batch: Batch, index: int) -> dict[str, Any]:
        """See :class:`flowctl.delivery.item_sink.ItemSink`."""
        key = str(part_of(self._partition_key, row, batch, index))
        if not 0 < len(key) <= _KEY_CHARS:
            raise BadItemError(f"its partition key has {len(key)} letters, not 1 to {_KEY_CHARS}")
        given = row if self._data is None else part_of(self._data, row, batch, index)
        data = given.encode() if isinstance(given, str) else given
        data = data if isinstance(data, bytes) else encoded(data)
        if len(data) + len(key.encode()) > _KINESIS_RECORD_BYTES:
            raise BadItemError(f"it has {len(data)} bytes, and a record 1 MiB at most")
        return {"Data": data, "PartitionKey": key}

    def cut(self, items: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """See :class:`flowctl.delivery.item_sink.ItemSink`."""
        sizes = [len(item["Data"]) + len(item["PartitionKey"].encode()) for item in items]
        return parts_of(items, sizes, _KINESIS_RECORDS, _KINESIS_CALL_BYTES)

    def send(self, items: Sequence[Any]) -> list[Fate]:
        """See :class:`flowctl.delivery.item_sink.ItemSink`."""
        answer = self._connected().put_records(StreamName=self._stream, Records=list(items))
        return [_fate_of(record) for record in answer["Records"]]


def _fate_of(record: Mapping[str, Any]) -> Fate:
    code = record.get("ErrorCode")
    if not code:
        return WRITTEN
    # Those of single records are the shard's: all of them pass.
    kind = AWS_CODES.get(code, Kind.FULL)
    return Fate(kind, f"{code}: {record.get('ErrorMessage')}")


def _typed(value: Any, where: str) -> dict[str, Any]:
    """Return ``value`` with its type, as DynamoDB has it; raise :class:`BadItemError`."""
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float | Decimal):
        if not math.isfinite(value):
            raise BadItemError(f"{where} is {value}, which DynamoDB does not have")
        return {"N": str(value)}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bytes | bytearray):
        return {"B": bytes(value)}
    if isinstance(value, datetime.date | datetime.time):
        return {"S": value.isoformat()}
    if isinstance(value, Mapping):
        return {"M": {str(name): _typed(one, f"{where}.{name}") for name, one in value.items()}}
    if isinstance(value, list | tuple):
        return {"L": [_typed(one, f"{where}[{at}]") for at, one in enumerate(value)]}
    raise BadItemError(f"{where} is a {type(value).__name__}, which DynamoDB does not have")


def _boto3(name: str) -> Any:
    try:
        return importlib.import_module("boto3")
    except ModuleNotFoundError as error:
        if error.name != "boto3":
            raise
        raise MissingExtraError(name, "boto3", "aws") from None
