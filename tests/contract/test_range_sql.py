"""SqlRanges keeps the contract, and refuses keys by which rows can't be found again."""

from __future__ import annotations

import functools
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from flowctl.core.ranges.intake import RangeIntake
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import ConfigError, SourceError
from flowctl.range_ports import RangeProducer
from flowctl.testing.range_conformance import RangeConformance
from flowctl_sql import SqlRanges

Connect = functools.partial[sqlite3.Connection]


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    """Opens t.db, with keys that have gaps, begin below 0, and come twice in one table."""
    connect = functools.partial(sqlite3.connect, tmp_path / "t.db")
    database = connect()
    database.execute('CREATE TABLE items (id INTEGER PRIMARY KEY, word TEXT, "the price" REAL)')
    rows = [(n, f"w{n}", n / 2) for n in (-3, 0, 1, 2, 7, 8, 20)]
    database.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    database.execute("CREATE TABLE none (id INTEGER PRIMARY KEY)")
    database.execute("CREATE TABLE twice (id INTEGER, part TEXT)")
    database.executemany("INSERT INTO twice VALUES (?, ?)", [(n // 2, "x") for n in range(9)])
    database.execute("CREATE TABLE loads (number INTEGER)")
    database.execute("INSERT INTO loads VALUES (7)")
    database.commit()
    database.close()
    return connect


class TestSqlRanges(RangeConformance):
    has_identity = False
    options: tuple[tuple[str, Any], ...] = (("page_rows", 2),)

    @pytest.fixture(autouse=True)
    def source(self, connect: Connect) -> None:
        self.connect = connect

    def producer(self) -> RangeProducer:
        return SqlRanges(self.connect, "items", "id", **dict(self.options))


class TestWithAMark(TestSqlRanges):
    has_identity = True
    options = (("page_rows", 2), ("mark", "SELECT max(number) FROM loads"))


class TestSomeRowsAndColumns(TestSqlRanges):
    options = (("columns", ["the price"]), ("where", "word LIKE 'w_' AND word <> 'w1'"))


def values(source: SqlRanges) -> list[Any]:
    [(name, extent)] = source.extents(Checkpoint()).items()
    blocks = source.reader().open(name, extent.start, extent.stop, extent.identity)
    return [r.value for block in blocks for r in block.batch_records(0, len(block))]


def test_rows_are_dicts_of_the_wanted_columns(connect):
    everything = values(SqlRanges(connect, "items", "id"))
    assert everything[0] == {"id": -3, "word": "w-3", "the price": -1.5}
    assert len(everything) == 7
    some = SqlRanges(connect, "items", "id", columns=["word"], where="id > 5 OR id = 0")
    assert values(some) == [{"word": word} for word in ("w0", "w7", "w8", "w20")]
    assert values(SqlRanges(connect, "none", "id")) == []


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip((column[0] for column in cursor.description), row, strict=True))


@pytest.mark.parametrize("factory", [as_dict, sqlite3.Row])
def test_a_row_factory_of_the_connection_changes_no_record(connect, factory):
    def with_factory() -> sqlite3.Connection:
        connection = connect()
        connection.row_factory = factory
        return connection

    for mark in (None, "SELECT max(number) FROM loads"):
        found = values(SqlRanges(with_factory, "items", "id", mark=mark))
        assert found == values(SqlRanges(connect, "items", "id"))


def test_rows_that_can_only_be_dicts_are_refused_at_the_start_with_the_remedy(connect):
    class DictCursor(sqlite3.Cursor):
        def fetchone(self) -> Any:
            row = super().fetchone()
            return None if row is None else as_dict(self, row)

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(DictCursor)

    source = SqlRanges(functools.partial(connect, factory=Connection), "items", "id")
    with pytest.raises(ConfigError, match="rows as dict, not as tuples") as refused:
        source.extents(Checkpoint())
    assert "cursor class" in refused.value.remedy


@pytest.mark.parametrize("page_rows", [1, 2, 3, 100])
def test_a_key_that_comes_twice_is_refused_wherever_the_page_ends(connect, page_rows):
    with pytest.raises(SourceError, match="twice: id is not unique"):
        values(SqlRanges(connect, "twice", "id", page_rows=page_rows))


def test_keys_that_are_null_or_text_are_refused(connect):
    database = connect()
    database.execute("INSERT INTO twice VALUES (NULL, 'x')")
    database.commit()
    database.close()
    with pytest.raises(SourceError, match="id is null in some rows"):
        values(SqlRanges(connect, "twice", "id"))
    with pytest.raises(SourceError, match="word is a str"):
        values(SqlRanges(connect, "items", "word"))


def test_the_key_that_is_wrong_is_named_and_how(connect):
    database = connect()
    database.execute("CREATE TABLE mixed (id)")
    database.executemany("INSERT INTO mixed VALUES (?)", [(1,), (2,), ("x",)])
    database.execute("CREATE TABLE high (id INTEGER PRIMARY KEY)")
    database.execute("INSERT INTO high VALUES (?)", [(1 << 63) - 1])
    database.commit()
    for table, key, what in (
        ("items", "nokey", "nokey is no column"),
        ("mixed", "id", "id is a str in some rows, not a whole number"),
        ("high", "id", "the largest that can be read is one less"),
    ):
        with pytest.raises(SourceError, match=what):
            SqlRanges(connect, table, key).extents(Checkpoint())


def test_what_asking_again_cannot_mend_is_a_source_error(connect, tmp_path):
    with pytest.raises(SourceError, match="no such table"):
        values(SqlRanges(connect, "other", "id"))
    with pytest.raises(SourceError, match="no such column"):
        values(SqlRanges(connect, "items", "id", where="colour = 1"))
    with pytest.raises(SourceError, match="unable to open"):
        values(SqlRanges(lambda: sqlite3.connect(tmp_path / "no" / "t.db"), "items", "id"))
    # A database that is busy is asked again: that is no SourceError.
    source = SqlRanges(functools.partial(connect, timeout=0), "items", "id")
    database = connect()
    database.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        values(source)
    database.close()


def test_wrong_arguments_are_named(connect):
    with pytest.raises(ConfigError, match="connect: "):
        SqlRanges("postgresql://db", "items", "id")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not a table name"):
        SqlRanges(connect, "items; DROP TABLE items", "id")
    for wrong in (0, -1, 1.5, float("nan"), float("inf"), "10", True):
        with pytest.raises(ConfigError, match=r"page_rows: .* is not a count"):
            SqlRanges(connect, "items", "id", page_rows=wrong)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="is not a key"):
        SqlRanges(connect, "items", "id").extents(Checkpoint({"items": PartitionCheckpoint("a")}))


def in_load(connect: Connect, number: int) -> None:
    database = connect()
    database.execute("INSERT INTO loads VALUES (?)", (number,))
    database.commit()
    database.close()


def test_a_table_of_another_mark_is_refused_by_the_next_run_and_within_one(connect):
    mark = "SELECT max(number) FROM loads"
    source = SqlRanges(connect, "items", "id", mark=mark)
    [before] = source.extents(Checkpoint()).values()
    assert before.identity == "7"
    reader = source.reader()
    in_load(connect, 8)
    with pytest.raises(SourceError, match="items: it is another table than before: its mark was 7"):
        next(iter(reader.open("items", before.start, before.stop, before.identity)))
    done = Checkpoint({"items": PartitionCheckpoint(2, 4, mark=before.identity)})
    intake = RangeIntake(done)
    with pytest.raises(SourceError, match=r"items: a part .* it was 7, and is now 8") as refused:
        intake.offer(source.extents(done))
    assert "--partition" in refused.value.remedy
    RangeIntake(done).offer(SqlRanges(connect, "items", "id", mark="").extents(done))


def test_a_table_that_is_made_again_while_it_is_read_gives_no_row_of_the_new_one(connect):
    """One run of 21 ended well with rows of the new table, ten more processed some.  The kind: a
    mark is compared for what was read, not for where reading began."""
    source = SqlRanges(connect, "items", "id", mark="SELECT number FROM loads", page_rows=2)
    extent = source.extents(Checkpoint())["items"]
    pages = source.reader().open("items", extent.start, extent.stop, extent.identity)
    assert [record.value["word"] for record in next(pages).batch_records(0, 2)] == ["w-3", "w0"]
    with connect() as database:
        database.executescript(
            "BEGIN; DROP TABLE items; UPDATE loads SET number = 8;"
            "CREATE TABLE items (id INTEGER PRIMARY KEY, word TEXT, 'the price' REAL);"
            "INSERT INTO items VALUES (1, 'new', 0), (2, 'new', 0), (20, 'new', 0); COMMIT"
        )
    with pytest.raises(SourceError, match="items: it is another table than before: its mark was 7"):
        next(pages)


@pytest.mark.parametrize("mark", ["SELECT number FROM loads WHERE 1 = 2", "SELECT 1, 2"])
def test_a_mark_that_is_no_value_is_named(connect, mark):
    with pytest.raises(SourceError, match="items: mark gave "):
        SqlRanges(connect, "items", "id", mark=mark).extents(Checkpoint())
