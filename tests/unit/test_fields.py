"""A record's fields have two spellings behind every door: ``value["id"]`` and ``value.id``."""

from __future__ import annotations

import copy
import json
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl import FlowControlSpout, LocalBolts
from flowctl.bolts.batch import Batch
from flowctl.core.records import Fields, Record, Span
from flowctl.testing.processes import batch as make_batch
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl.wire.values import decode_value, encode_value
from flowctl_apply import apply_parquet
from flowctl_files import ParquetRanges
from flowctl_sql import SqlRanges
from flowctl_storm import Collector, Input, LocalStages, Topology

ROWS = [{"id": 1, "at": {"city": "Ulm"}}, {"id": 2, "at": {"city": "Bonn"}}]
seen: list[tuple[int, int, str, Any]] = []


def look(batch: Batch) -> None:
    """Read each row in both spellings."""
    for record in batch:
        value = record.value
        seen.append((value["id"], value.id, value.at.city, value.asDict()))


def look_and_return(batch: Batch) -> list[tuple[int]]:
    look(batch)
    return [(record.value.id,) for record in batch]


def _run(producer: Any) -> None:
    spout = FlowControlSpout(
        name="fields",
        producer=producer,
        bolts=LocalBolts(look, count=1),
        checkpoint=MemoryCheckpointStore(),
    )
    spout.run(view="off")


def by_value(place: Path) -> None:
    _run(ROWS)


def by_hand(place: Path) -> None:
    look(make_batch(ROWS))


def parquet(place: Path) -> str:
    path = place / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return str(path)


def ranges_of_parquet(place: Path) -> None:
    _run(ParquetRanges(parquet(place)))


def apply_of_parquet(place: Path) -> None:
    schema = pyarrow.schema([("id", pyarrow.int64())])
    apply_parquet(
        parquet(place),
        look_and_return,
        schema=schema,
        name="fields",
        out=place / "out",
        bolts=1,
        view="off",
    )


def in_a_topology(place: Path) -> None:
    def second(given: Input, out: Collector) -> None:
        value = given.value
        seen.append((given["id"], value.id, value.at.city, value.asDict()))

    made = Topology("fields")
    made.spout("s", ROWS)
    made.bolt("first", lambda given, out: out(given.value)).shuffle("s")
    made.bolt("second", second).shuffle("first")
    made.run(LocalStages(), checkpoint=MemoryCheckpointStore(), view="off")


@pytest.mark.parametrize(
    "door", [by_value, by_hand, ranges_of_parquet, apply_of_parquet, in_a_topology]
)
def test_a_row_is_read_in_both_spellings(door: Callable[[Path], object], tmp_path: Path) -> None:
    seen.clear()
    door(tmp_path)
    rights = [(row["id"], row["id"], row["at"]["city"], row) for row in ROWS]
    assert sorted(seen, key=lambda each: each[0]) == rights


def test_a_row_of_a_table_is_read_in_both_spellings(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, city TEXT)")
        connection.execute("INSERT INTO t VALUES (7, 'Ulm')")
    found: list[tuple[int, str]] = []
    spout = FlowControlSpout(
        name="fields",
        producer=SqlRanges(lambda: sqlite3.connect(tmp_path / "t.db"), table="t", key="id"),
        bolts=LocalBolts(
            lambda batch: found.extend((r.value["id"], r.value.city) for r in batch), count=1
        ),
        checkpoint=MemoryCheckpointStore(),
    )
    spout.run(view="off")
    assert found == [(7, "Ulm")]


values = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=3),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts),
    max_leaves=6,
)


@given(st.dictionaries(st.text("abcitems_", min_size=1, max_size=5), values))
def test_it_is_the_dict_in_all_else(row: dict[str, Any]) -> None:
    fields = Fields(row)
    for name, value in row.items():
        if name not in dir(Fields):
            assert getattr(fields, name) == fields[name] == value
    assert fields == row and fields.asDict() == row and type(fields.asDict()) is dict
    assert json.loads(json.dumps(fields)) == row
    assert pickle.loads(pickle.dumps(fields)) == copy.deepcopy(fields) == row
    assert encode_value(fields) == encode_value(row)  # read attributes changed nothing
    assert decode_value(encode_value([fields])) == [row]


def test_a_field_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"no field 'idd'; there are id, at"):
        _ = Fields(ROWS[0]).idd


def test_other_values_stay_what_they_are() -> None:
    given: list[Any] = ["a", ["b"], ("c",), {1, 2}, None, 5]
    batch = make_batch(given)
    assert [record.value for record in batch] == given
    assert [type(record.value) for record in batch] == [type(value) for value in given]
    records = [Record(0, "a"), Record(1, "b")]
    assert Batch(records, Span("j", "p", 0, 1, 1), bolt="b", attempt=1)[:] == records
