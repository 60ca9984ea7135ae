"""The work of one partition of a paced write, on its worker."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any

import msgspec

from flowctl.adapters import dead_letter_of
from flowctl.bolts.batch import Batch
from flowctl.core.letters import Letter, redrive_partition
from flowctl.core.records import ColumnRecords, Record
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.options import PACING
from flowctl.delivery.pacers import Pacer, RowTargets, TargetPacer, showing_part
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.sections import ColumnSections, Numbered, Sections, section_of
from flowctl.delivery.tally import Tally
from flowctl.errors import UnrunnableError
from flowctl.logs import ModuleLogger
from flowctl.pacing.budgets import Budget
from flowctl.pacing.target_settings import Limits
from flowctl.ports import RedrivableDeadLetter
from pyspark_flowctl.arrow_rows import ArrowRows, check_names, letter_row, plain_row, row_of
from pyspark_flowctl.outcome import install_remedy

# -- Letters of earlier runs that ``flowctl dlq redrive`` has marked: written before new rows --
#
# Each redrive is a partition of its own, with positions of its own, so a sink that knows rows by
# their span takes a letter once, however often Spark runs the task.


_log = ModuleLogger("pyspark_flowctl")


def tell_unnamed(plan: Plan, target: str) -> None:
    """Warn of waiting letters: they may be another job's, as unnamed jobs share a target's name."""
    if isinstance(plan.dead_letter, RedrivableDeadLetter) and plan.dead_letter.to_redrive(target):
        _log.warning(
            "letters_wait",
            target=target,
            remedy="They are marked for redrive, but may be another job's rows: give each job that"
            " calls this target a name=.",
        )


def redrive(
    plan: Plan, job: str, pacer: Pacer, schema: str | None, others: Iterable[Any] = ()
) -> Tally:
    """Write the marked letters of ``job``; return the counts.

    A letter that fails again is kept.  ``schema`` is Spark's, as JSON; None if unknown.  Where the
    ``others`` are columns, letters are columns of the same types.  Raises the errors of
    :meth:`Delivery.run`, and ``OSError``: then the letters stay marked.
    """
    total = Tally()
    port = plan.dead_letter
    if not isinstance(port, RedrivableDeadLetter):
        return total
    # Their losses were counted when they became letters, and several bad ones in a row are likely.
    own = msgspec.structs.replace(plan, fail_over=None, gave_up_in_a_row_max=inf)
    kind = None if schema is None else _struct(schema)
    for number, letters in _by_redrive(port, job).items():
        places = sorted(letters)
        where = Where(job, redrive_partition(number), place=places.__getitem__)
        rows = (row_of(letters[place].value, kind) for place in places)
        given = _Letters(rows, others) if isinstance(others, ArrowRows) else rows
        total.add(Delivery(own, where, pacer).run(given))
        port.on_redriven(job, list(letters.values()))
    return total


class _Letters:
    """Letters as columns like those of ``source``; as Rows where they have other columns."""

    def __init__(self, rows: Iterator[Any], source: ArrowRows) -> None:
        self._rows = enumerate(rows)
        self._source = source

    def take(self, most: int, place: Callable[[int], Any]) -> Sequence[Record]:
        """Return the next letters, as :class:`flowctl.delivery.sections.Taken` has it."""
        taken = list(islice(self._rows, most))
        if not taken or (columns := self._source.columns([row for _, row in taken])) is None:
            return [Record(place(number), row) for number, row in taken]
        first = taken[0][0]
        return ColumnRecords(
            columns, range(len(taken)), lambda row: place(first + row), self._source.rows
        )


def _by_redrive(port: RedrivableDeadLetter, job: str) -> Mapping[int, dict[int, Letter]]:
    found: dict[int, dict[int, Letter]] = {}
    for letter in port.to_redrive(job):
        if letter.redrive is not None:
            number, position = letter.redrive
            found.setdefault(number, {})[position] = letter
    return dict(sorted(found.items()))


def _struct(schema: str) -> Any:
    from pyspark.sql.types import _parse_datatype_json_string

    return _parse_datatype_json_string(schema)


# -- What a partition of a paced write does on its worker --------------------------------------


class SinkTask(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a partition needs, picklable.

    ``is_named`` tells that the user gave the job's name; otherwise it is the target's.

    ``target`` is the job's name where each row names its own.

    ``parts`` are pickles of what users gave: ``fn`` or ``sink``, ``refusal``, ``cost``,
    ``dead_letter``, ``target`` if it is a function; those not given are absent.
    """

    target: str
    job: str
    is_named: bool
    redis: str | None
    rows_max: int
    bytes_max: int | None
    call_max_s: float
    call_timeout_s: float | None
    calls: int
    attempts_max: int
    fail_over: str | None
    weight: float
    leave: float
    budget: Budget | None
    spend_max: str | float | None
    limits: Limits | None
    parts: dict[str, bytes]


# Batches that Spark keeps in its checkpoint, and by which it may be set back
# (spark.sql.streaming.minBatchesToRetain).
BATCHES_TOLD_APART = 100


class Origin(msgspec.Struct, frozen=True):
    """The origin of rows: the beginning of a partition's name, and the batch of a stream.

    With ``by_stage`` the name is unique for each action, as Spark numbers stages.
    """

    name: str
    by_stage: bool = False
    batch_id: int | None = None

    def sections(self, rows: Iterable[Any]) -> Sections | ColumnSections:
        """Return the rows of this task's partition as named sections.

        A datetime that all rows share, such as the time of the run, may differ in another run of
        the job, but not in another attempt of a task.
        """
        passing = not self.by_stage
        if isinstance(rows, ArrowRows):
            return ColumnSections(rows, rows.rows, passing_moments=passing)
        return Sections(rows, passing_moments=passing)

    def partition(self) -> str:
        """Return the name of this task's partition."""
        return f"{self._stage()}/{_partition_id()}"

    def action(self) -> str:
        """Return what all partitions of this write, or of this batch, have in common."""
        return self._stage() if self.batch_id is None else f"{self._stage()}/{self.batch_id}"

    def _stage(self) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        stage = f"/{context.stageId()}" if self.by_stage and context is not None else ""
        return f"{self.name}{stage}"

    def where(self, job: str, sections: Numbered) -> Where:
        """Return the place of this task's rows, which are those of ``sections``."""
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        batch = () if self.batch_id is None else (self.batch_id,)
        # Batches come in order, but Spark's checkpoint may be set back by a few.
        oldest = () if self.batch_id is None else (self.batch_id - BATCHES_TOLD_APART,)
        return Where(
            job,
            self.partition(),
            attempt + 1,
            place=lambda number: (*batch, *sections.place(number)),
            rest=sections.rest,
            section_of=section_of,
            before=(*oldest, -1),
        )


def _partition_id() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def deliver(
    task: SinkTask,
    origin: Origin,
    rows: Iterable[Any],
    *,
    at_end: bool,
    schema: str | None = None,
) -> Tally:
    """Deliver ``rows``, log their counts in one line, and return the counts.

    Those of an :class:`ArrowRows` stay columns until somebody asks for a row.
    Partition 0 first writes the letters that ``flowctl dlq redrive`` has marked.  With ``at_end`` a
    share in ``fail_over`` applies to this partition; otherwise the driver applies it to all.
    ``schema`` is the rows' schema, as Spark's JSON, if known.
    """
    parts = {name: loaded(name, part) for name, part in task.parts.items()}
    sink = parts.get("sink")
    plan = _plan(task, parts, rows, at_end=at_end)
    sections = origin.sections(rows)
    where = origin.where(task.job, sections)
    pacer = TargetPacer(task.target, classify=plan.refusal, **_pacing(task))
    delivery = Delivery(plan, where, pacer)
    place = origin.action(), str(_partition_id())
    try:
        with showing_part(task.redis, task.job, task.target, place, delivery.tally):
            if _partition_id() == 0 and task.is_named:
                delivery.tally.redriven = redrive(plan, task.job, pacer, schema, rows).written
            elif _partition_id() == 0:
                tell_unnamed(plan, task.job)
            delivery.run(sections)
    except BaseException as error:
        _tell("partition_failed", task, where, delivery.tally, error=f"{type(error).__name__}")
        raise
    finally:
        if sink is not None and callable(close := getattr(sink, "close", None)):
            close()
    _tell("partition_delivered", task, where, delivery.tally)
    return delivery.tally


def loaded(name: str, part: bytes) -> Any:
    """Return what the user gave as ``name``; raises :class:`UnrunnableError` without its module."""
    try:
        return pickle.loads(part)
    except ImportError as error:
        raise UnrunnableError(
            name,
            f"it needs the module {error.name!r}, which {socket.gethostname()} does not have"
            f" ({error}).",
            remedy=install_remedy(error.name or ""),
        ) from error


def _pacing(task: SinkTask) -> dict[str, Any]:
    return {"redis": task.redis, "name": task.job, **{one: getattr(task, one) for one in PACING}}


def _plan(task: SinkTask, parts: dict[str, Any], rows: Iterable[Any], *, at_end: bool) -> Plan:
    sink = parts.get("sink")
    return Plan(
        process=parts["fn"] if sink is None else _into(sink, rows),
        rows_max=task.rows_max,
        bytes_max=task.bytes_max,
        call_max_s=task.call_max_s,
        call_timeout_s=task.call_timeout_s,
        calls=task.calls,
        attempts_max=task.attempts_max,
        refusal=parts.get("refusal"),
        dead_letter=dead_letter_of(parts.get("dead_letter")),
        fail_over=task.fail_over,
        cost=parts.get("cost"),
        letter_value=letter_row,
        at_end=at_end,
        release=getattr(sink, "release", None),
        target=RowTargets(parts["target"], **_pacing(task)) if "target" in parts else None,
    )


def _tell(event: str, task: SinkTask, where: Where, tally: Tally, **more: Any) -> None:
    log = _log.warning if more else _log.info
    log(event, target=task.target, partition=where.partition, **tally.fields(), **more)


def _into(sink: Any, rows: Iterable[Any]) -> Callable[[Batch], None]:
    """Return a function that writes a batch into ``sink``, as what it takes."""
    takes_arrow, takes_columns = (
        getattr(sink, name, False) for name in ("takes_arrow", "takes_columns")
    )
    dicts = rows.dicts if isinstance(rows, ArrowRows) else None

    def write(batch: Batch) -> None:
        if dicts is None or not batch.has_columns:  # letters of earlier runs
            given: Any = list(map(plain_row, batch.values))
        elif takes_arrow:
            given = batch.to_arrow()
            check_names(given.schema.names)
        else:
            given = dicts(batch.to_arrow())
            given = given if takes_columns else list(given)
        sink.write(given, batch=batch)

    return write
