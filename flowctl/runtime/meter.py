"""Snapshots and the report: a run as seen from outside."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from copy import copy
from typing import Final, Literal

import msgspec

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.cost import ServicePool
from flowctl.core.counters import Counters
from flowctl.core.driver import Measured, MeasuringCore
from flowctl.core.events import BoltState, FlowEvent, SinkCapChanged
from flowctl.core.letters import without_redrives
from flowctl.core.ranges.consumer import RangeConsumer
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.core.settings import TupleSettings
from flowctl.core.sizing import is_dear
from flowctl.core.state import Liveness
from flowctl.core.times import Histogram
from flowctl.errors import without_secrets
from flowctl.instrumentation.diagnosis import Diagnosis
from flowctl.instrumentation.event_text import down_reason
from flowctl.instrumentation.slow_bolts import RATE_OVER_MOST_S, typical_tuple_s
from flowctl.instrumentation.snapshot import (
    AckTimesView,
    BoltView,
    DearCall,
    Outcome,
    PartitionView,
    Report,
    RunNumbers,
    Snapshot,
    TimesView,
    WaitReason,
    Waits,
    paused_until,
)
from flowctl.ports import Bolts, MeasuredProducer, RoomyBolts
from flowctl.runtime.bolt_watch import wanted_of
from flowctl.runtime.control import RunControl

# -- Each bolt's rate over the last few seconds, from the counts of snapshots ------------------


# Short enough that a bolt that has become slow shows soon, long enough for a dozen tuples of 0.25
# s: then rates of equal bolts differ by a twelfth.  Where tuples take longer, it is a dozen of
# those, up to a minute.
RATE_OVER_S: Final = 3.0
_RATE_TUPLES: Final = 12
# Over a shorter time [s] a rate would count a tuple or two.
_SINCE_MIN_S: Final = 1.0


class BoltRates:
    """Counts of acked records at past snapshots.  For one thread.

    A bolt is measured from when it was first seen; its rate is 0 for the first second.
    """

    def __init__(self) -> None:
        # One dictionary for each snapshot, not one list for each bolt: with 1,000 bolts lists cost
        # more than all the rest here.
        self._past: deque[tuple[float, Mapping[str, int]]] = deque()

    def take(
        self, counts: Mapping[str, int], now_s: float, tuple_s: float = 0.0
    ) -> dict[str, float]:
        """Remember ``counts``, of acked records by bolt, and return each bolt's rate.

        ``tuple_s``: how long a tuple is in process.
        """
        over_s = min(RATE_OVER_MOST_S, max(RATE_OVER_S, _RATE_TUPLES * tuple_s))
        past = self._past
        past.append((now_s, counts))
        while now_s - past[0][0] > over_s and len(past) > 2:
            past.popleft()
        rates = dict.fromkeys(counts, 0.0)
        to_find = list(counts)
        for since_s, before in past:
            if not to_find or now_s - since_s < _SINCE_MIN_S:
                break
            passed_s = now_s - since_s
            missing: list[str] = []
            for bolt in to_find:
                if bolt in before:
                    rates[bolt] = (counts[bolt] - before[bolt]) / passed_s
                else:  # the bolt came later
                    missing.append(bolt)
            to_find = missing
        return rates


# -- Whether calls, not records, cost the time: what views and the report say of it ------------


def dear_tuples(pools: Collection[ServicePool], settings: TupleSettings) -> DearCall | None:
    """Return the most expensive call of all stages, if it decides the size of tuples."""
    pool = max(pools, key=lambda pool: pool.call_s, default=None)
    if pool is None or not is_dear(pool.call_s, settings):
        return None
    return DearCall(pool.call_s, round(pool.mean_records))


def dear_batches(
    consumers: Iterable[AdaptiveFlowConsumer], measured: Measured, before: DearCall | None
) -> DearCall | None:
    """Return the most expensive call of all bolts of ranges, if it decides the size of batches.

    ``before``: the last result, which is kept when the bolts are gone.
    """
    bolts = [bolt for bolt in consumers if isinstance(bolt, RangeConsumer)]
    if not bolts:
        return before
    dearest = max(bolts, key=lambda bolt: bolt.call_s)
    if not dearest.call_s:
        return None
    # Such a batch takes longer than the time between two reports, so each has a report.
    records = dearest.service.mean_records * measured.records_per_position
    return DearCall(dearest.call_s, round(records), "batches")


# -- Snapshots and the report ------------------------------------------------------------------


Phase = Literal["starting", "running", "draining", "stopping"]

_RATE_OVER_S = 5.0  # long enough to smooth tuples of 0.25 s, short enough to show a change
# Bolts that began together report together, so an estimate is over two rounds at least: from fewer
# steps of progress it would jump, with more it would follow late.
_STEPS = 8
_STEPS_PER_BOLT = 2
_PARTITIONS_SHOWN = 20  # a screenful
# To read a bolt takes some 10 us, so that 1,000 in a second take 1 % of a core.  With more bolts
# there is a snapshot every second all the same: a view that moves less often does not look live.
_BOLTS_READ_PER_S = 1_000
_PAUSE_MOST_S = 1.0
# If there are more bolts, this many are read in turn, and the others keep their last values for a
# snapshot or two: a view shows no more than a screenful.  Totals are not sums over these.
_BOLTS_READ = 1_000


def snapshot_pause_s(bolts: int) -> float:
    """Return the shortest time between snapshots of this many bolts [s]."""
    return min(bolts / _BOLTS_READ_PER_S, _PAUSE_MOST_S)


class Meter:
    """Reads the core and computes rates, progress and ETA.  Used by one thread."""

    def __init__(
        self,
        control: RunControl,
        producer: object,
        *,
        job: str,
        restored: Checkpoint,
        bolts: Bolts | None = None,
    ) -> None:
        """``bolts``: those of the run, which may be :class:`flowctl.ports.RoomyBolts`."""
        self._control = control
        self._producer = producer
        self._job = job
        self._restored = restored
        self._began_s = control.clock()
        self._rates: deque[tuple[float, int]] = deque()
        self._outlook = _Outlook()
        self._waits: deque[tuple[float, Waits]] = deque()
        self._read_before = 0  # read from the source by earlier runs
        # All bolts that were ever connected, in the order in which they are shown, as last seen.
        self._names: list[str] = []
        self._seen: dict[str, BoltView] = {}
        self._next_read = 0  # the bolt to be read next, by the index of its name
        self._is_last = False
        self._bolt_rates = BoltRates()
        self._pools: dict[int, ServicePool] = {}
        self._dear_batches: DearCall | None = None
        self._sink_cap: int | None = None
        self._cap_keeps: float | None = None
        self._diagnosis = Diagnosis()
        self._run_bolts: object = bolts
        self._wanted: int = 0 if bolts is None else wanted_of(bolts)

    def begin(self) -> None:
        """Count progress from here: the producer is open and nothing is read yet."""
        if isinstance(self._producer, MeasuredProducer):
            self._read_before = self._producer.progress().done

    def take(self, event: FlowEvent) -> None:
        """Remember what ``event`` says about the run's state."""
        if isinstance(event, SinkCapChanged):
            self._sink_cap = event.after
            self._cap_keeps = event.goodput / event.best if event.goodput and event.best else None

    def snapshot(self, phase: Phase, note: str) -> Snapshot:
        """Return the state of the run; holds the lock for O(bolts + records under way)."""
        control = self._control
        seen, measured = self._read(phase, note)
        now_s, done = control.clock(), control.records_before + seen.records_acked
        progress = self._progress(seen, measured)
        waits = control.spout_waits()
        held_up_by, held_up_share = self._held_up(now_s, waits)
        # If reads are saved at once, a kill repeats nothing (records are lost instead).
        reruns_cumulative = max(0, seen.records_pending_now + done - control.saved_cumulative)
        full = msgspec.structs.replace(
            seen,
            elapsed_s=now_s - self._began_s,
            sink_cap=self._sink_cap,
            sink_cap_keeps=self._cap_keeps,
            records_per_s=self._rate(now_s, seen),
            progress=progress,
            eta_s=self._outlook.eta_s(now_s, progress, seen.bolts),
            records_saved=control.records_saved,
            kill_reruns=max(0, seen.records_pending_now + done - control.records_saved),
            kill_reruns_cumulative_only=reruns_cumulative,
            store_survives=control.store_survives,
            waits=waits,
            held_up_by=held_up_by,
            held_up_share=held_up_share,
            store_away_s=_since(control.store_away_since_s, now_s),
            checkpoint_age_s=_since(control.saved_until_s, now_s),
            bolts_wanted=self._wanted,
            more_bolts_help=_has_room(self._run_bolts),
            shares_interpreter=getattr(self._run_bolts, "shares_interpreter", False),
        )
        return msgspec.structs.replace(full, verdict=self._diagnosis.update(full))

    def _read(self, phase: Phase, note: str) -> tuple[Snapshot, Measured | None]:
        """Return the core's figures, all of one moment, and the source's, if it counts
        positions.
        """
        with self._control.lock:
            core, now_s = self._control.core, self._control.clock()
            counters, down = copy(core.counters), core.target_down
            measured = core.measure() if isinstance(core, MeasuringCore) else None
            if measured is not None:
                # Counted in positions, not records.  A kill repeats what was not saved, and the
                # batches in progress, whose records are unknown here.
                share = measured.records_per_position
                counters.max_in_flight_records = round(share * counters.max_in_flight_records)
                counters.records_pending_now = 0
            down_s = None if down is None else now_s - down.at_s
            counters.target_down_total_s += down_s or 0.0
            seen = Snapshot(
                **msgspec.structs.asdict(counters),
                job=self._job,
                elapsed_s=0.0,
                phase=phase,
                note=note,
                bolts=self._bolts(core.bolts.values(), counters.records_acked),
                records_buffered=core.intake.buffer.records if measured is None else 0,
                records_skipped=core.intake.skipped,
                partitions=_partition_views(core.intake.overview(_PARTITIONS_SHOWN)),
                target_down_s=down_s,
                target_down_reason="" if down is None else down_reason(down),
                times=self._times_of(core.bolts.values()),
                dear_call=self._dear_call(measured),
                targets=self._control.targets.views(now_s),
                batches_begun=0 if measured is None else _batches_begun(core.bolts.values()),
                long_calls=self._control.long_calls.views(now_s),
            )
            return seen, measured

    def _times_of(self, consumers: Iterable[AdaptiveFlowConsumer]) -> AckTimesView:
        """Return sums over the pools of all stages; a pool counts even when its bolts are gone."""
        self._pools.update((id(c.service.pool), c.service.pool) for c in consumers)
        times = [pool.times for pool in self._pools.values()]
        return AckTimesView(
            rtt=_sum([t.rtt for t in times]),
            wait=_sum([t.wait for t in times]),
            service=_sum([t.service for t in times]),
            sink_s=sum(t.sink_s for t in times),
        )

    def _dear_call(self, measured: Measured | None) -> DearCall | None:
        core = self._control.core
        if measured is None:
            return dear_tuples(self._pools.values(), core.settings.tuple)
        self._dear_batches = dear_batches(core.bolts.values(), measured, self._dear_batches)
        return self._dear_batches

    def _bolts(self, consumers: Iterable[AdaptiveFlowConsumer], acked: int) -> tuple[BoltView, ...]:
        here = {consumer.bolt: consumer for consumer in consumers}
        seen = self._seen
        if not here.keys() <= seen.keys():
            self._names = sorted({*here, *seen}, key=lambda name: (len(name), name))
        counts = {
            name: here[name].records_acked if name in here else seen[name].records_acked
            for name in self._names
        }
        now_s = self._control.clock()
        rates = self._bolt_rates.take(counts, now_s, typical_tuple_s([*seen.values()]))
        due = self._take_due()
        for name in self._names:
            consumer, kept = here.get(name), seen.get(name)
            share = counts[name] / acked if acked else 0.0
            if consumer is None:
                seen[name] = _as_gone(seen[name], share, rates[name])
            elif name in due or kept is None or not kept.up:
                seen[name] = _view(consumer, share, rates[name], now_s)
        return tuple(map(seen.__getitem__, self._names))

    def _take_due(self) -> Set[str]:
        """Return the bolts that are read now if they are connected: all, or the next ones if there
        are many.
        """
        names = self._names
        if self._is_last or len(names) <= _BOLTS_READ:
            return frozenset(names)
        begin = self._next_read
        self._next_read = (begin + _BOLTS_READ) % len(names)
        return frozenset((names + names)[begin : begin + _BOLTS_READ])

    def _progress(self, seen: Snapshot, measured: Measured | None) -> float | None:
        """Return the share of the source that is acked: what is read, minus what is in flight."""
        acked, unacked = seen.records_acked, seen.records_buffered + seen.records_pending_now
        if measured is not None:
            return measured.done / measured.total if measured.total else self._progress_of_none()
        if not isinstance(self._producer, MeasuredProducer):
            return None
        source = self._producer.progress()
        if not source.total:
            return self._progress_of_none()
        read = source.done - self._read_before
        per_record = read / (unacked + acked) if unacked + acked else 0.0
        return min(1.0, max(0.0, (source.done - unacked * per_record) / source.total))

    def _progress_of_none(self) -> float | None:
        """Return the progress in a source that is empty as far as is known: all is done, or nothing
        is read yet.
        """
        control = self._control
        return 1.0 if control.reader_done.is_set() and control.core.is_drained else None

    def _rate(self, now_s: float, counters: Counters) -> float:
        rates, acked = self._rates, counters.records_acked
        if not counters.tuples_emitted:  # Spark may have started for a minute until then
            rates.clear()
            self._outlook = _Outlook()
        rates.append((now_s, acked))
        while now_s - rates[0][0] > _RATE_OVER_S and len(rates) > 2:
            rates.popleft()
        began_s, before = rates[0]
        return (acked - before) / (now_s - began_s) if now_s > began_s else 0.0

    def _held_up(self, now_s: float, waits: Waits) -> tuple[WaitReason, float]:
        """Return what the spout mostly waited for recently, and for what share of the time."""
        past = self._waits
        past.append((now_s, waits))
        while now_s - past[0][0] > _RATE_OVER_S and len(past) > 2:
            past.popleft()
        since_s, before = past[0]
        waited_s = {
            reason: waits.waited_s(reason) - before.waited_s(reason)
            for reason in WaitReason
            if reason
        }
        most = max(waited_s, key=waited_s.__getitem__)
        if waited_s[most] <= 0:
            return WaitReason.NOTHING, 0.0
        return most, min(1.0, waited_s[most] / (now_s - since_s))

    def report(self, outcome: Outcome, error: BaseException | None, saves: int) -> Report:
        """Return how the run ended."""
        self._is_last = True
        last = self.snapshot("stopping", "")
        told = {name: getattr(last, name) for name in RunNumbers.__struct_fields__}
        # A dead letter that was redriven is one of the source's records already.
        before = without_redrives(self._restored).records
        told["records_saved"] -= _redriven(self._control.all_saved())
        told["verdict"] = self._diagnosis.of_run()
        told["records_per_s"] = last.records_acked / last.elapsed_s if last.elapsed_s > 0 else 0.0
        return Report(
            **told,
            outcome=outcome,
            error=without_secrets(str(error)) if error is not None else None,
            paused_until=paused_until(error),
            resumed=bool(self._restored.partitions),
            resumed_records=before,
            records_total=before + last.records_acked,
            calls_overdue=self._control.long_calls.overdue,
            checkpoint_saves=saves,
            checkpoint_survives=self._control.store_survives,
        )


class _Outlook:
    """Estimates how long the rest takes at the recent rate.

    For one thread.  The rate is that of the last few seconds; if progress comes in few steps,
    because each bolt reports once a minute, it is that of enough steps for a steady estimate.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque()  # times and values of progress

    def eta_s(
        self, now_s: float, progress: float | None, bolts: Sequence[BoltView]
    ) -> float | None:
        """Return the seconds to go; None while they can't be estimated."""
        steps = self._steps
        if progress is None:
            return None
        if not steps or progress != steps[-1][1]:
            steps.append((now_s, progress))
        up = [bolt for bolt in bolts if bolt.up]
        needed = max(_STEPS, _STEPS_PER_BOLT * len(up))
        while len(steps) > needed and now_s - steps[0][0] > _RATE_OVER_S:
            steps.popleft()
        began_s, before = steps[0]
        # Bolts begin together: the progress of the first ones says nothing about the others.
        heard = sum(bolt.records_acked > 0 for bolt in up)
        if progress <= before or now_s <= began_s or 2 * heard < len(up):
            return None
        return (1 - progress) * (now_s - began_s) / (progress - before)


def _batches_begun(consumers: Iterable[AdaptiveFlowConsumer]) -> int:
    """Return the most batches of ranges that can be in progress: each slot of a bolt has one."""
    return sum(min(len(consumer.flight), consumer.slots) for consumer in consumers)


def _redriven(saved: Checkpoint) -> int:
    """Return how many of its records are dead letters that were processed again."""
    return saved.records - without_redrives(saved).records


def _sum(parts: Sequence[Histogram]) -> TimesView:
    if not parts:
        return TimesView()
    counts = tuple(sum(column) for column in zip(*(part.counts for part in parts), strict=True))
    return TimesView(counts, sum(part.total_s for part in parts))


def _has_room(bolts: object) -> bool | None:
    return bolts.has_room() if isinstance(bolts, RoomyBolts) else None


def _since(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else now_s - at_s


def _partition_views(partitions: Mapping[str, PartitionCheckpoint]) -> tuple[PartitionView, ...]:
    return tuple(
        PartitionView(name=n, position=p.position, records=p.records, acked_above=p.acked)
        for n, p in partitions.items()
    )


def _view(
    consumer: AdaptiveFlowConsumer, share: float, records_per_s: float, now_s: float
) -> BoltView:
    return BoltView(
        name=consumer.bolt,
        state=consumer.state,
        up=not consumer.is_suspect,
        window=consumer.window,
        in_flight=len(consumer.flight),
        ack_rtt_p50_s=consumer.times.rtts.median_s(),
        service_p50_s=consumer.times.services.median_s(),
        acked=consumer.acked,
        records_acked=consumer.records_acked,
        share=share,
        moved_away=consumer.moved_away,
        records_per_s=records_per_s,
        refused=consumer.liveness is Liveness.RESTING,
        slots=consumer.slots,
        paused_s=consumer.paused_s(now_s),
    )


def _as_gone(view: BoltView, share: float, records_per_s: float) -> BoltView:
    return msgspec.structs.replace(
        view,
        state=BoltState.BUSY,
        up=False,
        window=0,
        in_flight=0,
        records_per_s=records_per_s,
        refused=False,
        share=share,
    )
