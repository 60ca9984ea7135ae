"""Positions as users type them: in the form that ``flowctl checkpoint show`` prints, or as JSON.

Also whether a byte and a line number, as ``TextLines`` counts them, belong together.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from typing import Any, Final, NamedTuple, TypeGuard

import msgspec

from flowctl.core.positions import encode, show
from flowctl.core.records import PartitionCheckpoint, Position, PositionPart
from flowctl.errors import ConfigError, JobError
from flowctl.instrumentation.text import printable

BEGINNING = show(None)
_WHOLE = re.compile(r"-?[0-9]+")


def shown(position: Position | None) -> str:
    """Return ``position`` as ``show`` prints it."""
    return printable(show(position))


def position_of(text: str, partition: str, stored: PartitionCheckpoint) -> Position | None:
    """Return the position that ``text`` means in ``partition``; None: its beginning.

    Raises :class:`ConfigError` for text that is not a position of this partition, and for a
    position beyond the saved one.
    """
    known = [p for r in stored.acked for p in (r.first, r.last)]
    if stored.position is not None:
        known.insert(0, stored.position)
    for position in known:
        if text in (show(position), shown(position)):
            return _not_beyond(position, partition, stored)
    if text == BEGINNING:
        return None
    for value in (_from_json(text), *_as_shown(text, known)):
        fitted = _fitted(value, known)
        if fitted is not None:
            return _not_beyond(fitted, partition, stored)
    raise ConfigError(
        "--to",
        f"{text!r} is not a position of {printable(partition)}.",
        remedy=f"Write it as `flowctl checkpoint show` prints it, {_examples(known)}.",
    )


def _not_beyond(position: Position, partition: str, stored: PartitionCheckpoint) -> Position | None:
    if stored.position is not None and encode(position) <= encode(stored.position):
        return position
    raise ConfigError(
        "--to",
        f"{shown(position)} of {printable(partition)} lies ahead of what is saved,"
        f" {shown(stored.position)}.",
        remedy="Give a position at or below that: records in between were not processed. Example: "
        + _examples([] if stored.position is None else [stored.position])
        + ".",
    )


def _examples(known: list[Position]) -> str:
    if not known:
        return f"{BEGINNING} (the beginning: nothing is done)"
    as_json = json.dumps(known[0])
    return f"{shown(known[0])} (or as JSON, {as_json}), or {BEGINNING} for the beginning"


# -- reading -----------------------------------------------------------------------------------


def _from_json(text: str) -> Any:
    try:
        value = json.loads(text)
        if isinstance(value, bool):
            return None
        return msgspec.convert(value, Position)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


def _as_shown(text: str, known: list[Position]) -> list[Any]:
    """Return what ``text`` means in the form that ``show`` prints: the parts of a tuple are
    separated by colons.
    """
    if not known:
        return []
    if not isinstance(known[0], tuple):
        return _parts(text)
    parts = text.split(":")
    is_clear = len(parts) in {len(p) for p in known if isinstance(p, tuple)} | _shorter(known)
    if not is_clear:
        return []
    columns = [_kinds(known, index) for index in range(len(parts))]
    return [
        tuple(
            next((p for p in _parts(part) if type(p) in kinds), part)
            for part, kinds in zip(parts, columns, strict=True)
        )
    ]


def _parts(text: str) -> list[PositionPart]:
    """Return what one part may mean, the most likely first."""
    found: list[PositionPart] = []
    if _WHOLE.fullmatch(text):
        found.append(int(text))
    with contextlib.suppress(ValueError):
        found.append(float(text))
    if text == "None":
        found.append(None)
    return [*found, text]


# -- judging -----------------------------------------------------------------------------------


def _fitted(value: Any, known: list[Position]) -> Position | None:
    """Return ``value`` if it has the shape of the known positions; else None."""
    if value is None or not known:
        return None
    if isinstance(value, tuple):
        lengths = {len(p) for p in known if isinstance(p, tuple)} | _shorter(known)
        parts = [_fitted_part(part, _kinds(known, i)) for i, part in enumerate(value)]
        if len(value) not in lengths or not all(parts):
            return None
        return _sound(tuple(part[0] for part in parts if part), known)
    if any(isinstance(position, tuple) for position in known):
        return None
    fitted = _fitted_part(value, {type(position) for position in known})
    if fitted is None or fitted[0] is None:
        return None
    return _sound(fitted[0], known)


def _shorter(known: list[Position]) -> set[int]:
    """Return the lengths of the known positions less one: a last line without newline has a third
    part in ``TextLines``, which others lack.
    """
    return {len(p) - 1 for p in known if isinstance(p, tuple) and len(p) > 2}


def _kinds(known: list[Position], index: int) -> set[type]:
    return {type(p[index]) for p in known if isinstance(p, tuple) and len(p) > index}


def _fitted_part(part: Any, kinds: set[type]) -> tuple[PositionPart] | None:
    if type(part) is int and int not in kinds and float in kinds:
        return (float(part),)
    return (part,) if type(part) in kinds else None


def _sound(position: Position, known: list[Position]) -> Position | None:
    """Return None for numbers that no source can reach: not finite, beyond 64 bits, negative."""
    numbers = _numbers(position)
    if any(isinstance(n, float) and not math.isfinite(n) for n in numbers):
        return None
    if any(n < 0 for n in numbers) and not any(n < 0 for p in known for n in _numbers(p)):
        return None
    try:
        encode(position)
    except (JobError, UnicodeEncodeError):
        return None
    return position


def _numbers(position: Position) -> list[Any]:
    parts = position if isinstance(position, tuple) else (position,)
    return [part for part in parts if isinstance(part, int | float)]


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
    """Whether a position has the shape of ``TextLines``: byte, line, and the length of a cut last
    line.
    """
    return (
        isinstance(position, tuple)
        and len(position) in (2, 3)
        and all(type(part) is int and part >= 0 for part in position)
    )


def _path_of(partition: str) -> str | None:
    """Return the file behind a partition; in a topology the name of its spout precedes it."""
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
    """Return where in ``block`` the line after its ``ordinal``-th newline begins."""
    end = -1
    for _ in range(ordinal):
        end = block.index(b"\n", end + 1)
    return end + 1
