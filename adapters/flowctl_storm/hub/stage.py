"""One stage in the hub: its cores, its waiting inputs, and the inputs that its bolts hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from flowctl.config import Settings
from flowctl.core.carried import record_of
from flowctl.core.end_of_input.shares import speed
from flowctl.core.messages import Emission
from flowctl.core.records import Record
from flowctl.core.settings import CoreSettings, GuaranteeSettings
from flowctl.core.supply import Backlog
from flowctl.core.trees.anchors import Anchored, Edges, NextId, PendingAcks
from flowctl.core.tuple_core import TupleCore
from flowctl_storm.plan import StagePlan, component_of, input_id_of

# Records that may wait for a bolt of unknown speed: its first tuple has as many (core/sizing.py).
_WAITING_FIRST: Final = 25
# Bound of the inputs waiting for a stage, including those that its feeders are about to emit, in
# longest tuples per bolt: the feeder's two and the stage's two, so that neither runs dry.
_TUPLES_AHEAD: Final = 4


class Parcel(Anchored):
    """A value that is on its way to a task, or at the task.  ``source`` is the index of its sender.

    ``value`` is in its wire form: perhaps a :class:`flowctl.core.carried.Packed`.
    """

    __slots__ = ("core", "is_tracked", "refusals", "refused_since_s", "source", "value")

    def __init__(self, edges: Edges, value: Any, source: int, core: int) -> None:
        super().__init__(edges)
        self.is_tracked: bool = bool(
            edges
        )  # part of a tree, at least until it was held for too long
        self.refusals: int = 0
        self.refused_since_s: float | None = None
        self.value: Any = value
        self.source: int = source
        self.core: int = core

    def note_refused(self, now_s: float) -> float:
        """Note a target's refusal; return the time of the first one."""
        self.refusals += 1
        if self.refused_since_s is None:
            self.refused_since_s = now_s
        return self.refused_since_s


class Stage:
    """A stage's windows and buffers: one ``TupleCore``, or one per task if it matters which task
    gets an input.

    Not thread-safe.  ``parcels`` are the inputs that are not settled, by id; ids rise and are the
    positions of the records in the cores, all of one partition, so that inputs from several sources
    ride in one tuple.  Puts are never refused: feeders first ask whether the stage :attr:`is_full`,
    so at most the limit and one tuple's emits are waiting.
    """

    def __init__(
        self,
        plan: StagePlan,
        settings: Settings,
        next_id: NextId,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.plan = plan
        self.name: str = plan.name
        self.feeds: tuple[Stage, ...] = ()  # the stages that it feeds
        self.fed_by: tuple[Stage, ...] = ()
        self.is_first = False  # a spout feeds it
        self.is_ended: bool = False
        self.parcels: dict[int, Parcel] = {}
        # Bolt → inputs that it has not settled, and since when it holds them.
        self.held: dict[str, dict[int, float]] = {}
        self.acks: PendingAcks = PendingAcks(next_id)
        self.refused_now = 0  # inputs waiting after a target's refusal
        self.waiting_max: int = 0  # the maximum of records waiting here so far
        core_settings = _settings_of(plan, settings)
        count = plan.count if plan.is_keyed else 1
        self._backlogs = [Backlog() for _ in range(count)]
        self.cores: list[TupleCore] = [
            TupleCore(core_settings, log, chance=chance) for log in self._backlogs
        ]
        self._first = _WAITING_FIRST * plan.count
        self._ahead_s = _TUPLES_AHEAD * settings.tuple.service_max_s
        # records per second that the stage and those after it can process
        self.rate: float | None = None
        self._components: list[str] = [component_of(source) for source in plan.sources]
        self._arrived: dict[str, int] = dict.fromkeys(self._components, 0)  # by feeder
        self._bytes_max = settings.buffer.bytes_max
        self._unsent: list[list[Record]] = [[] for _ in self.cores]
        self._has_unsent = False
        self._next_core = 0
        self._was_served = False

    # -- what comes in -------------------------------------------------------------------

    def put(self, number: int, parcel: Parcel) -> None:
        """Add a value for the stage, with a rising number; the next :meth:`flush` offers it."""
        input_id = input_id_of(number, parcel.source)
        self.parcels[input_id] = parcel
        self._arrived[self._components[parcel.source]] += 1
        self._unsent[parcel.core].append(record_of(input_id, parcel.value))
        self._has_unsent = True

    def flush(self) -> None:
        """Pass the added values to the cores, as runs."""
        if not self._has_unsent:
            return
        self._has_unsent = False
        for index, records in enumerate(self._unsent):
            if records:
                self._unsent[index] = []
                self._backlogs[index].put(self.name, records)
        self.waiting_max = max(self.waiting_max, self.waiting)

    @property
    def waiting(self) -> int:
        """The number of records that have not been sent to any bolt."""
        return sum(core.buffer.records for core in self.cores)

    @property
    def is_full(self) -> bool:
        """Whether the stage's feeders should hold back: see :attr:`room`."""
        return self.room <= 0

    @property
    def room(self) -> float:
        """The most records that its feeders should add, beyond those that their bolts hold.

        The room is 0 when the records waiting at one of its cores, including those to come from the
        feeders' bolts, are as many as its bolts hold, or process in about a second if that is more.
        Records from spouts are available at once, so fewer of them need to wait.
        """
        each, coming = self._ahead() / len(self.cores), self._coming() / len(self.cores)
        room = inf
        for core in self.cores:
            buffer = core.buffer
            if buffer.size_bytes >= self._bytes_max:
                return 0
            most = max(each, core.counters.records_pending_now)
            room = min(room, most - buffer.records - coming)
        return room * len(self.cores)

    def _ahead(self) -> float:
        """The records that may wait here, however few its bolts hold."""
        if self.rate is not None and self.fed_by:
            return self.rate * self._ahead_s
        return self._first

    @property
    def tuple_max(self) -> float:
        """The most records of a tuple such that the fed stages have room for its emits; 0 for none.

        If there is little room, a quarter of the records that may wait counts as the room: so there
        are no tuples of single records while a full stage makes room one by one.
        """
        most = inf
        for fed in self.feeds:
            room = fed.room
            if room <= 0:
                return 0
            if ratio := fed.ratio_of(self):
                most = min(most, max(room, fed._ahead() / _TUPLES_AHEAD) / ratio)
        return max(1, most)

    def _coming(self) -> float:
        """The records that its feeders will emit to it from their bolts' current inputs."""
        return sum(feeder.at_bolts * self.ratio_of(feeder) for feeder in self.fed_by)

    def ratio_of(self, feeder: Stage) -> float:
        """Return the number of records that result from one at ``feeder``; 1 while unknown."""
        done = feeder.done
        if not done:
            return 1.0
        return self._arrived.get(feeder.name, 0) / done

    @property
    def at_bolts(self) -> int:
        """The records that were sent to its bolts and are not acked.

        Records that wait to be sent again don't count: they cause no emits until then, and are not
        sent while the next stage counts as full.
        """
        return sum(core.counters.records_pending_now - _to_go_again(core) for core in self.cores)

    @property
    def done(self) -> int:
        """The number of records that its bolts have acked."""
        return sum(core.counters.records_acked for core in self.cores)

    def refresh_rate(self) -> None:
        """Update :attr:`rate`; the fed stages must be updated first."""
        own = sum(speed(bolt) for core in self.cores for bolt in core.bolts.values())
        self.rate = own or None
        for fed in self.feeds:
            ratio = fed.ratio_of(self)
            if own and fed.rate is not None and ratio:
                own = min(own, fed.rate / ratio)
                self.rate = own

    def loads(self) -> Sequence[int]:
        """Return the load of each core: its records that wait or are at bolts."""
        return [core.buffer.records + core.counters.records_pending_now for core in self.cores]

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
        """Whether no input waits or is at a bolt."""
        return not self.refused_now and all(core.is_drained for core in self.cores)

    def poll_emit(self, now_s: float) -> Emission | None:
        """Return the next tuple for one of its bolts, if the stages that it feeds have room.

        Cores take turns, so that none starves.
        """
        most = self.tuple_max
        if not most:
            return None
        for _ in self.cores:
            index = self._next_core
            self._next_core = (index + 1) % len(self.cores)
            self._backlogs[index].buffer.records_max = most
            emission = self.cores[index].poll_emit(now_s=now_s)
            if emission is not None:
                return emission
        return None

    def sent_at_s(self, bolt: str, tuple_id: int) -> float | None:
        """Return when ``tuple_id`` was sent to ``bolt``; None if it is not expected there."""
        consumer = self.cores[self.core_of(bolt)].bolts.get(bolt)
        flow_tuple = consumer.flight.get(tuple_id) if consumer is not None else None
        return flow_tuple.sent_at_s if flow_tuple is not None else None

    def end_of_input(self, now_s: float) -> None:
        """Prepare for the end of the input: share, take back and copy the remaining tuples."""
        self.is_ended = True
        if self.plan.is_keyed:
            return  # no other bolt could take over
        for core in self.cores:
            core.end_of_input(now_s=now_s)

    def on_their_way(self, since_s: float) -> Iterator[Parcel]:
        """Return inputs that wait here, or are in tuples at bolts that reported after ``since_s``.

        Inputs that bolts hold beyond their tuples, or at silent bolts, are not included.
        """
        not_here: set[Any] = set().union(*self.held.values())
        for core in self.cores:
            for consumer in core.bolts.values():
                if consumer.heard_at_s <= since_s:
                    for sent in consumer.flight.values():
                        not_here.update(record.position for record in sent.cut.records)
        return (parcel for key, parcel in self.parcels.items() if key not in not_here)

    # -- what bolts hold -----------------------------------------------------------------

    def hold(self, bolt: str, input_ids: Iterable[int], now_s: float) -> None:
        """Note that ``bolt`` holds inputs: their tuple is finished, but they are not settled."""
        held = self.held.setdefault(bolt, {})
        for input_id in input_ids:
            if input_id in self.parcels:
                held.setdefault(input_id, now_s)

    def take(self, bolt: str, input_id: int) -> Parcel | None:
        """Remove and return an input that is about to be settled; None if it already was."""
        held = self.held.get(bolt)
        if held:
            held.pop(input_id, None)
        return self.parcels.pop(input_id, None)

    def take_held(self, bolt: str) -> list[Parcel]:
        """Return the inputs that the lost ``bolt`` held, to be queued again."""
        held = self.held.pop(bolt, {})
        return [self.parcels.pop(input_id) for input_id in held if input_id in self.parcels]

    def forget_held(self, is_pending: Mapping[int, object] | Any) -> None:
        """Drop held inputs whose trees have all ended: they are not needed any more.

        Inputs that were never in a tree are kept, as nothing else would send them again.
        """
        for held in self.held.values():
            for input_id in [i for i in held if self._is_forgotten(i, is_pending)]:
                del held[input_id]
                self.parcels.pop(input_id, None)

    def _is_forgotten(self, input_id: int, is_pending: Any) -> bool:
        parcel = self.parcels.get(input_id)
        if parcel is None:
            return True
        return parcel.is_tracked and not any(root in is_pending for root in parcel.edges)


def _to_go_again(core: TupleCore) -> int:
    return sum(len(waiting.cut.records) for waiting in core.to_go_again)


def _settings_of(plan: StagePlan, settings: Settings) -> CoreSettings:
    kinds = {subscription.kind for subscription in plan.subscriptions}
    choice = "round_robin" if kinds == {"shuffle"} else "least_completion"
    replace = msgspec.structs.replace
    hedge = settings.hedge
    if plan.is_manual:  # copies would be held by two bolts
        hedge = replace(hedge, enabled=False)
    # Positions are saved for roots only; a stage just needs to know whether it may send again.
    sends_again = settings.guarantee.processing.sends_again
    return CoreSettings(
        window=settings.window,
        tuple=settings.tuple,
        dispatch=replace(settings.dispatch, choice=choice, in_flight_max=None),
        hedge=hedge,
        timeout=settings.timeout,
        retry=settings.retry,
        guarantee=GuaranteeSettings(mode="at_least_once" if sends_again else "no_guarantee"),
    )
