"""The event log: what a run did and why, as JSON lines in a file of bounded size.

The events are those of :mod:`flowctl.instrumentation.event_text` and
:mod:`flowctl.instrumentation.run_events`, with the same names and fields.  Each line also has
``event``, ``time`` (wall clock, ISO 8601 in UTC) and ``run``, which is the number of the job's run.
``flowctl explain`` needs nothing else.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from flowctl import disk

SUFFIX: Final = ".events.jsonl"
#: A file that is full is renamed to this, in place of the one before: there are two at most.
OLDER: Final = ".1"
# Lines of one name between two lines of progress (5 s): of more, the first say what happens, and a
# target that refuses a thousand calls a second must not push the decisions out of the file.
_PER_NAME: Final = 20
_ALWAYS: Final = frozenset({"target_down", "target_back", "tuple_gave_up"})
_SUMS_UP: Final = frozenset({"progress", "run_finished"})


class EventLog:
    """Appends events to ``path``.  Bounded: two files of ``bytes_max`` and a line.

    For one thread.  A file that can't be written ends the log and nothing else: :attr:`problem`
    says why.  The process can be killed at any time: what was written before the last
    :meth:`flush` is in the file.
    """

    def __init__(self, path: str, *, run: int, bytes_max: int) -> None:
        self.path: str = path
        self.problem: str = ""
        self._run = run
        self._bytes_max = bytes_max
        self._file: TextIO | None = None
        self._size = 0
        self._header = ""
        self._came: Counter[str] = Counter()  # since the last line of progress, by name

    def takes(self, event: str) -> bool:
        """Count an event; False if there were so many of this name that it is left out."""
        if event not in _ALWAYS:
            self._came[event] += 1
        return self._came[event] <= _PER_NAME

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """Append an event, with how many were left out if it is one of progress."""
        told = {"event": event, "run": self._run, **fields}
        if event in _SUMS_UP:
            left_out = {name: n - _PER_NAME for name, n in self._came.items() if n > _PER_NAME}
            told |= {"left_out": left_out} if left_out else {}
            self._came.clear()
        # ASCII, as in the report: a terminal that shows the file must not obey what is in it.
        line = json.dumps(told, default=repr) + "\n"
        if event == "run_started":
            self._header = line
        self._append(line)

    def flush(self) -> None:
        """Hand all that was written to the operating system."""
        if self._file is not None:
            with self._noting():
                self._file.flush()

    def close(self) -> None:
        """Flush and close; a later event opens the file again."""
        file, self._file = self._file, None
        if file is not None:
            with self._noting():
                file.close()

    def _append(self, line: str) -> None:
        if self.problem:
            return
        with self._noting():
            if self._file is None:
                self._open()
            if self._size and self._size + len(line) > self._bytes_max:
                self._rotate(line)
            self._put(line)

    def _open(self) -> None:
        disk.make_directory(os.path.dirname(os.path.abspath(self.path)))
        descriptor = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, disk.MODE)
        self._file = os.fdopen(descriptor, "w", encoding="ascii")
        self._size = os.fstat(descriptor).st_size

    def _rotate(self, line: str) -> None:
        """Begin a new file, with the line that says which run it is of."""
        self.close()
        os.replace(self.path, self.path + OLDER)
        self._open()
        if line != self._header:
            self._put(self._header)

    def _put(self, line: str) -> None:
        assert self._file is not None
        self._file.write(line)
        self._size += len(line)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """End the log, and not the run, if the disk takes no more."""
        try:
            yield
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror or error}"


def place_of(store: object, job: str) -> str:
    """Return the log's file beside the checkpoint of ``job``; "" where ``store`` has no files."""
    directory = getattr(store, "directory", None)
    if not isinstance(directory, Path):  # of FileCheckpointStore
        return ""
    return str(directory / disk.file_name(job, SUFFIX))


def read_lines(path: str) -> Iterator[dict[str, Any]]:
    """Yield the events of the older file, if there is one, and of ``path``, oldest first.

    Lines that are damaged, as the last one after a loss of power, are left out.  Raises ``OSError``
    if there is no such file.
    """
    with suppress(FileNotFoundError):
        yield from _lines(path + OLDER)
    yield from _lines(path)


def _lines(path: str) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    yield event
