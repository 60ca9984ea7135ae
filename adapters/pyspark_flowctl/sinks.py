"""``flow_sink`` and ``flow_batch``: rows of Spark into a fragile target, one line in the job.

**What ``fn`` gets**: a batch whose records' values are the Rows, and whose positions end with their
numbers in the partition.  The rows per call follow the target's behaviour: just enough to make the
fixed cost of a call small.  ``async def`` is awaited.  A sink gets the rows as dicts.

**Rows stay columns** in ``write(df)`` and ``flow_batch`` (not on Spark 3.5), until somebody asks
for one: ``batch.to_arrow()`` copies nothing, and a sink whose class says ``takes_arrow = True``
gets a ``pyarrow.RecordBatch`` whose row ``i`` belongs to ``batch[i]``.  It gets dicts where rows
come as Rows, as in ``foreachPartition``, and of letters of other columns that are written again.

**Several calls at once** (``calls=32``) of one partition wait for the target together: ``fn`` and
the sink's ``write`` are called by as many threads then, each with rows of its own, in any order.  A
sink whose class says ``calls_max = 1`` (``SqlSink``) does not take that.

**What becomes of rows**: returning means that all are written.  ``batch.reject(record, why)``
leaves one out.  After a refusal of the target (429, "too many connections", ``RetryLater``) flowctl
waits, and no attempt is used up; ``RetryLater(again=[…])`` sends only those rows again.  After any
other error the rows are sent again, in ever smaller pieces until the failing row is alone.

**No row is left out in silence.** A dead letter keeps rows that can't be written, and ``flowctl dlq
show NAME`` shows them; the next action with that ``name`` first writes the rows that ``flowctl dlq
redrive NAME`` has marked.  Without a dead letter, a row whose attempts ran out fails the task, and
so does a rejected row unless ``fail_over`` allows it: a share of all rows with ``write(df)``, of
each partition's rows with ``foreachPartition``.  Each worker logs a line with its counts
(:class:`flowctl.delivery.tally.Tally`), as ``foreachPartition`` returns nothing.

**Spans** (``batch.span``) name the rows of a call, so that a sink can recognise a repeat: a task
that Spark runs again gives the same names to the same rows.  If it produces other rows, or another
order (after a shuffle, with ``rand()``, from a source that changed), each section of rows that
differs has other names (:mod:`flowctl.delivery.sections`): it is written again, not left out.  The
same ``name`` and ``run`` in another application mean the same rows, which ``SqlSink`` leaves out.
Rows that come as columns have other names than the same rows in ``foreachPartition``.
"""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from flowctl.adapters import load_adapter
from flowctl.delivery.lost_rows import check_losses
from flowctl.delivery.options import (
    BATCH,
    PACING,
    SINK,
    SinkOptions,
    check_row_target,
    checked,
    documented,
)
from flowctl.delivery.tally import Tally
from flowctl.errors import ConfigError
from flowctl.failure.callables import check_process
from flowctl.instrumentation.text import printable, shown_command
from flowctl.logs import ModuleLogger
from flowctl.pacing.api import paced
from flowctl.pacing.budgets import check_units
from pyspark_flowctl.arrow_rows import ArrowRows
from pyspark_flowctl.column_types import check_sendable
from pyspark_flowctl.failed_rows import Written, check_frame, failures_of_write
from pyspark_flowctl.features import converts_arrow, is_connect
from pyspark_flowctl.outcome import error_on_worker
from pyspark_flowctl.shipping import ship
from pyspark_flowctl.sink_task import Origin, SinkTask, deliver, loaded
from pyspark_flowctl.worker_python import check_active_python

if TYPE_CHECKING:
    from typing_extensions import Unpack

# -- Rows of a DataFrame, partition by partition ----------------------------------------------


def run_on_rows(
    df: Any, partition: Callable[[Iterable[Any]], Iterator[str]], schema: str
) -> list[str]:
    """Call ``partition`` with the rows of each partition of ``df``; return all texts it yields.

    They are :class:`ArrowRows`, on Spark Connect too; Rows where Spark 3.5 makes them itself.
    ``schema`` is the schema of ``df``, as Spark's JSON. Spark's errors pass through.
    """
    if not (converts_arrow() or is_connect(df)):
        texts: list[str] = df.rdd.mapPartitions(partition).collect()
        return texts

    def batches_in(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        made = list(partition(ArrowRows(batches, schema)))
        yield pyarrow.RecordBatch.from_pydict({"text": made})

    batches_in.__module__ = __name__  # workers find it by its name
    # By position: mapInArrow finds columns by name, and names may hold dots or come twice.
    columns = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    return [row.text for row in columns.mapInArrow(batches_in, "text string").collect()]


# -- ``flow_sink`` and ``flow_batch`` ----------------------------------------------------------


_log = ModuleLogger("pyspark_flowctl")
_DESCRIPTION = "spark.job.description"
_QUERY_ID = "sql.streaming.queryId"  # Spark's property of a stream's thread
_EXAMPLE = "flow_sink(write_rows, target='pg-main', redis=URL)"
# Options that workers get as pickles, so that an error can name one that can't be pickled; and
# unpickled.
_SHIPPED = ("dead_letter", "refusal", "cost", "target")
_OF_TASK = (
    "rows_max", "bytes_max", "call_max_s", "call_timeout_s", "calls", "attempts_max", "fail_over",
)  # fmt: skip


@documented(SINK)
def flow_sink(fn: Any = None, *, sink: Any = None, **options: Unpack[SinkOptions]) -> FlowSink:
    """Write the rows of a DataFrame, paced: ``df.foreachPartition(flow_sink(…))``.

    ``flow_sink(…).write(df)`` is the same action and returns the counts of all partitions.
    ``fn(batch)`` is called on workers with a :class:`flowctl.Batch` of Rows.  In its place, or as
    ``sink``, you may give an object with ``write(rows, batch=batch)``, such as ``SqlSink``,
    ``HttpSink`` or ``BulkSink``.  ``target`` names the called service, and must be given; or it is
    a function of the row, ``lambda row: f"crm-{row['tenant']}"``, and each call has rows of one
    target.  All callers that name the same target share one limit: over partitions, executors and
    jobs if they share ``redis``, otherwise within each process.  Raises
    :class:`flowctl.errors.ConfigError`.
    """
    made = checked(SINK, _with_rows(fn if sink is None else sink, options), "fn", "sink")
    _check_calls(fn if sink is None else sink, made["calls"])
    parts = _shipped(fn, sink, made)
    if made["target"] is None:
        raise ConfigError(
            "target", "is missing.", remedy=f"Name what is called, such as: {_EXAMPLE}."
        )
    check_row_target(made)
    target, job = made["target"], made["name"] or made["target"]
    if callable(job):
        raise ConfigError(
            "name", "is missing: target= is a function.", remedy="Name the job: name='crm-sync'."
        )
    target = job if callable(target) else target
    redis = made["redis"] or os.environ.get("FLOWCTL_REDIS_URL")
    given = {name: made[name] for name in PACING}
    check_units(paced(target, redis=redis, name=job, **given).settings.quotas, made["cost"])
    if redis is not None:  # checked here: workers would each raise a traceback
        load_adapter("flowctl_redis.url", "redis").checked(redis)
    task = SinkTask(
        target=target,
        job=job,
        is_named=made["name"] is not None,
        redis=redis,
        parts=parts,
        **{name: made[name] for name in _OF_TASK},
        **given,
    )
    return FlowSink(task, _origin(made["run"]))


def _with_rows(sink: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``options`` with the rows per call that a sink asks for, unless they are given."""
    wanted = getattr(sink, "rows_per_write", None)
    return options if wanted is None else {"rows_max": wanted, **options}


def _check_calls(sink: Any, calls: int) -> None:
    """Raise :class:`ConfigError` for more calls at once than a sink takes of one partition."""
    most = getattr(sink, "calls_max", calls)
    if calls > most:
        raise ConfigError(
            "calls",
            f"{type(sink).__name__} takes {most} at once of each partition, got {calls}.",
            remedy="Leave it out; several partitions write at once anyway.",
        )


def _origin(run: str | None) -> Origin:
    """Return the name for rows: a permanent one with ``run``, else one of this object and stage."""
    return Origin(uuid.uuid4().hex[:12], by_stage=True) if run is None else Origin(run)


@documented(BATCH)
def flow_batch(fn: Any = None, *, sink: Any = None, **options: Unpack[SinkOptions]) -> FlowBatch:
    """Write each batch of a stream, paced: ``writeStream.foreachBatch(flow_batch(…))``.

    The parameters are those of :func:`flow_sink`, except ``run``.  In a span, ``partition``
    contains the query's id and ``position`` is (batch id, section, its mark, row number).  So a
    batch that Spark runs again after a restart has the same names, if the input is deterministic.
    ``fail_over`` applies to each batch.  On Spark Connect the function does not know the query's
    id: give ``name``, and a new one whenever the query begins again with an empty checkpoint.

    The counts of each batch are logged.  On Connect the function uses the batch's own session, not
    yours.
    """
    if "run" in options:
        raise ConfigError(
            "run", "is for flow_sink.", remedy="Leave it out: batches have numbers already."
        )
    return FlowBatch(flow_sink(fn, sink=sink, **options), is_named="name" in options)


class FlowSink:
    """The result of :func:`flow_sink`: immutable, thread-safe and picklable."""

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

    def write(self, df: Any) -> Written:
        """Write all rows of ``df`` now, and return their counts, summed over partitions.

        ``failures`` of the result is a DataFrame of the rows that became dead letters.

        A task that failed and was run again counts once.  If a partition failed, this raises the
        error that explains it (:class:`flowctl.errors.FlowctlError`), caused by Spark's error,
        which has the traceback.  Raises :class:`flowctl.errors.TooManyLostError` if more rows were
        lost than ``fail_over`` allows; the other rows are written then.
        """
        check_frame(df)
        check_active_python()
        task, origin, schema = self.task, self.origin, df.schema.json()
        check_sendable(df.schema)

        def partition(rows: Iterable[Any]) -> Iterator[str]:
            tally = deliver(task, origin, rows, at_end=False, schema=schema)
            yield msgspec.json.encode((origin.partition(), tally)).decode()

        # Workers find it by its name and need none of this module's state.
        partition.__module__ = __name__
        partitions: set[str] = set()
        total = Written.into(lambda kept: self._failures(df, partitions, kept))
        try:
            with _described(df, task):
                found = run_on_rows(df, partition, schema)
        except Exception as error:
            if (ours := error_on_worker(error)) is not None:
                raise ours from error
            raise
        for text in found:
            name, tally = msgspec.json.decode(text, type=tuple[str, Tally])
            partitions.add(name)
            total.add(tally)
        check_losses(task.fail_over, total, task.job)
        return total

    def _failures(self, df: Any, partitions: set[str], kept: int) -> Any:
        part = self.task.parts.get("dead_letter")
        port = None if part is None else loaded("dead_letter", part)
        return failures_of_write(df, self.task.job, port, partitions, kept)


@contextmanager
def _described(df: Any, task: SinkTask) -> Iterator[None]:
    """Let Spark's UI name the command that shows this write, unless its job has a description."""
    session = None if task.redis is None else df.sparkSession
    context = getattr(session, "sparkContext", None)  # not on Spark Connect
    if context is None or context.getLocalProperty(_DESCRIPTION):
        yield
        return
    watch = shown_command(["flowctl", "top", task.job, "--page"])
    context.setJobDescription(f"flowctl writes into {printable(task.target)} · {watch}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, None)


class FlowBatch:
    """The result of :func:`flow_batch`: immutable, thread-safe and picklable."""

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


def _shipped(fn: Any, sink: Any, options: Mapping[str, Any]) -> dict[str, bytes]:
    """Check and pickle the user's functions here, where an error can be explained."""
    if (fn is None) == (sink is None):
        what = "neither fn nor sink is given" if fn is None else "fn and sink are both given"
        raise ConfigError("fn", f"{what}.", remedy=f"Give one: {_EXAMPLE}.")
    if sink is None and callable(getattr(fn, "write", None)):
        fn, sink = None, fn
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
    check_active_python()
    parts = {"fn": fn, "sink": sink, **{name: options[name] for name in _SHIPPED}}
    if not callable(parts["target"]):
        del parts["target"]
    return {name: ship(part, field=name) for name, part in parts.items() if part is not None}
