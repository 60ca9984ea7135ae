"""Pay once: which keys of a DataFrame are new to a job, and its results given to each row.

Keys are compared as Spark groups rows: null equals null, NaN equals NaN, and 0.0 equals -0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowctl.adapters import load_adapter
from flowctl.errors import ConfigError
from flowctl.instrumentation.numbers import count, counted
from flowctl.runtime.launch import view_of
from pyspark_flowctl.dataframes import ROW_GROUP_BYTES, as_it_is, instants, quoted
from pyspark_flowctl.failed_rows import failures_in, why_of
from pyspark_flowctl.features import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from pyspark_flowctl.result_cache import ResultCache

_COMPARED: Final = frozenset(
    {"StringType", "BinaryType", "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType"}
    | {"FloatType", "DoubleType", "DecimalType", "DateType", "TimestampType", "TimestampNTZType"}
)
_KEY: Final = "_flowctl_key_"  # beside the columns of the DataFrame, whose names are the user's
_RESULT: Final = "_flowctl_result_"
_ROWS: Final = "_flowctl_rows"  # how many have the key
_HITS: Final = "hits"
_WHY: Final = "_flowctl_why_"
ERROR: Final = "error"  # the column of ``errors="column"``
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
    """What a look at the DataFrame has found: how many rows, keys, keys to do, results to take."""

    rows: int
    keys: int
    new: int
    cached: int

    def told(self, names: Sequence[str]) -> str:
        taken = f", {count(self.cached)} of the cache" if self.cached else ""
        return (
            f"{counted(self.rows, 'row')} with {counted(self.keys, 'different key')}"
            f" ({', '.join(names)}); {count(self.new)} to do{taken}"
        )


class KeyedRows:
    """The rows of ``df`` with a job of ``apply`` over their keys.  For one thread.

    ``key`` and ``schema`` are the columns of the key and of its result.
    """

    def __init__(
        self, df: DataFrame, job: Any, key: StructType, schema: StructType,
        cache: ResultCache | None = None,
    ) -> None:  # fmt: skip
        self._df = df
        self._spark: SparkSession = df.sparkSession
        self._job = job
        self._key = key
        self._schema = schema
        self._cache = cache
        self._place = job.results.place

    def run(self, run_job: Callable[[Any], Any], view: Any) -> None:
        """Do the keys that no round had.

        ``run_job`` runs the job over its ``Input``.
        """
        known = self._job.known()
        if known is not None and self._job.results.finished() is None:
            run_job(self._job.given(known))
            known = self._job.known()
            self._keep(known)
        copy = self._job.new_round(known)
        looked = self._look(known, copy)
        view_of(view).message(f"{self._job.name}: {looked.told(self._key.names)}")
        if known is None or looked.new or looked.cached:
            known = self._job.add(known, copy, self._had(copy))
        else:
            self._remove(copy)
        run_job(self._job.given(known))
        self._keep(self._job.known())

    def _look(self, known: Any, copy: str) -> _Looked:
        """Write into ``copy`` the keys that are new, and what the cache has of them."""
        from pyspark.sql import functions as F

        names = [quoted(name) for name in self._key.names]
        there = self._df.groupBy(*names).agg(F.count("*").alias(_ROWS))
        is_first = known is None and self._cache is None
        self._write(there, copy, "keys" if is_first else "all")
        there = self._read(copy, "keys" if is_first else "all")
        rows, keys = there.agg(F.sum(_ROWS), F.count("*")).first() or (0, 0)
        if is_first:
            return _Looked(rows or 0, keys, keys, 0)
        if known is not None:
            there = there.join(self._numbered(self._seen(known)), self._alike(), "left_anti")
        cached = 0
        if self._cache is not None:
            cached = self._take(there, copy)
            taken = self._numbered(self._read(copy, _HITS))
            there = there.join(taken, self._alike(), "left_anti")
        self._write(there, copy, "keys")
        self._remove(copy, "all")
        return _Looked(rows or 0, keys, self._read(copy, "keys").count(), cached)

    def _take(self, there: DataFrame, copy: str) -> int:
        """Copy the results that the cache has of the keys that are ``there``."""
        assert self._cache is not None
        wanted = self._numbered(there)
        own = [quoted(name) for name in (*self._key.names, *self._schema.names)]

        def take(kept: DataFrame) -> None:
            self._write(kept.join(wanted, self._alike(), "left_semi").select(*own), copy, _HITS)

        self._cache.read(take)
        return self._read(copy, _HITS).count()

    def _had(self, copy: str) -> list[Any]:
        """Return the files of results that need no work."""
        from pyarrow import parquet

        kind = load_adapter("flowctl_apply._results", "parquet").ResultFile
        found = self._place.names(f"{self._job.results.directory}/{copy}/{_HITS}")
        files = [one for one in found if one.name.endswith(".parquet")]
        rows = [parquet.read_metadata(self._place.own_path(one.name)).num_rows for one in files]
        made = zip(files, rows, strict=True)
        return [kind(one.name, number, one.size_bytes) for one, number in made if number]

    def _keep(self, known: Any) -> None:
        """Add what the round has paid to the cache."""
        finished, settled = self._job.results.finished(), {one.file for one in known.settled}
        paid = (
            [] if finished is None else [one for one in finished.files if one.file not in settled]
        )
        if self._cache is not None and paid:
            self._cache.add(self._found(paid), known)

    def _found(self, files: Sequence[Any]) -> DataFrame:
        from pyspark.sql.types import StructType

        whole = StructType([*self._key, *self._schema])
        urls = [as_it_is(self._place.path(one.file)) for one in files]
        if not urls:
            return self._spark.createDataFrame([], whole)
        return self._spark.read.schema(whole).parquet(*urls)

    def _numbered(self, frame: DataFrame) -> DataFrame:
        return _numbered(frame, self._key.names)

    def _alike(self) -> Column:
        return _alike(self._key.names)

    def _read(self, *within: str) -> DataFrame:
        return self._spark.read.parquet(self._url(*within))

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
        rounds = [copy for copy in known.copies if copy.startswith("round-")]  # others are letters
        urls = [self._url(copy, "keys") for copy in rounds]
        taken = {one.file.rpartition("/")[0] for one in known.settled if "/" in one.file}
        urls += [as_it_is(self._place.path(directory)) for directory in sorted(taken)]
        return self._spark.read.schema(self._key).parquet(*urls)

    def frame(self, options: Mapping[str, Any]) -> DataFrame:
        """Return ``df`` with the results beside its columns.

        Rows whose key has none are left out; with ``errors="column"`` they stay, and say why.  A
        key that the job has not seen fails the query: ``df`` would have other rows now.
        """
        from pyspark.sql import functions as F

        keeps = options["errors"] is not None
        joined = self._df.join(self._results(), self._alike(), "left")
        wanted = F.lit(True) if keeps else F.col(_HAS)
        kept = joined.where(F.when(F.col(_HAS).isNotNull(), wanted).otherwise(self._unseen()))
        own = [F.col(quoted(name)) for name in self._df.columns]
        made = [F.col(f"{_RESULT}{n}").alias(name) for n, name in enumerate(self._schema.names)]
        if not keeps:
            return kept.select(*own, *made)
        kept, why = self._explained(kept, options)
        return kept.select(*own, *made, F.when(~F.col(_HAS), why).alias(ERROR))

    def _unseen(self) -> Column:
        from pyspark.sql import functions as F

        return F.raise_error(
            F.lit(
                f"{self._job.name}: the DataFrame has a row whose {', '.join(self._key.names)} it"
                " did not have when apply looked. Call apply again: it does what is new."
            )
        ).cast("boolean")

    def _explained(self, kept: DataFrame, options: Mapping[str, Any]) -> tuple[DataFrame, Column]:
        """Return the rows with the letters of their keys, and the struct that says why."""
        from pyspark.sql import functions as F

        nowhere = F.lit("rejected, and kept in no dead letter")
        kinds = why_of([])
        if options["dead_letter"] is None:
            nothing = [F.lit(None).cast(one.dataType).alias(one.name) for one in kinds.fields[1:]]
            return kept, F.struct(nowhere.alias("reason"), *nothing)
        kept = kept.drop(*(f"{_KEY}{n}" for n in range(len(self._key))))
        kept = kept.join(self._why(options), self._alike(), "left")
        reason = F.coalesce(F.col(f"{_WHY}0"), nowhere).alias("reason")
        why = [F.col(f"{_WHY}{n}").alias(one.name) for n, one in enumerate(kinds)]
        return kept, F.struct(reason, *why[1:])

    def failures(self, options: Mapping[str, Any]) -> DataFrame:
        """Return the rows of ``df`` whose key is a letter, with the columns of that."""
        from pyspark.sql import functions as F

        own = [F.col(quoted(name)) for name in self._df.columns]
        named = enumerate(why_of(self._df.columns))
        why = [F.col(f"{_WHY}{n}").alias(one.name) for n, one in named]
        return self._df.join(self._why(options), self._alike()).select(*own, *why)

    def _why(self, options: Mapping[str, Any]) -> DataFrame:
        """Return the keys that are letters, and why."""
        keys = self._df.select(*map(quoted, self._key.names))
        count = len(self._key)
        names = [f"{_KEY}{n}" for n in range(count)] + [f"{_WHY}{n}" for n in range(4)]
        return failures_in(self._job, keys, options).toDF(*names)

    def _results(self) -> DataFrame:
        """Return each key, whether it has a result, and that."""
        from pyspark.sql import functions as F

        finished, known = self._job.results.finished(), self._job.known()
        count = len(self._key)
        columns = [f"{_KEY}{n}" for n in range(count)]
        columns += [f"{_RESULT}{n}" for n in range(len(self._schema))]
        found = self._found(finished.files).toDF(*columns).withColumn(_HAS, F.lit(True))
        taken = sum(one.rows for one in finished.files if "/" in one.file)
        if finished.rows == finished.rows_in + taken:
            return found
        seen = self._seen(known)
        results = seen.join(found, _alike(self._key.names), "left")
        keys = [F.col(quoted(name)).alias(f"{_KEY}{n}") for n, name in enumerate(self._key.names)]
        return results.select(
            *keys, *columns[count:], F.coalesce(F.col(_HAS), F.lit(False)).alias(_HAS)
        )


def _numbered(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F

    columns = [F.col(quoted(name)).alias(f"{_KEY}{n}") for n, name in enumerate(names)]
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
