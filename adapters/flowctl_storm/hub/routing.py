"""Route the values of roots and of bolts' emits, and keep their trees accordingly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count, cycle
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from flowctl.core.carried import plain_value, wire_value
from flowctl.core.events import EmitUndelivered, FlowEvent, TupleDropped
from flowctl.core.records import Record
from flowctl.core.retry import RetryQueue
from flowctl.core.settings import RetrySettings
from flowctl.core.trees.acker import Verdict
from flowctl.core.trees.settlement import DEFAULT_STREAM, Emitted, FailedInput, Settlement
from flowctl.errors import JobError, with_article
from flowctl.wire.values import carry, encode_value
from flowctl_storm.hub.blame import FailedAt
from flowctl_storm.hub.roots import Roots
from flowctl_storm.hub.stage import Parcel, Stage
from flowctl_storm.hub.tree_root import Root
from flowctl_storm.plan import (
    StagePlan,
    Subscription,
    component_of,
    did_you_mean,
    source_key,
    stream_of,
)

# -- Emits that nobody receives: counted, and reported in a few lines however many there are ---


# Seconds between reports of one kind; the first is immediate.  Frequent enough to be noticed.
_TELL_EVERY_S: Final = 10.0


class _Kind:
    """Undelivered emits of one source, for one reason."""

    __slots__ = ("bolt", "told_at_s", "untold")

    def __init__(self) -> None:
        self.bolt = ""  # the bolt of the last one
        self.untold = 0
        self.told_at_s: float | None = None


class Undelivered:
    """Part of ``TopologyCore``, not thread-safe.  ``emits`` counts all undelivered emits."""

    def __init__(self, events: deque[FlowEvent]) -> None:
        self.emits: int = 0
        self._events = events
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._untold = 0

    def add(self, source: str, bolt: str, reason: str) -> None:
        """Note an emit of ``bolt`` as ``source`` without a receiver, for the next :meth:`flush`."""
        self.emits += 1
        self._untold += 1
        kind = self._kinds.setdefault((source, reason), _Kind())
        kind.bolt = bolt
        kind.untold += 1

    def flush(self, now_s: float) -> None:
        """Report the noted emits, each kind every ten seconds at most."""
        if not self._untold:
            return
        for (source, reason), kind in self._kinds.items():
            told_at_s = kind.told_at_s
            is_due = told_at_s is None or now_s - told_at_s >= _TELL_EVERY_S
            if kind.untold and is_due:
                self._tell(source, reason, kind, now_s)

    def _tell(self, source: str, reason: str, kind: _Kind, now_s: float) -> None:
        self._events.append(
            EmitUndelivered(
                at_s=now_s, bolt=kind.bolt, source=source, emits=kind.untold, reason=reason
            )
        )
        self._untold -= kind.untold
        kind.untold = 0
        kind.told_at_s = now_s


# -- Which tasks of a stage get a value --------------------------------------------------------


# A function of a value and of the task it was emitted to (None: no specific one); returns task
# numbers.
Choose: TypeAlias = Callable[[Any, int | None], Sequence[int]]

_NOBODY: tuple[int, ...] = ()
_FIELDS_TOLD: Final = 10  # fields shown of a value that lacks one: enough to recognise it
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def task_of_key(key: Sequence[Any], tasks: int) -> int:
    """Return which of ``tasks`` gets ``key``: the same in each run, process and machine.

    Python's own hash of a text differs between processes; a CRC does not, and spreads keys well
    enough over a few tasks.
    """
    try:
        data = _encode(key)
    except (TypeError, OverflowError):  # such as an int of more than 64 bits
        data = encode_value(list(key))
    return crc32(data) % tasks


def make_choice(
    subscription: Subscription, loads: Callable[[], Sequence[int]], stage: str = ""
) -> Choose:
    """Return the function by which ``subscription`` chooses tasks; ``loads()`` has their loads."""
    tasks = len(loads())
    kind = subscription.kind
    if kind == "direct":
        return lambda _value, task: _direct(task, tasks)
    if kind == "fields":
        return _by_fields(subscription, tasks, stage)
    if kind == "all":
        everyone = tuple(range(tasks))
        return lambda _value, task: everyone if task is None else _NOBODY
    if tasks == 1:
        only = (0,)
        return lambda _value, task: only if task is None else _NOBODY
    return _least_loaded(loads) if kind == "least_loaded" else _in_turn(tasks)


def _in_turn(tasks: int) -> Choose:
    ring = cycle([(task,) for task in range(tasks)])
    return lambda _value, task: next(ring) if task is None else _NOBODY


def _least_loaded(loads: Callable[[], Sequence[int]]) -> Choose:
    def choose(_value: Any, task: int | None) -> Sequence[int]:
        if task is not None:
            return _NOBODY
        held = loads()
        return (held.index(min(held)),)

    return choose


def _direct(task: int | None, tasks: int) -> Sequence[int]:
    if task is None:
        return _NOBODY
    if not 0 <= task < tasks:
        raise JobError(
            f"emit to task {task}: there are {tasks} tasks.", remedy=f"Give 0 to {tasks - 1}."
        )
    return (task,)


def _by_fields(subscription: Subscription, tasks: int, stage: str) -> Choose:
    fields = subscription.fields

    def choose(value: Any, task: int | None) -> Sequence[int]:
        if task is not None:
            return _NOBODY
        try:
            key = [value[field] for field in fields]
        except (KeyError, IndexError, TypeError):
            raise _without_field(value, subscription, stage) from None
        return (task_of_key(key, tasks),)

    return choose


def _without_field(value: Any, subscription: Subscription, stage: str) -> JobError:
    """Return the error for a value that lacks a field of the grouping."""
    missing = next(field for field in subscription.fields if not _has(value, field))
    if isinstance(value, dict):
        names = sorted(map(str, value))
        told = ", ".join(map(repr, names[:_FIELDS_TOLD]))
        more = f" and {len(names) - _FIELDS_TOLD} more" if len(names) > _FIELDS_TOLD else ""
        has = f"it has {told}{more}." if names else "it is empty."
        has += did_you_mean(str(missing), names)
    elif isinstance(value, list):
        has = f"it is a list of {len(value)}."
    else:
        has = f"it is {with_article(type(value).__name__)}."
    return JobError(
        f"stage {stage!r} groups the values of {subscription.source!r} by {missing!r}, but a value"
        f" has none: {has}",
        remedy="Emit dicts with these keys, or lists that are long enough.",
    )


def _has(value: Any, field: str | int) -> bool:
    try:
        value[field]
    except (KeyError, IndexError, TypeError):
        return False
    return True


# -- Where values go from a root and from a bolt's emits, and what that means for their trees --


# A function of a partition and a record that returns the value to emit; for None nothing is emitted
# and the record is done.
Translate = Callable[[str, Record], Any]


class Route(NamedTuple):
    """A route to ``stage``, as its source number ``source``; ``choose`` picks the tasks."""

    stage: Stage
    source: int
    choose: Choose


class Refused(NamedTuple):
    """An input that a target refused; until it is sent again its ``stage`` doesn't have it."""

    stage: Stage
    parcel: Parcel


class Router:
    """Puts values into stages and updates the ledgers.  Part of ``TopologyCore``, not thread-safe.

    ``dropped`` counts emits of copies of inputs that were already settled, ``untracked_failed``
    inputs that failed and are in no tree: they are not sent again, so each is reported.
    ``refused`` counts tuples of which the target refused a part.  That part, and what comes after
    it in the tuple, is sent again later; no fault is counted.
    """

    def __init__(
        self,
        stages: Mapping[str, Stage],
        roots: Roots,
        translate: Mapping[str, Translate],
        events: deque[FlowEvent],
        *,
        retry: RetrySettings,
        chance: Callable[[], float] | None,
    ) -> None:
        self.retries: RetryQueue[Refused] = RetryQueue(retry, chance)
        self.refused: int = 0
        self.dropped: int = 0
        self.untracked_failed: int = 0
        self.undelivered: Undelivered = Undelivered(events)
        self._give_up_after_s = retry.give_up_after_s
        self._events = events
        self._roots = roots
        self._translate = translate
        self._numbers = count(1)
        self._routes: dict[str, list[Route]] = {}  # by source
        for stage in stages.values():
            self._wire_up(stage, stages)

    def _wire_up(self, stage: Stage, stages: Mapping[str, Stage]) -> None:
        plan = stage.plan
        for subscription in plan.subscriptions:
            choice = make_choice(subscription, stage.loads, stage.name)
            route = Route(stage, plan.sources.index(subscription.source), choice)
            self._routes.setdefault(subscription.source, []).append(route)
            feeder = stages.get(subscription.component)
            if feeder is None:
                stage.is_first = True
            elif stage not in feeder.feeds:
                feeder.feeds += (stage,)
                stage.fed_by += (feeder,)

    def plant(self, root: Root, now_s: float) -> None:
        """Begin the tree of ``root``; the root fails if its value can't be emitted."""
        roots, spout = self._roots, root.spout
        try:
            value, sent, targets = self._first_of(root)
        except Exception as error:  # including errors of a user's translate
            roots.refuse(root, getattr(error, "problem", None) or repr(error), now_s)
            return
        if targets:
            roots.planted(root, value)
        started_at_s = roots.started_at_s(now_s)
        planting = roots.trees.emit(
            spout, len(targets), values=value, message_id=root, started_at_s=started_at_s
        )
        for (stage, index, task), edges in zip(targets, planting.edges, strict=True):
            stage.put(next(self._numbers), Parcel(edges, sent, index, task))
        if planting.init is None:  # there is no receiver, or no tracking
            roots.done(root, None if started_at_s is None else 0.0)
        else:
            init = planting.init
            verdict = roots.ledger_of(init.root).on_init(init.root, init.value, init.spout)
            self._judge(verdict, "", now_s)

    def _first_of(self, root: Root) -> tuple[Any, Any, list[tuple[Stage, int, int]]]:
        """Return the value to emit for ``root``, its wire form, and the receivers."""
        translate = self._translate.get(root.spout)
        if translate is None:
            value = root.record.value
            return value, wire_value(root.record), self._targets(root.spout, value, None)
        value = translate(root.partition, root.record)
        sent = carry(value)  # raises for a value that would not arrive intact
        return value, sent, [] if value is None else self._targets(root.spout, value, None)

    def _targets(self, source: str, value: Any, task: int | None) -> list[tuple[Stage, int, int]]:
        """Return the stage, the source's index there, and the task of each receiver."""
        return [
            (stage, index, chosen)
            for stage, index, choose in self._routes.get(source, ())
            for chosen in choose(value, task)
        ]

    def put_again(self, stage: Stage, parcels: Sequence[Parcel]) -> None:
        """Queue inputs again whose bolt is gone or refused them."""
        for parcel in parcels:
            stage.put(next(self._numbers), parcel)
        stage.flush()

    def settle(
        self,
        stage: Stage,
        bolt: str,
        records: Sequence[Record],
        said: Settlement,
        now_s: float,
        *,
        sent_at_s: float | None = None,
    ) -> None:
        """Process a settlement: emits first, as their edges are part of their anchors' acks.

        ``sent_at_s`` is when the tuple of ``records`` was sent, if known.
        """
        at = FailedAt(stage, bolt)
        self._roots.blame.settled(
            at, said, len(records), sent_at_s=sent_at_s, left=self._roots.left, now_s=now_s
        )
        for emit in said.emits:
            self._route(stage, bolt, emit, now_s)
        self.undelivered.flush(now_s)
        is_refused = False
        for failed in said.failed:
            if failed.refused:
                is_refused |= self._refuse(stage, bolt, failed, now_s)
            else:
                at = FailedAt(stage, bolt, may_be_target=not failed.is_data_error)
                self.fail_inputs(stage, bolt, [failed.input_id], failed.reason, now_s, at=at)
        self.refused += is_refused
        if said.held:
            stage.hold(bolt, said.held, now_s)
        held = said.held and set(said.held)
        for record in records:
            if not held or record.position not in held:
                self._ack_input(stage, bolt, record.position, now_s)  # type: ignore[arg-type]
        for input_id in said.acked:
            self._ack_input(stage, bolt, input_id, now_s)
        for input_id in said.prolonged:
            self.prolong(stage, input_id, now_s)
        for fed in stage.feeds:
            fed.flush()

    def _route(self, stage: Stage, bolt: str, emit: Emitted, now_s: float) -> None:
        parcels = stage.parcels
        anchors = [parcels[i] for i in emit.anchors if i in parcels]
        if emit.anchors and not anchors:
            self.dropped += 1  # another copy has settled its anchors
            return
        source = source_key(stage.name, emit.stream)
        try:
            _check_declared(stage.plan, emit.stream)
            targets = self._targets(source, plain_value(emit.value), emit.task)
        except JobError as error:
            if emit.anchors:
                self.fail_inputs(stage, bolt, emit.anchors, error.problem, now_s)
            else:
                self.undelivered.add(source, bolt, error.problem)
            return
        if not targets:
            self.undelivered.add(source, bolt, self._why_nobody(stage.name, emit))
            return
        edges_of = stage.acks.emit(anchors, len(targets))
        for (fed, index, task), edges in zip(targets, edges_of, strict=True):
            fed.put(next(self._numbers), Parcel(edges, emit.value, index, task))

    def _why_nobody(self, stage: str, emit: Emitted) -> str:
        """Return the reason why ``emit`` of ``stage`` has no receiver."""
        stream = emit.stream or DEFAULT_STREAM
        if self._routes.get(source_key(stage, stream)):
            if emit.task is None:
                return f"emitted without naming a task, but all groupings of {stage!r} are direct"
            return f"emitted to task {emit.task}, but {stage!r} has no direct grouping"
        if stream == DEFAULT_STREAM:
            return f"nobody receives what {stage!r} emits"
        streams = [stream_of(source) for source in self._routes if component_of(source) == stage]
        return f"nobody receives stream {stream!r} of {stage!r}" + (
            f".{meant}" if (meant := did_you_mean(stream, streams)) else ""
        )

    def _ack_input(self, stage: Stage, bolt: str, input_id: int, now_s: float) -> None:
        parcel = stage.take(bolt, input_id)
        if parcel is not None:
            for root, value in stage.acks.ack(parcel):
                self._judge(self._roots.ledger_of(root).on_ack(root, value), "", now_s)

    def fail_inputs(
        self,
        stage: Stage,
        bolt: str,
        input_ids: Sequence[int],
        reason: str,
        now_s: float,
        *,
        at: FailedAt | None = None,
    ) -> None:
        """Fail inputs together with their roots; report inputs outside trees.

        ``at`` is the place where the user's code failed; None if they fail for another reason.
        """
        at = at or FailedAt(None, bolt, may_be_target=False)
        untracked: list[int] = []
        for input_id in input_ids:
            parcel = stage.take(bolt, input_id)
            if parcel is None:
                continue
            if not parcel.edges:
                untracked.append(input_id)
            for root in stage.acks.fail(parcel):
                self._judge(self._roots.ledger_of(root).on_fail(root), reason, now_s, at)
        if untracked:
            self.untracked_failed += len(untracked)
            self._events.append(_dropped(stage, bolt, untracked, reason, now_s))

    def _refuse(self, stage: Stage, bolt: str, failed: FailedInput, now_s: float) -> bool:
        """Keep a refused input to send it again later; return False if it fails instead.

        It fails if retries are not allowed, or if it was refused for too long.  Its trees wait for
        it: their timers restart now, at each tick, and when it is sent again.
        """
        parcel = stage.parcels.get(failed.input_id)
        if parcel is None:
            return False
        reason = failed.reason
        refused_s = now_s - parcel.note_refused(now_s)
        is_too_long = refused_s >= self._give_up_after_s
        if is_too_long:
            reason = f"refused for {refused_s:.0f} s: {reason}"
        if is_too_long or not self._roots.sends_again:
            self.fail_inputs(stage, bolt, [failed.input_id], reason, now_s)
            return False
        stage.take(bolt, failed.input_id)
        stage.refused_now += 1
        refused = Refused(stage, parcel)
        self.retries.refusal(refused, parcel.refusals, now_s, after_s=failed.after_s)
        self._renew(stage, parcel, now_s)
        return True

    def prolong(self, stage: Stage, input_id: int, now_s: float) -> None:
        """Restart the timers of an input's trees; do nothing if the input is settled."""
        parcel = stage.parcels.get(input_id)
        if parcel is not None:
            self._renew(stage, parcel, now_s)

    def _renew(self, stage: Stage, parcel: Parcel, now_s: float) -> None:
        for root in stage.acks.reset_timeout(parcel):
            self._judge(self._roots.ledger_of(root).on_reset_timeout(root), "", now_s)

    def _judge(
        self, verdict: Verdict | None, reason: str, now_s: float, at: FailedAt | None = None
    ) -> None:
        if verdict is not None:
            self._roots.on_verdict(verdict, reason, now_s, at)

    def on_tick(self, stage: Stage, now_s: float) -> None:
        """Fail the trees of inputs of ``stage`` that have emitted and are held for too long."""
        for root in stage.acks.on_tick():
            reason = f"an input was held for too long in {stage.name}"
            self._judge(self._roots.ledger_of(root).on_fail(root), reason, now_s)
        if self._roots.ledgers:  # without tracking, held inputs do not expire
            stage.forget_held(self._roots.trees)

    def on_time(self, now_s: float) -> None:
        """Queue refused inputs again after their wait; make due reports."""
        self.undelivered.flush(now_s)
        self.retries.ripen(now_s)
        while (refused := self.retries.take()) is not None:
            refused.stage.refused_now -= 1
            self._renew(*refused, now_s)
            self.put_again(refused.stage, [refused.parcel])

    def renew(self, stage: Stage, since_s: float, now_s: float) -> None:
        """Keep alive, after a tick's check, trees with inputs that wait in ``stage`` or at bolts.

        These are bolts that reported after ``since_s``.  So a slow stage doesn't use up the trees'
        time; inputs that a bolt loses are sent again by its stage.
        """
        for parcel in list(stage.on_their_way(since_s)):
            self._renew(stage, parcel, now_s)

    def renew_refused(self, now_s: float) -> None:
        """Keep alive, after a tick's check, the trees of waiting refused inputs."""
        for refused in self.retries.scheduled:
            self._renew(*refused, now_s)


def _check_declared(plan: StagePlan, stream: str | None) -> None:
    if plan.emits is not None and (stream or DEFAULT_STREAM) not in plan.emits:
        raise JobError(
            f"{plan.name!r} emitted on stream {stream or DEFAULT_STREAM!r}, which it does not"
            f" declare.{did_you_mean(stream or DEFAULT_STREAM, plan.emits)}",
            remedy="Name it in emits= of the bolt.",
        )


def _dropped(
    stage: Stage, bolt: str, input_ids: Sequence[int], reason: str, now_s: float
) -> TupleDropped:
    return TupleDropped(
        at_s=now_s,
        bolt=bolt,
        tuple_id=input_ids[0],
        partition=stage.name,
        first=input_ids[0],
        last=input_ids[-1],
        records=len(input_ids),
        reason=reason,
    )
