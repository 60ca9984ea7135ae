"""Dead letters as values: records that were left out, and how they are processed again.

A letter keeps the record's own place in the source, however often it is processed again.  For that
it gets a separate partition, a *redrive*: in its original partition the position counts as done,
and a sink may remember it as written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from flowctl.core.carried import plain_value
from flowctl.core.records import Checkpoint, Position, Record

LetterKind: TypeAlias = Literal["rejected", "gave_up"]

# How a reason begins if ``process`` rejected the record itself.
REJECTED_PREFIX: Final = "rejected: "

# Numbers of redrives are unix milliseconds (13 digits until the year 2286), so that one is never
# used twice, even if the dead letters were deleted meanwhile and the checkpoint was not.
_REDRIVE: Final = re.compile(r"(?:^|:)redrive:(\d{13,})$")


# Stands for the value of a record that a bolt read and cannot send.
_SHOWN_KEY: Final = "flowctl: shown only"


class Shown(str):
    """The printable form of a value that could not be sent to the driver.

    No letter keeps the value exactly, so this form is never processed in its place.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def to_show(text: str) -> dict[str, str]:
    """Return what a bolt sends in the place of a value of which only ``text`` can be shown."""
    return {_SHOWN_KEY: text}


def as_sent(value: Any) -> Any:
    """Return the value that ``value``, from a bolt's message, stands for.

    It may be packed (:mod:`flowctl.core.carried`); what :func:`to_show` made becomes a
    :class:`Shown`.
    """
    value = plain_value(value)
    is_shown = type(value) is dict and len(value) == 1 and _SHOWN_KEY in value
    return Shown(value[_SHOWN_KEY]) if is_shown else value


class LeftOut(msgspec.Struct, frozen=True, gc=False):
    """Records of one tuple that can't be processed, and why; each becomes a letter."""

    partition: str
    records: Sequence[Record]
    attempts: int
    reason: str
    bolts: tuple[str, ...] = ()


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One record that was left out, and why.

    ``partition`` and ``position`` are where the source had it.  ``at_unix_ms`` is when it was left
    out last, ``first_at_unix_ms`` the first time.  ``redrives`` counts how often it was processed
    again and failed again.  ``redrive`` is the redrive that it waits in and its position there;
    None: it waits in none.  ``is_exact``: ``value`` is what the source gave; else it is only its
    printable form, and the record can't be processed again.
    """

    id: str
    job: str
    partition: str
    position: Position
    value: Any
    attempts: int
    reason: str
    kind: LetterKind
    at_unix_ms: int
    first_at_unix_ms: int
    bolts: tuple[str, ...] = ()
    epoch: int | None = None
    redrives: int = 0
    redrive: tuple[int, int] | None = None
    is_exact: bool = True


def letter_id(job: str, partition: str, position: Position) -> str:
    """Return the same id for the same record of a job, in every run: 16 hex digits."""
    named = msgspec.msgpack.encode((job, partition, position))
    return hashlib.blake2b(named, digest_size=8).hexdigest()


def kind_of(reason: str) -> LetterKind:
    """Return whether ``process`` rejected the record, or its attempts ran out."""
    return "rejected" if reason.startswith(REJECTED_PREFIX) else "gave_up"


def redrive_partition(number: int, prefix: str = "") -> str:
    """Return the name of the partition that redrive ``number`` is processed under."""
    return f"{prefix}redrive:{number}"


def redrive_number(partition: str) -> int | None:
    """Return the number of the redrive that ``partition`` stands for; None: it is the source's."""
    found = _REDRIVE.search(partition)
    return int(found[1]) if found else None


def without_redrives(checkpoint: Checkpoint) -> Checkpoint:
    """Return the part of ``checkpoint`` that a producer knows about: all but redrives."""
    partitions = checkpoint.partitions
    # Not by the pattern alone: a source may have 200,000 partitions.
    redrives = {name for name in partitions if "redrive:" in name and redrive_number(name)}
    if not redrives:
        return checkpoint
    return Checkpoint({name: part for name, part in partitions.items() if name not in redrives})
