"""What a task of a stream does: process a chunk, then give its rows out as Arrow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flowctl.adapters import load_adapter
from flowctl.bolts.batch import Batch
from flowctl.bolts.callables import is_async
from flowctl.core.positions import show
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.pacers import TargetPacer
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.reading import Piece
from flowctl.errors import UnrunnableError
from pyspark_flowctl.options import named_object
from pyspark_flowctl.stream_options import StreamOptions

# What a stream without process gives out.
RECORDS_SCHEMA = "partition string, position string, value string"
_BATCH_ROWS = 10_000  # Spark's own size of an Arrow batch


def rows_out(options: StreamOptions, schema: str, pieces: Iterable[Piece]) -> Iterator[Any]:
    """Yield the rows of ``pieces`` as ``pyarrow.RecordBatch``; ``schema`` is Spark's, as JSON.

    All records are processed before the first row goes out: Spark may stop reading early, and a row
    that was given out stands for a record that is done.
    """
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType, _parse_datatype_json_string

    kind = _parse_datatype_json_string(schema)
    assert isinstance(kind, StructType)
    names = kind.fieldNames()
    arrow = to_arrow_schema(kind)
    rows = [row for piece in pieces for row in _rows_of(options, piece)]
    for at in range(0, len(rows), _BATCH_ROWS):
        dicts = [_as_dict(row, names) for row in rows[at : at + _BATCH_ROWS]]
        yield pyarrow.RecordBatch.from_pylist(dicts, schema=arrow)


def _rows_of(options: StreamOptions, piece: Piece) -> Sequence[Any]:
    if not options.process:
        return [(piece.partition, show(r.position), _text(r.value)) for r in piece.records]
    made: list[Any] = []
    records = piece.records
    plan = Plan(
        process=_collecting(named_object("process", options.process, "a function"), made),
        attempts_max=options.attempts_max,
        dead_letter=dead_letter_of(options.dead_letter),
        fail_over=options.fail_over or None,
        at_end=False,
    )
    where = Where(options.job, piece.partition, place=lambda number: records[number].position)
    # Without a target no limit is shared, and what refuses is waited for.
    redis = options.redis if options.target else ""
    pacer = TargetPacer(options.target or options.job, redis=redis or None, job=options.job)
    Delivery(plan, where, pacer).run(record.value for record in records)
    return made


def _collecting(process: Callable[[Batch], Any], made: list[Any]) -> Callable[[Batch], Any]:
    """Return ``process`` as one that keeps the rows that it returns."""

    def keep(rows: Any) -> None:
        if rows is None:
            return
        if isinstance(rows, str | bytes | dict) or not isinstance(rows, Iterable):
            raise UnrunnableError(
                "process",
                f"returned {type(rows).__name__}, which is not a list of rows.",
                remedy="Return a list of tuples or dicts, or None for no rows.",
            )
        made.extend(rows)

    if is_async(process):

        async def awaited(batch: Batch) -> None:
            keep(await process(batch))

        return awaited

    def plain(batch: Batch) -> None:
        keep(process(batch))

    return plain


def _as_dict(row: Any, names: Sequence[str]) -> dict[str, Any]:
    convert = getattr(row, "asDict", None)
    if convert is not None:
        made: dict[str, Any] = convert()
        return made
    if isinstance(row, dict):
        return row
    if not isinstance(row, tuple | list) or len(row) != len(names):
        raise UnrunnableError(
            "process",
            f"returned the row {row!r}, which does not have the columns {', '.join(names)}.",
            remedy="Return tuples in the order of the schema, or dicts.",
        )
    return dict(zip(names, row, strict=True))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return json.dumps(value, default=str)


def dead_letter_of(directory: str) -> Any:
    """Return where letters are kept; None without a directory."""
    return load_adapter("flowctl_files", "files").FileDeadLetter(directory) if directory else None
