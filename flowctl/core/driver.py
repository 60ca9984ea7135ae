"""The driver contract as a protocol: what the runtime's threads need of whatever decides.

:class:`flowctl.core.spout.SpoutCore` fulfils it for one stage, a topology's core for several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, TargetWentDown, TupleGaveUp
from flowctl.core.failures import DeadTuple
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.intake import Intake
from flowctl.core.records import (
    Ack,
    AckOutcome,
    Checkpoint,
    Emission,
    PartitionCheckpoint,
    Record,
    RevokeOrder,
)
from flowctl.core.settings import CoreSettings


class PartitionHandover(Protocol):
    """Each call as in :class:`flowctl.core.handover.Handover`."""

    def give(self, partition: str, state: PartitionCheckpoint, *, now_s: float) -> None: ...
    def hold_back(self, partition: str) -> int: ...
    def take_away(self, partition: str, *, now_s: float) -> None: ...


class DriverCore(Protocol):
    """Each call as in :class:`flowctl.core.spout.SpoutCore`.  Not thread-safe."""

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
    def intake(self) -> Intake: ...
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
    def poll_order(self) -> RevokeOrder | None: ...
    def poll_event(self) -> FlowEvent | None: ...
    def on_ack(self, ack: Ack, *, now_s: float) -> AckOutcome: ...
    def on_fail(
        self,
        bolt: str,
        epoch: int,
        tuple_id: int,
        *,
        reason: str,
        now_s: float,
        record_index: int | None = None,
        is_data_error: bool = False,
    ) -> AckOutcome: ...
    def on_refused(
        self,
        bolt: str,
        epoch: int,
        tuple_id: int,
        *,
        reason: str,
        after_s: float | None,
        now_s: float,
        record_index: int | None = None,
    ) -> AckOutcome: ...
    def on_revoked(
        self, bolt: str, epoch: int, tuple_ids: Iterable[int], *, now_s: float
    ) -> None: ...
    def on_heartbeat(
        self, bolt: str, epoch: int, *, busy_slots: int, queued: int, now_s: float
    ) -> None: ...
    def poll_dead(self) -> DeadTuple | None: ...
    def on_dead_lettered(self, tuple_id: int, *, now_s: float) -> None: ...
    def may_speak_of(self, bolt: str, tuple_id: int) -> bool: ...
    def attempts_of(self, bolt: str, tuple_id: int) -> int: ...
    def drop_peer(self, bolt: str, *, now_s: float, reason: str) -> None: ...
    def next_deadline_s(self) -> float | None: ...
    def on_deadline(self, *, now_s: float) -> None: ...
    def checkpoint(self) -> Checkpoint: ...
    def tuple_records(self, tuple_id: int, *, bolt: str = "") -> Sequence[Record]: ...


@runtime_checkable
class CollectingCore(Protocol):
    """A core some of whose bolts may hold inputs until the end of the input: a topology's."""

    @property
    def collects(self) -> bool: ...


@runtime_checkable
class TellingCore(Protocol):
    """A core that has more to say than events: a topology's, of roots and tasks."""

    def take_news(self) -> Sequence[object]: ...


@runtime_checkable
class ProlongingCore(Protocol):
    """A core whose bolts may say that an input takes longer: a topology's."""

    def on_prolonged(
        self, bolt: str, epoch: int, input_ids: Iterable[int], *, now_s: float
    ) -> None: ...
