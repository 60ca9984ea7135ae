"""Bodies of requests: from columns the same as from dicts, and compressed."""

from __future__ import annotations

import gzip
import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.bolts.batch import Batch
from flowctl.core.records import DictRows
from flowctl.delivery.item_sink import encoded
from flowctl.errors import ConfigError, MissingExtraError, UnrunnableError
from flowctl.testing import batch
from flowctl_http import BulkSink, HttpSink
from flowctl_http._bodies import body_of
from tests.search_service import Cluster, serve

NAMES = ("id", "a name", "null", 'q"u', "\u00fc")
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5),
    st.sampled_from([float("nan"), float("-inf")]),
    st.sampled_from(["null", 'a"b\\', date(2024, 2, 29), Decimal("1.10"), b"\x00\xff",
                     datetime(2024, 1, 2, 3, 4, 5, 6), datetime(2024, 1, 2, tzinfo=timezone.utc)]),
    st.lists(st.one_of(st.none(), st.floats()), max_size=2),
    st.dictionaries(st.text(max_size=2), st.one_of(st.none(), st.just("null")), max_size=2),
)  # fmt: skip


def one_by_one(rows: list[dict[str, Any]]) -> tuple[list[bytes], dict[int, str]]:
    """The JSON of each row, and why others have none, as every row was made once."""
    made, rejected = [], {}
    for index, row in enumerate(rows):
        try:
            made.append(encoded(row))
        except ValueError as error:
            rejected[index] = str(error)
    return made, rejected


@given(st.data(), st.sampled_from(["json", "ndjson"]))
def test_columns_and_dicts_make_the_same_body(data: st.DataObject, form: Any) -> None:
    names = data.draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    count = data.draw(st.integers(1, 4))
    column = st.lists(VALUES, min_size=count, max_size=count)
    rows = DictRows(names, [data.draw(column) for _ in names])
    made, rejected = one_by_one(list(rows))
    wanted = {
        "json": b"[" + b",".join(made) + b"]",
        "ndjson": b"".join(line + b"\n" for line in made),
    }
    for given_rows in (rows, list(rows)):
        ours: Batch = batch(list(rows))
        assert body_of(given_rows, ours, form) == (wanted[form] if made else b"")
        assert ours.rejected == rejected


def test_rows_of_columns_are_dicts_for_whoever_asks() -> None:
    rows = DictRows(["a", "b"], [[1, 2, 3], ["x", None, "z"]])
    assert list(rows) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": 3, "b": "z"}]
    assert (len(rows), rows[-1], list(rows[1:])) == (3, {"a": 3, "b": "z"}, list(rows)[1:])
    assert len(DictRows([], [])) == 0


def test_arrow_is_taken_and_a_row_too_few_is_not() -> None:
    table = pyarrow.RecordBatch.from_pydict({"a": [1, None], "b": ["x", "y"]})
    with serve(lambda *_: (200, {}, b"")) as service:
        HttpSink(service.url, body="ndjson").write(table, batch=batch([1, 2]))
        with pytest.raises(UnrunnableError, match="2 rows for a batch of 3"):
            HttpSink(service.url).write(table, batch=batch([1, 2, 3]))
        HttpSink(service.url, body=len).write(table, batch=batch([1, 2]))
    [(_, headers, body), (_, _, counted)] = service.requests
    assert body == b'{"a":1,"b":"x"}\n{"a":null,"b":"y"}\n'
    assert headers["content-type"] == "application/x-ndjson"
    assert counted == b"2"


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_body_is_compressed_if_that_pays(compression: Any) -> None:
    zstandard = pytest.importorskip("zstandard")
    unpack = {"gzip": gzip.decompress, "zstd": zstandard.decompress}[compression]
    with serve(lambda *_: (200, {}, b"")) as service:
        sink = HttpSink(service.url, compression=compression)
        for note in ("long " * 400, "short"):
            sink.write([{"note": note}], batch=batch([1]))
    (_, first, large), (_, second, small) = service.requests
    assert first["content-encoding"] == compression and len(large) < 200
    assert json.loads(unpack(large)) == [{"note": "long " * 400}]
    assert "content-encoding" not in second and json.loads(small) == [{"note": "short"}]


def test_documents_of_columns_are_compressed_too() -> None:
    table = pyarrow.RecordBatch.from_pydict({"n": [1, 2], "note": ["long " * 400] * 2})
    cluster = Cluster(lambda *_: (201, "", ""))

    def answer(path: str, headers: dict[str, str], body: bytes) -> Any:
        assert headers["content-encoding"] == "gzip"
        return cluster.answer(path, headers, gzip.decompress(body))

    with serve(answer) as service:
        sink = BulkSink(service.url, index="i", id="n", compression="gzip")
        sink.write(table, batch=batch([1, 2]))
    assert sorted(cluster.documents) == ["1", "2"]


def test_what_is_not_known_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for named in ({"compression": "brotli"}, {"body": "csv"}):
        with pytest.raises(ConfigError) as caught:
            HttpSink("http://here", **named)  # type: ignore[arg-type]
        assert caught.value.field in named
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    monkeypatch.setitem(__import__("sys").modules, "compression.zstd", None)
    with pytest.raises(MissingExtraError, match="zstandard"):
        HttpSink("http://here", compression="zstd")
