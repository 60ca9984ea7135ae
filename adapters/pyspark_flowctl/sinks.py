"""``flow_sink`` and ``flow_batch``: rows of Spark into a fragile target, one line in the job.

**What ``fn`` gets**: a batch whose records' values are the Rows, and whose positions end with their
numbers in the partition.  Rows per call follow what the target does: as few as keep the fixed cost
of a call small.  ``async def`` is awaited.  A sink gets the rows as dicts.

**What becomes of rows**: returning means that all are written.  ``batch.reject(record, why)``
leaves one out.  A refusal of the target (429, "too many connections", ``RetryLater``) is waited for
and costs no attempt; ``RetryLater(again=[…])`` sends only those again.  After any other error the
rows go again, in smaller pieces until the one that fails stands alone.

**No row is left out in silence.**  With a dead letter what can't be written is kept there, and
``flowctl dlq show NAME`` shows it; what ``flowctl dlq redrive NAME`` has marked, the next action
with that ``name`` writes first.  Without one, a row whose attempts ran out fails the task, and
so does a rejected one unless ``fail_over`` allows so many: a share of all rows with ``write(df)``,
of each partition with ``foreachPartition``.  Each worker logs a line with its counts
(:class:`flowctl.delivery.tally.Tally`), as ``foreachPartition`` returns nothing.

**Spans** (``batch.span``) name the rows of a call, so that a sink can recognise a repeat: a task
that Spark runs again gives the same names to the same rows.  If it gives other rows, or in another
order (after a shuffle, with ``rand()``, from a source that changed), each section of rows that
differs has other names (:mod:`flowctl.delivery.sections`): it is written again, not left out.  The
same ``name`` and ``run`` in another application are the same rows, which ``SqlSink`` leaves out.
"""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from flowctl.adapters import load_adapter
from flowctl.arguments import check_arguments
from flowctl.delivery.lost_rows import check_losses
from flowctl.delivery.plan import CALL_MAX_S, ROWS_MAX, check_numbers, check_whole, checked_timeout
from flowctl.delivery.tally import Tally
from flowctl.errors import ConfigError
from flowctl.failure.callables import check_process
from flowctl.failure.classify import RefusalRule, check_rule
from flowctl.logs import ModuleLogger
from flowctl.pacing.api import paced
from pyspark_flowctl.column_types import check_sendable
from pyspark_flowctl.features import arrow_converter, converts_arrow, is_connect
from pyspark_flowctl.outcome import error_on_worker
from pyspark_flowctl.shipping import ship
from pyspark_flowctl.sink_task import Origin, SinkTask, deliver
from pyspark_flowctl.worker_python import check_active_python

# -- Rows of a DataFrame, partition by partition ----------------------------------------------
#
# Run a function over the Rows of each partition, as ``foreachPartition`` does, and get texts
# back.
#
# Rows come out of Arrow batches: so it works on Spark Connect too.


def run_on_rows(
    df: Any, partition: Callable[[Iterable[Any]], Iterator[str]], schema: str
) -> list[str]:
    """Call ``partition`` with the Rows of each partition of ``df``; return all texts it yields.

    ``schema`` is that of ``df``, as Spark's JSON.  Raises what Spark raises.
    """
    if not (converts_arrow() or is_connect(df)):  # Spark 3.5 makes the Rows itself
        texts: list[str] = df.rdd.mapPartitions(partition).collect()
        return texts

    def batches_in(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        made = list(partition(rows_of(batches, schema)))
        yield pyarrow.RecordBatch.from_pydict({"text": made})

    batches_in.__module__ = __name__  # found by its name on workers
    # By position: mapInArrow finds columns by name, and names may hold dots or come twice.
    columns = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    return [row.text for row in columns.mapInArrow(batches_in, "text string").collect()]


def rows_of(batches: Iterable[Any], schema: str) -> Iterator[Any]:
    """Yield the Rows of ``batches`` (``pyarrow.RecordBatch``); ``schema`` is Spark's, as JSON."""
    import pyarrow
    from pyspark.sql.types import StructType, _parse_datatype_json_string

    convert = arrow_converter().convert
    kind = _parse_datatype_json_string(schema)
    assert isinstance(kind, StructType)
    for batch in batches:
        yield from convert(pyarrow.Table.from_batches([batch]), kind)


# -- ``flow_sink`` and ``flow_batch`` ----------------------------------------------------------


_log = ModuleLogger("pyspark_flowctl")
_QUERY_ID = "sql.streaming.queryId"  # Spark's own name of the property of a stream's thread
_EXAMPLE = "flow_sink(write_rows, target='pg-main', redis=URL)"
_PACING = ("budget", "cost", "leave", "limits", "weight")
_MORE = ("call_timeout_s", *_PACING)  # the parameters behind **more


@check_arguments("run")
def flow_sink(
    fn: Callable[..., Any] | None = None,
    *,
    sink: Any = None,
    target: str = "",
    redis: str | None = None,
    name: str | None = None,
    run: str | None = None,
    rows_max: int = ROWS_MAX,
    call_max_s: float = CALL_MAX_S,
    attempts_max: int = 5,
    dead_letter: Any = None,
    fail_over: str | int | None = None,
    refusal: RefusalRule | None = None,
    **more: Any,
) -> FlowSink:
    """Write the rows of a DataFrame, paced: ``df.foreachPartition(flow_sink(…))``.

    ``flow_sink(…).write(df)`` is the same action and returns the counts of all partitions.
    ``fn(batch)`` is called on workers with a :class:`flowctl.Batch` of Rows.  Instead of ``fn`` you
    may give ``sink``, an object with ``write(rows, batch=batch)``, such as ``SqlSink``,
    ``HttpSink`` or ``BulkSink``.  ``target`` names what is called.  All callers that name it share
    one limit: over partitions, executors and jobs if they share ``redis`` (a URL; default:
    ``FLOWCTL_REDIS_URL``), otherwise within each process.  ``weight``, ``leave``, ``limits`` and
    ``budget`` are those of :func:`flowctl.paced`; ``cost`` is a function of the batch.

    A call gets at most ``rows_max`` rows, and no more than take ``call_max_s`` seconds; past
    ``call_timeout_s`` its rows have failed.  A row that fails is tried ``attempts_max`` times.
    ``dead_letter``: a directory that all workers share, or a :class:`flowctl.DeadLetter`.
    ``fail_over``: how many rows may be lost ("100", "1%").  ``refusal(error)``: docs/process.md.
    ``name`` (default: the target) names the job in spans and dead letters.  ``run`` ("2026-11-22")
    makes the names of the rows last for ever.  Raises :class:`flowctl.errors.ConfigError`.
    """
    parts = _shipped(fn, sink, dead_letter, refusal, more.pop("cost", None))
    redis = redis or os.environ.get("FLOWCTL_REDIS_URL")
    check_whole(rows_max=rows_max, attempts_max=attempts_max)
    check_numbers(call_max_s=call_max_s)
    task = SinkTask(
        target=target,
        job=name or target,
        is_named=bool(name),
        redis=redis,
        rows_max=rows_max,
        call_max_s=call_max_s,
        attempts_max=attempts_max,
        fail_over=_checked_fail_over(fail_over),
        parts=parts,
        **_checked_more(target, redis, name or target, more),
    )
    return FlowSink(task, _origin(run))


def _origin(run: str | None) -> Origin:
    """Without a name for ever, one for this object; the stage tells its actions apart."""
    _check_text(run, "run", "Name the run, such as 2026-11-22")
    return Origin(uuid.uuid4().hex[:12], by_stage=True) if run is None else Origin(run)


def _check_text(given: Any, field: str, what: str) -> None:
    """An empty text is mostly a variable that nobody has set."""
    if given == "":
        raise ConfigError(field, "it is empty.", remedy=f"{what}, or leave it out.")


def flow_batch(fn: Callable[..., Any] | None = None, **given: Any) -> FlowBatch:
    """Write each batch of a stream, paced: ``writeStream.foreachBatch(flow_batch(…))``.

    The parameters are those of :func:`flow_sink`, except ``run``.  In a span, ``partition`` holds
    the query's id and ``position`` is (batch id, section, its mark, row number).  So a batch that
    Spark runs again after a restart has the same names, if the input is deterministic.
    ``fail_over`` counts over each batch.  On Spark Connect the function does not know the query's
    id: give ``name``, and a new one whenever the query begins again with an empty checkpoint.

    The counts of each batch are logged.  On Connect the function uses the batch's own session, and
    needs none of yours.
    """
    if "run" in given:
        raise ConfigError(
            "run", "is for flow_sink.", remedy="Leave it out: batches have numbers already."
        )
    return FlowBatch(flow_sink(fn, **given), is_named="name" in given)


class FlowSink:
    """What :func:`flow_sink` returns; immutable, thread-safe and picklable."""

    def __init__(self, task: SinkTask, origin: Origin) -> None:
        self.task = task
        self.origin = origin

    def __repr__(self) -> str:
        return f"flow_sink(target={self.task.target!r})"

    def __call__(self, rows: Iterable[Any], *others: Any) -> None:
        """Write the rows of one partition; Spark calls it on a worker."""
        if others:
            raise ConfigError(
                "flow_sink", "was given to foreachBatch.", remedy="Write flow_batch(…) there."
            )
        if hasattr(rows, "asDict"):
            raise ConfigError(
                "flow_sink", "was given to foreach.", remedy="Write df.foreachPartition(…)."
            )
        deliver(self.task, self.origin, rows, at_end=True)

    def write(self, df: Any) -> Tally:
        """Write all rows of ``df`` now, and return what became of them, summed over partitions.

        A task that failed and was run again counts once.  If a partition failed, raises the error
        that says why (:class:`flowctl.errors.FlowctlError`); its cause is Spark's, which has the
        traceback.  Raises :class:`flowctl.errors.TooManyLostError` if ``fail_over`` does not allow
        so many lost rows; the others are written then.
        """
        if not hasattr(df, "mapInArrow"):
            raise ConfigError(
                "df",
                f"it is not a DataFrame of Spark, but a {type(df).__name__} of"
                f" {type(df).__module__}.",
                remedy="Make one of it: spark.createDataFrame(…).",
            )
        check_active_python()
        task, origin, schema = self.task, self.origin, df.schema.json()
        check_sendable(df.schema)

        def partition(rows: Iterable[Any]) -> Iterator[str]:
            tally = deliver(task, origin, rows, at_end=False, schema=schema)
            yield msgspec.json.encode(tally).decode()

        # Found by its name on workers; nothing of this module's state is needed there.
        partition.__module__ = __name__
        total = Tally()
        try:
            found = run_on_rows(df, partition, schema)
        except Exception as error:
            if (ours := error_on_worker(error)) is not None:
                raise ours from error
            raise
        for text in found:
            total.add(msgspec.json.decode(text, type=Tally))
        check_losses(task.fail_over, total, task.job)
        return total


class FlowBatch:
    """What :func:`flow_batch` returns; immutable, thread-safe and picklable."""

    def __init__(self, sink: FlowSink, *, is_named: bool) -> None:
        self.sink = sink
        self.is_named = is_named

    def __repr__(self) -> str:
        return f"flow_batch(target={self.sink.task.target!r})"

    def __call__(self, batch_df: Any, batch_id: int | None = None) -> None:
        """Write one batch; Spark calls it where the stream's driver runs."""
        if batch_id is None:
            raise ConfigError(
                "flow_batch",
                "was not called by foreachBatch.",
                remedy="Write stream.writeStream.foreachBatch(flow_batch(…)), or flow_sink(…) for"
                " df.foreachPartition.",
            )
        task = self.sink.task
        origin = Origin(self._query(batch_df), batch_id=batch_id)
        tally = FlowSink(task, origin).write(batch_df)
        _log.info("batch_delivered", target=task.target, batch_id=batch_id, **tally.fields())

    def _query(self, batch_df: Any) -> str:
        context = getattr(batch_df.sparkSession, "sparkContext", None)
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        if query_id:
            return str(query_id)
        if self.is_named:
            return self.sink.task.job
        raise ConfigError(
            "name",
            "is missing: on Spark Connect the query's id is not known here.",
            remedy="Give the query a name of its own: flow_batch(…, name='orders-to-pg').",
        )


def _shipped(
    fn: Any, sink: Any, dead_letter: Any, refusal: RefusalRule | None, cost: Any
) -> dict[str, bytes]:
    """Check what users gave, and pickle it: here an error can be explained."""
    if (fn is None) == (sink is None):
        what = "neither fn nor sink is given" if fn is None else "fn and sink are both given"
        raise ConfigError("fn", f"{what}.", remedy=f"Give one: {_EXAMPLE}.")
    if fn is not None:
        check_process(fn, "fn")
    elif inspect.isclass(sink):
        raise ConfigError(
            "sink", f"{sink.__name__} is a class.", remedy=f"Give an object: {sink.__name__}(…)."
        )
    elif not callable(getattr(sink, "write", None)):
        raise ConfigError(
            "sink",
            f"{type(sink).__name__} has no method write.",
            remedy="Give an object with write(rows, batch=batch), or a function of a batch as fn.",
        )
    check_rule(refusal)
    if cost is not None:
        check_process(cost, "cost")
    if isinstance(dead_letter, Path):
        dead_letter = str(dead_letter)
    _check_text(dead_letter, "dead_letter", "Name a directory")
    if dead_letter is not None and not isinstance(dead_letter, str):
        _check_dead_letter(dead_letter)
    check_active_python()
    parts = {
        "fn": fn, "sink": sink, "dead_letter": dead_letter, "refusal": refusal, "cost": cost,
    }  # fmt: skip
    return {name: ship(part, field=name) for name, part in parts.items() if part is not None}


def _checked_more(target: str, redis: str | None, job: str, more: dict[str, Any]) -> dict[str, Any]:
    """Return the bound of a call, and what is passed on to ``paced``.

    Raises :class:`ConfigError` for what these refuse, and for a name that is not known.
    """
    bound_s = checked_timeout(more.pop("call_timeout_s", None))
    if not target:
        raise ConfigError(
            "target", "is missing.", remedy=f"Name what is called, such as: {_EXAMPLE}."
        )
    if unknown := sorted(set(more) - set(_PACING)):
        named = [name for name in inspect.signature(flow_sink).parameters if name != "more"]
        raise ConfigError(
            unknown[0], "is not a parameter.", remedy=f"There are: {', '.join((*named, *_MORE))}."
        )
    settings = paced(target, redis=redis, job=job, **more).settings
    if redis is not None:  # workers would refuse it, each in its own traceback
        load_adapter("flowctl_redis.url", "redis").checked(redis)
    given = {name: getattr(settings, name) for name in ("weight", "leave", "budget", "limits")}
    return given | {"call_timeout_s": bound_s}


def _check_dead_letter(given: Any) -> None:
    if not callable(getattr(given, "dead_letter", None)):
        raise ConfigError(
            "dead_letter",
            f"{type(given).__name__} has no method dead_letter.",
            remedy="Give a directory that all workers share, or a flowctl.DeadLetter.",
        )


def _checked_fail_over(given: Any) -> str | None:
    if given is None:
        return None
    from flowctl.runtime.losses import LossBudget  # half a second, and rarely needed

    return LossBudget.parse(given, name="fail_over").text
