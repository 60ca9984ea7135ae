"""What a task of Spark keeps of its partition, for who watches the write: light for workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final, Protocol

import msgspec

from flowctl.errors import FlowctlError

# A person sees no more, and it is one small command to Redis for each task at work.
_EVERY_S: Final = 1.0
# The end of a task waits to be shown for so long [s]: Redis takes a ms, and tasks may be short.
_LAST_WORD_S: Final = 0.5


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one partition of a write did until ``at_unix_ms``, by its worker's clock.

    ``action`` is the same for all partitions of one write, or of one batch; ``name`` is that of the
    partition in it.  ``counts`` are those of its :class:`flowctl.delivery.tally.Tally`.  ``error``
    ended it, without what it says: that may quote a row.
    """

    job: str
    target: str
    action: str
    name: str
    worker: str
    began_unix_ms: int
    at_unix_ms: int
    is_over: bool = False
    error: str = ""
    counts: dict[str, float] = {}

    @property
    def for_s(self) -> float:
        """How long it has been at work [s]."""
        return max(0.001, (self.at_unix_ms - self.began_unix_ms) / 1000)

    def count(self, name: str) -> int:
        """Return one of the counts."""
        return int(self.counts.get(name, 0))

    @property
    def settled(self) -> int:
        """Rows that are done: written, rejected or given up."""
        return self.count("written") + self.count("rejected") + self.count("gave_up")


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Part).decode


def unpack(data: Sequence[bytes]) -> list[Part]:
    """Return the partitions that this version can read."""
    found = []
    for each in data:
        with suppress(msgspec.MsgspecError):
            found.append(_decode(each))
    return found


# -- In the task ------------------------------------------------------------------------------


class KeepsParts(Protocol):
    """Where tasks keep what they show; see ``flowctl_redis.targets.RedisTargets``."""

    def show_part(self, job: str, name: str, part: bytes) -> None:
        """Keep ``part`` in place of what was there of this partition."""


@contextmanager
def showing(
    keep: KeepsParts, part: Part, counts: Callable[[], Mapping[str, float]]
) -> Iterator[None]:
    """Keep what a task does, once a second and at its end, until the block ends.

    A thread of its own does so: a store that is slow or away holds up nobody, but for half a second
    at the end.
    """
    over = Event()
    told = part

    def show() -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(_EVERY_S)
            newest = msgspec.structs.replace(
                told, at_unix_ms=_now_ms(), is_over=is_over, counts=dict(counts())
            )
            with suppress(FlowctlError):
                keep.show_part(part.job, part.name, _encode(newest))

    thread = Thread(target=show, name="flowctl-part", daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        told = msgspec.structs.replace(part, error=type(error).__name__)
        raise
    finally:
        over.set()
        thread.join(_LAST_WORD_S)


def part_of(job: str, target: str, *, action: str, name: str) -> Part:
    """Return a partition that begins now, in this process."""
    now_ms = _now_ms()
    return Part(
        job=job,
        target=target,
        action=action,
        name=name,
        worker=f"process {os.getpid()} on {os.uname().nodename}",
        began_unix_ms=now_ms,
        at_unix_ms=now_ms,
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
