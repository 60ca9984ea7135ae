"""What would have been: a recorded job, simulated with other settings.

The simulated job has the recording's bolts, with their speeds, when they came and when they died;
its path; when its records came; and what each record cost.  How good that is shows by the settings
as they were: the simulator's error there is told, and the estimate is corrected by it.  What a
target does when it gets more calls than it got, or fewer, no recording knows: a call costs what it
cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import inf
from statistics import median
from typing import Any, NamedTuple, cast

import msgspec

from flowctl.config import Settings
from flowctl.core.carried import Packed, record_of
from flowctl.core.driver import Turn
from flowctl.core.messages import Ack
from flowctl.core.records import AckOutcome, Record
from flowctl.errors import ConfigError
from flowctl.instrumentation.numbers import counted
from flowctl.runtime.recording import Recording, Replay
from flowctl_lab.simulation.engine import Simulation
from flowctl_lab.simulation.policies import changes_of
from flowctl_lab.simulation.scenario import Death, Scenario
from flowctl_lab.simulation.workload import RecordWorkload

# An error of the simulator, on the settings as they were, from which on the estimate is a guess.
_FAR_OFF = 0.2
# Tuples of up to so many times the largest recorded size are as good as recorded.
_BEYOND = 1.5
# Sizes that differ by less, as a share of both together, tell noise.
_UNLIKE = 0.1
_ROUNDS = 3  # speeds follow from what calls cost, and the other way round; it settles by then
_CALL_MOST = 0.95  # of a tuple's time: something is left for its records


class Sent(NamedTuple):
    """A tuple that was acked: by whom, how many records, and how long that took there [s]."""

    bolt: str
    records: int
    service_s: float


class Observed:
    """What a replay shows of a job.  ``look`` at each step, then :meth:`job`."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[int, int], tuple[str, int, float]] = {}
        self.acked: list[Sent] = []
        self.slots = 1
        self.failed = 0
        self.began_s = inf  # when the first bolt came
        self.ended_s = 0.0  # when a tuple was last acked for the first time
        self._paths_s: list[float] = []
        self._came_s: dict[str, float] = {}
        self._died: dict[str, list[Death]] = defaultdict(list)
        self._chunks: list[tuple[float, int]] = []  # how long the source took, and how many came
        self._read_at_s: float | None = None
        self._rest_at_s: float | None = None  # since when a refused rest waits
        self.bytes_in = 0
        self.records_in = 0

    def look(self, step: tuple[str, tuple[Any, ...], dict[str, Any], Any]) -> None:
        """Take note of a call of the core."""
        name, args, keywords, result = step
        match name:
            case "turn":
                self._sent(result, args[0])
            case "offer":
                self._offered(args[1], keywords, result)
            case "on_ack":
                self._acked(args[0], args[2], result, keywords["now_s"])
            case "on_fail":
                self.failed += 1
                self._under_way.pop((args[2].tuple_id, args[2].attempt), None)
            case "add_bolt":
                self._came(args[0], keywords)
            case "remove_bolt":
                self._went(args[0], keywords["now_s"])

    def _sent(self, turn: Turn, at_s: float) -> None:
        for e in turn.emissions:
            self._under_way[e.tuple_id, e.attempt] = (e.bolt, len(e.records), at_s)

    def _acked(self, bolt: str, ack: Ack, outcome: AckOutcome, at_s: float) -> None:
        sent = self._under_way.pop((ack.tuple_id, ack.attempt), None)
        if outcome not in (AckOutcome.ACKED, AckOutcome.LATE):
            return
        self.ended_s = at_s
        if sent is None or ack.service_s is None or sent[0] != bolt:
            return
        self.acked.append(Sent(bolt, sent[1], ack.service_s))
        self._paths_s.append(max(0.0, at_s - sent[2] - ack.service_s - (ack.wait_s or 0.0)))

    def _came(self, bolt: str, keywords: Mapping[str, Any]) -> None:
        at_s = keywords["now_s"]
        self.began_s = min(self.began_s, at_s)
        self.slots = max(self.slots, keywords["slots"])
        self._came_s.setdefault(bolt, at_s)
        deaths = self._died[bolt]
        if deaths and deaths[-1].back_at_s is None:
            deaths[-1] = msgspec.structs.replace(deaths[-1], back_at_s=at_s)

    def _went(self, bolt: str, at_s: float) -> None:
        if bolt in self._came_s:
            self._died[bolt].append(Death(bolt=0, at_s=at_s, seen_after_s=0.0))

    def _offered(self, records: list[Record], keywords: Mapping[str, Any], taken: int) -> None:
        now_s = keywords["now_s"]
        if self._rest_at_s is None:  # the source gave this just now
            read_s = 0.0 if self._read_at_s is None else now_s - self._read_at_s
            self._chunks.append((read_s, len(records)))
            self.records_in += len(records)
            self.bytes_in += sum(max(0, size) for size in keywords["sizes"])
        self._read_at_s = now_s
        self._rest_at_s = now_s if taken < len(records) else None

    # -- the job -------------------------------------------------------------------------

    @property
    def took_s(self) -> float:
        """From when the first bolt came to the last ack [s]."""
        return self.ended_s - self.began_s

    def job(self, known: float) -> tuple[Scenario, RecordedWorkload]:
        """Return the job and its records.

        ``known``: how many records cost as much as a call, as the core knew it; it counts if the
        tuples do not tell.
        """
        names = sorted(self._came_s, key=lambda name: (self._came_s[name], name))
        total = sum(sent.records for sent in self.acked)
        call_s, record_s, speeds = self._costs(names, known)
        scenario = Scenario(
            name="recorded",
            what="as it was recorded",
            bolts=len(names),
            slots=self.slots,
            speeds=tuple(speeds[name] for name in names),
            tuple_s=call_s,
            record_s=record_s,
            service_cv=0.0,
            one_way_s=median(self._paths_s) / 2,
            records=total,
            connects_s=tuple(max(0.0, self._came_s[name] - self.began_s) for name in names),
            deaths=tuple(
                msgspec.structs.replace(
                    death,
                    bolt=bolt,
                    at_s=death.at_s - self.began_s,
                    back_at_s=death.back_at_s and death.back_at_s - self.began_s,
                )
                for bolt, name in enumerate(names)
                for death in self._died[name]
                if death.at_s < self.ended_s
            ),
        )
        work = [(s.records, s.service_s * speeds[s.bolt] - call_s) for s in self.acked]
        size = self.bytes_in // max(1, self.records_in)
        return scenario, RecordedWorkload(scenario, work, self._arrivals(total), size)

    def _costs(self, names: list[str], known: float) -> tuple[float, float, dict[str, float]]:
        """Return what a call and a record cost at speed 1 [s], and the bolts' speeds.

        A call's cost is told by tuples of different sizes that a bolt had one after the other, as
        what records cost there is the same for both.  The core's own estimate is for the next call:
        where records differ, it follows them.  If there are no such tuples, a call costs as much
        as ``known`` records, as the core knew it.
        """
        told = list(self._calls())
        work = len(self.acked), sum(sent.records for sent in self.acked)
        call_s, record_s, speeds = 0.0, 0.0, self._speeds(names, 0.0 if told else known)
        for _ in range(_ROUNDS):
            work_s = sum(sent.service_s * speeds[sent.bolt] for sent in self.acked)
            if told:
                costs = [(cost_s * speeds[bolt], weight) for bolt, cost_s, weight in told]
                call_s = min(_middle(costs), work_s / work[0] * _CALL_MOST)
                record_s = (work_s - call_s * work[0]) / work[1]
            else:
                record_s = work_s / (work[1] + known * work[0])
                call_s = known * record_s
            speeds = self._speeds(names, call_s / record_s)
        return call_s, record_s, speeds

    def _calls(self) -> Iterator[tuple[str, float, float]]:
        """Yield what a call costs by two tuples of a bolt: the bolt, the cost there [s], and how
        much it tells.
        """
        last: dict[str, Sent] = {}
        for sent in self.acked:
            before = last.get(sent.bolt)
            last[sent.bolt] = sent
            if before is None:
                continue
            more = sent.records - before.records
            weight = abs(more) / (sent.records + before.records)
            if weight >= _UNLIKE:
                call = before.service_s * sent.records - sent.service_s * before.records
                yield sent.bolt, max(0.0, call / more), weight

    def _speeds(self, names: list[str], fixed_records: float) -> dict[str, float]:
        """Return how fast each bolt was, the median one at 1.

        A call costs as much as ``fixed_records`` records.
        """
        took_s, did = defaultdict[str, float](float), defaultdict[str, float](float)
        for sent in self.acked:
            took_s[sent.bolt] += sent.service_s
            did[sent.bolt] += sent.records + fixed_records
        rates = {name: did[name] / took_s[name] for name in names if took_s[name] > 0}
        usual = median(rates.values())
        return {name: rates.get(name, usual) / usual for name in names}

    def _arrivals(self, total: int) -> list[tuple[float, int]]:
        """Return when the source would have given each chunk to a spout that always takes it.

        Times are from when the first bolt came; the counts add up to ``total``.
        """
        arrivals: list[tuple[float, int]] = []
        at_s, left = -inf, total
        for read_s, count in self._chunks:
            at_s = max(at_s, 0.0) + read_s if arrivals else 0.0
            arrivals.append((at_s, min(count, left)))
            left -= min(count, left)
            if not left:
                break
        if left:
            arrivals.append((max(at_s, 0.0), left))
        return arrivals


class RecordedWorkload(RecordWorkload):
    """Records that cost what they cost in the recording, and come as they came there.

    ``work``: for each tuple its records, and their time at speed 1 without the call's own [s].
    """

    def __init__(
        self,
        scenario: Scenario,
        work: list[tuple[int, float]],
        arrivals: list[tuple[float, int]],
        size_bytes: int,
    ) -> None:
        super().__init__(scenario, 0, 0)
        least_s = scenario.record_s / 1_000  # a call may have cost less than its fixed part
        self._stops = [0, *accumulate(count for count, _ in work)]
        self._done_s = [0.0, *accumulate(max(least_s, work_s) for _, work_s in work)]
        self.arrivals_s: list[float] = [at_s for at_s, _ in arrivals]
        self._chunks = [0, *accumulate(count for _, count in arrivals)]
        self._packed = Packed(cast("bytes", range(size_bytes)), None)  # only its length is asked

    def plain_s(self, first: int, count: int) -> float:
        return self._tuple_s + self._until_s(first + count) - self._until_s(first)

    def _until_s(self, stop: int) -> float:
        at = min(bisect_right(self._stops, stop), len(self._stops) - 1) - 1
        begin, end = self._stops[at], self._stops[at + 1]
        share = (stop - begin) / (end - begin)
        return self._done_s[at] + share * (self._done_s[at + 1] - self._done_s[at])

    def block(self, index: int) -> tuple[int, int]:
        return self._chunks[index], self._chunks[index + 1] - self._chunks[index]

    def read(self, stop: int | None) -> list[Record]:
        return [record_of(record.position, self._packed) for record in super().read(stop)]


# -- The estimate -----------------------------------------------------------------------------


def estimated(recording: Recording, policy: str, overrides: Mapping[str, Any]) -> list[str]:
    """Return lines that say how long the recorded run would have taken.

    Raises :class:`ConfigError` for settings that are not possible, and for recordings that can't be
    simulated.
    """
    if recording.began.by_reference:
        raise ConfigError(
            "FILE",
            "the bolts of this job read the source themselves, which is only replayed.",
            remedy="Leave out --policy and --set.",
        )
    tree = msgspec.to_builtins(Settings()) | recording.began.settings
    before = msgspec.convert(tree, Settings)
    run, observed = Replay(recording), Observed()
    for step in run.steps():
        observed.look(step)
    if not observed.acked:
        raise ConfigError(
            "FILE", "no tuple was acked in it.", remedy="Record a run that does some work."
        )
    scenario, _ = observed.job(0.0)
    after = before.with_overrides({**(changes_of(policy, scenario) if policy else {}), **overrides})
    pool = run.core.book.pool
    known = pool.call_s / pool.record_s if pool.record_s > 0 else 0.0
    as_it_was = simulated(observed, known, before)
    lines = _lines(observed, as_it_was, simulated(observed, known, after))
    return [*lines, recording.missing] if recording.missing else lines


def _middle(weighted: list[tuple[float, float]]) -> float:
    """Return the weighted median."""
    half = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        half -= weight
        if half <= 0:
            return value
    return weighted[-1][0]


class Simulated(NamedTuple):
    """A simulated run: how long it took, and how many tuples its records were in."""

    took_s: float
    tuples: int


def simulated(observed: Observed, known: float, settings: Settings) -> Simulated:
    """Run the observed job with ``settings`` in virtual time; ``known``: see
    :meth:`Observed.job`.
    """
    scenario, workload = observed.job(known)
    world = Simulation(scenario, settings, 0, workload=workload)
    world.loop.run(scenario.limit_s + workload.arrivals_s[-1], inf)
    spout = world.spouts[0]
    return Simulated(spout.acked_at_s if spout.is_done else inf, spout.core.counters.tuples_acked)


def _lines(observed: Observed, as_it_was: Simulated, otherwise: Simulated) -> list[str]:
    took_s = observed.took_s
    error = as_it_was.took_s / took_s - 1
    lines = [
        f"recorded             {took_s:8.1f} s  from the first bolt to the last ack",
        f"simulated as it was  {as_it_was.took_s:8.1f} s  the simulator's error: {error:+.1%}",
    ]
    if otherwise.took_s == inf:
        return [*lines, "otherwise            it would not have ended"]
    corrected_s = otherwise.took_s * took_s / as_it_was.took_s
    lines.append(
        f"otherwise            {corrected_s:8.1f} s  {corrected_s / took_s - 1:+.1%}"
        f"  (simulated: {otherwise.took_s:.1f} s, corrected by that error)"
    )
    if abs(error) > _FAR_OFF:
        lines.append("The simulator is far off for this job: take it for a guess.")
    sizes = [sent.records for sent in observed.acked]
    mean = sum(sizes) / max(1, otherwise.tuples)
    if not min(sizes) / _BEYOND < mean < max(sizes) * _BEYOND:
        lines.append(
            f"Tuples would hold {mean:.0f} records; none recorded held so"
            f" {'many' if mean > max(sizes) else 'few'}, so what one costs is a guess."
        )
    if observed.failed:
        lines.append(f"{counted(observed.failed, 'failed call')} of the recording: not simulated.")
    return lines
