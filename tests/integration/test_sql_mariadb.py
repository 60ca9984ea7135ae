"""SqlSink on a real MariaDB, through SQLAlchemy and PyMySQL: races, fencing, locks, outages."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sql_parts import write_from_many_threads, write_numbers

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.errors import ConfigError, FencedError, JobError, RetryLater, UnrunnableError
from flowctl.testing import batch
from flowctl_sql import SqlSink, _refusals

pytestmark = pytest.mark.on_change("sql")

pytest.importorskip("sqlalchemy", reason="finds the driver by the URL")
pymysql = pytest.importorskip("pymysql", reason="the driver for MariaDB")
mariadb_parts = pytest.importorskip("mariadb_parts")
if mariadb_parts.find_mariadbd() is None:
    pytest.skip("no MariaDB: python .ci/get_mariadb.py", allow_module_level=True)

_SCHEMA = "CREATE TABLE `rows` (part VARCHAR(50), number BIGINT, line TEXT)"
_TABLES = ("`rows`", "flowctl_spans", "flowctl_epochs", "flowctl_partitions")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = mariadb_parts.MariaDb(tmp_path_factory.mktemp("mariadb"), port)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def sink(server: Any) -> Iterator[SqlSink]:
    for table in _TABLES:
        server.execute(f"DROP TABLE IF EXISTS {table}")
    sink = SqlSink(server.url, table="rows", schema=_SCHEMA)
    yield sink
    sink.close()


def _numbers(server: Any, part: str = "p") -> list[int]:
    found = server.execute(
        f"SELECT number FROM `rows` WHERE BINARY part = '{part}' ORDER BY number"
    )
    return [number for (number,) in found]


def test_replays_overlaps_fencing_and_forgetting(sink: SqlSink, server: Any) -> None:
    assert write_numbers(sink, 0, 10) == (10, 0)
    assert write_numbers(sink, 0, 10) == (0, 10)
    assert write_numbers(sink, 5, 15, epoch=2) == (5, 5)
    with pytest.raises(FencedError):
        write_numbers(sink, 15, 20, epoch=1)
    assert _numbers(server) == list(range(15))
    assert sink.newest_epoch("job") == 2
    assert sink.forget("job", "p", above=(9, 0))
    assert write_numbers(sink, 5, 12, epoch=2) == (2, 5)
    assert sink.forget("job") and not sink.forget("job")
    sink.unfence("job")
    assert write_numbers(sink, 0, 1, epoch=1) == (1, 0)


def test_a_value_that_a_column_of_another_kind_would_change_is_refused(server: Any) -> None:
    """MariaDB rounds a number and drops the time of a moment with a note that nobody reads."""
    server.execute("DROP TABLE IF EXISTS kinds")
    server.execute("CREATE TABLE kinds (N INT, d DATE, t TIME(6))")
    sink = SqlSink(server.url, table="kinds")
    day, noon = datetime(2024, 2, 29), datetime(2024, 2, 29, 12)
    fine = {"N": 2.0, "d": day, "t": timedelta(3)}
    for bad in ({"N": 2.5}, {"d": noon}, {"t": noon}):
        with pytest.raises(JobError, match=f"column {next(iter(bad))} is "):
            sink.write([fine | bad], batch=batch([1]))
    sink.write([fine], batch=batch([1]))
    sink.close()
    assert list(server.execute("SELECT * FROM kinds")) == [(2, day.date(), timedelta(3))]


def test_names_that_its_collation_takes_for_one(sink: SqlSink, server: Any) -> None:
    for part in ("p", "P", "p ", "á", "a"):
        assert write_numbers(sink, 0, 3, part=part) == (3, 0)
        assert write_numbers(sink, 0, 3, part=part) == (0, 3)


def test_a_number_that_does_not_fit_is_refused_by_a_lax_server_too(
    sink: SqlSink, server: Any
) -> None:
    server.execute("SET GLOBAL sql_mode = ''")
    try:
        with pytest.raises(pymysql.err.DataError, match="Out of range"):
            sink.write([("p", 2**70, "")], batch=batch([1]))
    finally:
        server.execute("SET GLOBAL sql_mode = DEFAULT")
    assert _numbers(server) == []


def test_ranges_are_merged(sink: SqlSink, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowctl_sql._ledger._MERGE_EVERY_WRITES", 4)
    for first in range(0, 200, 5):
        write_numbers(sink, first, first + 5, done=first - 1)
    assert server.execute("SELECT count(*) FROM flowctl_spans")[0][0] <= 6
    assert write_numbers(sink, 0, 200, epoch=2) == (0, 200)


def test_a_failed_write_rolls_back(sink: SqlSink, server: Any) -> None:
    write_numbers(sink, 0, 1)
    batch = Batch([Record((7, 0), "")], Span("job", "p", (7, 0), (7, 0), 1), bolt="b", attempt=1)
    with pytest.raises(pymysql.err.DataError):
        sink.write([("p", "not a number", "")], batch=batch)
    assert write_numbers(sink, 7, 8) == (1, 0)
    assert _numbers(server) == [0, 7]


@pytest.mark.req("S70")
def test_many_writers_at_once(sink: SqlSink, server: Any) -> None:
    """First rows, first epochs and tables are raced for; then overlaps under way at once."""

    def again(first: int, last: int, part: str) -> None:
        for _ in range(5):  # as a bolt does; InnoDB finds deadlocks among first rows
            with contextlib.suppress(RetryLater):
                write_numbers(sink, first, last, part=part)
                return
        raise AssertionError("refused again and again")

    expected = write_from_many_threads(sink, again, times=20)
    assert _numbers(server, "p") == _numbers(server, "q") == expected


def test_the_server_is_told_how_long_to_wait_for_us(sink: SqlSink, server: Any) -> None:
    write_numbers(sink, 0, 1)
    cursor = sink.session().cursor
    cursor.execute(
        "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@idle_transaction_timeout,"
        " @@net_read_timeout, @@tx_isolation"
    )
    assert cursor.fetchone() == (4, 4, 5, 5, "READ-COMMITTED")


def test_a_lock_that_is_held_too_long_is_a_refusal(sink: SqlSink, server: Any) -> None:
    write_numbers(sink, 0, 1)
    impatient = SqlSink(server.url, table="rows", timeout_s=0.2)  # a second at least
    blocker = server.connect()
    blocker.cursor().execute("UPDATE flowctl_partitions SET writes = writes + 1")
    with pytest.raises(RetryLater, match=r"mysql\+pymysql://\*\*\*@127.* now: .*Lock wait timeout"):
        write_numbers(impatient, 0, 5)
    blocker.close()
    assert write_numbers(impatient, 0, 5) == (4, 1)
    impatient.close()


def test_a_writer_that_stalls_in_its_transaction_is_ended_and_nothing_of_it_stays(
    sink: SqlSink, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowctl_sql._engine.IDLE_MAX_S", 1.0)
    stalls = SqlSink(server.url, table="rows", schema=_SCHEMA)
    write_numbers(stalls, 0, 1)
    session = stalls.session()
    covered = session.ledger.covered

    def stall(span: Span) -> Any:
        time.sleep(2.5)
        return covered(span)

    monkeypatch.setattr(session.ledger, "covered", stall)
    with pytest.raises(RetryLater):
        write_numbers(stalls, 1, 5)
    assert write_numbers(sink, 1, 3) == (2, 0)
    assert write_numbers(stalls, 1, 5) == (2, 2)
    assert _numbers(server) == list(range(5))
    stalls.close()


def test_a_server_that_is_killed_and_back(sink: SqlSink, server: Any) -> None:
    write_numbers(sink, 0, 5)
    server.kill()
    for _ in range(2):  # on the old connection, and with none
        with pytest.raises(RetryLater, match="can't take it now"):
            write_numbers(sink, 5, 10)
    server.start()
    assert write_numbers(sink, 0, 10) == (5, 5)
    assert _numbers(server) == list(range(10))


def test_a_table_without_transactions_is_refused(sink: SqlSink, server: Any) -> None:
    schema = f"{_SCHEMA} ENGINE=MyISAM"
    with pytest.raises(ConfigError, match="'rows' uses the engine MyISAM") as caught:
        write_numbers(SqlSink(server.url, table="rows", schema=schema), 0, 1)
    assert "ENGINE = InnoDB" in caught.value.remedy


def test_nor_is_one_behind_views(sink: SqlSink, server: Any) -> None:
    schema = (
        f"CREATE OR REPLACE {_SCHEMA.removeprefix('CREATE ')} ENGINE=MyISAM",
        "CREATE OR REPLACE VIEW inner_view AS SELECT part, number, line FROM `rows` r",
        "CREATE OR REPLACE VIEW outer_view AS SELECT * FROM inner_view WHERE number > 0",
    )
    with pytest.raises(ConfigError, match=r"the table 'rows' behind 'outer_view' uses .* MyISAM"):
        write_numbers(SqlSink(server.url, table="outer_view", schema=schema), 0, 1)
    server.execute("ALTER TABLE `rows` ENGINE=InnoDB")
    views = SqlSink(server.url, table="outer_view")
    assert write_numbers(views, 1, 3) == (2, 0)
    views.close()
    assert _numbers(server) == [1, 2]


@pytest.mark.parametrize("autocommit", [False, True])
def test_connections_of_ones_own(sink: SqlSink, server: Any, autocommit: bool) -> None:
    def connect() -> Any:
        return server.connect(autocommit=autocommit)

    own = SqlSink("mysql+pymysql://", connect=connect, table="rows", schema=_SCHEMA)
    if autocommit:
        with pytest.raises(ConfigError, match="autocommit"):
            write_numbers(own, 0, 1)
    else:
        assert write_numbers(own, 0, 5) == (5, 0)
        assert write_numbers(sink, 0, 5) == (0, 5)
        with pytest.raises(ConfigError, match=r"pymysql.*URL too"):
            write_numbers(SqlSink(connect=connect, table="rows"), 0, 1)
    own.close()


def test_statements_that_no_row_can_be_written_with() -> None:
    error = pymysql.err.OperationalError(1054, "Unknown column 'wrong' in 'field list'")
    assert _refusals.is_statement_fault(error)
    assert not _refusals.is_statement_fault(pymysql.err.DataError(1406, "Data too long"))


def test_a_limit_of_the_user_and_a_read_only_server_are_refusals() -> None:
    limit = pymysql.err.OperationalError(1226, "User has exceeded 'max_user_connections'")
    assert _refusals.is_refusal(limit, connected=False)
    assert _refusals.is_refusal(pymysql.err.InternalError(1792, "in a READ ONLY transaction"))


def test_a_missing_database_is_a_fault(server: Any) -> None:
    sink = SqlSink(server.url.replace("/test", "/nosuch"), table="rows")
    with pytest.raises(UnrunnableError, match=r"can't be opened: .*Unknown database"):
        write_numbers(sink, 0, 1)


def test_columns_of_a_flattened_frame(server: Any) -> None:
    schema = "CREATE TABLE flat (`a.b` INT, `2 (€)` VARCHAR(9), `a{0}` VARCHAR(9))"
    sink = SqlSink(server.url, table="flat", schema=schema)
    row = {"a.b": 1, "2 (€)": "x", "a{0}": "y"}
    sink.write([row] * 2, batch=batch([1, 2], partition="flat"))
    sink.close()
    assert list(server.execute("SELECT * FROM flat")) == [(1, "x", "y")] * 2


def test_values_of_a_dataframe_are_stored_as_what_they_mean(server: Any) -> None:
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    schema = "CREATE TABLE frames (n INT, flag VARCHAR(9), at_time VARCHAR(40))"
    sink = SqlSink(server.url, table="frames", schema=schema)
    rows = [
        {"n": numpy.int64(1), "flag": numpy.bool_(True), "at_time": pandas.NaT},
        {"n": numpy.int8(2), "flag": pandas.NA, "at_time": pandas.Timestamp("2024-01-02")},
    ]
    sink.write(rows, batch=batch([1, 2], partition="frames"))
    wanted = [(1, "1", None), (2, None, "2024-01-02 00:00:00")]
    assert list(server.execute("SELECT * FROM frames ORDER BY n")) == wanted
    zoned = {"n": 3, "flag": None, "at_time": pandas.Timestamp("2024-01-02", tz="UTC")}
    with pytest.raises(JobError, match=r"column at_time is a datetime with a time zone.*Pass"):
        sink.write([zoned], batch=batch([3], partition="zoned"))
    sink.close()


def test_columns_are_stored_as_the_same_rows_are(sink: SqlSink, server: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="has the columns")
    whole = pyarrow.RecordBatch.from_pydict(
        {
            "n": [1, None, 3],
            "flag": [True, False, None],
            "at_time": [datetime(2024, 1, 2, 3, 4, 5, 6), None, datetime.min],
            "raw": [b"\0'", b"", None],
            "price": pyarrow.array([Decimal("1.10"), None, Decimal("-2")]),
        }
    )
    for table in ("by_column", "by_row"):
        server.execute(f"DROP TABLE IF EXISTS {table}")
        server.execute(
            f"CREATE TABLE {table} (n INT, flag BOOL, at_time DATETIME(6), raw BLOB,"
            " price DECIMAL(9, 3))"
        )
        sink = SqlSink(server.url, table=table)
        rows = whole if table == "by_column" else whole.to_pylist()
        assert sink.write(rows, batch=batch([1, 2, 3])) == (3, 0)
        sink.close()
    found = server.execute("SELECT * FROM by_column ORDER BY n")
    assert found == server.execute("SELECT * FROM by_row ORDER BY n")
    assert found[1] == (1, 1, datetime(2024, 1, 2, 3, 4, 5, 6), b"\0'", Decimal("1.100"))


def _keyed(server: Any, *indexes: str, **options: Any) -> SqlSink:
    server.execute("DROP TABLE IF EXISTS keyed")
    unique = "".join(f", UNIQUE ({index})" for index in indexes)
    server.execute(f"CREATE TABLE keyed (id BIGINT, mail VARCHAR(50), n BIGINT{unique})")
    return SqlSink(server.url, table="keyed", **{"mode": "upsert", "key": ["id"], **options})


def _numbered(first: int, last: int, n: int) -> tuple[list[dict[str, Any]], Batch]:
    made = batch([Record(position, position) for position in range(first, last)])
    return [{"id": r.value % 20, "n": n} for r in made], made


def test_rows_that_are_there_are_updated_or_kept(sink: SqlSink, server: Any) -> None:
    keyed = _keyed(server, "id")
    for n in (1, 2):
        rows, made = _numbered(n * 100, n * 100 + 50, n)
        assert keyed.write(rows, batch=made) == (50, 0)
    keyed.close()
    keeping = SqlSink(server.url, table="keyed", mode="ignore", key=["id"], name="keeping")
    rows, made = _numbered(0, 50, 3)
    keeping.write(rows, batch=made)
    keeping.close()
    assert server.execute("SELECT count(*), min(n), max(n) FROM keyed") == [(20, 2, 2)]


def test_another_unique_index_by_which_it_would_update_too_ends_the_run(
    sink: SqlSink, server: Any
) -> None:
    keyed = _keyed(server, "id", "mail")
    rows, made = _numbered(0, 5, 1)
    keyed.write(rows, batch=made)  # no mail, so nothing is found by it
    with pytest.raises(JobError, match="mail is unique as well"):
        keyed.write([{"id": 1, "mail": "x", "n": 2}], batch=batch([Record(9, 1)]))
    keyed.close()


def test_a_key_without_a_unique_index_ends_the_run(sink: SqlSink, server: Any) -> None:
    keyed = _keyed(server)
    rows, made = _numbered(0, 5, 1)
    with pytest.raises(UnrunnableError, match="has no unique index on id"):
        keyed.write(rows, batch=made)
