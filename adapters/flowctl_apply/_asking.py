"""Ask a batch API about the rows of a job: few large batches, each submitted once.

The driver alone does it, before the bolts begin: no slot waits for hours.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from flowctl.batch_ports import Answer, BatchService, BatchState
from flowctl.checksums import with_crc
from flowctl.core.rangeset import RangeSet
from flowctl.delivery.pacers import RowTargets
from flowctl.errors import (
    ConfigError,
    FlowctlError,
    JobError,
    RetryLater,
    TargetDownError,
    UnrunnableError,
)
from flowctl.failure.classify import meaning_of
from flowctl.failure.kinds import Kind
from flowctl.pacing.api import paced
from flowctl.runtime.launch import view_of
from flowctl.runtime.receipts import coverage, missing
from flowctl_apply._answers import Answered, AnswerFile, Kept, write_answers
from flowctl_apply._results import BATCHES, VERSION, Results, decoded

if TYPE_CHECKING:
    from flowctl.core.ranges.extent import Extent
    from flowctl.pacing.api import Paced
    from flowctl.range_ports import RangeProducer, RangeReader
    from flowctl.runtime.receipt_store import ReceiptStore
    from flowctl_apply._job import Job

# -- What was asked: a note for each batch, and which rows are still to be asked ----------------
#
# The notes are files beside the job's own.  A batch is noted before it is submitted, so that a
# submit whose answer was lost is looked for and not repeated.  All decisions follow from them.

Span: TypeAlias = tuple[str, int, int]
"""A partition and its rows from the second number up to before the third."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A batch: ``spans`` are its rows, in order; the number of a row there is the end of its key.

    ``attempt`` is 1 where rows are asked for the first time.  ``unasked`` says of rows that have no
    request why ("": the job's function made none).  ``at_s`` is when it was noted (Unix time), just
    before it is submitted for the first time.  ``id`` is the service's, once known.  ``answers``
    are known once it was read back, and so is which rows are to be asked ``again``.
    """

    mark: str
    attempt: int
    spans: list[Span]
    requests: int
    at_s: float
    unasked: dict[int, str] = {}
    id: str = ""
    answers: list[AnswerFile] | None = None
    again: list[Span] = []
    version: int = VERSION

    @property
    def is_open(self) -> bool:
        """Whether it was not read back yet."""
        return self.answers is None

    def rows(self) -> Iterator[tuple[str, int]]:
        """Yield partition and position of each of its rows, in order."""
        for partition, start, stop in self.spans:
            for position in range(start, stop):
                yield partition, position


class Wanted(NamedTuple):
    """Rows to ask, all for the ``attempt``-th time."""

    attempt: int
    spans: list[Span]


def wanted(fresh: Sequence[Span], pieces: Iterable[Piece]) -> Wanted | None:
    """Return which rows to ask next: of ``fresh`` rows those in no piece, then those to ask again.

    None: all are in a piece whose answer is awaited, or have an answer.
    """
    known = list(pieces)
    spans: list[Span] = list(fresh)
    for attempt in range(1, 2 + max((piece.attempt for piece in known), default=0)):
        now = [piece for piece in known if piece.attempt == attempt]
        if left := _without(spans, (span for piece in now for span in piece.spans)):
            return Wanted(attempt, left)
        spans = [span for piece in now for span in piece.again]
    return None


def accepted(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that count, of notes that several drivers may have written.

    A driver that was replaced may leave the note of a batch that it did not submit, for rows that
    its successor asked: a note without an id counts only if no other has any of its rows.
    """
    kept: list[Piece] = []
    for piece in sorted(pieces, key=lambda one: (not one.id and one.is_open, one.at_s, one.mark)):
        asked = (span for one in kept if one.attempt == piece.attempt for span in one.spans)
        if _without(piece.spans, asked) == merged(piece.spans):
            kept.append(piece)
    return kept


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, with those joined that touch."""
    return [
        (partition, start, stop)
        for partition, found in sorted(_sets(spans).items())
        for start, stop in found
    ]


def _without(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    covered = _sets(others)
    return [
        gap
        for partition, start, stop in merged(spans)
        for gap in missing({partition: (start, stop)}, covered)
    ]


def _sets(spans: Iterable[Span]) -> Mapping[str, RangeSet]:
    found: dict[str, RangeSet] = {}
    for partition, start, stop in spans:
        found.setdefault(partition, RangeSet()).add(start, stop)
    return found


class Notes:
    """The notes of one job.  For one thread."""

    def __init__(self, results: Results) -> None:
        self.place = results.place
        self.directory: str = f"{results.directory}/{BATCHES}"

    def pieces(self) -> list[Piece]:
        """Return the pieces that count."""
        names = [file.name for file in self.place.names(self.directory)]
        found = [self._read(name) for name in names if name.endswith(".json")]
        return accepted(found)

    def keep(self, piece: Piece) -> None:
        """Write the note, in place of an earlier one of this piece."""
        name = self._name(piece)
        self.place.put(name, with_crc(name, msgspec.json.format(msgspec.json.encode(piece))))

    def drop(self, piece: Piece) -> None:
        """Remove the note: nothing was done for the piece."""
        self.place.delete([self._name(piece)])

    def _name(self, piece: Piece) -> str:
        return f"{self.directory}/{piece.mark}.json"

    def _read(self, name: str) -> Piece:
        return decoded(name, self.place.get(name), Piece, where=self.place.url)


# -- Asking ------------------------------------------------------------------------------------

_T = TypeVar("_T")

_MARK_BYTES: Final = 8  # random, so that no two batches share it
_REASON_CHARS_MAX: Final = 500
# Beyond a gap of so many rows the file is opened again: skipping a row group costs less.
_GAP_ROWS: Final = 10_000


class Source(NamedTuple):
    """The rows: ``reader`` reads the partitions of ``extents``."""

    reader: RangeReader
    extents: Mapping[str, Extent]


class Means(NamedTuple):
    """What the driver lends: its ``paced`` limit for calls, ``check_owner``, and ``tell``.

    ``check_owner`` raises if another driver has taken the job over; ``tell`` shows a line.  A row
    is asked at most ``attempts_max`` times.
    """

    paced: Paced
    check_owner: Callable[[], None]
    tell: Callable[[str], None]
    attempts_max: int
    wait: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time


class Asking:
    """Asks ``service`` about rows of ``source``, and keeps the answers.  For one thread."""

    def __init__(self, service: BatchService, source: Source, notes: Notes, means: Means) -> None:
        self._service = service
        self._source = source
        self._notes = notes
        self._means = means
        self._pieces: dict[str, Piece] = {}
        self._has_room = True  # as far as the service has said
        self._stop: UnrunnableError | None = None  # no more batches: why

    def run(self, fresh: list[Span]) -> list[AnswerFile]:
        """Return the files of answers once all ``fresh`` rows have one, whoever asked for them."""
        self._pieces = {piece.mark: piece for piece in self._notes.pieces()}
        while True:
            for piece in self._open():
                self._go_on(piece)
            while self._may_begin() and (more := wanted(fresh, self._pieces.values())):
                self._begin(more)
            if not self._open() and self._stop is not None:
                raise self._stop
            if not self._open() and self._has_room:
                break
            self._means.wait(self._service.poll_s)
            self._has_room = True
        return [file for piece in self._pieces.values() for file in piece.answers or ()]

    def _open(self) -> list[Piece]:
        return [piece for piece in self._pieces.values() if piece.is_open]

    def _may_begin(self) -> bool:
        most = self._service.at_once
        return self._has_room and self._stop is None and (most is None or len(self._open()) < most)

    def _keep(self, piece: Piece) -> Piece:
        self._means.check_owner()
        self._notes.keep(piece)
        self._pieces[piece.mark] = piece
        return piece

    def _drop(self, piece: Piece) -> None:
        self._means.check_owner()
        self._notes.drop(piece)
        self._pieces.pop(piece.mark, None)

    def _call(self, fn: Callable[..., _T], *args: Any) -> _T:
        """Call the service; where it refuses, wait and call again."""
        try:
            with self._means.paced as call:
                return call.run(fn, *args)
        except Exception as error:
            if isinstance(error, FlowctlError) and not isinstance(error, RetryLater):
                raise
            raise _told(error) from error

    # -- a batch goes out ----------------------------------------------------------------

    def _begin(self, more: Wanted) -> None:
        """Fill a batch with rows of ``more``, note it, and submit it."""
        mark = f"flowctl-{secrets.token_hex(_MARK_BYTES)}"
        filled = _Filled(self._service, mark, self._values(more.spans))
        piece = Piece(
            mark=mark,
            attempt=more.attempt,
            spans=filled.spans,
            requests=len(filled.lines),
            at_s=self._means.clock(),
            unasked=filled.unasked,
        )
        self._submit(piece, filled.lines)

    def _submit(self, piece: Piece, lines: list[bytes]) -> None:
        """Submit a noted piece that is not there."""
        if not lines:
            self._read_back(piece)
            return
        is_sure = True

        def submit() -> str | None:
            nonlocal is_sure, piece
            if not is_sure and (found := self._found(piece)) != "":
                return found
            piece = self._keep(_with(piece, at_s=self._means.clock()))
            is_sure = False
            try:
                return self._service.submit(lines, piece.mark)
            except Exception as error:
                is_sure = _is_denied(error)
                raise

        try:
            id = self._call(submit)
        except FlowctlError:
            if is_sure:  # the service has said that it did not take it
                self._drop(piece)
            raise
        if id is not None:
            self._means.tell(f"{piece.requests} requests are submitted as batch {id}")
            self._keep(_with(piece, id=id))

    def _found(self, piece: Piece) -> str | None:
        """Return the id of a piece that may have been submitted; "" if it was not; None: ask later.

        A batch may appear late in the service's list.
        """
        known = {one.id for one in self._pieces.values() if one.id}
        found = self._service.find(piece.mark, piece.requests, since_s=piece.at_s, known=known)
        if found.id:
            return found.id
        is_early = self._means.clock() < piece.at_s + self._service.settle_s
        return "" if found.is_sure and not is_early else None

    def _look(self, piece: Piece) -> None:
        """Look for a piece of which no id is known; submit it if it is not there."""
        found = self._call(self._found, piece) if piece.requests else ""
        if found:
            self._means.tell(f"batch {found} was submitted by an earlier run")
            self._keep(_with(piece, id=found))
        elif found is not None:
            lines = _lines(self._service, piece, self._values(piece.spans))
            if len(lines) != piece.requests:
                raise UnrunnableError(
                    "fn",
                    f"its request makes {len(lines)} requests of rows of which it made"
                    f" {piece.requests} before.",
                    remedy="Let it give the same for the same row, or give the job another name.",
                )
            self._submit(piece, lines)

    # -- and comes back ------------------------------------------------------------------

    def _go_on(self, piece: Piece) -> None:
        self._means.check_owner()
        if not piece.id:
            self._look(piece)
            return
        state = self._call(self._service.poll, piece.id)
        if state is BatchState.REFUSED:
            self._means.tell(f"batch {piece.id} was refused: it is submitted again later")
            self._drop(piece)
            self._has_room = False
        elif state is BatchState.ENDED:
            self._read_back(piece)

    def _read_back(self, piece: Piece) -> None:
        """Keep the answers of a piece that has ended, and note which rows to ask again."""
        answers = self._call(lambda: list(self._service.fetch(piece.id))) if piece.id else []
        settled = _Settled(piece, answers, self._means.attempts_max)
        prefix = f"{self._notes.directory}/{piece.mark}-{secrets.token_hex(4)}"
        files = write_answers(self._notes.place, prefix, settled.kept)
        self._keep(_with(piece, answers=files, again=settled.again))
        if settled.again:
            rows = sum(stop - start for _, start, stop in settled.again)
            self._means.tell(f"batch {piece.id}: {rows} rows are asked again")
        if settled.denied:
            self._stop = UnrunnableError(
                "fn",
                f"the service refuses requests: {settled.denied}.",
                remedy="Put that right and start again: what was answered is kept.",
            )

    # -- rows ----------------------------------------------------------------------------

    def _values(self, spans: list[Span]) -> Iterator[tuple[str, int, Any]]:
        """Yield partition, position and value of each row of ``spans``, in their order."""
        for partition, start, stop in _in_reach(spans):
            inside = iter([one for one in spans if one[0] == partition and start <= one[1] < stop])
            span = next(inside)
            identity = self._source.extents[partition].identity
            for block in self._source.reader.open(partition, start, stop, identity):
                for record in block.batch_records(0, len(block)):
                    position: Any = record.position
                    while position >= span[2]:
                        span = next(inside)
                    if position >= span[1]:
                        yield partition, position, record.value


def _in_reach(spans: list[Span]) -> list[Span]:
    """Return the spans to read, one for neighbours that are close."""
    joined: list[Span] = []
    for partition, start, stop in spans:
        if joined and joined[-1][0] == partition and start - joined[-1][2] < _GAP_ROWS:
            joined[-1] = (partition, joined[-1][1], stop)
        else:
            joined.append((partition, start, stop))
    return joined


def _with(piece: Piece, **changes: Any) -> Piece:
    return msgspec.structs.replace(piece, **changes)


def _is_denied(error: Exception) -> bool:
    """Whether the service has said that it did not take what it was sent: its answer is known."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(status, int) and 400 <= status < 500 and status != 408


def _told(error: Exception) -> FlowctlError:
    """Return the error that ends the run, for one with which a call ended."""
    said = f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX]
    meaning = meaning_of(error)
    if meaning.is_refusal:
        return TargetDownError(
            f"the batch API does not answer: {said}.",
            remedy="Start again when it does: batches that were submitted go on meanwhile.",
        )
    if meaning.kind is Kind.NOT_ALLOWED:
        return UnrunnableError("fn", f"the batch API refuses: {said}.", remedy="Check the key.")
    return JobError(
        f"the batch API answered with an error: {said}.",
        remedy="Check url and the requests; what was answered is kept.",
    )


class _Filled:
    """A batch of as many rows as the service takes: ``lines``, in the order of ``spans``."""

    def __init__(
        self, service: BatchService, mark: str, values: Iterator[tuple[str, int, Any]]
    ) -> None:
        self.lines: list[bytes] = []
        self.unasked: dict[int, str] = {}
        rows: list[Span] = []
        size = 0
        for number, (partition, position, value) in enumerate(values):
            made = _line(service, key_of(mark, number), value)
            if isinstance(made, str):
                self.unasked[number] = made
            elif self.lines and size + len(made) > service.bytes_max:
                break
            else:
                self.lines.append(made)
                size += len(made)
            rows.append((partition, position, position + 1))
            # Rows without a request are bounded too, as each is in the note.
            if max(len(self.lines), len(self.unasked)) >= service.rows_max:
                break
        self.spans: list[Span] = merged(rows)


def _lines(
    service: BatchService, piece: Piece, values: Iterator[tuple[str, int, Any]]
) -> list[bytes]:
    """Return the lines of a piece that was filled before."""
    made = [
        _line(service, key_of(piece.mark, number), value)
        for number, (_, _, value) in enumerate(values)
        if number not in piece.unasked
    ]
    return [line for line in made if isinstance(line, bytes)]


def _line(service: BatchService, key: str, value: Any) -> bytes | str:
    """Return a row's request, or why it has none ("": the job's function made none)."""
    try:
        request = service.request(value)
        if request is None:
            return ""
        line = service.line(key, request)
    except UnrunnableError:
        raise
    except Exception as error:  # the row's fault, as far as can be known
        if meaning_of(error).kind is Kind.NOT_ALLOWED:
            raise
        return f"request: {type(error).__name__}: {error}"[:_REASON_CHARS_MAX]
    if len(line) > service.bytes_max:
        return f"request: it has {len(line)} bytes, and a batch takes {service.bytes_max}"
    return line


def key_of(mark: str, number: int) -> str:
    """Return the key of row ``number`` of the piece ``mark``."""
    return f"{mark}-{number}"


class _Settled:
    """What the answers to a piece mean: ``kept`` for good, and the rows to ask ``again``.

    ``denied`` is an error by which no request can succeed ("": there was none).
    """

    def __init__(self, piece: Piece, answers: list[Answer], attempts_max: int) -> None:
        by_key = {answer.key: answer for answer in answers}
        self.kept: list[Kept] = []
        self.denied = ""
        again: list[Span] = []
        for number, (partition, position) in enumerate(piece.rows()):
            if number in piece.unasked:
                reason = piece.unasked[number]
                self.kept.append(Kept(partition, position, None, reason or None))
                continue
            answer = by_key.get(key_of(piece.mark, number))
            if answer is not None and not answer.error:
                self.kept.append(Kept(partition, position, answer.body, None))
                continue
            error, kind = ("no answer", Kind.FAULT) if answer is None else answer[2:]
            is_last = piece.attempt >= attempts_max
            if kind is Kind.NOT_ALLOWED:
                self.denied = error[:_REASON_CHARS_MAX]
            if kind is Kind.CONTENT or (is_last and kind is not Kind.NOT_ALLOWED):
                tried = f" (asked {piece.attempt} times)" if piece.attempt > 1 else ""
                reason = f"{error[:_REASON_CHARS_MAX]}{tried}"
                self.kept.append(Kept(partition, position, None, reason))
            else:
                again.append((partition, position, position + 1))
        self.again: list[Span] = merged(again)


# -- The part of a job that a batch API does ----------------------------------------------------


def answered(
    job: Job, producer: RangeProducer, store: ReceiptStore, options: Mapping[str, Any]
) -> Answered:
    """Ask the job's service about all rows that have no result; return the function of rows.

    It acquires the job: of two drivers only the newer one submits batches.
    """
    service = job.service
    assert service is not None
    if isinstance(options["paced"], RowTargets):
        raise ConfigError(
            "target", "is a function, but a batch API is called with all rows.", remedy="Name it."
        )
    store.acquire(job.name)
    extents = producer.extents(store.load(job.name))
    spans = {name: (extent.start, extent.stop) for name, extent in extents.items()}
    fresh = missing(spans, coverage(job.results.entries()))
    means = Means(
        options["paced"] or paced(f"batches of {job.name}"),
        store.check_owner,
        view_of(options["view"]).message,
        options["settings"].retry.attempts_max,
    )
    notes = Notes(job.results)
    files = Asking(service, Source(producer.reader(), extents), notes, means).run(fresh)
    return Answered(service.result, job.results.place, files)
