"""Writers behind ``format("flowctl")``: they return counts, and the commit adds them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from flowctl.delivery.lost_rows import check_losses
from flowctl.delivery.options import WRITE, names_of, read_text
from flowctl.delivery.tally import Tally
from flowctl.errors import ConfigError
from flowctl.logs import ModuleLogger
from pyspark_flowctl.arrow_rows import ArrowRows
from pyspark_flowctl.features import arrow_stream_writer
from pyspark_flowctl.sink_task import Origin, deliver
from pyspark_flowctl.sinks import FlowSink, flow_sink
from pyspark_flowctl.text_options import check_known, named_object

_log = ModuleLogger("pyspark_flowctl")


def sink_of(options: dict[str, str]) -> FlowSink:
    """Return the sink for ``options``: ``process`` names a function of a batch, or a sink.

    Raises :class:`ConfigError` that names a missing or wrong option.
    """
    left = {name.lower(): text for name, text in options.items()}
    process = named_object("process", left.pop("process", ""), "a function of a batch, or a sink,")
    given = read_text(WRITE, left)
    check_known(list(left), ("process", *names_of(WRITE)))
    if not given.get("target"):
        raise ConfigError(
            "target", "is missing.", remedy="Name what is called: .option('target', 'pg-main')."
        )
    return flow_sink(process, **given)


@dataclass
class Counted(WriterCommitMessage):
    """The counts of one partition's rows."""

    tally: Tally


class BatchWriter(DataSourceArrowWriter):
    """For ``df.write.format("flowctl")``."""

    def __init__(self, sink: FlowSink, schema: str) -> None:
        self._sink = sink
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one partition, which come as ``pyarrow.RecordBatch``, on a worker."""
        sink, rows = self._sink, ArrowRows(iterator, self._schema)
        return Counted(deliver(sink.task, sink.origin, rows, at_end=False, schema=self._schema))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of all rows, as all partitions are written."""
        _conclude(self._sink, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that a partition failed for good; rows written by others stay."""
        _log.warning("write_failed", target=self._sink.task.target, **_sum(messages).fields())


_ArrowWriter: Any = arrow_stream_writer()


class StreamWriter(_ArrowWriter or DataSourceStreamWriter):  # type: ignore[misc]
    """The writer of ``writeStream.format("flowctl")``.

    A span's partition contains the query's id, and its positions are (batch id, section, its mark,
    row number), as with ``flow_batch``.
    """

    def __init__(self, sink: FlowSink, schema: str) -> None:
        self._sink = sink
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one partition of a batch, on a worker.

        They come as ``pyarrow.RecordBatch``, and from Spark 4.0 as Rows.
        """
        rows: Iterable[Any] = ArrowRows(iterator, self._schema) if _ArrowWriter else iterator
        task, origin = self._sink.task, _origin_of_batch(self._sink)
        return Counted(deliver(task, origin, rows, at_end=False, schema=self._schema))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counts of the batch's rows, as all of its partitions are written."""
        _conclude(self._sink, messages, batch_id=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log that a partition failed for good; rows written by others stay."""
        _log.warning(
            "batch_failed",
            target=self._sink.task.target,
            batch_id=batchId,
            **_sum(messages).fields(),
        )


_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


def _origin_of_batch(sink: FlowSink) -> Origin:
    """Return the origin, by the batch id that Spark gives to tasks, or else by the stage."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    batch_id = context.getLocalProperty(_BATCH_ID) if context is not None else None
    if query and batch_id:
        return Origin(query, batch_id=int(batch_id))
    return sink.origin


def _sum(messages: Sequence[WriterCommitMessage | None]) -> Tally:
    total = Tally()
    for message in messages:
        if isinstance(message, Counted):
            total.add(message.tally)
    return total


def _conclude(sink: FlowSink, messages: Sequence[WriterCommitMessage | None], **more: Any) -> None:
    total = _sum(messages)
    task = sink.task
    check_losses(task.fail_over, total, task.job)
    _log.info("write_done", target=task.target, **more, **total.fields())
