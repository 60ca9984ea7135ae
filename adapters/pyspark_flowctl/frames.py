"""What a DataFrame is for those who read it without Spark: Parquet files, or a copy of its rows.

Works on classic sessions and on Connect: only public calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from flowctl.adapters import load_adapter
from flowctl.errors import ConfigError

# The least that is read at once of a copy [bytes]: Spark's own 128 MB would be read again for each
# bolt that does a part of it.
_ROW_GROUP_BYTES = 8 << 20
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
# Numbers of columns and plans, addresses, and what depends on how many executors there are: they
# differ from session to session.
_PASSING = re.compile(r"#\d+L?|\bplan_id=\d+|@[0-9a-f]{4,}|\bsplits=\w+(\(\d+\))?")
_PLAN = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized", re.DOTALL)
# Rows that come with the plan, which does not say what they are.
_OWN_ROWS = re.compile(r"\b(LocalRelation|LogicalRDD|CachedRemoteRelation|ExternalRDD)\b")
_PARQUET = re.compile(r"Relation \[[^\n]*\] parquet")


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
    """Return ``df`` as an ``Input``: its files if it is a plain read of Parquet, else how to write
    it."""
    made = load_adapter("flowctl_apply._job", "parquet").Input
    arrow_path = load_adapter("flowctl_apply._places", "parquet").arrow_path
    if isinstance(df, str | os.PathLike | list | tuple):
        several = [df] if isinstance(df, str | os.PathLike) else df
        paths = [arrow_path(os.fspath(path)) for path in several]
        return made("\n".join(paths), paths, None, columns)
    plan, files = _plan_of(df), sorted(df.inputFiles())
    told = [plan, *files, *([_digest_of_rows(df)] if _OWN_ROWS.search(plan) else ())]
    source = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
    paths = [arrow_path(file) for file in files]
    if _is_plain_read(df, plan, paths):
        return made(source, paths, None, columns)

    def write(url: str) -> None:
        chosen = df if columns is None else df.select(*map(_quoted, columns))
        writer = chosen.write.mode("overwrite").option("parquet.block.size", _ROW_GROUP_BYTES)
        with _instants(df.sparkSession):
            writer.parquet(url)

    return made(source, (), write, columns)


@contextlib.contextmanager
def _instants(spark: Any) -> Iterator[None]:
    """Timestamps are written as instants in UTC; Spark's own choice, INT96, says no time zone."""
    before = spark.conf.get(_TIMESTAMPS)
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMESTAMPS, before)


def _quoted(column: str) -> str:
    """The name as Spark's SQL has it, so that a dot in it is a dot."""
    return "`" + column.replace("`", "``") + "`"


def _plan_of(df: Any) -> str:
    """What Spark says that the DataFrame is, the same in every session."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        df.explain(extended=True)
    found = _PLAN.search(said.getvalue())
    return _PASSING.sub("", found[1] if found else said.getvalue()).strip()


def _digest_of_rows(df: Any) -> str:
    """A number that tells rows from others, in any order, and how many they are."""
    from pyspark.sql import functions as F

    # Spark hashes no maps, and no types of its own making; all of them can be written as text.
    columns = [F.col("`{}`".format(name.replace("`", "``"))) for name in df.columns]
    texts = [F.to_json(F.struct(column)) for column in columns]
    sums = F.sum(F.xxhash64(*texts).cast("decimal(38,0)"))
    return str(df.select(F.count("*"), sums).first())


def _is_plain_read(df: Any, plan: str, paths: Sequence[str]) -> bool:
    """Whether the files hold exactly the columns of ``df``: no view, no directory's key."""
    if not paths or _PARQUET.fullmatch(plan.partition("\n")[2]) is None:
        return False
    try:
        import pyarrow.parquet

        names = pyarrow.parquet.read_schema(paths[0]).names
    except Exception:  # the driver may not read it; Spark will say why, if it can't either
        return False
    return list(names) == list(df.columns)
