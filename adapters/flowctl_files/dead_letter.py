"""A file for what can't be processed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from flowctl.core.records import Record


class JsonLinesDeadLetter:
    """Appends a line of JSON for each record: a :class:`flowctl.ports.DeadLetter`.

    Fields: job, partition, position, value, attempts, reason; bytes as base64.  A line is on the
    disk (fsync) before its record counts as done.  After a kill a record may be there twice, and a
    last line may be cut short.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._file: int | None = None

    def dead_letter(
        self, job: str, partition: str, records: Sequence[Record], *, attempts: int, reason: str
    ) -> None:
        """See :class:`flowctl.ports.DeadLetter`; raises ``OSError``."""
        if self._file is None:
            self._file = os.open(self._path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
        common: dict[str, Any] = {"job": job, "partition": partition}
        lines = b"".join(
            msgspec.json.encode(
                {
                    **common,
                    "position": record.position,
                    "value": record.value,
                    "attempts": attempts,
                    "reason": reason,
                }
            )
            + b"\n"
            for record in records
        )
        while lines:
            lines = lines[os.write(self._file, lines) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
