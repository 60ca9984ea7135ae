"""The task of a stream: process a chunk, then yield its rows as Arrow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from flowctl.adapters import dead_letter_of, load_adapter
from flowctl.bolts.batch import Batch
from flowctl.core.positions import show
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.offset_reader import Piece
from flowctl.delivery.pacers import TargetPacer, showing_part
from flowctl.delivery.plan import Plan, Where
from flowctl.errors import RetryLater
from flowctl.failure.callables import is_async
from pyspark_flowctl.features import arrow_schema
from pyspark_flowctl.stream_options import StreamOptions
from pyspark_flowctl.text_options import named_object

# The columns of a stream without ``process``.
RECORDS_SCHEMA = "partition string, position string, value string"
_BATCH_ROWS = 10_000  # Spark's own size of an Arrow batch


def rows_out(options: StreamOptions, schema: str, pieces: Iterable[Piece]) -> Iterator[Any]:
    """Yield the rows of ``pieces`` as ``pyarrow.RecordBatch``; ``schema`` is Spark's, as JSON.

    All records are processed before the first row goes out: Spark may stop reading early, and each
    yielded row stands for a record that is done.
    """
    import pyarrow
    from pyspark.sql.types import StructType, _parse_datatype_json_string

    kind = _parse_datatype_json_string(schema)
    assert isinstance(kind, StructType)
    arrow = arrow_schema(kind)
    tables = [table for piece in pieces for table in _tables_of(options, piece, arrow)]
    if tables:
        yield from pyarrow.concat_tables(tables).to_batches(_BATCH_ROWS)


def _tables_of(options: StreamOptions, piece: Piece, schema: Any) -> Sequence[Any]:
    """Return the rows of one piece as tables of Arrow's ``schema``."""
    import pyarrow

    table_of = load_adapter("flowctl_apply._rows", "parquet").table_of
    if not options.process:
        columns = _as_read(piece)
        if schema.names == list(columns):
            with suppress(pyarrow.ArrowException, ValueError):  # table_of says what does not fit
                return [pyarrow.table(columns, schema)]
        return [table_of(list(zip(*columns.values(), strict=True)), schema, "process")]
    made: list[Any] = []
    records = piece.records

    def table(rows: Any) -> Any:
        # Converted within the call, so that a value that does not fit its column counts as its
        # record's failure.
        return table_of(rows, schema, "process")

    plan = Plan(
        process=_tabled(named_object("process", options.process, "a function"), table),
        keep=made.append,  # added after the call: one that returns too late must add no rows
        attempts_max=options.attempts_max,
        dead_letter=dead_letter_of(options.dead_letter),
        fail_over=options.fail_over,
        at_end=False,
        call_timeout_s=options.call_timeout_s,
    )
    where = Where(
        options.job,
        piece.partition,
        place=lambda number: records[number].position,
        before=records[0].position if piece.batch_first is None else piece.batch_first,
    )
    # Without a target no limit is shared; refusals are waited for.
    pacer = TargetPacer(
        options.target or options.job,
        redis=options.redis if options.target else None,
        name=options.job,
        budget=options.budget,
        spend_max=options.spend_max,
        weight=options.weight,
        leave=options.leave,
    )
    delivery, target = Delivery(plan, where, pacer), options.target or options.job
    redis = options.redis if options.target else None
    place = "stream", piece.partition  # a batch goes on where the one before it ended
    with showing_part(redis, options.job, target, place, delivery.tally):
        delivery.run(record.value for record in records)
    return made


def _as_read(piece: Piece) -> dict[str, list[str]]:
    """Return the records of ``piece`` themselves: see :data:`RECORDS_SCHEMA`."""
    records = piece.records
    return {
        "partition": [piece.partition] * len(records),
        "position": [show(record.position) for record in records],
        "value": [_text(record.value) for record in records],
    }


def _tabled(process: Callable[[Batch], Any], table: Callable[[Any], Any]) -> Callable[[Batch], Any]:
    """Return a function that calls ``process`` and returns a table of its rows."""
    if is_async(process):

        async def awaited(batch: Batch) -> Any:
            with _all_again():
                made = await process(batch)
            return table(made)

        return awaited

    def plain(batch: Batch) -> Any:
        with _all_again():
            made = process(batch)
        return table(made)

    return plain


@contextmanager
def _all_again() -> Iterator[None]:
    """Turn a partial refusal (``again=``) into one of all records, as with a bolt.

    The call has returned no rows for the accepted part, and these would be missing.
    """
    try:
        yield
    except RetryLater as refused:
        if refused.again is None:
            raise
        raise RetryLater(refused.problem, after_s=refused.after_s) from refused


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return json.dumps(value, default=str)
