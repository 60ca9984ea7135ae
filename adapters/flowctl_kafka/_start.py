"""Where to begin a partition: the checkpoint, the group's commit, or a first poll."""

from __future__ import annotations

from typing import Literal

import msgspec

from flowctl.core.records import AckedRange, PartitionCheckpoint

FirstPoll = Literal["earliest", "latest", "uncommitted_earliest", "uncommitted_latest"]

# Kafka keeps 4,096 bytes with an offset (offset.metadata.max.bytes).
_NOTE_BYTES_MAX = 4_000


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The note stored with a group's offset: the committing job, and the ranges acked above.

    Ranges that do not fit are left out, so that their records are processed again.
    """

    flowctl: Literal[1] = msgspec.field(name="flowctl")  # the version; marks the note as ours
    job: str
    acked: tuple[AckedRange, ...] = ()

    def to_text(self) -> str:
        """Return the note as JSON, at most as long as Kafka keeps."""
        note = self
        while len(text := msgspec.json.encode(note)) > _NOTE_BYTES_MAX and note.acked:
            note = msgspec.structs.replace(note, acked=note.acked[: len(note.acked) // 2])
        return text.decode()


class GroupCommit(msgspec.Struct, frozen=True):
    """A commit; ``next_offset`` is the first not done; ``note`` is None if not flowctl's."""

    next_offset: int
    note: Note | None = None


def read_note(text: str | None) -> Note | None:
    """Return the note in ``text`` if flowctl wrote it, else None."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Note)
    except msgspec.DecodeError:
        return None


def where_to_start(
    own: PartitionCheckpoint | None,
    group: GroupCommit | None,
    *,
    job: str,
    first_poll: FirstPoll,
) -> PartitionCheckpoint | None:
    """Return where to read on; None leaves it to :func:`first_position`.

    The checkpoint store is authoritative for this job's progress, also after a rewind; the group's
    commit shows the progress of another driver of the group since.  Commits of clients other than
    flowctl count only for a partition that the job does not know, with the strategies
    ``uncommitted_…``.
    """
    if group is not None and group.note is not None and group.note.job != job:
        done = group.next_offset - 1
        if own is None or _position(own) < done:
            above = tuple(r for r in (own.acked if own else ()) if _int(r.first) > done)
            acked = group.note.acked or above
            lost = own.lost if own else ()
            if acked is not above:  # then the group's note counts for ranges above it
                lost = tuple(span for span in lost if _int(span.first) <= done)
            return PartitionCheckpoint(done, own.records if own else 0, acked, lost=lost)
    if own is not None:
        return own
    is_others = group is not None and group.note is None
    if group is not None and is_others and first_poll.startswith("uncommitted"):
        return PartitionCheckpoint(group.next_offset - 1)
    return None


def first_position(first_poll: FirstPoll, *, low: int, high: int) -> PartitionCheckpoint:
    """Return where to begin a partition never read: at its first offset, or after its last.

    For an empty partition "after its last" is the position -1.  It is saved, so that records
    written before a restart are read and don't pass for records older than the first start.
    """
    return PartitionCheckpoint(high - 1 if first_poll.endswith("latest") else None)


def next_offset(state: PartitionCheckpoint, *, low: int) -> int:
    """Return the offset to read next."""
    return low if state.position is None else _position(state) + 1


def seek_forward(position: int, low: int) -> int | None:
    """Return where to move a reader at ``position``, if it must not read below ``low``.

    Both are offsets to be read next.  None means that the reader is right already.
    """
    return low if position < low else None


def _position(state: PartitionCheckpoint) -> int:
    return -1 if state.position is None else _int(state.position)


def _int(position: object) -> int:
    if not isinstance(position, int):
        raise TypeError(f"{position!r} is not an offset")
    return position
