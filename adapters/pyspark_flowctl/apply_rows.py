"""DataFrame in, DataFrame out: bolts run a function over rows and keep its results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flowctl.adapters import load_adapter
from flowctl.arguments import check_arguments
from flowctl.delivery.options import APPLY, BOLTS, ApplyOptions, documented, for_apply
from flowctl.errors import ConfigError
from pyspark_flowctl.column_types import check_columns, check_readable
from pyspark_flowctl.dataframes import as_it_is, columns_checked, input_of, quoted
from pyspark_flowctl.failed_rows import check_frame, failures_in, with_failures
from pyspark_flowctl.features import arrow_schema, is_connect, struct_of
from pyspark_flowctl.keyed_rows import ERROR, KeyedRows, job_over_keys, key_of
from pyspark_flowctl.result_cache import Bounds, ResultCache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from flowctl.batch_ports import BatchService
    from flowctl.ports import Bolts, Process
    from pyspark_flowctl.failed_rows import AppliedFrame


@documented(APPLY)
@check_arguments("out", "columns", "key", "form", "keep_results")
def apply(
    df: DataFrame | str | os.PathLike[str] | Sequence[str],
    fn: Callable[..., Any] | BatchService,
    *,
    schema: str | StructType,
    name: str,
    out: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    form: str | None = None,
    keep_results: bool = False,
    **options: Unpack[ApplyOptions],
) -> AppliedFrame:
    """Call ``fn`` on all rows of ``df``; return its rows as a DataFrame with ``schema``.

    The DataFrame has each row's result exactly once, however often the driver, workers or Spark's
    tasks were killed.  If a run was killed, start it again with the same ``name`` and ``out``: it
    keeps its results and continues.  If it was finished, it returns at once.

    ``df`` is a DataFrame, or paths of Parquet files; anything but a plain read of Parquet files is
    first written to ``out`` once.  Only ``columns`` are read, if given.  ``fn`` gets a
    :class:`flowctl.Batch`, or a ``pyarrow.RecordBatch``, a ``pyarrow.Table`` or a
    ``pandas.DataFrame`` if its first parameter is annotated so, or if ``form`` is "arrow" or
    "pandas".  If it has a second parameter, it also gets the batch, for
    ``batch.reject(index, why)``.  It returns any number of rows (tuples, dicts, Arrow, pandas), and
    may be a generator or ``async def``.

    With ``key``, the columns that decide the result, ``fn`` sees these alone, and returns one row
    for each different key, in their order.  The result has the columns of ``df``, then those of
    ``schema``.  A key is paid once per job, also if ``df`` has other rows later.

    ``out`` is a directory that driver and workers see: an object store, or a shared disk.  Another
    ``df``, ``fn`` or ``schema`` under the same name is refused (:class:`ConfigError`);
    ``keep_results=True`` accepts another ``fn`` for the remaining rows.  Needs a Spark session,
    classic or Connect, and pyarrow on the workers.
    """
    checked = for_apply(name, options, key=key)
    spark = _session_of(df)
    struct = _struct(spark, schema)
    check_readable(struct, "schema", spark.conf.get)
    how = {"name": name, "out": _checked_out(out), "form": form, "keep_results": keep_results}
    arrow = _arrow_schema(struct)
    if key is not None:
        check_frame(df)
        frame = _frame_of(df, columns)
        return _pay_once(frame, fn, key_of(frame, key, struct), struct, how=how, options=checked)
    job = load_adapter("flowctl_apply._job", "parquet").Job(fn, arrow, **how)
    done = _run(spark, job, input_of(df, columns_checked(df, columns)), checked)
    made = _read(spark, struct, done.files)
    return with_failures(made, lambda: failures_in(job, _frame_of(df, columns), checked))


def _read(spark: SparkSession, struct: StructType, files: Sequence[str]) -> DataFrame:
    if not files:
        return spark.createDataFrame([], struct)
    return spark.read.schema(struct).parquet(*map(as_it_is, files))


def _pay_once(
    df: DataFrame,
    fn: Callable[..., Any] | BatchService,
    key: StructType,
    schema: StructType,
    *,
    how: dict[str, Any],
    options: dict[str, Any],
) -> AppliedFrame:
    if wanted := next((each for each in ("mode", "table") if options[each] is not None), None):
        raise ConfigError(
            wanted,
            "with key= the results stand beside the rows of df, in no table.",
            remedy="Leave it out, and write the DataFrame that apply returns.",
        )
    if options["errors"] and ERROR in {name.lower() for name in (*df.columns, *schema.names)}:
        raise ConfigError(
            "errors",
            f"there is a column {ERROR!r} already.",
            remedy="Rename it: df.withColumnRenamed('error', …).",
        )
    job = job_over_keys(fn, df, key, schema, **how)
    cache = None
    if options["cache"] is not None:
        bounds = Bounds(options["cache_days"], options["cache_gb"])
        whole = [*key, *schema]
        cache = ResultCache(df.sparkSession, options["cache"], job, whole, bounds)
    rows = KeyedRows(df, job, key, schema, cache)
    rows.run(lambda given: _run(df.sparkSession, job, given, options), options["view"])
    made = rows.frame(options)
    return with_failures(made, lambda: rows.failures(options))


def _frame_of(df: Any, columns: Sequence[str] | None) -> DataFrame:
    """Return the ``columns`` of ``df`` as a DataFrame."""
    if isinstance(df, str | os.PathLike | list | tuple):
        paths = [df] if isinstance(df, str | os.PathLike) else df
        df = _session_of(None).read.parquet(*map(as_it_is, map(os.fspath, paths)))
    names = columns_checked(df, columns)
    check_columns(df.schema, "df", names)
    chosen: DataFrame = df if names is None else df.select(*map(quoted, names))
    return chosen


def _run(spark: SparkSession, job: Any, given: Any, options: dict[str, Any]) -> Any:
    bolts = options["bolts"]
    run_job = load_adapter("flowctl_apply.parquet_apply", "parquet").run_job
    if not callable(bolts):
        count = BOLTS if bolts == "auto" and is_connect(spark) else bolts

        def make_bolts(process: Process) -> Bolts:
            from pyspark_flowctl.bolts import SparkBolts

            return SparkBolts(
                process, count, slots=options["slots"], spark=spark, refusal=options["refusal"]
            )

        options["bolts"] = make_bolts
    return run_job(job, given, options, merge=_merging(spark, job))


def _session_of(df: Any) -> SparkSession:
    found = getattr(df, "sparkSession", None)
    if found is None:
        from pyspark.sql import SparkSession

        found = SparkSession.getActiveSession()
    if found is None:
        raise ConfigError(
            "df", "there is no Spark session to read it with.", remedy="Start one before apply."
        )
    from pyspark_flowctl.session import jobs_of
    from pyspark_flowctl.worker_python import check_worker_python

    if jobs_of(found).is_gone():
        raise ConfigError(
            "df", "its Spark session was stopped.", remedy="Make it again with the one that runs."
        )
    check_worker_python(getattr(found, "sparkContext", None))  # check before any row is copied
    session: SparkSession = found
    return session


def _struct(spark: Any, schema: str | StructType) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType) and len(schema):
        return schema
    try:
        made = struct_of(spark, schema) if isinstance(schema, str) else schema
    except PySparkException as error:
        raise ConfigError(
            "schema",
            f"{schema!r} is not understood: {str(error).strip().partition(chr(10))[0]}",
            remedy="Write it as 'id long, label string'.",
        ) from error
    if not isinstance(made, StructType) or not len(made):
        raise ConfigError(
            "schema", f"{schema!r} has no columns.", remedy="Write it as 'id long, label string'."
        )
    return made


def _arrow_schema(struct: StructType) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    for field in struct:
        try:
            arrow_schema(StructType([field]))
        except PySparkException as error:
            raise ConfigError(
                "schema",
                f"column {field.name!r} can't be {field.dataType.simpleString()}.",
                remedy="Give another type, such as string, long or double.",
            ) from error
    return arrow_schema(struct)


def _checked_out(out: str | os.PathLike[str]) -> str:
    text = os.fspath(out)
    if "\\" in text:
        raise ConfigError("out", "Spark's paths have no backslashes.", remedy="Rename it.")
    return text


def _merging(
    spark: SparkSession, job: Any
) -> Callable[[Sequence[Sequence[str]], int], Sequence[Any]]:
    """Return a function that merges files on the workers, in a task for each new file."""

    def merge(shares: Sequence[Sequence[str]], epoch: int) -> Sequence[Any]:
        place, name, schema = job.results.place, job.name, job.schema

        def merged(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow

            merge_files = load_adapter("flowctl_apply._job", "parquet").merge_files
            for batch in batches:
                made = [
                    merge_files(place, name, schema, one, epoch=epoch)
                    for one in batch[1].to_pylist()
                ]
                yield pyarrow.RecordBatch.from_pydict({
                    "share": batch[0],
                    "file": [one.file for one in made],
                    "rows": pyarrow.array([one.rows for one in made], pyarrow.int64()),
                    "bytes": pyarrow.array([one.bytes for one in made], pyarrow.int64()),
                })  # fmt: skip

        rows = [(number, list(share)) for number, share in enumerate(shares)]
        frame = spark.createDataFrame(rows, "share int, files array<string>")
        frame = frame.repartition(len(rows)).mapInArrow(
            merged, "share int, file string, rows long, bytes long"
        )
        kind = load_adapter("flowctl_apply._results", "parquet").ResultFile
        found = sorted(frame.collect(), key=lambda row: int(row["share"]))
        return [kind(row["file"], row["rows"], row["bytes"]) for row in found]

    return merge
