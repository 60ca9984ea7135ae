"""Calls of bolts that collect: ``on_tick`` at intervals, ``on_end`` when their input is done.

A call goes to a bolt like a tuple, after everything sent to it before, and its answer comes back as
an ack, with the bolt's emits, acks and fails.  It counts in no window and as no record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.events import FlowEvent, TreesHeldUp, TupleGaveUp
from flowctl.core.messages import Emission, Fail
from flowctl.core.records import AckOutcome, Record
from flowctl.core.retry import RetryQueue
from flowctl.core.settings import RetrySettings
from flowctl.core.trees.settlement import Settlement
from flowctl.instrumentation.numbers import clock, count, counted
from flowctl_storm.hub.roots import Roots
from flowctl_storm.hub.routing import Router
from flowctl_storm.hub.stage import Stage
from flowctl_storm.plan import END_CALL, TICK_CALL

# -- What a topology waits for when nothing makes progress: which stage holds what, since when -


# Seconds without a finished root after which the holders are reported: longer than any tuple should
# take, and early enough for a person who watches.
_TELL_AFTER_S: Final = 10.0
_TELL_EVERY_S: Final = 60.0  # longest interval, after reports at 10, 20 and 40 s
_BOLTS_TOLD: Final = 3  # shown per stage; the others only as a number


class HeldUp:
    """Watches whether roots make progress.  Part of ``TopologyCore``, not thread-safe.

    If no root was done for long it reports, at growing intervals, which bolts hold which inputs
    (:class:`TreesHeldUp`).
    """

    def __init__(self, stages: Sequence[Stage], roots: Roots, events: deque[FlowEvent]) -> None:
        self._stages = stages
        self._roots = roots
        self._events = events
        self._progress = -1  # a count that rises with progress
        self._now_s = 0.0
        self._since_s: float | None = None  # None if there is nothing to do
        self._tell_at_s = 0.0
        self._is_at_limit = False

    def look(self, *, is_idle: bool, is_at_limit: bool, now_s: float) -> None:
        """Report, if a report is due.  ``is_idle``: there is nothing to do."""
        self._now_s = now_s
        self._is_at_limit = is_at_limit
        if is_idle:
            self._since_s = None
            return
        roots = self._roots
        # An input outside any tree is done when its stage has finished it.
        if roots.pending:
            # No root ends while a bolt collects until the end, so the inputs that it receives count
            # as progress.
            collecting = sum(stage.done for stage in self._stages if stage.plan.has_end)
            progress = roots.ended + collecting
        else:
            progress = sum(stage.done for stage in self._stages)
        if self._since_s is None or progress != self._progress:
            self._progress = progress
            self._since_s = now_s
            self._tell_at_s = now_s + _TELL_AFTER_S
        elif now_s >= self._tell_at_s:
            self._tell(now_s, now_s - self._since_s)

    def _tell(self, now_s: float, quiet_s: float) -> None:
        self._tell_at_s = now_s + min(_TELL_EVERY_S, quiet_s)
        self._events.append(
            TreesHeldUp(at_s=now_s, quiet_s=quiet_s, roots=self._roots.pending, held=self.held())
        )

    @property
    def is_stuck(self) -> bool:
        """Whether a lack of progress was reported and still lasts."""
        return self._since_s is not None and self._now_s - self._since_s >= _TELL_AFTER_S

    def next_s(self) -> float | None:
        """Return when to call :meth:`look` next, or None."""
        return self._tell_at_s if self._since_s is not None else None

    def held(self) -> tuple[str, ...]:
        """The holders and their inputs, as of the last look."""
        roots = self._roots
        found = [line for stage in self._stages for line in holdings(stage, self._now_s)]
        if roots.to_go_again:
            wait = "waits" if roots.to_go_again == 1 else "wait"
            found.append(f"{counted(roots.to_go_again, 'root')} {wait} to be sent again")
        waiting = roots.intake.buffer.records
        if waiting and self._is_at_limit:
            found.append(f"max_pending holds back {counted(waiting, 'record')}")
        return tuple(found)


def holdings(stage: Stage, now_s: float) -> Iterator[str]:
    """Describe the pending inputs of ``stage`` and their holders."""
    held = [(bolt, len(of), min(of.values())) for bolt, of in stage.held.items() if of]
    if held:
        yield f"stage {stage.name!r} holds {_at_bolts(held, now_s)}"
    begun = [
        (bolt.bolt, bolt.records_held, next(iter(bolt.flight.values())).sent_at_s)
        for core in stage.cores
        for bolt in core.bolts.values()
        if bolt.flight
    ]
    if begun:
        yield f"stage {stage.name!r} works on {_at_bolts(begun, now_s)}"
    if stage.waiting:
        nobody = "" if stage.is_served else ", and a bolt is missing"
        yield f"stage {stage.name!r} has {_inputs(stage.waiting)} waiting{nobody}"
    if stage.refused_now:
        yield f"stage {stage.name!r} has {_inputs(stage.refused_now)} that its target refused"


def _at_bolts(found: list[tuple[str, int, float]], now_s: float) -> str:
    """Describe inputs at bolts; bolts with the oldest ones come first."""
    found.sort(key=lambda each: each[2])
    told = [
        f"{count(inputs) if index else _inputs(inputs)} at {bolt} since {_since(now_s - since_s)}"
        for index, (bolt, inputs, since_s) in enumerate(found[:_BOLTS_TOLD])
    ]
    rest = found[_BOLTS_TOLD:]
    if rest:
        told.append(f"and {count(sum(inputs for _, inputs, _ in rest))} at {len(rest)} more")
    return ", ".join(told)


def _inputs(number: int) -> str:
    return counted(number, "input")


def _since(seconds: float) -> str:
    return f"{round(seconds)} s" if seconds < 59.5 else clock(round(seconds))


# -- Calls of bolts that collect ---------------------------------------------------------------


# First number of calls: far above the numbers of tuples, which count from 1.
CALLS_FROM: Final = 1 << 62
_NO_RECORD: Final = (Record(0, None),)  # each tuple needs a record; no input has the id 0
_LEFT_OVER: Final = "on_end neither acked nor failed it"


class _Call:
    """A call without an answer so far."""

    __slots__ = ("consumer", "has_more", "kind", "number", "sent_at_s", "stage")

    def __init__(
        self, stage: Stage, consumer: AdaptiveFlowConsumer, kind: str, number: int, now_s: float
    ) -> None:
        self.stage = stage
        self.consumer = consumer
        self.kind = kind
        self.number = number
        self.sent_at_s = now_s
        self.has_more = False  # a tuple was sent to the bolt after the call


class _Trouble:
    """Failures and refusals in a row of a bolt's ``on_end``."""

    __slots__ = ("faults", "refusals", "since_s")

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self.faults = self.refusals = 0


class Calls:
    """Part of ``TopologyCore``, not thread-safe.

    ``on_end`` is called once for each connected bolt of a stage when its input is done: no more
    inputs come from the sources or the stages before it, and its bolts have settled everything
    except held inputs.  It is called again for a bolt that gets inputs after that.  Inputs that
    such a bolt holds do not expire while the bolt is connected.  ``gave_up``: an ``on_end`` that
    failed too often.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        roots: Roots,
        router: Router,
        retry: RetrySettings,
        chance: Callable[[], float] | None,
    ) -> None:
        self._stages = stages
        self._roots = roots
        self._router = router
        self._give_up_after_s = retry.give_up_after_s
        self._retries: RetryQueue[_Trouble] = RetryQueue(retry, chance)
        self.ending: list[Stage] = [stage for stage in stages if stage.plan.has_end]
        self.is_used: bool = any(stage.plan.has_end or stage.plan.tick_s for stage in stages)
        self.gave_up: TupleGaveUp | None = None
        self._number = CALLS_FROM
        self._open: dict[str, _Call] = {}  # by bolt, each with one call at most
        self._ended: set[str] = set()  # bolts without inputs since their on_end
        self._troubles: dict[str, _Trouble] = {}
        self._tick_due_s: dict[str, tuple[float, Stage]] = {}
        self._ticks: dict[str, Stage] = {}  # due now

    # -- what happens to bolts -----------------------------------------------------------

    def came(self, stage: Stage, bolt: str, now_s: float) -> None:
        """``bolt`` connected."""
        if stage.plan.tick_s is not None:
            self._tick_due_s[bolt] = (now_s + stage.plan.tick_s, stage)

    def left(self, bolt: str) -> None:
        """Forget ``bolt``, which is gone, and its unanswered call."""
        self._open.pop(bolt, None)
        self._tick_due_s.pop(bolt, None)
        self._ticks.pop(bolt, None)
        self._troubles.pop(bolt, None)

    def sent(self, bolt: str) -> None:
        """Note that a tuple is sent to ``bolt``: its ``on_end`` must come after that."""
        self._ended.discard(bolt)
        call = self._open.get(bolt)
        if call is not None:
            call.has_more = True

    # -- calls go out --------------------------------------------------------------------

    def poll(self, now_s: float, *, is_input_done: bool) -> Emission | None:
        """Return the next call.  ``is_input_done``: the sources have ended and all is planted."""
        # Ends first: an on_tick that takes as long as its interval must not delay them.
        if self.ending and is_input_done and not self._roots.to_go_again:
            for stage in self._done_stages():
                for consumer in self._not_ended(stage):
                    if self._may_end(consumer):
                        return self._call(stage, consumer, END_CALL, now_s)
        return self._poll_tick(now_s, is_input_done) if self._ticks else None

    def _poll_tick(self, now_s: float, is_input_done: bool) -> Emission | None:
        """Return the next tick; none for a finished bolt, as its answer would delay the end."""
        is_over = is_input_done and self._roots.is_drained
        is_over = is_over and all(stage.is_drained for stage in self._stages)
        while self._ticks:
            bolt, stage = self._ticks.popitem()
            consumer = stage.cores[stage.core_of(bolt)].bolts.get(bolt)
            if consumer is None:
                continue
            is_done = is_over or bolt in self._ended
            if not (is_done or bolt in self._open or consumer.is_suspect):
                return self._call(stage, consumer, TICK_CALL, now_s)
            assert stage.plan.tick_s is not None
            self._tick_due_s[bolt] = (now_s + stage.plan.tick_s, stage)
        return None

    def _may_end(self, consumer: AdaptiveFlowConsumer) -> bool:
        bolt = consumer.bolt
        trouble = self._troubles.get(bolt)
        is_waiting = trouble is not None and trouble in self._retries.scheduled
        return not (is_waiting or bolt in self._open or consumer.is_suspect or self.gave_up)

    def _done_stages(self) -> Iterator[Stage]:
        """Return the stages with ``on_end`` that get no more input, unless something fails."""
        over: set[Stage] = set()
        for stage in self._stages:
            if not (stage.is_drained and over.issuperset(stage.fed_by)):
                continue
            if stage.plan.has_end:
                yield stage
                is_over = not any(True for _ in self._not_ended(stage))
            else:
                is_over = not _holds_tracked(stage)
            if is_over:
                over.add(stage)

    def _not_ended(self, stage: Stage) -> Iterator[AdaptiveFlowConsumer]:
        """Return bolts of ``stage`` whose ``on_end`` is due, but not silent ones without inputs."""
        for core in stage.cores:
            for bolt, consumer in core.bolts.items():
                is_void = consumer.is_suspect and not stage.held.get(bolt)
                if bolt in self._open or not (bolt in self._ended or is_void):
                    yield consumer

    def _call(
        self, stage: Stage, consumer: AdaptiveFlowConsumer, kind: str, now_s: float
    ) -> Emission:
        self._number += 1
        bolt = consumer.bolt
        self._open[bolt] = _Call(stage, consumer, kind, self._number, now_s)
        consumer.on_called()
        return Emission(self._number, bolt, 1, kind, _NO_RECORD, None, 0)

    # -- answers -------------------------------------------------------------------------

    def is_open(self, bolt: str, number: int) -> bool:
        """Whether ``bolt`` may answer the call ``number``."""
        call = self._open.get(bolt)
        return call is not None and call.number == number

    def on_ack(
        self, bolt: str, epoch: int, number: int, said: Settlement, now_s: float
    ) -> AckOutcome:
        """Take the bolt's report of the call; inputs that ``on_end`` left unsettled fail."""
        call = self._answered(bolt, epoch, number, now_s)
        if call is None:
            return AckOutcome.UNKNOWN
        stage = call.stage
        self._router.settle(stage, bolt, (), said, now_s, sent_at_s=call.sent_at_s)
        if call.kind == END_CALL:
            self._troubles.pop(bolt, None)
            if not call.has_more:
                self._end(stage, bolt, _LEFT_OVER, now_s)
        return AckOutcome.ACKED

    def on_fail(self, bolt: str, epoch: int, fail: Fail, now_s: float) -> AckOutcome:
        """Repeat ``on_end`` later, as it raised or its target refused.

        After an exception the call is repeated with back-off, if the guarantee allows retries;
        after a refusal it is repeated later, without counting a fault.
        """
        call = self._answered(bolt, epoch, fail.tuple_id, now_s)
        if call is None or call.kind != END_CALL:
            return AckOutcome.UNKNOWN
        if fail.is_refused:
            return self._refused(call, bolt, fail, now_s)
        if not self._roots.sends_again:
            self._end(call.stage, bolt, fail.error, now_s)
            return AckOutcome.DROPPED
        trouble = self._troubles.setdefault(bolt, _Trouble(now_s))
        trouble.faults += 1
        if self._retries.fault(trouble, trouble.faults, now_s) is not None:
            return AckOutcome.FAILED
        return self._give_up(call, trouble.faults, fail.error, now_s)

    def _refused(self, call: _Call, bolt: str, fail: Fail, now_s: float) -> AckOutcome:
        trouble = self._troubles.setdefault(bolt, _Trouble(now_s))
        trouble.refusals += 1
        self._retries.refusal(trouble, trouble.refusals, now_s, after_s=fail.after_s)
        if now_s - trouble.since_s < self._give_up_after_s:
            return AckOutcome.REFUSED
        return self._give_up(call, trouble.faults + trouble.refusals, fail.error, now_s)

    def _answered(self, bolt: str, epoch: int, number: int, now_s: float) -> _Call | None:
        call = self._open.get(bolt)
        if call is None or call.number != number or call.consumer.epoch != epoch:
            return None
        del self._open[bolt]
        if call.kind == TICK_CALL:
            self._await_tick(call.stage, bolt, call.sent_at_s, now_s)
        return call

    def _await_tick(self, stage: Stage, bolt: str, last_s: float, now_s: float) -> None:
        assert stage.plan.tick_s is not None
        self._tick_due_s[bolt] = (max(now_s, last_s + stage.plan.tick_s), stage)

    def _end(self, stage: Stage, bolt: str, reason: str, now_s: float) -> None:
        self._ended.add(bolt)
        left_over = list(stage.held.get(bolt, ()))
        self._router.fail_inputs(stage, bolt, left_over, reason, now_s)

    def _give_up(self, call: _Call, attempts: int, reason: str, now_s: float) -> AckOutcome:
        self.gave_up = TupleGaveUp(
            at_s=now_s,
            tuple_id=call.number,
            partition=f"on_end of {call.stage.name}",
            first="",
            last="",
            attempts=attempts,
            bolts=(call.consumer.bolt,),
            reason=reason,
        )
        return AckOutcome.GAVE_UP

    # -- time passes ---------------------------------------------------------------------

    def next_s(self) -> float | None:
        """Return when to call :meth:`on_time` next, or None."""
        due = [due_s for due_s, _ in self._tick_due_s.values()]
        if (retry_s := self._retries.next_due_s()) is not None:
            due.append(retry_s)
        return min(due, default=None)

    def on_time(self, now_s: float) -> None:
        """Queue the calls that are due."""
        self._retries.ripen(now_s)
        while self._retries.take() is not None:
            pass  # it may be called again
        for bolt, (due_s, stage) in list(self._tick_due_s.items()):
            if due_s <= now_s:
                del self._tick_due_s[bolt]
                self._ticks[bolt] = stage

    def renew_held(self, now_s: float) -> None:
        """Keep alive, after a tick's check, the trees whose inputs wait for an ``on_end``."""
        for stage in self.ending:
            for bolt, held in stage.held.items():
                consumer = stage.cores[stage.core_of(bolt)].bolts.get(bolt)
                if consumer is not None and not consumer.is_suspect:
                    for input_id in list(held):
                        self._router.prolong(stage, input_id, now_s)

    def are_done(self, *, is_input_done: bool) -> bool:
        """Whether the run may end: no call is open, and each ``on_end`` was called."""
        if self._open:
            return False
        if not (self.ending and is_input_done):
            return True
        is_over = all(not any(True for _ in self._not_ended(stage)) for stage in self.ending)
        return is_over or self.gave_up is not None


def _holds_tracked(stage: Stage) -> bool:
    """Whether bolts hold tracked inputs, which settle or expire by themselves."""
    return any(
        stage.parcels[input_id].is_tracked
        for held in stage.held.values()
        for input_id in held
        if input_id in stage.parcels
    )
