"""Rows into PostgreSQL by COPY, where that stores just what INSERT would.

INSERT casts a value of some type to the type of its column; COPY has the column's type read a text.
For most pairs that is the same, but text ``1.5`` is no integer, where the cast makes 2 of 1.5.  So
each column is *direct*, where both are the same, or the rows go into a temporary table with a
column of the value's own type first, from where ``INSERT … SELECT`` casts as it always does.
A connection's first upserts go there, too.  The next ones are copied into the table itself, at
half the cost, until it has the key of a row.  What COPY refuses is written by INSERT, whose error
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from flowctl.failure.classify import sqlstate_of
from flowctl.logs import ModuleLogger
from flowctl_sql._columns import (
    NotAsText,
    as_text,
    csv_of,
    is_record_batch,
    json_text,
    kind_of,
)
from flowctl_sql._dialect import Dialect
from flowctl_sql._refusals import LOCKED_STATE, is_refusal
from flowctl_sql._rows import Insert
from flowctl_sql._upsert import OnConflict

# Fewer rows than this are inserted.  On one machine COPY takes as long as INSERT with 10 rows, and
# with 50 through a temporary table; then it saves 10 µs a row.  It costs a round trip more, or two,
# and each of .5 ms is another 50 rows.
ROWS_MIN: Final = 100
_PLANS_MAX: Final = 128  # dicts with keys of their own could need any number
_STAGES_MAX: Final = 16  # temporary tables: each costs the server's catalogue a dozen rows
# Unique and exclusion constraints, a deadlock, a lock: another writer may be adding such a key.
_NOT_NEW: Final = ("23505", "23P01", "40P01", LOCKED_STATE)
_VERSION_MIN: Final = 120_000  # PostgreSQL 12, which has the columns of the catalogue that are read

# -- Which values a column takes as text just as it takes them as values ------------------------


class _Kind(NamedTuple):
    """The type that psycopg gives such values, and the column types that read the same from text.

    ``direct`` None: all, as psycopg passes the text itself.  ``natural`` "": they have several.
    """

    natural: str
    direct: frozenset[str] | None = frozenset()


_INTEGERS: Final = ("smallint", "integer", "bigint")
_TIMESTAMP, _TIMESTAMPTZ = "timestamp without time zone", "timestamp with time zone"
_TEXTS: Final = ("text", "character varying", "character")
_KINDS: Final[dict[str, _Kind]] = {
    "null": _Kind("text", None),
    "text": _Kind("text", None),
    "int": _Kind("bigint", frozenset({*_INTEGERS, "numeric", "double precision"})),
    # Not numeric: the cast keeps 15 digits of 17.  Not real: it would round twice.
    "float": _Kind("double precision", frozenset({"double precision"})),
    "number": _Kind("", frozenset({"double precision"})),  # some whole, of type int
    "decimal": _Kind("numeric", frozenset({"numeric", "double precision"})),
    "bool": _Kind("boolean", frozenset({"boolean"})),
    "bytes": _Kind("bytea", frozenset({"bytea"})),
    "date": _Kind("date", frozenset({"date"})),
    "time": _Kind("time without time zone", frozenset({"time without time zone"})),
    "timestamp": _Kind(_TIMESTAMP, frozenset({_TIMESTAMP, _TIMESTAMPTZ})),
    "timestamptz": _Kind(_TIMESTAMPTZ, frozenset({_TIMESTAMPTZ})),
    "interval": _Kind("interval", frozenset({"interval"})),
    "uuid": _Kind("uuid", frozenset({"uuid"})),
    "int[]": _Kind("bigint[]", frozenset({"smallint[]", "integer[]", "bigint[]", "numeric[]"})),
    "float[]": _Kind("double precision[]", frozenset({"double precision[]"})),
    "decimal[]": _Kind("numeric[]", frozenset({"numeric[]"})),
    "text[]": _Kind("text[]", frozenset({"text[]", "character varying[]"})),
    "bool[]": _Kind("boolean[]", frozenset({"boolean[]"})),
}
_JSON: Final = ("json", "jsonb")
# Column types whose casts from the natural types above are the same whichever of psycopg's own
# (smallint for 5, bigint for 5000000000) a value has.
_CASTS: Final = frozenset(
    {*_INTEGERS, *_TEXTS, *_JSON, _TIMESTAMP, _TIMESTAMPTZ, "numeric", "real", "double precision",
     "boolean", "bytea", "date", "time without time zone", "interval", "uuid"}
)  # fmt: skip
_OF_PYTHON: Final[dict[type, str]] = {
    int: "int", float: "float", Decimal: "decimal", bool: "bool", str: "text", bytes: "bytes",
    date: "date", datetime: "timestamp", time: "time", timedelta: "interval", UUID: "uuid",
}  # fmt: skip


def _kind_of_values(values: Sequence[Any]) -> str | None:
    """Return the kind of a column of Python's values; None for those of several or others."""
    types = set(map(type, values)) - {type(None)}
    if len(types) != 1:
        return "number" if types == {int, float} else None if types else "null"
    kind = _OF_PYTHON.get(types.pop())
    if kind in ("timestamp", "time"):
        zoned = {value.tzinfo is not None for value in values if value is not None}
        if zoned != {False}:
            return "timestamptz" if zoned == {True} and kind == "timestamp" else None
    return kind


# -- What the table allows ----------------------------------------------------------------------

_COLUMNS: Final = (
    "SELECT attname, format_type(atttypid, NULL), attidentity = 'a' OR attgenerated <> '' "
    "FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped "
    "ORDER BY attnum"
)
# What INSERT does and COPY doesn't, or not at the same moment.  ev_type 2, 3 and the bits 16, 4 of
# tgtype: UPDATE, INSERT.  An index with an operator class or a collation of its own may find keys
# equal that its column tells apart.
_OBSTACLES: Final = """
WITH t AS (SELECT oid, relkind FROM pg_class WHERE oid = to_regclass(?)),
parts AS (SELECT oid FROM t UNION SELECT p.relid FROM t, pg_partition_tree(t.oid) p)
SELECT CASE
 WHEN t.relkind NOT IN ('r', 'p') THEN 'it is no ordinary table'
 WHEN row_security_active(t.oid) THEN 'it has row-level security'
 WHEN EXISTS (SELECT 1 FROM pg_class c JOIN parts ON c.oid = parts.oid
  WHERE c.relkind = 'f' OR (c.relkind = 'r' AND c.relam <> a.oid)) THEN 'it is stored elsewhere'
 WHEN EXISTS (SELECT 1 FROM pg_rewrite r WHERE r.ev_class = t.oid AND r.ev_type IN ('2', '3'))
  THEN 'it has a rule'
 WHEN EXISTS (SELECT 1 FROM pg_trigger g JOIN parts ON g.tgrelid = parts.oid
  WHERE NOT g.tgisinternal AND g.tgtype & 20 > 0) THEN 'it has a trigger'
 WHEN ? > 0 AND EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = t.oid AND i.indisunique AND (
  EXISTS (SELECT 1 FROM unnest(i.indclass::oid[]) u JOIN pg_opclass o ON o.oid = u
   WHERE NOT o.opcdefault)
  OR EXISTS (SELECT 1 FROM unnest(i.indkey::int2[], i.indcollation::oid[]) AS u (att, coll)
   JOIN pg_attribute n ON n.attrelid = i.indrelid AND n.attnum = u.att
   WHERE u.coll <> n.attcollation)))
  THEN 'one of its unique indexes compares in a way of its own'
END FROM t, pg_am a WHERE a.amname = 'heap'
"""


class _Column(NamedTuple):
    type: str  # without its length
    is_fixed: bool  # the database gives it its value: INSERT refuses others, COPY takes them


class Plan(msgspec.Struct, frozen=True):
    """How rows of some columns get into the table.

    ``kinds`` has the kind of each column, ``dumps`` what writes values that Arrow doesn't.
    ``stage`` is the statement that makes the temporary table, if one is needed; ``moves`` take the
    rows from there.  ``counts``: whether the first one's count is that of the stored rows.
    ``straight`` is the plan for rows with keys that are all new; its ``check`` is run first.
    """

    kinds: tuple[str, ...]
    dumps: tuple[Callable[[Any], str] | None, ...]
    into: str
    stage: str = ""
    moves: tuple[str, ...] = ()
    counts: bool = False
    straight: Plan | None = None
    check: str = ""


class CopyRefused(Exception):
    """COPY did not take rows of the plan ``key``; INSERT may.  Nothing is written."""

    def __init__(self, key: Any, error: Exception) -> None:
        super().__init__(" ".join(str(error).split()))
        self.key = key


_told: set[tuple[str, str, str]] = set()  # once in a process: each writer would say it again


class Copies:
    """Writes rows into one table by COPY, over one cursor of psycopg.  Not thread-safe."""

    def __init__(
        self, cursor: Any, dialect: Dialect, table: str, on_conflict: OnConflict | None, label: str
    ) -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._table = table
        self._on_conflict = on_conflict
        self._label = label
        self._columns: dict[str, _Column] = {}
        self._obstacle = "nobody has looked at it"
        self._plans: dict[Any, Plan | str] = {}
        self._stages: dict[str, str] = {}  # the name of the temporary table with some fields
        self._staged: set[str] = set()
        self._goes_straight: bool | None = None  # upserts; None: none was written yet

    def look(self) -> None:
        """Ask the catalogue what the table is; leaves a transaction open, perhaps a failed one."""
        self._obstacle = self._found() or ""

    def _found(self) -> str | None:
        connection = self._cursor.connection
        if connection.info.server_version < _VERSION_MIN:
            return "PostgreSQL is older than 12"
        if not _writes_plainly(connection):
            return "the job's connect= writes values in its own way"
        quoted = self._dialect.quoted(self._table)
        try:
            self._cursor.execute(self._dialect.fill(_COLUMNS), (quoted,))
            for name, kind, is_fixed in self._cursor.fetchall():
                self._columns[name] = _Column(kind, is_fixed)
            keyed = int(self._on_conflict is not None)
            self._cursor.execute(self._dialect.fill(_OBSTACLES), (quoted, keyed))
            (obstacle,) = self._cursor.fetchone()
        except Exception as error:  # it speaks PostgreSQL's protocol but is not PostgreSQL
            if is_refusal(error):
                raise
            return " ".join(str(error).split())
        return str(obstacle) if obstacle else None

    def forget_stages(self) -> None:
        """Note a rollback: temporary tables that were made in the transaction are gone."""
        self._staged.clear()

    def give_up(self, refused: CopyRefused) -> None:
        """Note that INSERT took what COPY refused: such rows are inserted from now on."""
        if refused.key in self._plans:
            self._plans[refused.key] = str(refused)
            self._tell(str(refused))

    def takes(self, rows: Any, columns: tuple[str, ...]) -> bool:
        """Whether :meth:`insert` copies a RecordBatch; if it can't, that is told once."""
        return len(rows) >= ROWS_MIN and self._told_plan(columns, kinds_of(rows)) is not None

    def _told_plan(self, columns: tuple[str, ...], kinds: tuple[str | None, ...]) -> Plan | None:
        plan = self._plan(columns, kinds)
        if isinstance(plan, Plan):
            return plan
        self._tell(plan)
        return None

    def insert(self, insert: Insert) -> int | None:
        """Copy the rows; return how many were stored, or None if they can't be copied.

        Raises :class:`CopyRefused`, or what the driver raises if the database can't take anything.
        """
        rows, is_arrow = insert.rows, is_record_batch(insert.rows)
        if len(rows) < ROWS_MIN and not is_arrow:
            return None
        columns = self._named(insert.columns, rows.num_columns if is_arrow else len(rows[0]))
        key = columns, kinds_of(rows)
        plan = self._told_plan(*key)
        if plan is None:
            return None
        try:
            return self._insert(plan, rows)
        except Exception as error:
            if is_refusal(error):
                raise
            raise CopyRefused(key, error) from error

    def _insert(self, plan: Plan, rows: Any) -> int:
        if not plan.stage:
            self._copy(plan, rows)
            return len(rows)
        straight = plan.straight if self._goes_straight else None
        if straight is not None and self._has_copied_new_keys(straight, rows):
            return len(rows)
        stored = self._insert_staged(plan, rows)
        if self._goes_straight is None:
            # Not before: this shows that the key has a unique index that isn't deferred.
            self._goes_straight = True
        return stored

    def _has_copied_new_keys(self, plan: Plan, rows: Any) -> bool:
        """Copy the rows into the table itself; False if it has a key already, or they have one
        twice, or another writer adds it."""
        self._cursor.execute(plan.check, prepare=False)  # two statements can't be prepared
        try:
            self._copy(plan, rows)
        except Exception as error:
            if sqlstate_of(error) not in _NOT_NEW:
                raise
            self._goes_straight = False
            self._cursor.execute("ROLLBACK TO SAVEPOINT flowctl_straight")
            return False
        return True

    def _insert_staged(self, plan: Plan, rows: Any) -> int:
        if plan.stage not in self._staged:
            self._cursor.execute(plan.stage)
            self._staged.add(plan.stage)
        self._copy(plan, rows)
        self._cursor.execute(plan.moves[0])
        stored: int = self._cursor.rowcount
        if plan.counts:
            return stored
        if stored < len(rows):  # some have one key
            for move in plan.moves[1:]:
                self._cursor.execute(move)
        return len(rows)

    def _copy(self, plan: Plan, rows: Any) -> None:
        copy = self._copy_columns if is_record_batch(rows) else self._copy_rows
        copy(plan, rows)

    def _copy_columns(self, plan: Plan, rows: Any) -> None:
        parts = zip(rows.columns, plan.kinds, plan.dumps, strict=True)
        columns = [as_text(*part) for part in parts]
        if plan.stage:
            columns.insert(0, _numbers(len(rows)))
        text = csv_of(columns)  # before COPY begins: then the server only waits for the network
        with self._cursor.copy(f"{plan.into} (FORMAT csv, ENCODING 'UTF8')") as copy:
            copy.write(text)

    def _copy_rows(self, plan: Plan, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._cursor.copy(plan.into) as copy:
            if plan.stage:
                for at, row in enumerate(rows):
                    copy.write_row((at, *row))
            else:
                for row in rows:
                    copy.write_row(row)

    def _tell(self, why: str) -> None:
        if (self._label, self._table, why) in _told:
            return
        _told.add((self._label, self._table, why))
        ModuleLogger("flowctl_sql").warning(
            "copy_not_used",
            table=self._table,
            database=self._label,
            why=why,
            detail="rows are inserted, which is exact but several times slower than COPY",
        )

    # -- Plans: text of statements, no question to the database --------------------------------

    def _named(self, columns: tuple[str, ...] | None, width: int) -> tuple[str, ...]:
        return tuple(self._columns)[:width] if columns is None else columns

    def _plan(self, columns: tuple[str, ...], kinds: tuple[str | None, ...]) -> Plan | str:
        key = columns, kinds
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) == _PLANS_MAX:
                self._plans.clear()
            found = self._plans[key] = self._obstacle or self._new_plan(columns, kinds)
        return found

    def _new_plan(self, columns: tuple[str, ...], kinds: tuple[str | None, ...]) -> Plan | str:
        known = [self._columns.get(name) for name in columns]
        if None in known or len(known) != len(kinds):
            return "it has other columns than the rows"  # as INSERT will say, with their names
        targets = [column for column in known if column is not None]
        natural: list[str] = []
        for name, kind, target in zip(columns, kinds, targets, strict=True):
            if target.is_fixed:
                return f"the database itself fills the column {name}"
            way = self._way(kind, target.type)
            if way is None:
                return f"column {name} ({target.type}) is given {kind or 'various'} values"
            natural.append(way)
        taken = tuple([kind or "" for kind in kinds])
        dumps = tuple([self._dump(*each) for each in zip(taken, targets, strict=True)])
        conflict = self._on_conflict
        straight = None if any(natural) else self._straight_plan(columns, taken, dumps)
        if conflict is None and straight is not None:
            return straight
        casts = {name for name, cast in zip(columns, natural, strict=True) if cast}
        if conflict is not None and casts.intersection(conflict.key):
            return "a column of the key casts its values"
        return self._staged_plan(columns, natural, Plan(taken, dumps, "", straight=straight))

    def _way(self, kind: str | None, target: str) -> str | None:
        """Return "" for a column that reads the text itself, the type to cast from, or None."""
        found = _KINDS.get(kind or "")
        if _is_json(kind, target):
            return ""
        if kind is None or found is None:
            return None
        if found.direct is None or target in found.direct:
            return ""
        is_cast = target in _CASTS and not kind.endswith("[]")
        return (found.natural or None) if is_cast else None

    def _dump(self, kind: str, target: _Column) -> Callable[[Any], str] | None:
        if _is_json(kind, target.type):
            return json_text
        if kind == "interval" or kind.endswith("[]"):
            return _dumped_by(self._cursor.connection)
        return None

    def _into(self, columns: Sequence[str]) -> str:
        names = ", ".join([self._dialect.quote(column) for column in columns])
        return f"{self._dialect.quoted(self._table)} ({names})"

    def _straight_plan(self, columns: tuple[str, ...], kinds: Any, dumps: Any) -> Plan:
        into, check = self._into(columns), ""
        if self._on_conflict is not None:
            # An error if the key has no index or a column may not be updated; and nobody can drop
            # that index before the commit.
            names = ", ".join(map(self._dialect.quote, columns))
            rows = f"SELECT {names} FROM {self._dialect.quoted(self._table)} WHERE false"
            clause = self._on_conflict.clause(self._dialect, columns)
            check = f"EXPLAIN INSERT INTO {into} {rows}{clause}; SAVEPOINT flowctl_straight"
        return Plan(kinds, dumps, f"COPY {into} FROM STDIN", check=check)

    def _staged_plan(
        self, columns: tuple[str, ...], natural: Sequence[str], plan: Plan
    ) -> Plan | str:
        names = tuple([f"c{number}" for number in range(len(columns))])
        fields = ", ".join(
            [
                f"NULL::{cast} AS {name}" if cast else f"{self._dialect.quote(column)} AS {name}"
                for column, cast, name in zip(columns, natural, names, strict=True)
            ]
        )
        if fields not in self._stages and len(self._stages) == _STAGES_MAX:
            return "its rows have too many forms"
        stage = self._stages.setdefault(fields, f"flowctl_rows_{len(self._stages)}")
        conflict = self._on_conflict
        return msgspec.structs.replace(
            plan,
            into=f"COPY pg_temp.{stage} (at, {', '.join(names)}) FROM STDIN",
            stage=f"CREATE TEMPORARY TABLE IF NOT EXISTS {stage} ON COMMIT DELETE ROWS AS SELECT"
            f" 0::bigint AS at, {fields} FROM {self._dialect.quoted(self._table)} WITH NO DATA",
            moves=self._moves(columns, names, f"pg_temp.{stage}"),
            counts=conflict is not None and not conflict.updated(columns, self._dialect),
        )

    def _moves(
        self, columns: tuple[str, ...], names: tuple[str, ...], stage: str
    ) -> tuple[str, ...]:
        insert, chosen = f"INSERT INTO {self._into(columns)} SELECT", ", ".join(names)
        conflict = self._on_conflict
        if conflict is None:
            return (f"{insert} {chosen} FROM {stage} ORDER BY at",)
        clause = conflict.clause(self._dialect, columns)
        if not conflict.key:
            return (f"{insert} {chosen} FROM {stage} ORDER BY at{clause}",)
        # Row by row, the first row of a key would be added, and the last one that follows it would
        # decide.  In the order of the key, so that two writers don't wait for each other crosswise.
        key = ", ".join([names[columns.index(column)] for column in conflict.key])
        return (
            f"{insert} DISTINCT ON ({key}) {chosen} FROM {stage} ORDER BY {key}, at{clause}",
            f"{insert} {chosen} FROM (SELECT *, row_number() OVER w AS nth, lead(at) OVER w"
            f" AS later FROM {stage} WINDOW w AS (PARTITION BY {key} ORDER BY at)) s"
            f" WHERE nth > 1 AND later IS NULL ORDER BY {key}{clause}",
        )


def _is_json(kind: str | None, target: str) -> bool:
    """Whether values that are nested become JSON."""
    return target in _JSON and kind is not None and (kind == "nested" or kind.endswith("[]"))


def kinds_of(rows: Any) -> tuple[str | None, ...]:
    """Return the kind of each column of a RecordBatch, or of tuples of one width."""
    if is_record_batch(rows):
        return tuple([kind_of(column.type) for column in rows.columns])
    return tuple(map(_kind_of_values, zip(*rows, strict=True)))


def _numbers(count: int) -> Any:
    import pyarrow

    return pyarrow.array(range(count), pyarrow.int64())


def _dumped_by(connection: Any) -> Callable[[Any], str]:
    """Return what makes of a value the text that psycopg would pass for it."""
    from psycopg.adapt import PyFormat, Transformer

    transformer = Transformer(connection)

    def dump(value: Any) -> str:
        text = transformer.get_dumper(value, PyFormat.TEXT).dump(value)
        if text is None:
            raise NotAsText("NULL")
        return bytes(text).decode()

    return dump


def _writes_plainly(connection: Any) -> bool:
    """Whether psycopg's own code writes all values that are copied."""
    from psycopg.adapt import PyFormat

    with suppress(Exception):
        found = [
            connection.adapters.get_dumper(kind, PyFormat.TEXT) for kind in (*_OF_PYTHON, list)
        ]
        return all(dumper.__module__.startswith("psycopg") for dumper in found)
    return False
