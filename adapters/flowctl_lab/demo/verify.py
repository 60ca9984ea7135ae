"""Check that each line's effect is in the sink exactly once, without any code of flowctl.

The sum of 64-bit hashes over all rows does not depend on their order; a row that is lost,
doubled or changed in any field changes it (or goes unseen once in 2**64).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

_HASH_BYTES = 8  # the chance that two of 200,000 rows share a hash is 1 in a thousand million
_MODULUS = 1 << (8 * _HASH_BYTES)


class Sum(NamedTuple):
    """The number of rows, and the sum of their hashes."""

    rows: int
    checksum: int


class Verdict(NamedTuple):
    """The sink compared with the input; ``lost`` and ``doubled`` in records."""

    input: Sum
    sink: Sum
    lost: int
    doubled: int

    @property
    def exact(self) -> bool:
        """Whether the sink holds each line of the input exactly once, field by field."""
        return self.input == self.sink and not self.lost and not self.doubled


def verify(logs: Path, database: Path) -> Verdict:
    """Compare the rows of ``database`` with the lines of all files in ``logs``."""
    source = add_up(input_rows(logs))
    connection = sqlite3.connect(database)
    try:
        sink = add_up(connection.execute(_ALL_ROWS))
        distinct = connection.execute(_DISTINCT).fetchone()[0]
    finally:
        connection.close()
    return Verdict(source, sink, lost=source.rows - distinct, doubled=sink.rows - distinct)


_ALL_ROWS = "SELECT file, line, host, at, method, path, status, bytes, agent FROM access"
_DISTINCT = "SELECT count(*) FROM (SELECT DISTINCT file, line FROM access)"


def add_up(rows: Iterable[tuple[Any, ...]]) -> Sum:
    """Return the count and the order-independent checksum of ``rows``."""
    count = total = 0
    for row in rows:
        digest = blake2b("\x1f".join(map(str, row)).encode(), digest_size=_HASH_BYTES).digest()
        total += int.from_bytes(digest, "big")
        count += 1
    return Sum(count, total % _MODULUS)


def input_rows(logs: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the row that each line of the logs should have become."""
    for path in sorted(logs.glob("*.log")):
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield (path.name, number, *_fields(line))


def _fields(line: str) -> tuple[Any, ...]:
    # Cut at the quotes, unlike the regular expression of the job under test.
    before, request, numbers, _, _, agent, _ = line.split('"')
    host, at = before.split(" ", 1)[0], before[before.index("[") + 1 : before.index("]")]
    words = request.split(" ")
    method, path = words[:2] if len(words) == 3 else ("-", request)
    status, size = numbers.split()
    return host, at, method, path, int(status), 0 if size == "-" else int(size), agent
