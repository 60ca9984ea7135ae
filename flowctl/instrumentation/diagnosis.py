"""Why a run is not faster: one verdict, from snapshots, for the views, the log, the page, the
report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from flowctl.core.positions import show_records
from flowctl.instrumentation.numbers import clock, count, counted, duration, percent
from flowctl.instrumentation.slow_bolts import claim, is_ending, slow_bolts, stages
from flowctl.instrumentation.snapshot import (
    Limit,
    Shares,
    Snapshot,
    TupleTime,
    Verdict,
    WaitReason,
)

# Time over which a verdict is made [s]: long enough for a few tuples of each bolt, short enough to
# show a change.  Where tuples take long, it is as long as so many of them, up to the second bound.
RECENT_S: Final = 10.0
_RECENT_TUPLES: Final = 4
_RECENT_MOST_S: Final = 60.0
_LEAST_S: Final = 1.0  # of less nothing is said
# Snapshots come four times a second at most: enough for the longest time.
_KEPT_MAX: Final = 256
# A different limit must show for so long [s] before it is told, or the sentence would flicker.
# What is an event in itself is told at once.
_SETTLES_S: Final = 2.0
_AT_ONCE: Final = (Limit.STARTING, Limit.TARGET_DOWN, Limit.CALL_HANGS, Limit.STORE)

# From which share of the time on something is the limit.
_MOSTLY: Final = 0.5
# Slots without work for this share, for one reason: more than a window that is just too small
# (1 to 5 %) or the gaps at the start of a run.
_IDLE: Final = 0.25
_BUSY: Final = 0.8  # bolts at work for this share have nearly no time left
# A limit that was learned is tried with one refusal in 150 calls; more is the target's doing.
_REFUSED: Final = 0.02
# A collector that is healthy takes 1 to 3 %.
_PAUSES: Final = 0.08
# A call of so many times the mean is no outlier of Pareto's law; see core/verdict.py.
_HANGS: Final = 30.0
# From so many acks of each slot on, what they took shows how long slots worked.
_ACKS_PER_SLOT: Final = 4
_USED: Final = 0.8  # of a learned limit, on average: calls come and go
# Words are kept anew when a limit has held so many times longer: well after its beginning, and not
# at its end.
_KEPT_TIMES: Final = 1.5
# A limit for less of a run than this is a passing one: the run as a whole was fine.
_WORTH: Final = 0.25
# The snapshot does not say since when bolts are missing: this is longer than a restart.
_MISSING_S: Final = 5.0


class _Sums(NamedTuple):
    """Sums since the run began, in seconds or counts; slots' seconds are of all bolts together."""

    at_s: float = 0.0
    slot_s: float = 0.0  # of bolts that are up
    empty_s: float = 0.0  # of slots without a tuple
    resting_s: float = 0.0
    paused_s: float = 0.0
    flight_s: float = 0.0  # tuples in flight, times seconds
    backpressure_s: float = 0.0
    max_pending_s: float = 0.0
    no_input_s: float = 0.0
    last_tuples_s: float = 0.0
    acked: float = 0.0
    by_value: float = 0.0  # of these, tuples whose times are those of their acks
    refused: float = 0.0
    paced_s: float = 0.0  # calls that waited for a paced target
    # Of the acks that are measured.
    acks: float = 0.0
    rtt_s: float = 0.0
    queue_s: float = 0.0
    service_s: float = 0.0
    sink_s: float = 0.0

    def minus(self, before: _Sums) -> _Sums:
        # What is forgotten, such as a target that nobody calls any more, counts as nothing.
        return _Sums(*(max(0.0, now - then) for now, then in zip(self, before, strict=True)))


class _Finding(NamedTuple):
    """A limit, in words."""

    limit: Limit
    headline: str
    why: str = ""
    remedy: str = ""
    names: tuple[str, ...] = ()


class Diagnosis:
    """Judges a run from its snapshots.

    Pure: their ``elapsed_s`` is the time.  O(bolts) per snapshot; not thread-safe.
    """

    def __init__(self) -> None:
        self._sums = self._first = _Sums()
        self._past: deque[_Sums] = deque(maxlen=_KEPT_MAX)
        self._verdict = Verdict()
        self._next: tuple[Limit, float] | None = None  # another limit, and since when it shows
        self._has_sent = False
        self._paused: dict[str, float] = {}  # by bolt, as last seen
        self._stage_use: dict[str, float] = {}  # share of a stage's slots with a tuple, lately
        self._held_s: dict[Limit, float] = {}
        # By limit: words for the report, and how long it had held when they were true.
        self._of_run: dict[Limit, tuple[float, Verdict]] = {}

    def update(self, snapshot: Snapshot) -> Verdict:
        """Take the next snapshot and return the verdict on the last few seconds."""
        if snapshot.phase == "stopping":  # bolts leave: that is no pause, and nothing to be judged
            return self._verdict
        now_s, before = snapshot.elapsed_s, self._sums
        self._has_sent = bool(snapshot.tuples_emitted)
        if not self._has_sent:  # Spark may have started for a minute until then
            self._past.clear()
        self._sums = _added(before, snapshot, self._paused)
        self._watch_stages(snapshot, self._sums.at_s - before.at_s)
        self._paused = {bolt.name: bolt.paused_s for bolt in snapshot.bolts}
        if not self._past:
            self._first = self._sums
        self._past.append(self._sums)
        recent_s = self._recent_s()
        while len(self._past) > 2 and now_s - self._past[1].at_s >= recent_s:
            self._past.popleft()
        lately = self._sums.minus(self._past[0])
        shares, tuple_time = _shares(lately), _tuple_time(lately)
        found = (
            _stopped(snapshot, lately.at_s, tuple_time)
            or _one_stage(self._stage_use)
            or _find(snapshot, lately, shares, tuple_time)
        )
        self._held_s[self._verdict.limit] = (
            self._held_s.get(self._verdict.limit, 0.0) + now_s - before.at_s
        )
        self._settle(found, now_s)
        if found.limit is self._verdict.limit:
            since_s = self._verdict.since_s
            self._verdict = Verdict(
                limit=found.limit,
                headline=found.headline,
                why=found.why,
                remedy=found.remedy,
                since_s=since_s,
                shares=shares,
                tuple_time=tuple_time,
                names=found.names,
            )
            self._keep_for_run(self._verdict)
        else:
            self._verdict = msgspec.structs.replace(
                self._verdict, shares=shares, tuple_time=tuple_time
            )
        return self._verdict

    def _keep_for_run(self, verdict: Verdict) -> None:
        """Keep the words for the report; not the last ones, when the limit was about to go."""
        held_s = self._held_s.get(verdict.limit, 0.0)
        kept_s, _ = self._of_run.get(verdict.limit, (0.0, None))
        if held_s >= _KEPT_TIMES * kept_s:
            self._of_run[verdict.limit] = held_s, verdict

    def _watch_stages(self, snapshot: Snapshot, passed_s: float) -> None:
        gain = min(1.0, passed_s / RECENT_S)
        for stage, bolts in stages(snapshot.bolts).items():
            slots = sum(bolt.slots for bolt in bolts)
            used = sum(min(bolt.in_flight, bolt.slots) for bolt in bolts) / slots
            before = self._stage_use.setdefault(stage, used)
            self._stage_use[stage] = before + gain * (used - before)

    def _settle(self, found: _Finding, now_s: float) -> None:
        """Turn to another limit if it has shown for long enough."""
        if found.limit is self._verdict.limit:
            self._next = None
            return
        if self._next is None or self._next[0] is not found.limit:
            self._next = found.limit, now_s
        since_s = self._next[1]
        is_urgent = found.limit in _AT_ONCE or self._verdict.limit is Limit.STARTING
        if is_urgent or now_s - since_s >= _SETTLES_S:
            self._next = None
            self._verdict = msgspec.structs.replace(
                self._verdict, limit=found.limit, since_s=since_s
            )

    def _recent_s(self) -> float:
        sums = self._sums
        mean_s = sums.rtt_s / sums.acks if sums.acks else 0.0
        return min(_RECENT_MOST_S, max(RECENT_S, _RECENT_TUPLES * mean_s))

    def of_run(self) -> Verdict:
        """Return the verdict on the run as a whole: the limit that held longest, or that there was
        none for most of the time.
        """
        if not self._has_sent:  # and now it never will
            headline = self._verdict.headline.removesuffix(" yet")
            return msgspec.structs.replace(self._verdict, headline=headline)
        held = {limit: s for limit, s in self._held_s.items() if limit in self._of_run}
        passing = (Limit.STARTING, Limit.LAST_TUPLES)
        lasting = {limit: s for limit, s in held.items() if limit not in passing} or held
        if not lasting:
            return self._verdict
        if self._sums.at_s - self._first.at_s < _LEAST_S or set(lasting) == {Limit.STARTING}:
            return Verdict(headline="it was over too soon to say")
        all_well_s = lasting.pop(Limit.NOTHING, 0.0)
        worst = max(lasting, key=lasting.__getitem__, default=Limit.NOTHING)
        if lasting.get(worst, 0.0) < _WORTH * (all_well_s + sum(lasting.values())):
            worst = Limit.NOTHING
        _, told = self._of_run[worst]
        all_s = self._sums.minus(self._first)
        return msgspec.structs.replace(told, shares=_shares(all_s), tuple_time=_tuple_time(all_s))


def verdict_of_calls(
    snapshot: Snapshot, *, slots_s: float, called_s: float, waited_s: float
) -> Verdict:
    """Return the verdict on a write without a driver, from sums over its partitions [s].

    ``slots_s``: for how long they have been at work; ``called_s`` of that in calls, ``waited_s``
    waiting for the target or resting after refusals; in the rest they wait for Spark's rows.
    """
    if not slots_s:
        return Verdict(headline="no partition is at work")
    if not called_s:
        return Verdict(headline="no call has ended yet")
    called, waited = (min(1.0, part_s / slots_s) for part_s in (called_s, waited_s))
    source = max(0.0, 1.0 - called - waited)
    shares = Shares(service=called, refused=waited, source=source)
    sums = _Sums(
        at_s=slots_s,
        slot_s=slots_s,
        no_input_s=source * slots_s,
        acked=snapshot.tuples_acked,
        refused=snapshot.calls_refused,
        paced_s=waited_s,
    )
    # Waiting for a place is no refusal.
    is_refused = snapshot.calls_refused > 0
    judged = shares if is_refused else msgspec.structs.replace(shares, refused=0.0)
    found = _find(snapshot, sums, judged, TupleTime())
    return Verdict(
        limit=found.limit,
        headline=found.headline,
        why=found.why,
        remedy=found.remedy,
        shares=shares,
        names=found.names,
    )


# -- Sums, and shares of them ------------------------------------------------------------------


def _added(sums: _Sums, snapshot: Snapshot, paused: Mapping[str, float]) -> _Sums:
    """Return ``sums`` with what has passed until ``snapshot``; ``paused``: by bolt, until then."""
    passed_s = max(0.0, snapshot.elapsed_s - sums.at_s)
    slot_s = empty_s = resting_s = flight_s = paused_s = 0.0
    for bolt in snapshot.bolts:
        if not bolt.window:  # it is gone
            continue
        stood_s = max(0.0, bolt.paused_s - paused.get(bolt.name, bolt.paused_s))
        paused_s += stood_s * bolt.slots
        slot_s += passed_s * bolt.slots
        flight_s += passed_s * bolt.in_flight
        free_s = max(0, bolt.slots - bolt.in_flight) * max(0.0, passed_s - stood_s)
        if bolt.refused:
            resting_s += free_s
        else:
            empty_s += free_s
    times, waits = snapshot.times, snapshot.waits
    return _Sums(
        at_s=snapshot.elapsed_s,
        slot_s=sums.slot_s + slot_s,
        empty_s=sums.empty_s + empty_s,
        resting_s=sums.resting_s + resting_s,
        paused_s=sums.paused_s + paused_s,
        flight_s=sums.flight_s + flight_s,
        backpressure_s=waits.backpressure_s,
        max_pending_s=waits.max_pending_s,
        no_input_s=waits.no_input_s,
        last_tuples_s=waits.last_tuples_s,
        acked=snapshot.tuples_acked,
        # Of a range the times are those of its reports.
        by_value=0 if snapshot.batches_begun else snapshot.tuples_acked,
        refused=snapshot.calls_refused,
        paced_s=sum(target.waited_s for target in snapshot.targets),
        acks=sum(times.service.counts),
        rtt_s=times.rtt.total_s,
        queue_s=times.wait.total_s,
        service_s=times.service.total_s,
        sink_s=times.sink_s,
    )


def _tuple_time(sums: _Sums) -> TupleTime:
    if not sums.acks:
        return TupleTime()
    return TupleTime(
        path_s=max(0.0, sums.rtt_s - sums.queue_s - sums.service_s) / sums.acks,
        queue_s=sums.queue_s / sums.acks,
        service_s=sums.service_s / sums.acks,
        sink_s=sums.sink_s / sums.acks,
    )


def _shares(sums: _Sums) -> Shares:
    """Return where the time of all slots went."""
    total_s, span_s = sums.slot_s, sums.at_s
    if total_s <= 0 or span_s <= 0:
        return Shares()
    refused, empty = sums.resting_s / total_s, sums.empty_s / total_s
    held = max(0.0, 1.0 - refused - empty)
    # Little's law: of the tuples in flight, that part is in process which it is of their time.
    in_process = sums.service_s / sums.rtt_s if sums.acks and sums.rtt_s > 0 else 1.0
    work = min(held, in_process * sums.flight_s / total_s)
    if sums.acks and sums.by_value >= _ACKS_PER_SLOT * total_s / span_s:
        # And no more than was acked; else those that pile up on their way would count as work.
        work = min(work, sums.by_value * sums.service_s / sums.acks / total_s)
    pauses = min(held, sums.paused_s / total_s)
    work = max(0.0, min(work - pauses, held - pauses))
    path = held - pauses - work
    sink = work * min(1.0, sums.sink_s / sums.service_s) if sums.service_s > 0 else 0.0
    held_back = sums.backpressure_s + sums.max_pending_s
    working = max(0.0, span_s - held_back - sums.no_input_s - sums.last_tuples_s) / span_s
    of_empty = empty / max(span_s, held_back + sums.no_input_s + sums.last_tuples_s)
    return Shares(
        service=work - sink,
        sink=sink,
        pauses=pauses,
        refused=refused,
        source=of_empty * sums.no_input_s,
        # What waits to be read by a driver that never rests is not under way.
        driver=of_empty * span_s * working + path * working,
        path=path * (1.0 - working),
        window=of_empty * held_back,
        ending=of_empty * sums.last_tuples_s,
    )


# -- What is the limit -------------------------------------------------------------------------


def _find(snapshot: Snapshot, sums: _Sums, shares: Shares, took: TupleTime) -> _Finding:
    """Return what holds the run up, the most certain first."""
    return (
        _refused(snapshot, sums, shares)
        or _not_sent(snapshot, sums, shares)
        or _at_bolts(snapshot, sums, shares, took)
        or _fine(snapshot, shares)
    )


def _stopped(snapshot: Snapshot, span_s: float, took: TupleTime) -> _Finding | None:
    """Return what stops a run, or one of its calls, altogether."""
    if snapshot.tuples_emitted and snapshot.bolts_up and span_s < _LEAST_S:
        return _Finding(Limit.STARTING, "the run has just begun")
    if not snapshot.tuples_emitted:
        what = "no bolt is connected yet" if not snapshot.bolts else "nothing was sent yet"
        return _Finding(Limit.STARTING, what, snapshot.note)
    if not snapshot.bolts_up:
        remedy = "See the log for why they went, and whether Spark has free slots."
        return _Finding(Limit.TOO_FEW_BOLTS, "no bolt is connected", snapshot.note, remedy)
    if snapshot.target_down_s is not None:
        why = f"nothing succeeds, and one tuple at a time tests it ({snapshot.target_down_reason})"
        remedy = "Bring the target back: the run then goes on by itself."
        return _Finding(Limit.TARGET_DOWN, "the target is down", why, remedy)
    for call in snapshot.long_calls[:1]:
        if call.for_s < _HANGS * took.service_s:
            break
        records = show_records(call.first, call.last)
        why = f"{call.bolt} has been at {records} of {call.partition} for {clock(call.for_s)}"
        if took.service_s:
            why += f", and others take {duration(took.service_s)}"
        remedy = "Give the call a time-out, in the client or with call.timeout_s."
        return _Finding(Limit.CALL_HANGS, "a call hangs", why, remedy, (call.bolt,))
    return None


def _one_stage(use: Mapping[str, float]) -> _Finding | None:
    """Return that one stage of several has all the work."""
    if len(use) < 2:
        return None
    busiest = max(use, key=use.__getitem__)
    others = [share for stage, share in use.items() if stage != busiest]
    if use[busiest] < _BUSY or max(others) >= _MOSTLY:
        return None
    return _Finding(
        Limit.ONE_STAGE, f"the stage {busiest} is the limit",
        f"its bolts are busy {percent(use[busiest])} of their time, those of others"
        f" {percent(max(others))} at most",
        "Give this stage more bolts, and others fewer.",
        (busiest,),
    )  # fmt: skip


def _refused(snapshot: Snapshot, sums: _Sums, shares: Shares) -> _Finding | None:
    """Return that the target refuses, or that calls wait for its limit."""
    done = sums.acked + sums.refused
    if done and (sums.refused >= _REFUSED * done or shares.refused >= _REFUSED):
        why = f"{percent(sums.refused / done, digits=1)} of the calls were refused"
        remedy = (
            "Ask for a larger quota, or let paced() learn its rate and share it: docs/pacing.md."
        )
        if snapshot.sink_cap is not None:
            most = counted(snapshot.sink_cap, "tuple")
            why += f", so flowctl keeps at most {most} in flight, and tries more now and then"
            remedy += " If it is not too many calls that it refuses, find out what it is: each"
            remedy += " refusal lowers the limit."
        return _Finding(
            Limit.TARGET_REFUSES, "the target refuses calls", f"{why}; more bolts would not help",
            remedy,
        )  # fmt: skip
    waits = sums.paced_s / sums.slot_s if sums.slot_s else 0.0
    for target in sorted(snapshot.targets, key=lambda target: -target.used)[:1]:
        at_limit = f"limit {count(target.limit)} ({target.reason})"
        if target.refused_share >= _REFUSED:
            why = f"{percent(target.refused_share, digits=1)} of its calls were refused, {at_limit}"
            limit, headline = Limit.TARGET_REFUSES, f"the target {target.target} refuses calls"
        elif target.used >= _USED * target.limit:
            why = f"{target.used:.1f} calls at once, {at_limit}"
            limit, headline = Limit.TARGET, f"the target {target.target} is the limit"
        elif waits >= _IDLE:
            why = f"calls wait for its rate {percent(waits)} of the time, {at_limit}"
            limit, headline = Limit.TARGET_REFUSES, f"the rate of {target.target} is the limit"
        else:
            continue
        remedy = "Ask for a larger quota, or see which other jobs use it: flowctl targets."
        return _Finding(
            limit, headline, f"{why}; more bolts would not help", remedy, (target.target,)
        )
    return None


def _not_sent(snapshot: Snapshot, sums: _Sums, shares: Shares) -> _Finding | None:
    """Return why nothing is sent although bolts have room."""
    span_s = sums.at_s or 1.0
    if sums.max_pending_s >= _MOSTLY * span_s:
        if snapshot.store_away_s is not None:
            away = duration(snapshot.store_away_s)
            return _Finding(
                Limit.STORE, "the checkpoint store is away",
                f"nothing was saved for {away}, so no more is read",
                "Bring the store back: the run then goes on by itself.",
            )  # fmt: skip
        return _Finding(
            Limit.PENDING, "the job's own bound is the limit",
            f"{percent(sums.max_pending_s / span_s)} of the time as much was in flight, or above"
            " a hole in the checkpoint, as is allowed",
            "Raise dispatch.in_flight_max or buffer.uncommitted_max, or see which tuple is"
            " overdue.",
        )  # fmt: skip
    if is_ending(snapshot) and sums.last_tuples_s >= sums.no_input_s:
        return _Finding(
            Limit.LAST_TUPLES, "all input was sent",
            f"bolts work on the last {counted(snapshot.tuples_in_flight, 'tuple')}",
        )  # fmt: skip
    if sums.no_input_s >= _MOSTLY * span_s and shares.source >= _IDLE:
        return _Finding(
            Limit.SOURCE, "the source is the limit",
            f"bolts wait for input {percent(shares.source)} of their time",
            "Read faster (more partitions or files, larger reads); fewer bolts would do as well.",
        )  # fmt: skip
    return None


def _at_bolts(snapshot: Snapshot, sums: _Sums, shares: Shares, took: TupleTime) -> _Finding | None:
    """Return what is wrong between driver and target."""
    if snapshot.shares_interpreter and _take_turns(snapshot, shares):
        return _Finding(
            Limit.PAUSES, "the interpreter is the limit",
            f"{counted(snapshot.bolts_up, 'bolt')} share it with the driver, and take turns; more"
            " bolts would not help",
            "If process computes, run it on Spark (SparkBolts): each bolt has its own interpreter"
            " there. If it does not, send more records in a tuple (tuple.records_max).",
        )  # fmt: skip
    if shares.pauses >= _PAUSES:
        stood = sorted(snapshot.bolts, key=lambda bolt: -bolt.paused_s)
        names = tuple(bolt.name for bolt in stood[:3] if bolt.paused_s)
        return _Finding(
            Limit.PAUSES, "the bolts' processes pause",
            f"they stood still for {percent(shares.pauses)} of the time, without a heartbeat"
            f" ({', '.join(names)} the most)",
            "Look for collections of garbage, swapping, and calls that hold the interpreter.",
            names,
        )  # fmt: skip
    if shares.driver >= _IDLE and shares.driver >= shares.path:
        return _Finding(
            Limit.DRIVER, "the driver is the limit",
            f"bolts wait for it {percent(shares.driver)} of their time",
            "Send more records in a tuple (tuple.records_max), or let bolts read: docs/ranges.md.",
        )  # fmt: skip
    if shares.path >= _IDLE:
        return _Finding(
            Limit.PATH, "the path between driver and bolts is the limit",
            f"a tuple is under way for {duration(took.path_s)} and in process for"
            f" {duration(took.service_s)}",
            "Send more records in a tuple (tuple.records_max), or run the driver nearer to the"
            " bolts.",
        )  # fmt: skip
    if slow := slow_bolts(snapshot):
        what = "one bolt is slow" if len(slow) == 1 else f"{len(slow)} bolts are slow"
        remedy = "Look at its machine (processor, memory, neighbours); the others take its share."
        return _Finding(Limit.ONE_BOLT, what, claim(slow), remedy, tuple(slow))
    return _target(snapshot, sums, shares) or _bolts_missing(snapshot, shares)


def _take_turns(snapshot: Snapshot, shares: Shares) -> bool:
    """Whether threads, mostly in ``process``, keep one another from their interpreter.

    Then heartbeats and the driver come late too, which is no fault of theirs.
    """
    if shares.service + shares.pauses < _MOSTLY:
        return False
    is_full = snapshot.more_bolts_help is False and shares.busy >= _BUSY
    return is_full or shares.pauses >= _PAUSES or shares.driver >= _IDLE


def _target(snapshot: Snapshot, sums: _Sums, shares: Shares) -> _Finding | None:
    """Return that calls wait for the target, or that more of them at once gain nothing."""
    if shares.sink < _MOSTLY and not _is_capped(snapshot, sums):
        return None
    why = [f"bolts wait for it {percent(shares.sink)} of their time"] if shares.sink else []
    if snapshot.sink_cap is not None:
        keeps = snapshot.sink_cap_keeps
        enough = "are enough" if keeps is None else f"give {percent(keeps)} of the best goodput"
        why.append(f"{counted(snapshot.sink_cap, 'tuple')} in flight {enough}")
        if keeps is not None and 0.0 < shares.sink < shares.service:
            works = (
                f"it works {percent(shares.service)} of the bolts' time and waits for the target"
            )
            return _Finding(
                Limit.TARGET, "process is the limit",
                f"{works} {percent(shares.sink)}, and {why[-1]}; more bolts would not help",
                "Make process faster, or give its machines more processors.",
            )  # fmt: skip
    return _Finding(
        Limit.TARGET, "the target is the limit",
        f"{', and '.join(why)}; more bolts would not help",
        "Make the target faster: larger calls, fewer indexes, more machines.",
    )  # fmt: skip


def _is_capped(snapshot: Snapshot, sums: _Sums) -> bool:
    """Whether a cap on the tuples in flight was used for most of the time."""
    if snapshot.sink_cap is None or not sums.at_s:
        return False
    return sums.flight_s / sums.at_s >= _USED * snapshot.sink_cap


def _bolts_missing(snapshot: Snapshot, shares: Shares) -> _Finding | None:
    """Return that there are fewer bolts than wanted, or than would help."""
    up, wanted = snapshot.bolts_up, snapshot.bolts_wanted
    works = f"{percent(shares.busy)} of their time"
    if up < wanted and snapshot.elapsed_s >= _MISSING_S and shares.busy >= _MOSTLY:
        note = f" ({snapshot.note})" if snapshot.note else ""
        return _Finding(
            Limit.TOO_FEW_BOLTS, "bolts are missing",
            f"{up} of {wanted} are there, and busy {works}{note}",
            "Free slots for the others, or see the log for why they don't come.",
        )  # fmt: skip
    if shares.busy >= _BUSY and snapshot.more_bolts_help:
        return _Finding(
            Limit.TOO_FEW_BOLTS, "all bolts are busy",
            f"{counted(up, 'bolt')} work {works}, and there is room for more",
            "Start more bolts, or give them more slots, if the target takes more calls at once.",
        )  # fmt: skip
    return None


def _fine(snapshot: Snapshot, shares: Shares) -> _Finding:
    bolts = counted(snapshot.bolts_up, "bolt")
    if shares.busy >= _BUSY:
        why = f"all bolts are busy ({bolts}, {percent(shares.busy)} of their time)"
    elif snapshot.held_up_by is WaitReason.NO_INPUT:
        why = (
            f"input is processed as it comes, and bolts are busy {percent(shares.busy)} of the time"
        )
    else:
        why = f"{bolts} are busy {percent(shares.busy)} of their time"
    return _Finding(Limit.NOTHING, "nothing is wrong", why)
