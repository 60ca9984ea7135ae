"""The answers of a batch API: files by row, written by the driver and read on the workers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from flowctl.batch_ports import BatchService
from flowctl.bolts.batch import Batch
from flowctl.errors import ConfigError, InternalError
from flowctl_apply._places import Place
from flowctl_apply._row_writer import encoded
from flowctl_apply._rows import arrow

# A file of answers [bytes]: a worker holds a few of them, and an object store answers in .1 s.
FILE_BYTES: Final = 8 << 20
# Files that a worker keeps: batches of rows follow each other, and rows may have been asked twice.
_KEPT: Final = 4


class AnswerFile(msgspec.Struct, frozen=True):
    """A file of answers to rows of a partition; ``[start, stop)`` has all of them."""

    partition: str
    start: int
    stop: int
    file: str


class Kept(NamedTuple):
    """What is kept of a row: its answer (None: it has no request), or why there will be none."""

    partition: str
    position: int
    body: bytes | None
    error: str | None


def write_answers(place: Place, prefix: str, rows: Iterable[Kept]) -> list[AnswerFile]:
    """Write ``rows``, which are in order, as files whose names begin with ``prefix``."""
    written: list[AnswerFile] = []
    held: list[Kept] = []
    size = 0

    def flush() -> None:
        name = f"{prefix}-{len(written)}.parquet"
        place.put(name, _table(held))
        first, last = held[0], held[-1]
        written.append(AnswerFile(first.partition, first.position, last.position + 1, name))
        held.clear()

    for row in rows:
        if held and (size >= FILE_BYTES or row.partition != held[0].partition):
            flush()
            size = 0
        held.append(row)
        size += len(row.body or b"") + len(row.error or "")
    if held:
        flush()
    return written


def _table(rows: Sequence[Kept]) -> bytes:
    pyarrow = arrow()
    return encoded(
        pyarrow.table({
            "position": pyarrow.array([row.position for row in rows], pyarrow.int64()),
            "body": pyarrow.array([row.body for row in rows], pyarrow.binary()),
            "error": pyarrow.array([row.error for row in rows], pyarrow.string()),
        })
    )  # fmt: skip


def stand_in(service: BatchService, form: str | None) -> Callable[[Batch], Any]:
    """Return a function of rows by which a job with ``service`` is known: by what it asks."""
    if form not in (None, "records"):
        raise ConfigError(
            "form", "is about functions; a batch API gets rows one by one.", remedy="Leave it out."
        )
    asked: dict[str, Any] = {
        "request": service.request,
        "result": service.result,
        "service": repr(service),
    }
    return functools.partial(_unasked, **asked)


def _unasked(batch: Batch, **asked: Any) -> NoReturn:
    del batch, asked
    raise InternalError("rows were processed before a batch API had answered.")


class Answered:
    """A function of rows: gives what ``result`` makes of each row and its answer.

    A row without an answer is rejected, with the reason.  Threads may share it; it can be pickled.
    """

    def __init__(
        self, result: Callable[[Any, Any], Any], place: Place, files: Sequence[AnswerFile]
    ) -> None:
        self.__wrapped__ = result  # so that its module travels to the workers
        self._place = place
        self._files: dict[str, list[AnswerFile]] = {}
        for file in files:
            self._files.setdefault(file.partition, []).append(file)
        self._read: dict[str, dict[int, tuple[bytes | None, str | None]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": {}}

    def __call__(self, batch: Batch) -> list[Any]:
        """Return the rows of ``batch``."""
        answers = self._answers_of(batch)
        rows: list[Any] = []
        for index, record in enumerate(batch):
            body, error = answers[record.position]
            if error is not None:
                batch.reject(index, error)
            elif body is not None:
                made = self.__wrapped__(record.value, msgspec.json.decode(body))
                rows.extend(made if isinstance(made, list) else [] if made is None else [made])
        return rows

    def _answers_of(self, batch: Batch) -> dict[Any, tuple[bytes | None, str | None]]:
        first, last = batch[0].position, batch[-1].position
        assert isinstance(first, int) and isinstance(last, int)
        found: dict[Any, tuple[bytes | None, str | None]] = {}
        for file in self._files.get(batch.span.partition, ()):
            if file.start <= last and first < file.stop:
                found |= self._content(file.file)
        if missing := [record.position for record in batch if record.position not in found]:
            raise InternalError(
                f"{batch.span.partition}: row {missing[0]} has no answer, though all were asked."
            )
        return found

    def _content(self, file: str) -> dict[int, tuple[bytes | None, str | None]]:
        read = self._read.get(file)
        if read is None:
            parquet, pyarrow = importlib.import_module("pyarrow.parquet"), arrow()
            table = parquet.read_table(pyarrow.BufferReader(self._place.get(file)))
            position, body, error = (table[name].to_pylist() for name in table.column_names)
            read = dict(zip(position, zip(body, error, strict=True), strict=True))
            # Replaced as a whole: other threads may be reading it.
            self._read = {**dict(list(self._read.items())[1 - _KEPT :]), file: read}
        return read
