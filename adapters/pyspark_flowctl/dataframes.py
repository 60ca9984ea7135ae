"""Turn a DataFrame into Parquet files for readers without Spark: its own, or a copy of its rows.

Works on classic sessions and on Connect: only public calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from flowctl.adapters import load_adapter
from flowctl.errors import ConfigError
from pyspark_flowctl.column_types import check_columns
from pyspark_flowctl.features import arrow_schema

# -- Whether a DataFrame is exactly what stands in its Parquet files: then nothing is copied ---
#
# Spark adds what a file lacks, leaves out what only some files have, reads values as the types
# that it was given, and reads a file twice that it was given twice. Who reads the files sees none
# of it.


_PARQUET = re.compile(r"Relation \[[^\n]*\] parquet")
_ONE_PATH = re.compile(r"InMemoryFileIndex\(1 paths\)")
# Files whose footers are read in parallel, as in ParquetRanges.
AT_ONCE = 16
_DATED = re.compile("timestamp|date32.*")


class Content(NamedTuple):
    """The footer of a file: its columns, with types by :func:`kind_of`, and its number of rows."""

    columns: Sequence[tuple[str, Any]]
    rows: int


def is_read(plan: str) -> bool:
    """Whether a DataFrame with this analysed plan only reads Parquet."""
    return _PARQUET.fullmatch(plan.partition("\n")[2]) is not None


def is_of_one_path(explained: str) -> bool:
    """Whether the DataFrame was read from one path, so that no file can occur twice."""
    return _ONE_PATH.search(explained) is not None


def holds_all(paths: Sequence[str], schema: Any, rows: int | None) -> bool:
    """Whether each file has the columns of ``schema``, and all together have ``rows`` (None: any).

    ``schema`` is a ``StructType``.  Also False if the driver can't read the files.
    """
    try:
        wanted = _columns_of(arrow_schema(schema))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            found = list(threads.map(_content, paths))
    except Exception:  # the driver may lack access; if Spark lacks it too, Spark will report why
        return False
    if any(list(file.columns) != wanted for file in found):
        return False
    return rows is None or rows == sum(file.rows for file in found)


def _content(path: str) -> Content:
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path)
    columns = _columns_of(metadata.schema.to_arrow_schema())
    if _is_of_old_calendar(metadata.metadata or {}):
        columns = [(name, _DATED.sub("of the old calendar", str(kind))) for name, kind in columns]
    return Content(columns, metadata.num_rows)


def _is_of_old_calendar(told: Mapping[bytes, bytes]) -> bool:
    """Whether days before 1582 are written as the Julian calendar counts them.

    Spark before 3.0 did so (with INT96 before 3.1), and later ones do it if a setting says so.
    Only Spark itself reads these as the days that were meant.
    """
    names = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
    version = told.get(b"org.apache.spark.version", b"")
    return any(name in told for name in names) or version.startswith((b"2.", b"3.0."))


def _columns_of(schema: Any) -> list[tuple[str, Any]]:
    return [(field.name, kind_of(field.type)) for field in schema]


def kind_of(arrow_type: Any) -> Any:
    """Return a key that is equal for types whose values are the same in Python.

    Timestamps without a zone count as those with one, since files with INT96 have no zone.
    """
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        return kind_of(arrow_type.value_type)
    if types.is_struct(arrow_type):
        return "struct", tuple(_columns_of(arrow_type))
    if types.is_map(arrow_type):
        return "map", kind_of(arrow_type.key_type), kind_of(arrow_type.item_type)
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return "list", kind_of(arrow_type.value_type)
    if types.is_decimal(arrow_type):
        return "decimal", arrow_type.scale
    alike = {
        "whole": types.is_integer,
        "float": types.is_floating,
        "text": lambda one: types.is_string(one) or types.is_large_string(one),
        "bytes": lambda one: types.is_binary(one) or types.is_large_binary(one),
        "timestamp": types.is_timestamp,
    }
    return next((name for name, is_one in alike.items() if is_one(arrow_type)), str(arrow_type))


# -- What a DataFrame is for those who read it without Spark -----------------------------------


# Size of row groups in a copy [bytes]: Spark's default of 128 MB would be read again by each bolt
# that does a part of it.
ROW_GROUP_BYTES = 8 << 20
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_CALENDAR = "spark.sql.parquet.datetimeRebaseModeInWrite"
# Numbers of columns and plans, addresses, and what depends on how many executors there are: they
# differ from session to session.
_PASSING = re.compile(r"#\d+L?|\bplan_id=\d+|@[0-9a-f]{4,}|\bsplits=\w+(\(\d+\))?")
_PLAN = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized", re.DOTALL)
# Plan nodes whose rows come with the plan, without being shown in it.
_OWN_ROWS = re.compile(r"\b(LocalRelation|LogicalRDD|CachedRemoteRelation|ExternalRDD)\b")


def columns_checked(df: Any, columns: Sequence[str] | None) -> list[str] | None:
    """Return ``columns`` as a list; raise :class:`ConfigError` for one that ``df`` lacks."""
    if columns is None:
        return None
    if isinstance(columns, str) or not columns:
        raise ConfigError(
            "columns", f"{columns!r} is not a list of names.", remedy="Give ['a', 'b']."
        )
    known = getattr(df, "columns", None)
    missing = next((name for name in columns if known is not None and name not in known), None)
    if missing is not None:
        raise ConfigError(
            "columns",
            f"the DataFrame has no column {missing!r}.",
            remedy=f"Its columns are {', '.join(map(repr, known or ()))}.",
        )
    return list(columns)


def input_of(df: Any, columns: list[str] | None) -> Any:
    """Return ``df`` as an ``Input``: its files if it just reads Parquet, else how to write it."""
    made = load_adapter("flowctl_apply._job", "parquet").Input
    arrow_path = load_adapter("flowctl_apply._places", "parquet").arrow_path
    if isinstance(df, str | os.PathLike | list | tuple):
        several = [df] if isinstance(df, str | os.PathLike) else df
        for path in several:
            if not isinstance(path, str | os.PathLike):
                raise _not_a_frame(df, path)
        paths = [arrow_path(os.fspath(path)) for path in several]
        return made("\n".join(paths), paths, None, columns, shape="paths")
    _check_frame(df, columns)
    explained, files = _explained(df), sorted(df.inputFiles())
    plan = _plan_in(explained)
    told = [plan, *files, *([_digest_of_rows(df)] if _OWN_ROWS.search(plan) else ())]
    rows = None
    if files and is_read(plan) and not is_of_one_path(explained):
        rows = df.count()  # Spark lists a file once, even if it reads it twice
        told.append(f"{rows} rows")
    source = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
    paths = [arrow_path(file) for file in files]
    marks = _marks_of(paths)
    if files and is_read(plan) and holds_all(paths, df.schema, rows):
        # Otherwise a directory such as day=1 would become a column that the DataFrame lacks.
        names = list(df.columns) if any("=" in path for path in paths) else None
        shape = hashlib.sha256(plan.encode()).hexdigest()[:16]
        return made(source, paths, None, columns or names, marks, shape)

    def write(url: str) -> None:
        chosen = df if columns is None else df.select(*map(quoted, columns))
        writer = chosen.write.mode("overwrite").option("parquet.block.size", ROW_GROUP_BYTES)
        with instants(df.sparkSession):
            writer.parquet(url)

    return made(source, (), write, columns, marks)


def _marks_of(paths: Sequence[str]) -> dict[str, str]:
    """Return the mark of each file (size and time); a file that the driver can't reach has none."""
    stat = load_adapter("flowctl_files._stores", "files").Stores(None, None).stat

    def mark(path: str) -> str:
        try:
            return str(stat(path).identity)
        except Exception:
            return ""

    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = zip(paths, threads.map(mark, paths), strict=True)
        return {path: identity for path, identity in found if identity}


def _not_a_frame(df: Any, *holds: Any) -> ConfigError:
    kinds = [f"a {type(each).__module__}.{type(each).__name__}" for each in (df, *holds)]
    return ConfigError(
        "df",
        f"{' with '.join(kinds)} is not a DataFrame of Spark, nor paths of Parquet files.",
        remedy="Give one of them; spark.createDataFrame(…) makes a DataFrame.",
    )


def _check_frame(df: Any, columns: Sequence[str] | None) -> None:
    if not hasattr(df, "inputFiles"):
        raise _not_a_frame(df)
    check_columns(df.schema, "df", columns)


@contextlib.contextmanager
def instants(spark: Any) -> Iterator[None]:
    """Timestamps are written as instants in UTC; Spark's own choice, INT96, says no time zone.

    And days before 1582 by the calendar of Python.
    """
    wanted = {_TIMESTAMPS: "TIMESTAMP_MICROS", _CALENDAR: "CORRECTED"}
    before = {name: spark.conf.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def quoted(column: str) -> str:
    """Return the name quoted for Spark's SQL, so that a dot in it is part of the name."""
    return "`" + column.replace("`", "``") + "`"


def as_it_is(url: str) -> str:
    """Return the path with Spark's pattern characters escaped."""
    return re.sub(r"([\[\]{}*?])", r"\\\1", url)


def _explained(df: Any) -> str:
    """Return Spark's explanation of the DataFrame."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        df.explain(extended=True)
    return said.getvalue()


def _plan_in(explained: str) -> str:
    """Return the part of the explanation that is the same in every session."""
    found = _PLAN.search(explained)
    return _PASSING.sub("", found[1] if found else explained).strip()


def _digest_of_rows(df: Any) -> str:
    """Return a digest of the rows, in any order, and their number."""
    from pyspark.sql import functions as F

    # Spark can't hash maps and some types of its own, but it can write all of them as text.
    columns = [F.col("`{}`".format(name.replace("`", "``"))) for name in df.columns]
    texts = [F.to_json(F.struct(column)) for column in columns]
    sums = F.sum(F.xxhash64(*texts).cast("decimal(38,0)"))
    return str(df.select(F.count("*"), sums).first())
