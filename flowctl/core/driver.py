"""The driver contract: what may be asked of a core, in which order, and one turn of it, ``pump``.

A core decides and does nothing else: it reads no clock, sends nothing and stores nothing.
:class:`flowctl.core.spout.SpoutCore` is one for a single stage, a topology's core one for several;
the sender thread, the simulator, a spout that is driven by hand and the tests drive them.

**The lock.** A core is not thread-safe and has no lock.  Its creator owns one, and holds it for
each call and for each read of a getter.  Hold it for decisions only, never for I/O: emissions,
orders, events and dead letters are values, to be sent or stored after it is released.

**Time.**  ``now_s`` is in seconds, monotonic, from a clock of the driver's choice, and is never
less than in an earlier call.  What is due by it happens in ``on_deadline`` only.

**Three kinds of calls.**

- *Things that happened*: ``add_bolt``, ``remove_bolt``, ``offer``, ``end_of_input``, ``on_ack``,
  ``on_fail``, ``on_revoked``, ``on_heartbeat``, ``drop_peer``.  In any order, as they happen.  What
  a bolt says comes as a message (:mod:`flowctl.core.messages`) with the bolt's name and epoch, and
  is ignored once that epoch is over.
- *Polls*: ``poll_emit``, ``poll_order``, ``poll_event``, ``poll_dead_letter``.  Each gives one
  value, or None when there is no more for now.  What was polled counts as done: an emission as
  sent.  After something happened, or at ``next_deadline_s``, call ``on_deadline`` and then poll
  until None, in the order in which they are named here: that is :func:`pump`.
- *Getters*: everything else.  They change nothing and are as of the last call.

**What has to follow what.**

- A bolt: ``add_bolt`` before anything that it says; ``remove_bolt`` when it is gone.  An emission
  for a bolt that just went needs no care: it goes to another.
- A checkpoint: read ``checkpoint()`` under the lock, save it without.  Where positions must be
  saved before anything is sent (at most once), ``offer`` sets ``intake.is_held`` and nothing is
  emitted until the driver has saved and called ``on_committed``.
- A tuple that was given up: ``poll_dead_letter``, keep it elsewhere, then ``on_dead_lettered``.
  Only then does it count as acked; after a crash in between it is given up again.
- A partition that goes: ``handover.hold_back`` until it returns 0 or the driver waits no longer,
  save, ``handover.take_away``.  Only then may another driver begin.  One that comes:
  ``handover.give``, then ``offer``.
- The end: ``end_of_input`` once the source has no more, and never before.  ``is_drained`` then
  means that all is done.  A run ends early if ``gave_up`` is set or ``is_target_lost``: stop
  polling emissions, and go on taking acks for as long as is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from flowctl.core.buffer import SendBuffer
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, TargetWentDown, TupleGaveUp
from flowctl.core.failures import DeadTuple
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.messages import Ack, Emission, Fail, Heartbeat, Order, Revoked
from flowctl.core.records import AckOutcome, Checkpoint, PartitionCheckpoint, Position, Record
from flowctl.core.settings import CoreSettings

_UNBOUNDED: Final = 1 << 62  # more tuples, and more bytes, than any turn gives


class PartitionHandover(Protocol):
    """Partitions that move between drivers; for each call see
    :class:`flowctl.core.handover.Handover`.
    """

    def give(self, partition: str, state: PartitionCheckpoint, *, now_s: float) -> None: ...
    def hold_back(self, partition: str) -> int: ...
    def take_away(self, partition: str, *, now_s: float) -> None: ...


class DriverIntake(Protocol):
    """Each as in :class:`flowctl.core.intake.Intake`."""

    @property
    def buffer(self) -> SendBuffer: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def has_room(self) -> bool: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def skipped(self) -> int: ...
    @property
    def uncommitted(self) -> int: ...
    @property
    def records_kept_nowhere(self) -> int: ...

    def note_mark(self, partition: str, mark: Position) -> None: ...
    def finish(self, partition: str, end: Position) -> None: ...
    def uncommitted_of(self, partition: str) -> int: ...
    def touch(self, partitions: Iterable[str]) -> None: ...
    def take_moved(self) -> dict[str, PartitionCheckpoint]: ...
    def overview(self, limit: int) -> dict[str, PartitionCheckpoint]: ...


class DriverCore(Protocol):
    """The calls that a driver makes; for each see :class:`flowctl.core.spout.SpoutCore`.

    Not thread-safe.
    """

    @property
    def settings(self) -> CoreSettings: ...
    @property
    def guarantee(self) -> ProcessingGuarantee: ...
    @property
    def handover(self) -> PartitionHandover: ...
    @property
    def bolts(self) -> dict[str, AdaptiveFlowConsumer]: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def intake(self) -> DriverIntake: ...
    @property
    def gave_up(self) -> TupleGaveUp | None: ...
    @property
    def target_down(self) -> TargetWentDown | None: ...
    @property
    def is_target_lost(self) -> bool: ...
    @property
    def is_at_limit(self) -> bool: ...
    @property
    def is_drained(self) -> bool: ...
    @property
    def is_served(self) -> bool: ...

    def add_bolt(
        self, bolt: str, *, slots: int, epoch: int, now_s: float, in_order: bool = False
    ) -> None: ...
    def remove_bolt(
        self, bolt: str, *, now_s: float, reason: str = "", lost: bool = True
    ) -> None: ...
    def offer(
        self,
        partition: str,
        records: Sequence[Record],
        *,
        now_s: float,
        sizes: Sequence[int] | None = None,
    ) -> int: ...
    def set_aside(self, partition: str, record: Record, *, reason: str, now_s: float) -> bool: ...
    def end_of_input(self, *, now_s: float) -> None: ...
    def on_committed(self) -> None: ...
    def poll_emit(self, *, now_s: float) -> Emission | None: ...
    def poll_order(self) -> Order | None: ...
    def poll_event(self) -> FlowEvent | None: ...
    def on_ack(self, bolt: str, epoch: int, ack: Ack, *, now_s: float) -> AckOutcome: ...
    def on_fail(self, bolt: str, epoch: int, fail: Fail, *, now_s: float) -> AckOutcome: ...
    def on_revoked(self, bolt: str, epoch: int, given: Revoked, *, now_s: float) -> None: ...
    def on_heartbeat(self, bolt: str, epoch: int, beat: Heartbeat, *, now_s: float) -> None: ...
    def poll_dead_letter(self) -> DeadTuple | None: ...
    def on_dead_lettered(self, tuple_id: int, *, now_s: float) -> None: ...
    def may_speak_of(self, bolt: str, tuple_id: int) -> bool: ...
    def attempts_of(self, bolt: str, tuple_id: int) -> int: ...
    def drop_peer(self, bolt: str, *, now_s: float, reason: str) -> None: ...
    def next_deadline_s(self) -> float | None: ...
    def on_deadline(self, *, now_s: float) -> None: ...
    def checkpoint(self) -> Checkpoint: ...
    def tuple_records(self, bolt: str, tuple_id: int) -> Sequence[Record]: ...


class Turn(NamedTuple):
    """What a core wants done now.  The values belong to the driver and are handled without the
    lock.

    ``next_s``: when to pump again even if nothing happens until then; None: never.  ``is_more``:
    a bound of :func:`pump`, and nothing else, ended the emissions, so pump again at once.
    """

    emissions: list[Emission]
    orders: list[Order]
    events: list[FlowEvent]
    dead: list[DeadTuple]
    next_s: float | None
    is_more: bool


def pump(
    core: DriverCore,
    now_s: float,
    *,
    emits_max: int | None = None,
    bytes_max: int | None = None,
    refill: Callable[[float], None] | None = None,
    heard_until_s: float | None = None,
) -> Turn:
    """Take one turn of ``core``: let time pass, then poll everything, in the order of the contract.

    ``heard_until_s``: all messages that bolts had sent by then have been handed to the core.
    Deadlines are judged by that time where it is earlier than ``now_s``: an ack that waits to be
    read must not count as silence.

    At most ``emits_max`` emissions, and none after their records make ``bytes_max`` (None: as many
    as windows allow).  ``refill``, for a driver that can read its source at once, offers records;
    it is called first and whenever the buffer has run empty.  The lock must be held.
    """
    core.on_deadline(now_s=now_s if heard_until_s is None else min(now_s, heard_until_s))
    if refill is not None:
        refill(now_s)
    emissions: list[Emission] = []
    # Numbers for "no bound", and names for what is asked once for each tuple.
    count_left = _UNBOUNDED if emits_max is None else emits_max
    bytes_left = _UNBOUNDED if bytes_max is None else bytes_max
    poll_emit, add = core.poll_emit, emissions.append
    is_more = False
    while True:
        if count_left <= 0 or bytes_left <= 0:
            is_more = emits_max is None or emits_max > 0
            break
        emission = poll_emit(now_s=now_s)
        if emission is None:
            break
        add(emission)
        count_left -= 1
        bytes_left -= emission.size_bytes
        if refill is not None and not core.intake.buffer.records:
            refill(now_s)
    orders: list[Order] = list(iter(core.poll_order, None))
    events = list(iter(core.poll_event, None))
    dead = list(iter(core.poll_dead_letter, None))
    next_s = now_s if is_more else core.next_deadline_s()
    return Turn(emissions, orders, events, dead, next_s, is_more)


@runtime_checkable
class CollectingCore(Protocol):
    """A core some of whose bolts may hold inputs until the end of the input: a topology's."""

    @property
    def collects(self) -> bool: ...


@runtime_checkable
class TellingCore(Protocol):
    """A core that has more to report than events: a topology's, of roots and tasks."""

    def take_news(self) -> Sequence[object]: ...


class Measured(NamedTuple):
    """How much of a source is done and how large it is, in the source's own measure: bytes, if it
    knows.

    ``records_per_position``: about how many records one of the core's positions stands for.
    """

    done: int
    total: int
    records_per_position: float


@runtime_checkable
class MeasuringCore(Protocol):
    """A core that knows how large its source is, and counts work in positions: a core of ranges."""

    def measure(self) -> Measured: ...
