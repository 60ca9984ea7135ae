"""SqlSink copies upserts into PostgreSQL: the table is as after one row after the other."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sql_copy import ROWS_MIN, batch_for, copied, numbered, sql, uri  # noqa: F401  (fixtures)

from flowctl.errors import JobError, UnrunnableError
from flowctl_sql import SqlSink

psycopg = pytest.importorskip("psycopg", reason="psycopg is the driver for PostgreSQL")
pa = pytest.importorskip("pyarrow", reason="has the columns")

pytestmark = pytest.mark.on_change("sql")

STAGE = "pg_temp.flowctl_rows_0"
MODES: list[dict[str, Any]] = [
    {"mode": "upsert", "key": ["k"]},
    {"mode": "upsert", "key": ["k"], "update": ["a"]},
    {"mode": "upsert", "key": ["k", "p"]},
    {"mode": "ignore", "key": ["k"]},
    {"mode": "ignore"},
]
KEYS = {
    "bigint": (pa.int64(), st.integers(0, 9)),
    "text": (pa.string(), st.sampled_from(["a", "A", "a ", "b", "é"])),
    "char(3)": (pa.string(), st.sampled_from(["a", "A", "a ", "b", "é"])),
    "numeric(9,0)": (pa.decimal128(12, 2), st.sampled_from(["1.10", "1.30", "2", "1.90"])),
    "timestamp(0)": (pa.timestamp("us"), st.sampled_from([0, 1, 600_000, 1_000_000])),
    "integer": (pa.float64(), st.sampled_from([1.0, 2.0, 3.0])),
}


@pytest.mark.req("S70")
@pytest.mark.parametrize("kind", sorted(KEYS))
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_upserts_are_those_of_one_row_after_the_other(
    uri: str, sql: Callable[..., list[Any]], kind: str, mode: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of two rows with one key the first is added and the last decides, whatever is equal there."""
    always = property(lambda _: True, lambda _, __: None)  # not only until the first known key
    monkeypatch.setattr("flowctl_sql._copy.Copies._goes_straight", always, raising=False)
    arms, unique = ["arrow", "rows", "inserted"], ", ".join(mode.get("key", ["k"]))
    sql(
        *[f"DROP TABLE IF EXISTS {arm}" for arm in arms],
        *[
            f"CREATE TABLE {arm} (k {kind}, p INT, a TEXT DEFAULT 'new', b TEXT, UNIQUE ({unique}))"
            for arm in arms
        ],
    )
    sinks = {arm: SqlSink(uri, table=arm, **mode) for arm in arms}
    arrow, keys = KEYS[kind]

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(st.tuples(keys, st.integers(0, 1)), min_size=1, max_size=8),
                    min_size=1, max_size=2))  # fmt: skip
    def check(batches: list[list[tuple[Any, int]]]) -> None:
        sql(*[f"TRUNCATE {arm}" for arm in arms])
        results: dict[str, list[Any]] = {arm: [] for arm in arms}
        for number, some in enumerate(batches):
            made = [Decimal(key) if "decimal" in str(arrow) else key for key, _ in some]
            texts = [f"{number}.{at}" for at in range(len(some))]
            table = pa.record_batch(
                [pa.array(made, arrow), pa.array([p for _, p in some], pa.int32()),
                 pa.array(texts), pa.array(texts[::-1])],
                ["k", "p", "a", "b"],
            )  # fmt: skip
            for arm in arms:
                monkeypatch.setattr(ROWS_MIN, 1_000 if arm == "inserted" else 1)
                rows = table if arm == "arrow" else table.to_pylist()
                results[arm] += sinks[arm].write(rows, batch=batch_for(len(some)))
        found = {arm: sql(f"SELECT k::text, p, a, b FROM {arm} ORDER BY k, p, a") for arm in arms}
        assert found["arrow"] == found["inserted"]
        assert found["rows"] == found["inserted"]
        assert results["arrow"] == results["rows"] == results["inserted"]

    check()
    for sink in sinks.values():
        sink.close()


def test_upserts_are_copied_and_a_second_load_fails_nobody(
    uri: str, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    sql("DROP TABLE IF EXISTS prices", "CREATE TABLE prices (n BIGINT PRIMARY KEY, line TEXT)")
    keyed = SqlSink(uri, table="prices", mode="upsert", key=["n"])
    for load in range(3):
        batch = batch_for(500, part="p", job=f"load {load}")
        assert keyed.write(numbered(500), batch=batch) == (500, 0)
    nobody = pa.RecordBatch.from_pydict({"n": [*range(299), None], "line": ["x"] * 300})
    with pytest.raises(JobError, match="position 299: column n of the key is missing or NULL"):
        keyed.write(nobody, batch=batch_for(300))
    keyed.close()
    into = [statement.split()[1] for statement in copied]
    assert into == [STAGE, '"prices"', STAGE, STAGE]
    assert sql("SELECT count(*), max(line) FROM prices") == [(500, "línea 99")]


def test_upserts_of_new_keys_go_straight_until_one_is_known(
    uri: str, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    sql("DROP TABLE IF EXISTS news", "CREATE TABLE news (n BIGINT PRIMARY KEY, line TEXT)")
    keyed = SqlSink(uri, table="news", mode="upsert", key=["n"])
    for first in (0, 300, 600, 850, 1150):  # 50 twice
        assert keyed.write(numbered(300, first), batch=batch_for(300)) == (300, 0)
    into = [statement.split()[1] for statement in copied]
    assert into == [STAGE, *['"news"'] * 3, STAGE, STAGE]
    keyed.close()
    assert sql("SELECT count(*), sum(n) FROM news") == [(1450, sum(range(1450)))]
    assert sql("SELECT count(*) FROM news WHERE line <> 'línea ' || n") == [(0,)]


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ("ALTER TABLE bare DROP CONSTRAINT bare_pkey", "no unique or exclusion constraint"),
        ("REVOKE UPDATE ON bare FROM CURRENT_USER", "permission denied"),
    ],
)
def test_new_keys_need_what_an_upsert_needs(
    uri: str, sql: Callable[..., list[Any]], instead: str, said: str
) -> None:
    """Kind: a way without the check that makes the other one exact."""
    sql(
        "DROP TABLE IF EXISTS bare",
        "CREATE ROLE upserter LOGIN",
        "GRANT ALL ON SCHEMA public TO upserter",
        "CREATE TABLE bare (n BIGINT PRIMARY KEY, line TEXT)",
        "GRANT ALL ON bare TO upserter",
    )
    SqlSink(uri, table="bare").write(numbered(0), batch=batch_for(0))  # makes flowctl's tables
    sql("GRANT ALL ON flowctl_epochs, flowctl_partitions, flowctl_spans TO upserter")
    keyed = SqlSink(
        connect=lambda: psycopg.connect(uri, options="-c role=upserter"),
        table="bare", mode="upsert", key=["n"],
    )  # fmt: skip
    for first in (0, 300):
        assert keyed.write(numbered(300, first), batch=batch_for(300)) == (300, 0)
    sql(instead.replace("CURRENT_USER", "upserter"))
    with pytest.raises((JobError, UnrunnableError), match=said):
        keyed.write(numbered(300, 600), batch=batch_for(300))
    keyed.close()
    found = sql("SELECT count(*) FROM bare")
    sql("DROP OWNED BY upserter CASCADE", "DROP ROLE upserter")
    assert found == [(600,)]


def test_upserts_by_a_key_that_is_checked_at_the_commit_are_refused(
    uri: str, sql: Callable[..., list[Any]]
) -> None:
    sql(
        "DROP TABLE IF EXISTS later",
        "CREATE TABLE later (n BIGINT UNIQUE DEFERRABLE INITIALLY DEFERRED, line TEXT)",
    )
    keyed = SqlSink(uri, table="later", mode="upsert", key=["n"])
    for first in (0, 300):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="deferrable"):
            keyed.write(numbered(300, first), batch=batch_for(300))
    keyed.close()
    assert sql("SELECT count(*) FROM later") == [(0,)]


def test_two_writers_of_the_same_new_keys_crosswise_both_end(
    uri: str, sql: Callable[..., list[Any]]
) -> None:
    sql("DROP TABLE IF EXISTS crossed", "CREATE TABLE crossed (n BIGINT PRIMARY KEY, line TEXT)")
    meet = threading.Barrier(2, timeout=30)

    def write(way: int) -> int:
        keyed = SqlSink(
            connect=lambda: psycopg.connect(uri, options="-c deadlock_timeout=20ms"),
            table="crossed", mode="upsert", key=["n"],
        )  # fmt: skip
        stored = keyed.write(numbered(200, 10_000 * (2 + way)), batch=batch_for(200)).written
        for first in range(0, 8_000, 2_000):
            rows = numbered(2_000, first)
            meet.wait()
            some = rows if way > 0 else rows.take(pa.array(range(1_999, -1, -1)))
            stored += keyed.write(some, batch=batch_for(2_000)).written
        keyed.close()
        return stored

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write, (0, 1))) == [8_200, 8_200]
    assert sql("SELECT count(*), count(DISTINCT n) FROM crossed") == [(8_400, 8_400)]


def test_an_index_with_a_collation_of_its_own_takes_inserts(
    uri: str, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    sql(
        "DROP TABLE IF EXISTS own_way",
        "CREATE TABLE own_way (k TEXT, v TEXT)",
        'CREATE UNIQUE INDEX own_way_k ON own_way (k COLLATE "POSIX" text_pattern_ops)',
    )
    keyed = SqlSink(uri, table="own_way", mode="upsert", key=["k"])
    rows = pa.RecordBatch.from_pydict({"k": [f"k {n % 50}" for n in range(300)], "v": ["x"] * 300})
    assert keyed.write(rows, batch=batch_for(300)) == (300, 0)
    keyed.close()
    assert not copied
    assert sql("SELECT count(*) FROM own_way") == [(50,)]


def test_after_a_write_that_was_rolled_back_upserts_are_copied_as_before(
    uri: str, sql: Callable[..., list[Any]], copied: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sql(
        "DROP TABLE IF EXISTS checked",
        "CREATE TABLE checked (n BIGINT PRIMARY KEY, line TEXT CHECK (line <> 'bad'))",
    )
    keyed = SqlSink(uri, table="checked", mode="upsert", key=["n"])
    bad = pa.RecordBatch.from_pydict({"n": list(range(300)), "line": ["bad"] * 300})
    with pytest.raises(psycopg.errors.CheckViolation):
        keyed.write(bad, batch=batch_for(300))
    for _ in range(2):
        assert keyed.write(numbered(300), batch=batch_for(300)) == (300, 0)
    keyed.close()
    assert [statement.split()[1] for statement in copied] == [STAGE, STAGE, '"checked"', STAGE]
    assert not caplog.messages
