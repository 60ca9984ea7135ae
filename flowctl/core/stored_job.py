"""The state that a checkpoint store keeps of one job, the result of each call, and the calls that
it refuses.

The rules of :class:`flowctl.ports.CheckpointStore`, once for all stores: those in memory and on
disk are these functions and a place to keep the result; Redis does the same in Lua, and refuses in
these words.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flowctl.core.lost import lost_through
from flowctl.core.positions import encode, show
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Position
from flowctl.errors import ConfigError, FencedError, InternalError

_NAMED_MAX = 10  # partitions that an error lists: two lines


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored for one job.  ``saved_at_unix_ms`` is the saving driver's clock; 0: never."""

    job: str
    epoch: int = 0
    saved_at_unix_ms: int = 0
    checkpoint: Checkpoint = Checkpoint()


def acquired(stored: StoredJob, *, now_unix_s: int) -> StoredJob:
    """Return the job as a driver takes it over: with a new epoch, at least the time of day, in case
    the store lost its data.
    """
    return msgspec.structs.replace(stored, epoch=max(stored.epoch + 1, now_unix_s))


def saved(stored: StoredJob, checkpoint: Checkpoint, *, epoch: int, now_unix_ms: int) -> StoredJob:
    """Return the job after a save by the driver of ``epoch``, which may be newer than the stored
    one.
    """
    if epoch < stored.epoch:
        raise fenced(stored.job, newest=stored.epoch, ours=epoch)
    partitions = stored.checkpoint.partitions
    for name, state in checkpoint.partitions.items():
        key = _sort_key(state.position)  # also raises for values that can't be positions
        if (before := partitions.get(name)) is not None and key < _sort_key(before.position):
            raise goes_back(stored.job, name)
    merged = Checkpoint(partitions | checkpoint.partitions)
    return StoredJob(job=stored.job, epoch=epoch, saved_at_unix_ms=now_unix_ms, checkpoint=merged)


def rewound(stored: StoredJob, partition: str, position: Position | None) -> StoredJob:
    """Return the job after one of its partitions was set back; running drivers are fenced."""
    value = set_back(stored.job, stored.checkpoint.partitions, partition, position)
    partitions = stored.checkpoint.partitions | {partition: value}
    return msgspec.structs.replace(
        stored, epoch=stored.epoch + 1, checkpoint=Checkpoint(partitions)
    )


def cleared(stored: StoredJob) -> StoredJob:
    """Return the job with nothing but its epoch, which rises if there was one."""
    return StoredJob(job=stored.job, epoch=stored.epoch + 1) if stored.epoch else stored


def set_back(
    job: str,
    partitions: dict[str, PartitionCheckpoint],
    partition: str,
    position: Position | None,
) -> PartitionCheckpoint:
    """Return the state of ``partition`` after it was set back to ``position``.

    How many records were done before another position than the saved one is 0 if that is unknown.
    What was lost after it is done again, and counts no more.
    """
    before = partitions.get(partition)
    if before is None:
        raise unknown(job, partitions, partition)
    _check_shape(position, before.position)
    if _sort_key(position) > _sort_key(before.position):
        raise ahead(position, before.position)
    records = _records_at(position, before)
    return PartitionCheckpoint(position, records, lost=lost_through(before.lost, position))


def _records_at(position: Position | None, saved: PartitionCheckpoint) -> int:
    """How many records were done up to ``position``, which is not above the saved one."""
    if position == saved.position:
        return saved.records
    if not (isinstance(position, int) and isinstance(saved.position, int)):
        return 0
    # Rows of a file are numbered from 0: if there are as many as that, no number is left out.
    return position + 1 if saved.records == saved.position + 1 else 0


# -- Refusals ----------------------------------------------------------------------------------


def fenced(job: str, *, newest: int, ours: int) -> FencedError:
    """Return the error for a driver whose job has a newer epoch than ``ours``."""
    return FencedError(
        f"job {job!r} was taken over from this driver (epoch {newest}, ours {ours}):"
        " another driver has started, or somebody cleared or rewound its checkpoint.",
        remedy="If it was cleared or rewound, start the job again. If another driver was"
        " started on purpose, let it work; otherwise give this job another name.",
    )


def goes_back(job: str, partition: str) -> InternalError:
    """Return the error for a save that would go back, which no run does."""
    return InternalError(
        f"job {job!r}, partition {partition!r}: the position would go back.",
        remedy="Please report this; `flowctl checkpoint rewind` is the way to go back.",
    )


def unknown(job: str, partitions: Iterable[str], partition: str) -> ConfigError:
    """Return the error for a partition, or a job, that does not exist."""
    known = sorted(partitions)
    if not known:
        return ConfigError(
            "job",
            f"nothing is stored for {job!r}.",
            remedy="See `flowctl checkpoint list`.",
        )
    names = ", ".join(known[:_NAMED_MAX]) + (", …" if len(known) > _NAMED_MAX else "")
    return ConfigError(
        "partition", f"{job!r} has no partition {partition!r}.", remedy=f"Known: {names}."
    )


def ahead(position: Position | None, stored: Position | None) -> ConfigError:
    """Return the error for a rewind that would go forward."""
    return ConfigError(
        "position",
        f"{show(position)} lies ahead of what is saved, {show(stored)}.",
        remedy="Give a position at or below it: records in between were not processed.",
    )


def no_name() -> ConfigError:
    """Return the error for a job without a name, which has no place in a store."""
    return ConfigError("job", "the name is empty.", remedy="Name the job.")


def _check_shape(position: Position | None, stored: Position | None) -> None:
    if position is None or stored is None or _fits(position, stored):
        return
    raise ConfigError(
        "position",
        f"{position!r} has another form than the positions of this partition.",
        remedy=f"They look like {stored!r}.",
    )


def _fits(position: Position, stored: Position) -> bool:
    if isinstance(position, tuple) and isinstance(stored, tuple):
        # Parts may differ in type: None is allowed for any.  Of three or more the last may be
        # missing: TextLines adds one only to a last line without newline.
        shortest = len(stored) - 1 if len(stored) > 2 else len(stored)
        return shortest <= len(position) <= len(stored)
    return type(position) is type(stored)


def _sort_key(position: Position | None) -> bytes:
    return b"" if position is None else encode(position)  # None: nothing yet, below all
