"""Pay once: which keys of a DataFrame are new to a job, and its results given to each row.

Keys are compared as Spark groups rows: null equals null, NaN equals NaN, and 0.0 equals -0.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowctl.adapters import load_adapter
from flowctl.errors import ConfigError
from flowctl.instrumentation.numbers import counted
from flowctl.runtime.launch import view_of
from pyspark_flowctl.dataframes import ROW_GROUP_BYTES, as_it_is, instants, quoted
from pyspark_flowctl.features import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_COMPARED: Final = frozenset(
    {"StringType", "BinaryType", "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType"}
    | {"FloatType", "DoubleType", "DecimalType", "DateType", "TimestampType", "TimestampNTZType"}
)
_KEY: Final = "_flowctl_key_"  # beside the columns of the DataFrame, whose names are the user's
_RESULT: Final = "_flowctl_result_"
_ROWS: Final = "_flowctl_rows"  # how many have the key
_HAS: Final = "_flowctl_has_result"


def key_of(df: DataFrame, given: str | Sequence[str], schema: StructType) -> StructType:
    """Return the columns of the key; raise :class:`ConfigError` if they can't be one.

    ``schema`` are the columns of results, which stand beside those of ``df``.
    """
    from pyspark.sql.types import StructType

    names = [given] if isinstance(given, str) else list(given)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError("key", f"{given!r} names no column.", remedy="Give 'a' or ['a', 'b'].")
    for name in names:
        if name not in df.columns:
            raise ConfigError(
                "key",
                f"the DataFrame has no column {name!r}.",
                remedy=f"Its columns are {', '.join(map(repr, df.columns))}.",
            )
        if names.count(name) > 1:
            raise ConfigError("key", f"{name!r} is in it twice.", remedy="Name it once.")
        if (why := _no_key(df.schema[name].dataType)) is not None:
            raise ConfigError(
                "key",
                f"column {name!r} {why}.",
                remedy="Make a column that can be compared of it, such as a string.",
            )
    taken = {name.lower() for name in df.columns}
    if doubled := next((name for name in schema.names if name.lower() in taken), None):
        raise ConfigError(
            "schema",
            f"{doubled!r} is a column of df, and with key= results stand beside its columns.",
            remedy="Give the result another name. The key need not be in the schema.",
        )
    return StructType([df.schema[name] for name in names])


def _no_key(kind: DataType) -> str | None:
    """Return why values of this type can't be keys, if so."""
    inner: Sequence[Any] = ()
    if type(kind).__name__ == "StructType":
        inner = [field.dataType for field in kind]  # type: ignore[attr-defined]
    elif type(kind).__name__ == "ArrayType":
        inner = [kind.elementType]  # type: ignore[attr-defined]
    elif type(kind).__name__ not in _COMPARED:
        return f"is {kind.simpleString()}, of which Spark can't tell whether two are equal"
    elif "collate" in kind.simpleString() and "UTF8_BINARY" not in kind.simpleString():
        return f"is {kind.simpleString()}: texts that differ would count as one"
    return next((why for one in inner if (why := _no_key(one)) is not None), None)


class _Looked(NamedTuple):
    """What a look at the DataFrame has found."""

    rows: int
    keys: int
    new: int


class KeyedRows:
    """The rows of ``df`` with a job of ``apply`` over their keys.  For one thread.

    ``key`` and ``schema`` are the columns of the key and of its result.
    """

    def __init__(self, df: DataFrame, job: Any, key: StructType, schema: StructType) -> None:
        self._df = df
        self._spark: SparkSession = df.sparkSession
        self._job = job
        self._key = key
        self._schema = schema
        self._place = job.results.place

    def run(self, run_job: Callable[[Any], Any], view: Any) -> DataFrame:
        """Do the keys that no round had; return ``df`` with the results beside its columns.

        ``run_job`` runs the job over its ``Input``.
        """
        known = self._job.known()
        if known is not None and self._job.results.finished() is None:
            run_job(self._job.given(known))
            known = self._job.known()
        copy = self._job.new_round(known)
        with self._written(known, copy) as looked:
            new = looked.new
            view_of(view).message(
                f"{self._job.name}: {counted(looked.rows, 'row')} with"
                f" {counted(looked.keys, 'different key')}"
                f" ({', '.join(self._key.names)}); {new} to do"
            )
            if new:
                known = self._job.add(known, copy, "keys")
        run_job(self._job.given(known))
        return self._frame()

    @contextlib.contextmanager
    def _written(self, known: Any, copy: str) -> Iterator[_Looked]:
        """Write the keys that are new into ``copy``; remove it if there is none."""
        from pyspark.sql import functions as F

        names = [quoted(name) for name in self._key.names]
        there = self._df.groupBy(*names).agg(F.count("*").alias(_ROWS))
        first = "keys" if known is None else "all"
        self._write(there, copy, first)
        there = self._spark.read.parquet(self._url(copy, first))
        rows, keys = there.agg(F.sum(_ROWS), F.count("*")).first() or (0, 0)
        new = keys
        if known is not None:
            seen = _numbered(self._seen(known), self._key.names, _KEY)
            self._write(there.join(seen, _alike(self._key.names), "left_anti"), copy, "keys")
            new = self._spark.read.parquet(self._url(copy, "keys")).count()
            self._remove(copy, "all")
        yield _Looked(rows or 0, keys, new)
        if known is not None and not new:
            self._remove(copy)

    def _write(self, frame: DataFrame, *within: str) -> None:
        writer = frame.write.mode("overwrite").option("parquet.block.size", ROW_GROUP_BYTES)
        with instants(self._spark):
            writer.parquet(self._place.path("/".join((self._job.results.directory, *within))))

    def _url(self, *within: str) -> str:
        return as_it_is(self._place.path("/".join((self._job.results.directory, *within))))

    def _remove(self, *within: str) -> None:
        self._place.delete_directory("/".join((self._job.results.directory, *within)))

    def _seen(self, known: Any) -> DataFrame:
        """Return the keys of all rounds."""
        urls = [self._url(copy, "keys") for copy in known.copies]
        return self._spark.read.schema(self._key).parquet(*urls)

    def _frame(self) -> DataFrame:
        """Return ``df`` with the results; rows whose key has none are left out.

        A key that the job has not seen fails the query: ``df`` would have other rows now.
        """
        from pyspark.sql import functions as F

        results = self._results()
        known = F.col(_HAS).isNotNull()
        unseen = F.raise_error(
            F.lit(
                f"{self._job.name}: the DataFrame has a row whose {', '.join(self._key.names)} it"
                " did not have when apply looked. Call apply again: it does what is new."
            )
        ).cast("boolean")
        joined = self._df.join(results, _alike(self._key.names), "left")
        kept = joined.where(F.when(known, F.col(_HAS)).otherwise(unseen))
        own = [F.col(quoted(name)) for name in self._df.columns]
        made = [F.col(f"{_RESULT}{n}").alias(name) for n, name in enumerate(self._schema.names)]
        return kept.select(*own, *made)

    def _results(self) -> DataFrame:
        """Return each key, whether it has a result, and that."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        finished, known = self._job.results.finished(), self._job.known()
        whole = StructType([*self._key, *self._schema])
        found = self._spark.createDataFrame([], whole)
        if finished.files:
            urls = [as_it_is(self._place.path(one.file)) for one in finished.files]
            found = self._spark.read.schema(whole).parquet(*urls)
        count = len(self._key)
        columns = [f"{_KEY}{n}" for n in range(count)]
        columns += [f"{_RESULT}{n}" for n in range(len(self._schema))]
        found = found.toDF(*columns).withColumn(_HAS, F.lit(True))
        if finished.rows == finished.rows_in:
            return found
        seen = self._seen(known)
        results = seen.join(found, _alike(self._key.names), "left")
        keys = [F.col(quoted(name)).alias(f"{_KEY}{n}") for n, name in enumerate(self._key.names)]
        return results.select(
            *keys, *columns[count:], F.coalesce(F.col(_HAS), F.lit(False)).alias(_HAS)
        )


def _numbered(frame: DataFrame, names: Sequence[str], prefix: str) -> DataFrame:
    from pyspark.sql import functions as F

    columns = [F.col(quoted(name)).alias(f"{prefix}{n}") for n, name in enumerate(names)]
    return frame.select(*columns)


def _alike(names: Sequence[str]) -> Column:
    """Return whether the columns of these names are the key in the numbered columns."""
    from functools import reduce

    from pyspark.sql import functions as F

    pairs = [F.col(quoted(name)).eqNullSafe(F.col(f"{_KEY}{n}")) for n, name in enumerate(names)]
    return reduce(lambda one, other: one & other, pairs)


def job_over_keys(fn: Any, df: DataFrame, key: StructType, schema: StructType, **how: Any) -> Any:
    """Return the job that calls ``fn`` on keys of ``df``."""
    kind = load_adapter("flowctl_apply._keys", "parquet").KeyedJob
    hidden = [name for name in df.columns if name not in key.names]
    return kind(fn, arrow_schema(schema), arrow_schema(key), hidden, **how)
