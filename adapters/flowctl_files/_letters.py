"""A file of dead letters: JSON lines that are appended, read as one letter per record.

Four kinds of lines.  A *letter* records that a record was left out.  A *redrive* lists the letters
to process again, and their positions in it. *Gone* lists letters that were dropped, or processed in
the end. *Counted* names a task attempt that succeeded: its letters count from there on.  The state
is what all lines say together, in order, so every step is one append: if killed before it, nothing
has happened; if killed during it, the line is truncated, counted as damaged and ignored.

Writers lock the file (``flock``), so that a run and ``flowctl dlq`` may work at the same time.
"""

from __future__ import annotations

import base64
import errno
import os
import stat
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from flowctl import disk
from flowctl.core.letters import Letter, kind_of, letter_id
from flowctl.core.records import Position, Record
from flowctl.errors import FlowctlError
from flowctl.wire.values import decode_value, encode_value

# -- Records as bytes that decode to exactly what went in, and as JSON for people --------------


def encode_record(record: Record) -> bytes:
    """Return ``record`` as bytes; raise for a value that can't be sent to a bolt either."""
    return encode_value([record.position, record.value])


def decode_record(data: bytes) -> Record:
    """Return the record that :func:`encode_record` encoded; raise for other data."""
    position, value = decode_value(data)
    # Letters of old versions have lists for tuples; a position is never a list.
    return Record(tuple(position) if isinstance(position, list) else position, value)


def readable(value: Any) -> Any:
    """Return ``value`` if JSON can show it, else its text."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value)
    return value


# -- A file of dead letters --------------------------------------------------------------------


# Age [s] beyond which an unfinished attempt must be over: no attempt of a task takes as long.
_UNFINISHED_KEPT_MS = 30 * 24 * 3600 * 1000


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of the file.  The fields that it has tell its kind.

    A letter has ``partition``; ``position`` and ``value`` are for people, ``exact`` is the record.
    ``came_from``: it failed again in this redrive, at this position.  ``task_attempt``: it counts
    only if that attempt is ``counted``.  A redrive has ``letters``, (position, id) of each.  A
    removal has ``gone``; with ``redrive`` only what still waits there.
    """

    job: str
    id: str = ""
    partition: str | None = None
    position: Any = None
    value: Any = None
    exact: str = ""
    attempts: int = 0
    reason: str = ""
    kind: str = ""
    bolts: tuple[str, ...] = ()
    at_unix_ms: int = 0
    first_at_unix_ms: int = 0
    epoch: int | None = None
    redrives: int = 0
    came_from: tuple[int, int] | None = None
    redrive: int | None = None
    letters: tuple[tuple[int, str], ...] | None = None
    gone: tuple[str, ...] | None = None
    task_attempt: str = ""
    counted: str = ""


class Held:
    """The state of one record's letter according to all lines."""

    __slots__ = ("line", "redrive")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.redrive: tuple[int, int] | None = None

    def letter(self) -> Letter:
        """Return the letter in its public form."""
        line = self.line
        record = _record_of(line)
        assert line.partition is not None
        return Letter(
            id=line.id,
            job=line.job,
            partition=line.partition,
            position=record.position,
            value=record.value,
            attempts=line.attempts,
            reason=line.reason,
            kind=kind_of(line.reason),
            bolts=line.bolts,
            at_unix_ms=line.at_unix_ms,
            first_at_unix_ms=line.first_at_unix_ms or line.at_unix_ms,
            epoch=line.epoch,
            redrives=line.redrives,
            redrive=self.redrive,
            is_exact=bool(line.exact),
        )


# By job and id, oldest first.
Letters: TypeAlias = dict[tuple[str, str], Held]
Fate: TypeAlias = Callable[[Position], bool | None]


class Contents:
    """The contents of a file.  ``damaged`` counts unreadable lines, ``lines`` all others."""

    def __init__(self) -> None:
        self.held: Letters = {}
        # By task attempt, job and id: letters that count only if their attempt does.
        self.uncounted: dict[str, dict[tuple[str, str], Line]] = {}
        self.lines: int = 0
        self.damaged = 0
        self.last_redrive: int = 0

    def of(self, job: str) -> list[Letter]:
        """Return the letters of ``job``, oldest first."""
        return [held.letter() for (owner, _), held in self.held.items() if owner == job]

    def take(self, line: Line) -> None:
        """Take one more line into account."""
        self.lines += 1
        if line.counted:
            for letter in self.uncounted.pop(line.counted, {}).values():
                letter.task_attempt = ""
                self._take_letter(letter)
        elif line.gone is not None:
            self._take_gone(line, line.gone)
        elif line.letters is not None and line.redrive is not None:
            self._take_redrive(line, line.redrive, line.letters)
        elif line.task_attempt:
            self.uncounted.setdefault(line.task_attempt, {})[line.job, line.id] = line
        else:
            self._take_letter(line)

    def _take_letter(self, line: Line) -> None:
        held = self.held.get((line.job, line.id))
        if held is None:
            self.held[line.job, line.id] = Held(line)
            return
        before, held.line = held.line, line
        line.first_at_unix_ms = before.first_at_unix_ms or before.at_unix_ms
        line.redrives = before.redrives
        if line.came_from is not None and held.redrive == line.came_from:
            held.redrive = None
            line.redrives += 1

    def _take_redrive(self, line: Line, number: int, letters: Sequence[tuple[int, str]]) -> None:
        self.last_redrive = max(self.last_redrive, number)
        for position, name in letters:
            held = self.held.get((line.job, name))
            if held is not None and held.redrive is None:
                held.redrive = (number, position)

    def _take_gone(self, line: Line, gone: Sequence[str]) -> None:
        for name in gone:
            for waiting in self.uncounted.values():
                waiting.pop((line.job, name), None)
            held = self.held.get((line.job, name))
            if held is None:
                continue
            waits_in = held.redrive[0] if held.redrive else None
            if line.redrive is None or line.redrive == waits_in:
                del self.held[line.job, name]

    def jobs(self) -> list[str]:
        """Return the jobs that have letters, or rows of unfinished attempts."""
        names = [*self.held, *(key for waiting in self.uncounted.values() for key in waiting)]
        return list(dict.fromkeys(job for job, _ in names))

    def of_unfinished(self, job: str) -> int:
        """Return the number of rows of ``job`` that unfinished task attempts left out."""
        names = (key for waiting in self.uncounted.values() for key in waiting)
        return len({name for owner, name in names if owner == job})

    def counting(self, job: str, partition: str, attempt: str, fate: Fate) -> list[Line]:
        """Return the lines that count ``attempt`` and remove letters of rows written since."""
        mine = self.uncounted.get(attempt, {})
        others = [line for lines in self.uncounted.values() for line in lines.values()]
        others += [held.line for held in self.held.values()]
        gone: dict[str, None] = {}
        adopted: dict[str, Line] = {}
        for line in others:
            if (line.job, line.partition) != (job, partition) or (job, line.id) in mine:
                continue
            is_written = fate(_record_of(line).position)
            if is_written:
                gone[line.id] = None
            elif is_written is False and line.task_attempt:
                adopted[line.id] = msgspec.structs.replace(line, task_attempt="")
        lines = [Line(job=job, gone=tuple(gone))] if gone else []
        lines += adopted.values()
        return [*lines, Line(job=job, counted=attempt)] if mine else lines

    def forget_unfinished(self) -> None:
        """Drop the letters of unfinished attempts that must have ended long ago."""
        since_ms = _now_unix_ms() - _UNFINISHED_KEPT_MS
        for attempt, waiting in list(self.uncounted.items()):
            if all(line.at_unix_ms < since_ms for line in waiting.values()):
                del self.uncounted[attempt]

    def as_lines(self) -> Iterator[Line]:
        """Return the fewest lines with the same meaning."""
        redrives: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for (job, name), held in self.held.items():
            yield held.line
            if held.redrive is not None:
                number, position = held.redrive
                redrives.setdefault((job, number), []).append((position, name))
        for (job, number), letters in redrives.items():
            yield Line(job=job, redrive=number, letters=tuple(letters))
        for waiting in self.uncounted.values():
            yield from waiting.values()


class LetterFile:
    """One file, which may hold the letters of several jobs.  Safe between threads and processes.

    All methods raise ``OSError``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)

    def read(self) -> Contents:
        """Return the contents of the file; they are empty if there is no file."""
        contents = Contents()
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe: no wait
        except FileNotFoundError:
            return contents
        try:
            _check_regular(descriptor, self.path)
            disk.lock(descriptor, self.path, shared=True)
            with os.fdopen(os.dup(descriptor), "rb") as file:
                for raw in file:
                    _take_raw(contents, raw)
        finally:
            os.close(descriptor)
        return contents

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines; they are on the disk when this returns."""
        with self._locked() as descriptor:
            self._write(descriptor, lines)

    def redrive(self, job: str, wanted: Container[str] | None = None) -> tuple[int, int]:
        """Mark letters to be processed again; return their count and the number of the redrive.

        ``wanted``: ids; None: all.  Letters already marked for redrive are left as they are;
        letters whose value is not known exactly are skipped.
        """
        with self._locked() as descriptor:
            contents = self.read_through(descriptor)
            names = [
                name
                for (owner, name), held in contents.held.items()
                if owner == job
                and held.redrive is None
                and held.line.exact
                and (wanted is None or name in wanted)
            ]
            number = max(_now_unix_ms(), contents.last_redrive + 1)
            if names:
                letters = tuple(enumerate(names, start=1))
                self._write(descriptor, [Line(job=job, redrive=number, letters=letters)])
            return len(names), number

    def drop(self, job: str, is_wanted: Callable[[Letter], bool]) -> int:
        """Remove letters for good, from the disk too; return their number."""
        with self._locked() as descriptor:
            contents = self.read_through(descriptor)
            gone = [letter for letter in contents.of(job) if is_wanted(letter)]
            for letter in gone:
                del contents.held[job, letter.id]
            if gone:
                self._rewrite(contents)
            return len(gone)

    def redriven(self, job: str, letters: Sequence[Letter]) -> None:
        """Remove ``letters``, which were processed in their redrive; any that failed again stay."""
        by_redrive: dict[int, list[str]] = {}
        for letter in letters:
            if letter.redrive is not None:
                by_redrive.setdefault(letter.redrive[0], []).append(letter.id)
        lines = [
            Line(job=job, redrive=number, gone=tuple(names)) for number, names in by_redrive.items()
        ]
        self.append(lines)

    def count_attempt(self, job: str, partition: str, attempt: str, fate: Fate) -> None:
        """Note that ``attempt`` has delivered all of ``partition``: its letters count from now on.

        ``fate`` tells, for a letter that another attempt left, whether its row is written now.
        """
        if not self._names(attempt.encode(), msgspec.json.encode(partition)):
            return  # the usual case: nothing has to be decoded or locked
        with self._locked() as descriptor:
            lines = self.read_through(descriptor).counting(job, partition, attempt, fate)
            if lines:
                self._write(descriptor, lines)

    def _names(self, *words: bytes) -> bool:
        try:
            with open(self.path, "rb") as file:
                return any(word in line for line in file for word in words)
        except FileNotFoundError:
            return False

    def tidy(self) -> None:
        """Rewrite the file if most of its lines are obsolete."""
        with self._locked() as descriptor:
            contents = self.read_through(descriptor)
            kept = len(contents.held) + sum(map(len, contents.uncounted.values()))
            if contents.lines + contents.damaged > 2 * kept:
                self._rewrite(contents)

    def read_through(self, descriptor: int) -> Contents:
        """Read as :meth:`read` does, for a caller that has the file open and locked."""
        contents = Contents()
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            for raw in file:
                _take_raw(contents, raw)
        return contents

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open and lock the file at the path, again if it is replaced meanwhile."""
        disk.make_directory(os.path.dirname(self.path) or ".")
        while True:
            descriptor = os.open(self.path, os.O_APPEND | os.O_CREAT | os.O_RDWR, disk.MODE)
            try:
                _check_regular(descriptor, self.path)
                # Where a file system has no locks, the operator must ensure that there is one
                # writer at a time.
                disk.lock(descriptor, self.path)
                if disk.is_at(descriptor, self.path):
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def _write(self, descriptor: int, lines: Sequence[Line]) -> None:
        size = os.fstat(descriptor).st_size
        # End a truncated last line first, so that it stays separate from the new ones.
        is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        disk.write_all(descriptor, (b"\n" if is_cut else b"") + _encoded(lines))
        os.fsync(descriptor)
        if not size:
            disk.sync_directory(self.path)

    def _rewrite(self, contents: Contents) -> None:
        """Replace the file atomically; remove it if no letter is left."""
        contents.forget_unfinished()
        if not contents.held and not contents.uncounted:
            os.unlink(self.path)
            disk.sync_directory(self.path)
            return
        disk.replace(self.path, _encoded(contents.as_lines()))  # we hold the lock


def _check_regular(descriptor: int, path: str) -> None:
    """Raise ``OSError`` for a device or a pipe, which keeps no letters and may have no end."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "not a regular file, so it can't keep dead letters", path)


def line_of(
    job: str,
    partition: str,
    record: Record,
    *,
    attempts: int,
    reason: str,
    bolts: Sequence[str],
    epoch: int | None,
    redriven: Letter | None,
    task_attempt: str,
) -> Line:
    """Return the letter of ``record``; ``redriven`` is its letter before a redrive, if any."""
    if redriven is not None:
        partition, record = redriven.partition, Record(redriven.position, redriven.value)
    return Line(
        job=job,
        id=redriven.id if redriven is not None else letter_id(job, partition, record.position),
        partition=partition,
        position=readable(record.position),
        value=readable(record.value),
        exact=_exact(record),
        attempts=attempts,
        reason=reason,
        kind=kind_of(reason),
        bolts=tuple(bolts),
        at_unix_ms=_now_unix_ms(),
        epoch=epoch,
        came_from=redriven.redrive if redriven is not None else None,
        task_attempt=task_attempt,
    )


def _exact(record: Record) -> str:
    """Return the record encoded as text, or "" if it can be shown but not restored."""
    try:
        return base64.b64encode(encode_record(record)).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""  # a topology's source may return values that only its ``translate`` understands


def _record_of(line: Line) -> Record:
    if line.exact:
        return decode_record(base64.b64decode(line.exact))
    position = tuple(line.position) if isinstance(line.position, list) else line.position
    return Record(position, line.value)  # a letter written by version 0.1


_decode = msgspec.json.Decoder(Line).decode


def _take_raw(contents: Contents, raw: bytes) -> None:
    if not raw.strip():
        return
    try:
        line = _decode(raw)
        if line.partition is not None:
            record = _record_of(line)
            line.id = line.id or letter_id(line.job, line.partition, record.position)
        elif line.gone is None and line.letters is None and not line.counted:
            raise ValueError("neither a letter, nor a redrive, a removal or a count")
    except (ValueError, TypeError, msgspec.MsgspecError, FlowctlError):
        contents.damaged += 1
        return
    contents.take(line)


def _encoded(lines: Sequence[Line] | Iterator[Line]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000
