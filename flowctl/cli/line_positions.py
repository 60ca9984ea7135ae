"""Whether a byte and a line number, as counted by ``TextLines``, belong together in a file."""

from __future__ import annotations

import os
from typing import Final, NamedTuple, TypeGuard

from flowctl.core.records import Position
from flowctl.errors import ConfigError
from flowctl.instrumentation.text import printable

_BLOCK_BYTES: Final = 1 << 20  # large reads are quick; this much memory is always there


class _Scan(NamedTuple):
    """``numbers``: the number of the line that begins at each wanted byte; negative if no line
    begins there but the byte is within that line."""

    numbers: dict[int, int]
    starts: dict[int, int]  # where each wanted line begins


def check_line(position: Position, partition: str, saved: Position | None) -> str:
    """Check that a line begins at the byte of ``position`` and has its number.

    Returns why this can't be checked; "" if it was, or if ``position`` is not a line's.  Raises
    :class:`ConfigError` with the correct pair.  ``saved`` is the checkpoint's position, above it.
    """
    if position == saved or not _is_of_lines(position) or not _is_of_lines(saved):
        return ""
    path = _path_of(partition)
    if path is None:
        return "there is no file of this name here"
    if path.lower().endswith((".gz", ".bz2", ".zst")):
        return "the file is compressed"
    byte, line = position[:2]
    try:
        found = _scan(path, {byte, saved[0]}, {line})
        if found.numbers.get(saved[0]) != saved[1]:
            return "the saved position is not the beginning of a line of the file that is here"
        if found.numbers[byte] == line and len(position) == 2:
            return ""
        number = line if line in found.starts else abs(found.numbers[byte])
        start = _scan(path, {saved[0]}, {number}).starts[number]
    except OSError as error:
        return f"the file can't be read: {error.strerror or error}"
    raise ConfigError(
        "--to",
        f"{':'.join(map(str, position))} is not where a line of {printable(partition)} begins:"
        f" {_said(byte, found.numbers[byte])}.",
        remedy="Write BYTE:LINE, the byte where the line begins and its number, counted from 1."
        f" Line {number} is {start}:{number}.",
    )


def _said(byte: int, number: int) -> str:
    if number < 0:
        return f"byte {byte} is within line {-number}"
    return f"line {number} begins at byte {byte}"


def _is_of_lines(position: Position | None) -> TypeGuard[tuple[int, ...]]:
    """Whether it has the shape of a ``TextLines`` position: byte, line, and the length of a cut
    last line."""
    return (
        isinstance(position, tuple)
        and len(position) in (2, 3)
        and all(type(part) is int and part >= 0 for part in position)
    )


def _path_of(partition: str) -> str | None:
    """The file behind a partition; in a topology the name of its spout precedes it."""
    for path in (partition, partition.partition(":")[2]):
        if os.path.isfile(path):
            return path
    return None


def _scan(path: str, wanted_bytes: set[int], wanted_lines: set[int]) -> _Scan:
    """Count the lines up to the last of ``wanted_bytes``; bytes beyond it are not found."""
    numbers = {0: 1}
    starts = {1: 0}
    at, lines = 0, 1  # the byte where the block begins, and the number of the line there
    with open(path, "rb") as file:
        while at < max(wanted_bytes) and (block := file.read(_BLOCK_BYTES)):
            for byte in wanted_bytes:
                if at < byte <= at + len(block):
                    number = lines + block.count(b"\n", 0, byte - at)
                    begins = block[byte - at - 1 : byte - at] == b"\n"
                    numbers[byte] = number if begins else -number
            ends = block.count(b"\n")
            for line in wanted_lines:
                if lines < line <= lines + ends:
                    starts[line] = at + _after_newline(block, line - lines)
            at, lines = at + len(block), lines + ends
    return _Scan(numbers, {line: starts[line] for line in wanted_lines if line in starts})


def _after_newline(block: bytes, ordinal: int) -> int:
    """Where the line after the ``ordinal``-th newline of ``block`` begins in it."""
    end = -1
    for _ in range(ordinal):
        end = block.index(b"\n", end + 1)
    return end + 1
