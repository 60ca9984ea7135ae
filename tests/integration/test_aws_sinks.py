"""DynamoSink and KinesisSink against moto's server: what is there, and which rows come again."""

from __future__ import annotations

import datetime
import importlib
import pickle
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from s3_parts import MISSING, S3, command

pytest.importorskip("boto3", reason="the client of these sinks, an extra")

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.errors import RetryLater
from flowctl.failure.classify import meaning_of
from flowctl.failure.kinds import Kind
from flowctl_aws import DynamoSink, KinesisSink
from tests.unit.test_delivery import Letters, deliver

boto3: Any = importlib.import_module("boto3")  # without types
pytestmark = pytest.mark.skipif(command() is None, reason=MISSING)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = S3()
    try:
        server.let_all()
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def client(service: str, url: str) -> Any:
    return boto3.client(service, endpoint_url=url, region_name="us-east-1")


def batch_of(values: list[Any]) -> Batch:
    records = [Record(number, value) for number, value in enumerate(values)]
    return Batch(records, Span("job", "p", 0, len(values) - 1, 1), bolt="b", attempt=1)


def write(sink: Any, values: list[Any]) -> Batch:
    batch = batch_of(values)
    sink.write(values, batch=batch)
    return batch


def into(sink: Any) -> Any:
    return lambda batch: sink.write(batch.values, batch=batch)


class Grudging:
    """A client whose service takes none of the first rows that it sees: moto is never full."""

    def __init__(self, inner: Any, first: int) -> None:
        self.inner = inner
        self.first = first
        self.seen: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def batch_write_item(self, RequestItems: dict[str, list[Any]]) -> Any:
        [(table, requests)] = RequestItems.items()
        self.seen.update(str(request) for request in requests)
        left, self.first = requests[: self.first], max(0, self.first - len(requests))
        if requests[len(left) :]:
            self.inner.batch_write_item(RequestItems={table: requests[len(left) :]})
        return {"UnprocessedItems": {table: left} if left else {}}

    def put_records(self, StreamName: str, Records: list[Any]) -> Any:
        self.seen.update(str(record) for record in Records)
        left, self.first = Records[: self.first], max(0, self.first - len(Records))
        failed = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow"}
        answer = {"FailedRecordCount": len(left), "Records": [failed] * len(left)}
        if Records[len(left) :]:
            taken = self.inner.put_records(StreamName=StreamName, Records=Records[len(left) :])
            answer["Records"] += taken["Records"]
        return answer


# -- DynamoDB ------------------------------------------------------------------------------------


def table(url: str, name: str) -> Any:
    client("dynamodb", url).create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return boto3.resource("dynamodb", endpoint_url=url, region_name="us-east-1").Table(name)


def test_rows_are_items_with_their_types_and_the_last_of_a_key_wins(url: str) -> None:
    there = table(url, "types")
    sink = pickle.loads(pickle.dumps(DynamoSink("types", endpoint_url=url)))
    row = {
        "k": "a", "n": 2**60, "f": 0.1, "d": Decimal("1.50"), "b": True, "raw": b"\0", "none": None,
        "day": datetime.date(2026, 2, 3), "deep": {"list": [1, "x", {"y": 2}]},
    }  # fmt: skip
    rows = [{"k": "a", "n": 1}, *({"k": f"k{n}", "n": n} for n in range(60)), row]
    batch = write(sink, [*rows, {"k": "nan", "x": [float("nan")]}, {"n": 1}, {"k": "s", "x": {1}}])
    found = there.scan()["Items"]
    assert len(found) == 61
    [item] = [one for one in found if one["k"] == "a"]
    assert item.pop("raw").value == b"\0"
    assert item == {
        "k": "a", "n": 2**60, "f": Decimal("0.1"), "d": Decimal("1.50"), "b": True, "none": None,
        "day": "2026-02-03", "deep": {"list": [1, "x", {"y": 2}]},
    }  # fmt: skip
    assert {index - len(rows): why.partition(",")[0] for index, why in batch.rejected.items()} == {
        0: "x[0] is nan",
        1: "it has no 'k'",
        2: "x is a set",
    }
    write(DynamoSink("types", endpoint_url=url, action="delete"), rows[1:])
    assert not there.scan()["Items"]


def test_only_unprocessed_items_come_again(url: str) -> None:
    there = table(url, "again")
    grudging = Grudging(client("dynamodb", url), 30)
    sink = DynamoSink("again", client=lambda: grudging)
    with pytest.raises(RetryLater, match="30 of 90 items refused") as caught:
        write(sink, [{"k": f"k{n}"} for n in range(90)])
    assert list(caught.value.again or ()) == list(range(30))
    grudging.first = 30
    deliver(into(sink), [{"k": f"k{n}"} for n in range(90)])
    assert len(there.scan()["Items"]) == 90
    assert sum(grudging.seen.values()) == 90 + 90 + 30


def test_an_item_that_the_service_finds_invalid_is_one_dead_letter(url: str) -> None:
    there = table(url, "bad")
    letters = Letters()
    rows = [{"k": f"k{n}" if n != 33 else 7} for n in range(60)]  # the key is a text
    deliver(into(DynamoSink("bad", endpoint_url=url)), rows, dead_letter=letters)
    assert len(there.scan()["Items"]) == 59
    assert len(letters.kept) == 1


def test_a_table_that_is_not_there_ends_the_run(url: str) -> None:
    with pytest.raises(Exception, match="ResourceNotFound") as caught:
        write(DynamoSink("nowhere", endpoint_url=url), [{"k": "a"}])
    assert meaning_of(caught.value).kind is Kind.NOT_ALLOWED


# -- Kinesis -------------------------------------------------------------------------------------


def stream(url: str, name: str) -> Any:
    kinesis = client("kinesis", url)
    kinesis.create_stream(StreamName=name, ShardCount=1)
    return kinesis


def records(kinesis: Any, name: str) -> list[Any]:
    shard = kinesis.list_shards(StreamName=name)["Shards"][0]["ShardId"]
    at = kinesis.get_shard_iterator(
        StreamName=name, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    found: list[Any] = []
    while True:
        answer = kinesis.get_records(ShardIterator=at, Limit=10_000)
        if not answer["Records"]:
            return found
        found += answer["Records"]
        at = answer["NextShardIterator"]


def test_rows_are_records_and_what_a_shard_did_not_take_comes_again(url: str) -> None:
    kinesis = stream(url, "again")
    grudging = Grudging(kinesis, 700)
    sink = KinesisSink("again", partition_key="k", data="v", client=lambda: grudging)
    rows = [{"k": n % 7, "v": f"v{n}"} for n in range(1_200)]
    deliver(into(sink), rows)
    found = Counter(one["Data"].decode() for one in records(kinesis, "again"))
    assert found == Counter(row["v"] for row in rows)
    assert sum(grudging.seen.values()) >= 1_900


def test_a_call_has_at_most_5_mib_and_a_larger_record_is_rejected(url: str) -> None:
    kinesis = stream(url, "large")
    sink = KinesisSink("large", partition_key=lambda row: "k", data=bytes, endpoint_url=url)
    values = [b"x" * 900_000] * 8
    batch = write(sink, [*values, b"y" * (1 << 20)])
    assert list(batch.rejected) == [8]
    assert len(records(kinesis, "large")) == 8
    with pytest.raises(Exception, match="ResourceNotFound"):
        write(KinesisSink("nowhere", partition_key="k", endpoint_url=url), [{"k": "a"}])
