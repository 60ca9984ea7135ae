"""One stage in the hub: its cores, what waits for it, and what its bolts hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from flowctl.config import Settings
from flowctl.core.anchors import Anchored, Edges, NextId, PendingAcks
from flowctl.core.records import Checkpoint, Emission, Record
from flowctl.core.settings import BufferSettings, CoreSettings
from flowctl.core.spout import SpoutCore
from flowctl.errors import InternalError
from flowctl.topology.plan import StagePlan

# Records that may wait for a bolt whatever it holds: the first tuple that a bolt gets has so many
# (core/sizing.py), so that a stage can begin.
_WAITING_LEAST: Final = 25
_NO_BOUND: Final = 1 << 62


class Parcel(Anchored):
    """A value on its way to a task, or there.  ``source`` is whom it is from."""

    __slots__ = ("core", "source", "value")

    def __init__(self, edges: Edges, value: Any, source: str, core: int) -> None:
        super().__init__(edges)
        self.value = value
        self.source = source
        self.core = core


class Stage:
    """A stage's windows and buffers: one ``SpoutCore``, or one a task where that matters.

    Not thread-safe.  ``parcels`` are the inputs that are not settled, by id; ids rise and are
    the positions of the records in the cores.  ``offer`` never refuses: whoever feeds a stage
    first asks whether it :attr:`is_full`, so the most that waits is what may wait anyhow and
    what its feeders hold at that moment.
    """

    def __init__(
        self, plan: StagePlan, settings: Settings, windows: Mapping[str, float], next_id: NextId
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.feeds: tuple[Stage, ...] = ()  # the stages that get from it
        self.fed_by: tuple[Stage, ...] = ()
        self.is_ended = False
        self.parcels: dict[int, Parcel] = {}
        self.held: dict[str, dict[int, None]] = {}  # bolt → inputs it has not settled
        self.acks = PendingAcks(next_id)
        self.waiting_max = 0  # the most records that ever waited here
        core_settings = _settings_of(plan, settings)
        learned = Checkpoint(windows=dict(windows))
        count = plan.count if plan.is_keyed else 1
        self.cores = [SpoutCore(core_settings, checkpoint=learned) for _ in range(count)]
        self._least = _WAITING_LEAST * plan.count // count
        self._bytes_max = settings.buffer.bytes_max
        self._unsent: dict[tuple[int, str], list[Record]] = {}
        self._next_core = 0
        self._was_served = False

    # -- what comes in -------------------------------------------------------------------

    def put(self, input_id: int, parcel: Parcel) -> None:
        """A value for the stage; it is offered to its core with the next :meth:`flush`."""
        self.parcels[input_id] = parcel
        record = Record(input_id, parcel.value)
        batch = self._unsent.get((parcel.core, parcel.source))
        if batch is None:
            self._unsent[parcel.core, parcel.source] = [record]
        else:
            batch.append(record)

    def flush(self, now_s: float) -> None:
        """Offer what was put, as runs, to the cores."""
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, {}
        for (core, source), records in unsent.items():
            taken = self.cores[core].offer(source, records, now_s=now_s)
            if taken != len(records):
                raise InternalError(f"stage {self.name} took {taken} of {len(records)} records.")
        self.waiting_max = max(self.waiting_max, self.waiting)

    @property
    def waiting(self) -> int:
        """Records that no bolt was given yet."""
        return sum(core.intake.buffer.records for core in self.cores)

    @property
    def is_full(self) -> bool:
        """Whether its feeders should hold back: as much waits for a core as its bolts hold.

        So its bolts always have a second window to go on with, and never more.
        """
        for core in self.cores:
            buffer = core.intake.buffer
            waiting = buffer.records
            if waiting >= self._least and waiting >= core.counters.records_pending_now:
                return True
            if buffer.size_bytes >= self._bytes_max:
                return True
        return False

    @property
    def is_blocked(self) -> bool:
        """Whether a stage that it feeds is full."""
        return any(stage.is_full for stage in self.feeds)

    def loads(self) -> Sequence[int]:
        """What each core has to do: records that wait or are at its bolts."""
        return [
            core.intake.buffer.records + core.counters.records_pending_now for core in self.cores
        ]

    # -- bolts ---------------------------------------------------------------------------

    def core_of(self, bolt: str) -> int:
        """Return the index of the core that ``bolt`` belongs to."""
        if not self.plan.is_keyed:
            return 0
        return int(bolt.rpartition(".")[2]) - 1

    @property
    def was_served(self) -> bool:
        """Whether every core has had a bolt."""
        if not self._was_served:
            self._was_served = all(core.bolts for core in self.cores)
        return self._was_served

    @property
    def is_served(self) -> bool:
        """Whether every core has a bolt that is not silent."""
        return all(core.is_served for core in self.cores)

    @property
    def is_drained(self) -> bool:
        """Nothing waits, nothing is at bolts."""
        return all(core.is_drained for core in self.cores)

    def poll_emit(self, now_s: float) -> Emission | None:
        """Return the next tuple for one of its bolts; cores in turn, so that none starves."""
        cores = self.cores
        if len(cores) == 1:
            return cores[0].poll_emit(now_s=now_s)
        for _ in cores:
            core = cores[self._next_core]
            self._next_core = (self._next_core + 1) % len(cores)
            emission = core.poll_emit(now_s=now_s)
            if emission is not None:
                return emission
        return None

    def end_of_input(self, now_s: float) -> None:
        """Nothing more is expected: share out, take back and copy what is left."""
        self.is_ended = True
        for core in self.cores:
            core.end_of_input(now_s=now_s)

    # -- what bolts hold -----------------------------------------------------------------

    def hold(self, bolt: str, input_ids: Iterable[int]) -> None:
        """``bolt`` neither acked nor failed these, though it is through with their tuple."""
        held = self.held.setdefault(bolt, {})
        for input_id in input_ids:
            if input_id in self.parcels:
                held[input_id] = None

    def take(self, bolt: str, input_id: int) -> Parcel | None:
        """Take an input out, as it is about to be settled; None if it was before."""
        held = self.held.get(bolt)
        if held:
            held.pop(input_id, None)
        return self.parcels.pop(input_id, None)

    def take_held(self, bolt: str) -> list[Parcel]:
        """``bolt`` is gone: return what it held, to be put again."""
        held = self.held.pop(bolt, {})
        return [self.parcels.pop(input_id) for input_id in held if input_id in self.parcels]

    def forget_held(self, is_pending: Mapping[int, object] | Any) -> None:
        """Drop held inputs none of whose trees is pending: nobody waits for them."""
        for held in self.held.values():
            for input_id in [i for i in held if self._is_forgotten(i, is_pending)]:
                del held[input_id]
                self.parcels.pop(input_id, None)

    def _is_forgotten(self, input_id: int, is_pending: Any) -> bool:
        parcel = self.parcels.get(input_id)
        return parcel is None or not any(root in is_pending for root in parcel.edges)

    def windows(self) -> Iterator[tuple[str, float]]:
        """Learned windows of the bolts that are here."""
        for core in self.cores:
            for name, consumer in core.bolts.items():
                yield name, consumer.policy.window


def _settings_of(plan: StagePlan, settings: Settings) -> CoreSettings:
    kinds = {subscription.kind for subscription in plan.subscriptions}
    choice = "round_robin" if kinds == {"shuffle"} else "least_completion"
    replace = msgspec.structs.replace
    hedge = settings.hedge
    if plan.is_manual:  # a copy would be held by two bolts
        hedge = replace(hedge, enabled=False)
    return CoreSettings(
        window=settings.window,
        tuple=settings.tuple,
        dispatch=replace(settings.dispatch, choice=choice, in_flight_max=None),
        hedge=hedge,
        timeout=settings.timeout,
        retry=settings.retry,
        # The hub bounds what waits, before it is made.
        buffer=BufferSettings(
            records_max=_NO_BOUND, bytes_max=_NO_BOUND, uncommitted_max=_NO_BOUND
        ),
    )
