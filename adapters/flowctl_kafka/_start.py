"""Where to begin a partition: the checkpoint, the group's commit, or a first poll."""

from __future__ import annotations

from typing import Literal

import msgspec

from flowctl.core.records import AckedRange, PartitionCheckpoint

FirstPoll = Literal["earliest", "latest", "uncommitted_earliest", "uncommitted_latest"]

# Kafka keeps 4,096 bytes with an offset (offset.metadata.max.bytes).
_NOTE_BYTES_MAX = 4_000


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The note stored with a group's offset: whose commit it is, and what is acked above it.

    Ranges that do not fit are left out, so those records run again.
    """

    flowctl: Literal[1] = msgspec.field(name="flowctl")  # the version; marks our own commits
    job: str
    acked: tuple[AckedRange, ...] = ()

    def to_text(self) -> str:
        """As JSON, of at most as many bytes as Kafka keeps."""
        note = self
        while len(text := msgspec.json.encode(note)) > _NOTE_BYTES_MAX and note.acked:
            note = msgspec.structs.replace(note, acked=note.acked[: len(note.acked) // 2])
        return text.decode()


class GroupCommit(msgspec.Struct, frozen=True):
    """``next_offset`` is the first that is not done; ``note`` is None if another client committed
    it."""

    next_offset: int
    note: Note | None = None


def read_note(text: str | None) -> Note | None:
    """Return the note if it is one of ours, else None."""
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
    """Return where to read on, or None: then as :func:`first_position` says.

    The store is authoritative for what this job did, also after a rewind; the group's commit shows
    what another driver of the group has done since.  Commits of clients other than flowctl count
    only for a partition that the job does not know, with the strategies ``uncommitted_…``.
    """
    if group is not None and group.note is not None and group.note.job != job:
        done = group.next_offset - 1
        if own is None or _position(own) < done:
            above = tuple(r for r in (own.acked if own else ()) if _int(r.first) > done)
            acked = group.note.acked or above
            lost = own.lost if own else ()
            if acked is not above:  # then the group decides what above it is done again
                lost = tuple(span for span in lost if _int(span.first) <= done)
            return PartitionCheckpoint(done, own.records if own else 0, acked, lost=lost)
    if own is not None:
        return own
    is_others = group is not None and group.note is None
    if group is not None and is_others and first_poll.startswith("uncommitted"):
        return PartitionCheckpoint(group.next_offset - 1)
    return None


def first_position(first_poll: FirstPoll, *, low: int, high: int) -> PartitionCheckpoint:
    """Where a partition begins that nobody has read: its first offset, or after its last.

    After the last of an empty partition is a position too, -1: it is saved, so that what is written
    before a restart is read, and not taken for what was there at the first start.
    """
    return PartitionCheckpoint(high - 1 if first_poll.endswith("latest") else None)


def next_offset(state: PartitionCheckpoint, *, low: int) -> int:
    """The offset to read next."""
    return low if state.position is None else _position(state) + 1


def seek_forward(position: int, low: int) -> int | None:
    """Where a reader at ``position`` has to go on if what comes before ``low`` must not be read.

    Both are the next offset to be read.  None: the reader is where it should be.
    """
    return low if position < low else None


def _position(state: PartitionCheckpoint) -> int:
    return -1 if state.position is None else _int(state.position)


def _int(position: object) -> int:
    if not isinstance(position, int):
        raise TypeError(f"{position!r} is not an offset")
    return position
