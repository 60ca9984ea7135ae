"""The same error has the same end behind every door: a table *error x door*.

The kind of defect: each door came with a classifier of its own, and they disagreed.  An outage that
a spout survives cost ``flow_sink`` good rows; a dead token made letters of good rows behind one
door and ended the run behind another.

All in this process, without Spark: bolts are threads, and what a partition does on its worker is
called directly.  Where doors differ, docs/guarantees.md says so ("The same error, behind any
door").
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
import pyarrow
import pyarrow.parquet
import pymysql
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row
from pyspark.sql.types import LongType, StructType

from flowctl import FlowControlSpout, LocalBolts, Settings, paced
from flowctl.bolts.batch import Batch
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, Record
from flowctl.delivery.offset_reader import Piece
from flowctl.errors import UnrunnableError
from flowctl.pacing.gates import close_gates
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_apply import apply_parquet
from flowctl_files import FileDeadLetter
from flowctl_storm import Batched, Collector, Input, LocalStages, Topology
from pyspark_flowctl import flow_sink
from pyspark_flowctl.sink_task import Origin, deliver
from pyspark_flowctl.stream_options import StreamOptions
from pyspark_flowctl.stream_task import rows_out
from tests.range_parts import NumberReader
from tests.topology_driver import Numbers

ROWS, BAD = 12, 7
NAMES = itertools.count()
SETTINGS: dict[str, Any] = {"retry.backoff_first_s": 0.001, "checkpoint.interval_s": 0.05}


class Work:
    """What the job's author gives: takes numbers from 1 on, or raises ``error``.

    ``when``: "once" at the first call, for the "bad" row, or "always".  Thread-safe.
    """

    def __init__(self, error: BaseException, when: str) -> None:
        self.error = error
        self.when = when
        self.calls = 0
        self.taken: Counter[int] = Counter()
        self._lock = threading.Lock()

    def take(self, numbers: list[int]) -> None:
        with self._lock:
            self.calls += 1
            if self.when == "always" or (self.when == "once" and self.calls == 1):
                raise self.error
            if self.when == "bad" and BAD in numbers:
                raise self.error
            self.taken.update(numbers)


class Outcome(NamedTuple):
    """``letters``: the numbers kept, with the reasons; ``refused`` and ``failed`` count calls.

    None: this door has no such count.
    """

    error: BaseException | None
    letters: dict[int, str]
    refused: int | None = None
    failed: int | None = None


current: Work | None = None  # found by its name: flow_sink and streams pickle what they get


def call(batch: Batch) -> None:
    """Take the rows of ``batch``, of any door."""
    assert current is not None
    current.take([_number(record.value) for record in batch])


def call_for_rows(batch: Batch) -> list[tuple[int]]:
    """As :func:`call`, and give the rows out."""
    call(batch)
    return [(_number(record.value),) for record in batch]


def _number(value: Any) -> int:
    if isinstance(value, str):
        return int(value.removeprefix("n"))
    return int(value) if isinstance(value, int) else int(value["n"])


def letters_in(place: Path, job: str) -> dict[int, str]:
    kept = FileDeadLetter(place).file_of(job).read().of(job)
    return {_number(letter.value): letter.reason for letter in kept}


def ended(run: Callable[[], Any]) -> tuple[BaseException | None, Any]:
    try:
        return None, run()
    except Exception as error:
        return error, getattr(error, "report", None)


class FromOne:
    """Numbers from 1 by reference: a RangeProducer."""

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        return {"p": Extent(1, ROWS + 1, size_bytes=8 * ROWS)}

    def reader(self) -> NumberReader:
        return NumberReader()

    def close(self) -> None:
        pass


def _spout(producer: Any, job: str, place: Path, attempts_max: int) -> Outcome:
    settings = Settings().with_overrides({**SETTINGS, "retry.attempts_max": attempts_max})
    spout = FlowControlSpout(
        name=job,
        producer=producer,
        bolts=LocalBolts(call, count=1),
        checkpoint=MemoryCheckpointStore(),
        settings=settings,
        dead_letter=FileDeadLetter(place),
    )
    error, report = ended(lambda: spout.run(view="off"))
    return Outcome(error, letters_in(place, job), report.calls_refused, report.tuples_failed)


def by_value(job: str, place: Path, attempts_max: int) -> Outcome:
    return _spout(Numbers(ROWS), job, place, attempts_max)


def by_reference(job: str, place: Path, attempts_max: int) -> Outcome:
    return _spout(FromOne(), job, place, attempts_max)


def in_a_topology(job: str, place: Path, attempts_max: int) -> Outcome:
    def execute(given: Input, out: Collector) -> None:
        assert current is not None
        current.take([given.value])

    return _stage(execute, job, place, attempts_max)


def in_a_batched_stage(job: str, place: Path, attempts_max: int) -> Outcome:
    def execute(inputs: Sequence[Input], out: Collector) -> None:
        assert current is not None
        current.take([given.value for given in inputs])

    return _stage(Batched(execute), job, place, attempts_max)


def _stage(execute: Any, job: str, place: Path, attempts_max: int) -> Outcome:
    made = Topology(job)
    made.spout("s", Numbers(ROWS))
    made.bolt("work", execute).shuffle("s")
    settings = Settings().with_overrides({**SETTINGS, "retry.attempts_max": attempts_max})
    error, report = ended(
        lambda: made.run(
            LocalStages(),
            checkpoint=MemoryCheckpointStore(),
            settings=settings,
            dead_letter=FileDeadLetter(place),
            view="off",
        )
    )
    return Outcome(error, letters_in(place, job), report.calls_refused)


def _task(job: str, place: Path, attempts_max: int) -> Any:
    return flow_sink(call, target=job, name=job, dead_letter=str(place), attempts_max=attempts_max)


def in_flow_sink(job: str, place: Path, attempts_max: int) -> Outcome:
    rows = [Row(n=number) for number in range(1, ROWS + 1)]
    task = _task(job, place, attempts_max).task
    error, tally = ended(lambda: deliver(task, Origin("run"), rows, at_end=True))
    counts = (None, None) if tally is None else (tally.refused, tally.failed)
    return Outcome(error, letters_in(place, job), *counts)


def in_flow_batch(job: str, place: Path, attempts_max: int) -> Outcome:
    rows = [Row(n=number) for number in range(1, ROWS + 1)]
    task = _task(job, place, attempts_max).task
    origin = Origin("query", batch_id=3)
    error, tally = ended(lambda: deliver(task, origin, rows, at_end=False))
    counts = (None, None) if tally is None else (tally.refused, tally.failed)
    return Outcome(error, letters_in(place, job), *counts)


def in_a_stream(job: str, place: Path, attempts_max: int) -> Outcome:
    options = StreamOptions.of(
        {
            "producer": "tests.stream_parts:Numbers",
            "process": f"{__name__}:call_for_rows",
            "name": job,
            "dead_letter": str(place),
            "attempts_max": str(attempts_max),
        }
    )
    pieces = [Piece("n", [Record(number, number) for number in range(1, ROWS + 1)])]
    schema = StructType().add("n", LongType()).json()
    error, _ = ended(lambda: list(rows_out(options, schema, pieces)))
    return Outcome(error, letters_in(place, job))


def in_apply(job: str, place: Path, attempts_max: int) -> Outcome:
    table = pyarrow.table({"n": list(range(1, ROWS + 1))})
    pyarrow.parquet.write_table(table, place / "in.parquet")
    settings = Settings().with_overrides({**SETTINGS, "retry.attempts_max": attempts_max})
    schema = pyarrow.schema([("n", pyarrow.int64())])
    error, made = ended(
        lambda: apply_parquet(
            place / "in.parquet",
            call_for_rows,
            schema=schema,
            name=job,
            out=place / "out",
            bolts=1,
            settings=settings,
            dead_letter=FileDeadLetter(place),
            view="off",
        )
    )
    report = made if error is not None else made.report
    return Outcome(error, letters_in(place, job), report.calls_refused, report.tuples_failed)


DOORS = {
    "spout by value": by_value,
    "ranges": by_reference,
    "topology": in_a_topology,
    "batched stage": in_a_batched_stage,
    "flow_sink": in_flow_sink,
    "flow_batch": in_flow_batch,
    "stream": in_a_stream,
    "apply": in_apply,
}


def http(status: int, body: str = "", **headers: str) -> BaseException:
    request = httpx.Request("POST", "http://service/rows")
    response = httpx.Response(status, headers=headers, text=body, request=request)
    return httpx.HTTPStatusError(f"HTTP {status}", request=request, response=response)


# Made anew for each test: an error keeps its traceback and its context.
Errors = dict[str, Callable[[], BaseException]]
REFUSALS: Errors = {
    "429": lambda: http(429, **{"Retry-After": "0"}),
    "overloaded": lambda: http(529, **{"Retry-After": "0"}),
    "deadlock": lambda: psycopg.errors.DeadlockDetected("x"),
    "lock": lambda: pymysql.err.OperationalError(1205, "x"),
}
NOT_ALLOWED: Errors = {
    "401": lambda: http(401, "expired"),
    "403": lambda: http(403),
    "role": lambda: psycopg.errors.InvalidPassword("x"),
    "database": lambda: pymysql.err.OperationalError(1049, "Unknown database"),
}
ROWS_FAULT: Errors = {
    "422": lambda: http(422, "field a is missing"),
    "unique": lambda: psycopg.errors.UniqueViolation("twice"),
    "value": lambda: ValueError("bad line"),
    "500": lambda: http(500, "boom"),
}


@pytest.fixture
def job() -> Iterator[str]:
    yield f"doors-{next(NAMES)}"
    close_gates()


def work(error: BaseException, when: str) -> Work:
    """Return what every door calls from now on."""
    global current
    current = Work(error, when)
    return current


def cells(errors: Errors) -> Any:
    pairs = [(door, error) for door in DOORS for error in errors]
    return pytest.mark.parametrize(("door", "error"), pairs)


@cells(REFUSALS)
def test_a_refusal_costs_no_attempt_and_no_row(
    door: str, error: str, job: str, tmp_path: Path
) -> None:
    doing = work(REFUSALS[error](), "once")
    outcome = DOORS[door](job, tmp_path, 1)
    assert (outcome.error, outcome.letters) == (None, {})
    assert doing.taken == Counter(range(1, ROWS + 1)), "each row once"
    assert outcome.refused in (1, None) and outcome.failed in (0, 1, None)


@cells(NOT_ALLOWED)
def test_what_is_not_allowed_ends_at_once_and_says_so(
    door: str, error: str, job: str, tmp_path: Path
) -> None:
    doing = work(NOT_ALLOWED[error](), "always")
    outcome = DOORS[door](job, tmp_path, 5)
    assert isinstance(outcome.error, UnrunnableError)
    assert "does not allow it" in str(outcome.error) and "No record is to blame" in str(
        outcome.error
    )
    assert (doing.calls, outcome.letters) == (1, {})


@cells(ROWS_FAULT)
def test_a_row_that_can_not_be_taken_is_a_letter_and_the_others_are_done(
    door: str, error: str, job: str, tmp_path: Path
) -> None:
    doing = work(ROWS_FAULT[error](), "bad")
    outcome = DOORS[door](job, tmp_path, 2)
    assert outcome.error is None
    assert list(outcome.letters) == [BAD]
    assert doing.taken == Counter(n for n in range(1, ROWS + 1) if n != BAD)
    shown = doing.error
    said = shown.response.text if isinstance(shown, httpx.HTTPStatusError) else str(shown)
    assert said in outcome.letters[BAD]


@pytest.mark.parametrize("door", DOORS)
def test_a_fault_that_passes_costs_an_attempt_and_no_row(
    door: str, job: str, tmp_path: Path
) -> None:
    doing = work(http(500), "once")
    outcome = DOORS[door](job, tmp_path, 3)
    assert (outcome.error, outcome.letters) == (None, {})
    assert doing.taken == Counter(range(1, ROWS + 1))
    assert outcome.failed in (1, None)


@pytest.mark.parametrize("error", [*REFUSALS, *NOT_ALLOWED, *ROWS_FAULT])
def test_paced_calls_again_after_a_refusal_and_raises_anything_else_at_once(
    error: str, job: str
) -> None:
    """It has no rows: what the caller gets is the client's own error."""
    raised = {**REFUSALS, **NOT_ALLOWED, **ROWS_FAULT}[error]()
    doing = work(raised, "once")

    def run() -> None:
        with paced(job) as permit:
            permit.run(doing.take, [1])

    if error in REFUSALS:
        run()
        assert (doing.calls, doing.taken) == (2, Counter([1]))
    else:
        with pytest.raises(type(raised)) as caught:
            run()
        assert caught.value is raised
        assert doing.calls == 1
