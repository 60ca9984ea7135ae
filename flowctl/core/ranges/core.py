"""RangeCore: the core of a run whose bolts read the source themselves.

Beside :class:`flowctl.core.spout.SpoutCore`, over the same :class:`TupleCore`: a tuple holds spans
of positions in place of records, is acked part by part, and can be split while a bolt is working on
it.  Every position that is not done is in exactly one place: waiting, or in one tuple.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import cast

import msgspec

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.driver import Measured, PartitionHandover
from flowctl.core.events import FlowEvent
from flowctl.core.failures import DeadTuple, Keeper
from flowctl.core.letters import as_sent
from flowctl.core.messages import Ack, Emission, Progress, RangeEmission, RangeFail, SplitAnswer
from flowctl.core.ranges.consumer import RangeConsumer
from flowctl.core.ranges.extent import Extent
from flowctl.core.ranges.intake import RangeIntake
from flowctl.core.ranges.pieces import Pieces, RangeCut
from flowctl.core.ranges.settling import Settling
from flowctl.core.ranges.splits import Splits
from flowctl.core.records import AckOutcome, Checkpoint, Receipts, Record
from flowctl.core.settings import CoreSettings, HedgeSettings
from flowctl.core.state import Liveness
from flowctl.core.target import Refused
from flowctl.core.tuple_core import KeepingCore
from flowctl.core.tuples import FlowTuple
from flowctl.errors import ConfigError, InternalError

# -- What is different in the settings of a core of ranges -------------------------------------


def for_ranges(settings: CoreSettings) -> CoreSettings:
    """Return ``settings`` as ranges need them; raise :class:`ConfigError` where they are
    impossible.
    """
    if not settings.guarantee.processing.commits_acked:
        raise ConfigError(
            "guarantee.mode",
            f"ranges can't be processed {settings.guarantee.mode.replace('_', ' ')} yet: a range is"
            " saved as it is done, not before it is begun.",
            remedy="Use at_least_once, or a source by value such as TextLines or KafkaTopics.",
        )
    # A late range is split, not run twice.  Sink times are reported for parts of ranges, which the
    # sink guard does not support.
    dispatch = msgspec.structs.replace(settings.dispatch, sink_guard=False)
    hedge = HedgeSettings(enabled=False)
    return msgspec.structs.replace(settings, dispatch=dispatch, hedge=hedge)


# -- How long a range is ----------------------------------------------------------------------
#
# How long a range is: seconds of work for the bolt that gets it, little while nothing is known.


# Long enough that a range costs the driver and the source next to nothing (one message, one open),
# short enough that an unknown cost in it shows soon.  A begun range can be split, so no bolt has to
# wait for its end (shared/ranges.md: 1 to 4 s make no difference to the makespan).
RANGE_S = 2.0
# With very many bolts, which report rarely, a range has at least this many reports.
_REPORTS = 4
# The shortest range [s]: opening a file on a disk and sending a range takes some 2 ms.
LEAST_S = 0.02
# If a call costs so much that a batch takes ten calls' time, a range holds one such batch.
_DEAR_CALLS = 10
# A range is at most this many times as large as all that the bolt has done: a wrong guess from the
# first records must not cost a minute.
_GROWTH = 4
# Python's len() counts no further than 2**63, and keys of 64 bits may be further apart than that.
_MOST = 1 << 62


def positions_for(consumer: RangeConsumer, first: int, work_s: float = RANGE_S) -> int:
    """Return the most positions that the next range for ``consumer`` should have.

    ``first``: the number if nothing is known; ``work_s``: how long the range should take there;
    longer if calls are expensive.
    """
    work_s = max(work_s, _DEAR_CALLS * consumer.call_s)
    position_s = consumer.service.record_s
    known = max(first, consumer.positions_done)
    size = max(1, int(min(work_s / position_s, _GROWTH * known))) if position_s > 0 else first
    # If positions are empty, as between the keys of a table, steps grow until there are records.
    return min(max(size, _GROWTH * consumer.empty_positions), _MOST)


# -- Methods that a core of ranges shares with a core of records by name only ------------------


class ByReference(KeepingCore):
    """Refuses the calls that are for records by value.  Pure; not thread-safe."""

    def offer(
        self,
        partition: str,
        records: Sequence[Record],
        *,
        now_s: float,
        sizes: Sequence[int] | None = None,
    ) -> int:
        """Refuse: ranges come by ``offer_extents``."""
        raise InternalError("records were offered to a core of ranges.")

    def set_aside(self, partition: str, record: Record, *, reason: str, now_s: float) -> bool:
        """Refuse: no record is read here."""
        raise InternalError("a record was offered to a core of ranges.")

    @property
    def handover(self) -> PartitionHandover:
        """Refuse: partitions of ranges are not shared with other drivers."""
        raise InternalError("partitions of ranges are not handed over.")

    def on_committed(self) -> None:
        """Do nothing: no position has to be saved before ranges are sent."""

    def on_ack(self, bolt: str, epoch: int, ack: Ack, *, now_s: float) -> AckOutcome:
        """Ignore it: bolts report on ranges by ``on_progress``."""
        del bolt, epoch, ack, now_s
        return self._count_unknown()


# -- RangeCore ---------------------------------------------------------------------------------


class RangeCore(ByReference):
    """Decides which range goes to which bolt when, and what is done.  Pure; not thread-safe.

    A driver calls ``offer_extents`` in place of ``offer``, and ``on_progress``, ``on_range_fail``
    and ``on_split`` in place of ``on_ack`` and ``on_fail``; everything else as in
    :mod:`flowctl.core.driver`.  Among what ``poll_order`` gives are
    :class:`flowctl.core.messages.Split`.
    """

    def __init__(
        self,
        settings: CoreSettings | None = None,
        *,
        checkpoint: Checkpoint | None = None,
        has_dead_letter: bool = False,
        chance: Callable[[], float] | None = None,
        range_s: float = RANGE_S,
        keeps_receipts: bool = False,
    ) -> None:
        """As :class:`flowctl.core.spout.SpoutCore`.  ``range_s``: how long a range should be [s],
        at least.

        ``keeps_receipts``: receipts of ``process`` are kept with the part that they belong to.
        Then a part counts as done only if its bolt still had all of it to do: late progress would
        keep rows twice.

        Raises :class:`ConfigError` for guarantees that ranges can't give.
        """
        settings = for_ranges(settings or CoreSettings())
        events: deque[FlowEvent] = deque()
        self.intake: RangeIntake = RangeIntake(checkpoint or Checkpoint())
        self._tells_saved = False
        keeper = Keeper.DEAD_LETTER if has_dead_letter else Keeper.NOBODY
        super().__init__(settings, self.intake, keeper=keeper, chance=chance, events=events)
        self._failures.done_before = checkpoint.records if checkpoint is not None else 0
        self.book.consumer_type = RangeConsumer
        self.book.size_for = self._size_for
        self._receipts: deque[Receipts] = deque()
        #: How long a range should be [s].
        self.range_s: float = max(range_s, _REPORTS * settings.timeout.report_s)
        self.keeps_receipts: bool = keeps_receipts
        # It failed, and nothing has succeeded yet: failed ranges come first.
        self._is_doubtful = False
        self._splits = Splits(self.book)
        self._end_phase.shares.least_s = LEAST_S
        self.book.pool.take_calls_as_free()
        self._settling = Settling(self.book, self.intake, self._failures, self._completion)
        self.book.records_share = self._settling.records_share

    # -- ranges come in ------------------------------------------------------------------

    def offer_extents(self, extents: Mapping[str, Extent]) -> None:
        """Take the extents of the source's partitions, as just looked up.

        ``end_of_input`` follows once none of them grows any more.  Raises
        :class:`flowctl.errors.SourceError` if a partition's identity changed.
        """
        self.intake.offer(extents)

    def tell_saved(self, *, is_told: bool) -> None:
        """``is_told``: saves follow soon, so bolts hear which of their reports are saved."""
        self._tells_saved = is_told

    def checkpoint(self) -> Checkpoint:
        """Return what a restart continues from.  A pure read; O(partitions + ranges)."""
        return self.intake.checkpoint()

    def poll_receipts(self) -> Receipts | None:
        """Return the next receipts of what is done.

        The driver keeps them before it saves a checkpoint that covers them.
        """
        return self._receipts.popleft() if self._receipts else None

    def adopt(self, kept: Receipts, *, now_s: float) -> None:
        """Take over receipts of an earlier run, which ended before it saved that their part is
        done.
        """
        span = (kept.start, kept.stop)
        done = self._settling.take_everywhere(kept.partition, *span, now_s)
        if done:
            self.intake.note_done(kept.partition, done, kept.records)

    # -- ranges go out -------------------------------------------------------------------

    def _size_for(self, consumer: AdaptiveFlowConsumer) -> int:
        assert isinstance(consumer, RangeConsumer)
        first = self.intake.buffer.first_positions
        if self._target.is_down:
            return first  # it only probes whether the target is back
        return positions_for(consumer, first, self.range_s)

    def poll_emit(self, *, now_s: float) -> Emission | None:
        """Return the next range that a window allows, and its bolt; None: nothing now.

        If nothing is left to send and a bolt is idle, another is asked for the end of its range.
        """
        # A process that never worked must fail soon; ranges that were given up wait until the
        # others have been tried.
        self.intake.is_held = self._is_doubtful and len(self._pending) > self._failures.dying
        emission = super().poll_emit(now_s=now_s)
        if emission is not None:
            return self._by_reference(emission, now_s)
        if self._may_split and (idle := self.idle_bolts):
            # A range is split only for a bolt that may be sent the rest of it.
            may_have = idle[: max(0, int(min(len(idle), self._room(now_s))))]
            self._splits.look(may_have, now_s, questions=self._end_phase.questions)
        return None

    def _room(self, now_s: float) -> float:
        """How many more ranges the target lets the spout send."""
        return self._target.room(self.in_flight, now_s) if self._target.is_troubled else inf

    @property
    def _may_split(self) -> bool:
        """Whether idle bolts may get work of others: none is left to send, and the target takes
        calls.
        """
        return self.book.input_ended and not self.buffer.records and not self._target.is_down

    def _by_reference(self, emission: Emission, now_s: float) -> RangeEmission:
        flow_tuple = self._pending[emission.tuple_id]
        cut = _cut(flow_tuple)
        if len(cut.pieces) > 1:  # a bolt gets one span at a time
            self._settling.part_with(flow_tuple, cut.outside(*cut.pieces[0]).rebound())
            self.book.changed(self.bolts[emission.bolt])  # it holds less, and may have room
        if self.book.input_ended and not self.buffer.records:
            self._settling.keep_fitting(flow_tuple, self._end_phase.shares, now_s)
        elif flow_tuple.avoided and self.buffer.records and not self.keeps_receipts:
            self._settling.leave_batch(flow_tuple, now_s)
        cut = _cut(flow_tuple)
        start, stop = cut.pieces[0]
        return RangeEmission(
            emission.tuple_id, emission.bolt, emission.attempt, emission.partition,
            (), emission.acked_through, 0, emission.given_up, start, stop, cut.identity,
            self._tells_saved,
        )  # fmt: skip

    # -- bolts answer --------------------------------------------------------------------

    def on_progress(self, bolt: str, epoch: int, told: Progress, *, now_s: float) -> AckOutcome:
        """Take a bolt's report on a part of a range.  What was done before is counted and
        ignored.
        """
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is None:
            return self._count_unknown()
        assert isinstance(consumer, RangeConsumer)
        consumer.on_answered()
        flow_tuple = self._pending.get(told.tuple_id)
        if flow_tuple is None:
            return self._take_stale(told, consumer)
        if not self.may_tell_of(told.tuple_id, told.start, told.done_through):
            return self._count_unknown()
        cut, is_holder = _cut(flow_tuple), told.tuple_id in consumer.flight
        if is_holder and consumer.is_fifo and next(iter(consumer.flight)) != told.tuple_id:
            self._recovery.on_acked(consumer, flow_tuple, now_s)
        done, left = cut.parted(told.start, told.done_through)
        # What it reports may have been processed at any time since its last report.
        began_s = max(consumer.moved_at_s, flow_tuple.sent_at_s if is_holder else 0.0)
        if is_holder:
            self.counters.records_pending_now -= len(cut.records) - len(left.records)
            consumer.on_progress(flow_tuple, left, told, now_s)
            self._recovery.watch(consumer)
        else:
            done = self._take_late(told, consumer, flow_tuple, now_s)
        if done:
            self._note_done(bolt, told, cut.partition, done, began_s=began_s, now_s=now_s)
        if is_holder and not left.pieces:
            self._finish(flow_tuple, now_s)
        self.book.changed(consumer)
        if not done:
            self.counters.acks_duplicate += 1
            return AckOutcome.DUPLICATE
        return AckOutcome.ACKED if is_holder else AckOutcome.LATE

    def _take_stale(self, told: Progress, consumer: RangeConsumer) -> AckOutcome:
        """Take a report on a range that is done, or was never sent."""
        self.book.changed(consumer)
        if told.tuple_id > self.book.ids.last:
            return self._count_unknown()
        self.counters.acks_duplicate += 1
        return AckOutcome.DUPLICATE

    def _take_late(
        self, told: Progress, consumer: RangeConsumer, flow_tuple: FlowTuple, now_s: float
    ) -> Pieces:
        """Take progress of a bolt that was given up but goes on: that part is done, whichever bolt
        has it now.
        """
        partition = _cut(flow_tuple).partition
        if self.keeps_receipts:
            return ()
        done = self._settling.take_everywhere(partition, told.start, told.done_through, now_s)
        if not done:
            return ()
        self.counters.acks_late += 1
        consumer.on_late_progress(told, now_s)
        is_elsewhere = flow_tuple.tuple_id in self._pending
        if is_elsewhere and flow_tuple.held_by != consumer.bolt:
            self._splits.call_off(consumer.bolt, flow_tuple.tuple_id)
        return done

    def _note_done(
        self, bolt: str, told: Progress, partition: str, done: Pieces, *, began_s: float,
        now_s: float,
    ) -> None:  # fmt: skip
        did = told.did
        if did.records > len(did.rejected):
            self._target.proven_at_s = max(self._target.proven_at_s, began_s)
            self._is_doubtful = False
            if self._target.is_troubled:
                self._target.on_success(began_s, now_s)
        self._settling.note_done(bolt, told, partition, done, now_s)
        waits = self._failures.has_dead_letter
        nowhere = 0 if waits else len(did.rejected)
        if did.receipts or (nowhere and self.keeps_receipts):
            span = (told.start, told.done_through)
            apart = [one.position for one in did.rejected] if waits else ()
            self._receipts.append(
                Receipts(partition, *span, did.records, did.receipts, apart, nowhere)
            )

    def _on_speaks_again(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """Tell a bolt that was suspect which ranges it need not go on with, as others got them
        meanwhile.
        """
        super()._on_speaks_again(consumer, now_s)
        for tuple_id in consumer.strays:
            flow_tuple = self._pending.get(tuple_id)
            if flow_tuple is not None and flow_tuple.held_by != consumer.bolt:
                self._splits.call_off(consumer.bolt, tuple_id)

    def _finish(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """Finish ``flow_tuple``, of which nothing is left."""
        self._splits.forget(flow_tuple.tuple_id)
        self._completion.complete(flow_tuple, now_s)

    def on_range_fail(self, bolt: str, epoch: int, said: RangeFail, *, now_s: float) -> AckOutcome:
        """Take the failure of a part: ``process`` raised, or the target refused.

        The part becomes a separate tuple that is treated like other failed tuples; the rest stays
        where it is.  A late fault counts as well: then the rest goes to any bolt.
        """
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is None:
            return self._count_unknown()
        assert isinstance(consumer, RangeConsumer)
        consumer.on_answered()
        tuple_id = said.tuple_id
        flow_tuple = self._pending.get(tuple_id)
        is_holder = tuple_id in consumer.flight
        part = _cut(flow_tuple).between(said.start, said.stop) if flow_tuple is not None else None
        if (
            flow_tuple is None
            or part is None
            or not part.pieces
            or not (is_holder or self._reclaim(flow_tuple, consumer, said.fail, now_s))
        ):
            self.book.changed(consumer)
            return AckOutcome.DUPLICATE
        in_flight = self.in_flight
        if said.fail.is_read_error:
            part.is_unread = True
        elif said.record is not None and said.records == 1:
            part.hold(Record(said.record.position, as_sent(said.record.value)))
        self._is_doubtful = not self._target.has_succeeded
        piece = self._settling.take_apart(flow_tuple, part)
        if is_holder:
            consumer.on_part_failed(flow_tuple, now_s)
            self._recovery.watch(consumer)
        if not _cut(flow_tuple).pieces:
            self._finish(flow_tuple, now_s)
        elif not is_holder:
            self._failures.retries.add(flow_tuple, not_before_s=now_s, now_s=now_s)
        outcome = self._fail(piece, consumer, said, in_flight, now_s)
        self._spare(consumer, outcome, now_s)
        if outcome is AckOutcome.GAVE_UP and part.is_unread:
            self._failures.end_for(piece, said.fail.reason(said.record_at), now_s)
        self.book.changed(consumer)
        return outcome

    def _spare(self, consumer: RangeConsumer, outcome: AckOutcome, now_s: float) -> None:
        """Ask for what should not stay where it is after a part of it failed on ``consumer``."""
        if self._is_doubtful or (outcome is AckOutcome.REFUSED and self._target.is_down):
            self.wind_up(now_s)  # the next batches would only fail too, one after the other
        elif consumer.liveness is Liveness.RESTING and self._room(now_s) < 1:
            # It rests, and others that could go on may not be sent anything meanwhile.
            self.wind_up(now_s, consumer.bolt)

    def _fail(
        self,
        piece: FlowTuple,
        consumer: RangeConsumer,
        said: RangeFail,
        in_flight: int,
        now_s: float,
    ) -> AckOutcome:
        fail = said.fail
        reason = fail.reason(said.record_at)
        if fail.is_refused:
            refusal = Refused(reason, fail.after_s, in_flight)
            return self._failures.refuse(piece, consumer, refusal, now_s)
        return self._failures.fault(
            piece,
            consumer.bolt,
            reason,
            now_s,
            record_index=_index_of(said, _cut(piece)),
            may_be_target=not fail.is_data_error,
            # One that could not be read was in no call.
            is_content=fail.is_content and not fail.is_read_error,
        )

    def wind_up(self, now_s: float, bolt: str = "") -> None:
        """Ask ``bolt`` ("": all) to give back the unclaimed part of its ranges, as the bolt, or the
        run, ends.
        """
        for consumer in [self.bolts[bolt]] if bolt else self.bolts.values():
            assert isinstance(consumer, RangeConsumer)
            self._splits.take_back(consumer, now_s)

    def retire(self, bolt: str, *, now_s: float) -> None:
        """As of :class:`TupleCore`; the bolt gives back what it has not claimed of its ranges."""
        self.wind_up(now_s, bolt)
        super().retire(bolt, now_s=now_s)

    def on_split(self, bolt: str, epoch: int, answer: SplitAnswer, *, now_s: float) -> AckOutcome:
        """Take a bolt's answer where its range ends now: the part above becomes a separate range.

        An unexpected answer changes nothing.
        """
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is None:
            return self._count_unknown()
        flow_tuple = self._pending.get(answer.tuple_id)
        is_awaited = self._splits.answered(bolt, answer.tuple_id, answer.request)
        if not is_awaited or flow_tuple is None or answer.tuple_id not in consumer.flight:
            return AckOutcome.DUPLICATE
        assert isinstance(consumer, RangeConsumer)
        cut = _cut(flow_tuple)
        rest = cut.between(answer.stop, cut.bounds[1])
        if rest.pieces:
            # Also if the answer is 0: what the bolt did not report is done, or never reached it.
            self._split_off(flow_tuple, rest, consumer, now_s)
            self.book.changed(consumer)
        else:
            self._splits.refused(flow_tuple, consumer, now_s)
        return AckOutcome.ACKED

    def _split_off(
        self, flow_tuple: FlowTuple, rest: RangeCut, holder: RangeConsumer, now_s: float
    ) -> None:
        if self._is_doubtful and not flow_tuple.faults and flow_tuple.search is None:
            self._settling.put_back(flow_tuple, rest)
        else:
            piece = self._settling.part_with(flow_tuple, rest)
            self._splits.parted(flow_tuple, piece, holder, now_s)
        if not _cut(flow_tuple).pieces:
            self._finish(flow_tuple, now_s)

    def may_tell_of(self, tuple_id: int, start: int, stop: int) -> bool:
        """Whether a bolt that was given this range may report on ``[start, stop)``."""
        flow_tuple = self._pending.get(tuple_id)
        if flow_tuple is None:
            return start <= stop
        low, high = _cut(flow_tuple).bounds
        return low <= start <= stop <= high

    def measure(self) -> Measured:
        """Return how much of the source is done.  O(partitions and their ranges)."""
        return Measured(*self.intake.progress, self._settling.records_share())

    # -- what is given up ----------------------------------------------------------------

    def poll_dead_letter(self) -> DeadTuple | None:
        """Like :meth:`KeepingCore.poll_dead_letter`, but a part that could not be read has ended
        the run.
        """
        while (dead := super().poll_dead_letter()) is not None:
            if not _cut(self._pending[dead.gave_up.tuple_id]).is_unread:
                return dead
        return None

    # -- time passes ---------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """See :meth:`TupleCore.next_deadline_s`."""
        self._recovery.put_off_alarms()
        due_s = super().next_deadline_s()
        is_idle = self._may_split and bool(self.idle_bolts) and bool(self._pending)
        splits_s = self._splits.next_s(is_idle=is_idle)
        return min((at_s for at_s in (due_s, splits_s) if at_s is not None), default=None)

    def on_deadline(self, *, now_s: float) -> None:
        """Like :meth:`TupleCore.on_deadline`; also repeats requests whose answers did not come."""
        super().on_deadline(now_s=now_s)
        self._splits.on_deadline(now_s)


def _cut(flow_tuple: FlowTuple) -> RangeCut:
    return cast("RangeCut", flow_tuple.cut)


def _index_of(said: RangeFail, cut: RangeCut) -> int | None:
    """Return the number, within ``cut``, of the position where the failed record begins."""
    position = said.record_at
    if not isinstance(position, int) or said.fail.is_read_error or len(cut.records) == 1:
        return None
    return cut.index_of(position)
