"""A scenario: one readable declaration of bolts, data, network, faults and gates.

Times are virtual seconds from the start of the run, bolts are counted from 0.  Everything that
a field leaves out is the base: 12 FIFO bolts of one slot and speed 1; 10 ms for a tuple of 100
records; service times with a coefficient of variation (CV) of .1; 1 ms one way; 24,000 tuples,
all there at 0, which is 20 s of work.
"""

from __future__ import annotations

from typing import Literal

import msgspec

HEARTBEAT_S = 0.25  # as a real bolt's

Metric = Literal[
    "E", "min_E", "q", "R50", "R99", "dup", "wasted", "lag_s", "lost", "converged", "jain",
    "growth",
]  # fmt: skip


class _Part(msgspec.Struct, frozen=True):
    """A piece of a scenario; a value."""


class Slow(_Part, frozen=True):
    """Bolts that run at ``speed`` times their own speed from ``from_s`` to ``until_s``."""

    bolts: tuple[int, ...]
    speed: float
    from_s: float
    until_s: float


class Drift(_Part, frozen=True):
    """The cost of everything rises linearly from 1 to ``cost`` over ``over_s``, at all bolts."""

    cost: float
    over_s: float


class Freeze(_Part, frozen=True):
    """A bolt's process freezes for ``for_s`` every ``every_s``, first at ``from_s``.

    Its heartbeats stop too; messages to it wait in the network.
    """

    bolt: int
    from_s: float
    for_s: float
    every_s: float


class Pauses(_Part, frozen=True):
    """Each bolt pauses for ``for_s`` repeatedly; the gaps are exponential with mean ``gap_s``."""

    for_s: float
    gap_s: float


class Death(_Part, frozen=True):
    """A bolt dies and loses its tuples; it may come back with a new epoch.

    The spout sees the connection end ``seen_after_s`` after the death; None means never, as behind
    a link that swallows everything.
    """

    bolt: int
    at_s: float
    back_at_s: float | None = None
    seen_after_s: float | None = None


class Loss(_Part, frozen=True):
    """Bolts that silently lose ``share`` of the tuples that reach them, before any work."""

    bolts: tuple[int, ...]
    share: float


class Bursts(_Part, frozen=True):
    """Tuples that arrive evenly at ``rate`` [1/s] for ``for_s``, then none for ``gap_s``."""

    rate: float
    for_s: float
    gap_s: float


class Sink(_Part, frozen=True):
    """A FIFO sink that every tuple passes after its service, its slot at the bolt still taken.

    A request takes ``record_s`` per record, plus ``slope`` of that for each concurrent caller
    beyond ``knee`` when it enters; from ``later_s`` on the sink runs at ``later_speed``.
    """

    slots: int
    record_s: float
    knee: int | None = None
    slope: float = 0.0
    later_s: float = 0.0
    later_speed: float = 1.0


class Converge(_Part, frozen=True):
    """Measure how soon after each change .95 of the capacity is in use again.

    The use is measured over a trailing ``window_s``, and the time in units of ``unit_s``.
    """

    changes_s: tuple[float, ...]
    window_s: float
    unit_s: float


class Gate(_Part, frozen=True):
    """A requirement that the worst of the seeds must reach ("E" of drain: the mean)."""

    metric: Metric
    at_least: float | None = None
    at_most: float | None = None
    of_mean: bool = False


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """See the module; ``what`` describes the difference from the base in a few words."""

    name: str
    what: str
    bolts: int = 12
    slots: int = 1
    speeds: tuple[float, ...] = ()  # per bolt; empty: all 1
    tuple_s: float = 0.001  # service time per tuple
    record_s: float = 90e-6  # and per record
    service_cv: float = 0.1  # lognormal factor of mean 1, drawn for each sending
    data_cv: float = 0.0  # lognormal factor of mean 1, fixed per tuple: the data is skewed
    one_way_s: float = 0.001
    outlet_record_s: float = 0.0  # a record's time on the spout's link, which they pass in turn
    jitter_s: float = 0.0  # largest addition each way, uniform; the order is kept
    tuples: int = 24_000
    sizes: tuple[int, ...] = (100,)  # records per tuple, with equal chance
    bursts: Bursts | None = None
    slow: tuple[Slow, ...] = ()
    drift: Drift | None = None
    freezes: tuple[Freeze, ...] = ()
    pauses: Pauses | None = None
    deaths: tuple[Death, ...] = ()
    loss: Loss | None = None
    ack_flush_s: float = 0.0  # acks leave together at multiples of this
    telemetry: bool = True  # bolts report wait, service and idle times, and send heartbeats
    heartbeat_late_s: float = 0.0  # largest delay of a heartbeat, uniform
    sink: Sink | None = None
    joins_s: tuple[float, ...] = (0.0,)  # one per spout
    takes_turns: bool = False  # bolts take spouts in turn; else tuples as they came
    until_s: float | None = None  # the run stops then; the input does not end
    measured_from_s: float = 0.0  # shares and use count from here, where until_s is given
    converge: Converge | None = None
    free_size: bool = False  # the spout chooses the records per tuple, up to sizes
    steady: bool = False  # goes on as it began, so that a part of it shows the same
    # If not 0: a user's job with all settings as shipped, and the number of records per spout, each
    # with a cost of its own; ``tuples`` and ``sizes`` are ignored then.
    records: int = 0
    pareto: float = 0.0  # the costs of records follow Pareto's law with this exponent
    connects_s: tuple[float, ...] = ()  # when each bolt connects; empty: all at 0
    end_late_s: float = 0.0  # delay of the report of the input's end after the last record
    gates: tuple[Gate, ...] = ()

    def part(self, parts: int) -> Scenario:
        """Return it with one of ``parts`` equal parts of the data, if steady; else unchanged."""
        if not self.steady or parts == 1:
            return self
        return msgspec.structs.replace(self, tuples=max(1, self.tuples // parts))

    @property
    def is_as_shipped(self) -> bool:
        """Whether the run has the settings of a user's job."""
        return self.records > 0

    def connects_at_s(self, bolt: int) -> float:
        """Return when the bolt connects and can get tuples."""
        return self.connects_s[bolt] if self.connects_s else 0.0

    def speed_of(self, bolt: int) -> float:
        """Return the bolt's own speed, without later events."""
        return self.speeds[bolt] if self.speeds else 1.0

    @property
    def records_mean(self) -> float:
        """The number of records in the mean tuple."""
        return sum(self.sizes) / len(self.sizes)

    @property
    def tuple_mean_s(self) -> float:
        """The service time of the mean tuple at speed 1 [s]."""
        return self.tuple_s + self.record_s * self.records_mean

    @property
    def speed_total(self) -> float:
        """The work that all bolts do in a second, without events [s at speed 1]."""
        return self.slots * sum(self.speed_of(bolt) for bolt in range(self.bolts))

    @property
    def round_trip_s(self) -> float:
        """Both ways, without jitter."""
        return 2 * self.one_way_s

    @property
    def no_load_net_s(self) -> float:
        """The mean tuple's round trip without load, except its time at the bolt [s]."""
        return self.round_trip_s + self.jitter_s + self.ack_flush_s / 2

    @property
    def limit_s(self) -> float:
        """When a run is stopped: far later than the worst working policy needs [s]."""
        if self.until_s is not None:
            return self.until_s
        if self.records:
            return self._as_shipped_limit_s
        work_s = self.tuples * self.tuple_mean_s / self.speed_total
        if self.drift:
            work_s *= self.drift.cost
        if self.sink:
            rate = self.sink.slots * self.sink.later_speed / self.sink.record_s
            work_s = max(work_s, self.tuples * self.records_mean / rate)
        work_s = max(work_s, self.tuples * self.records_mean * self.outlet_record_s)
        if self.bursts:
            share = self.bursts.for_s / (self.bursts.for_s + self.bursts.gap_s)
            work_s = max(work_s, self.tuples / (self.bursts.rate * share))
        return 15 * work_s + 10.0  # the worst efficiency seen is a tenth of the bound's

    @property
    def _as_shipped_limit_s(self) -> float:
        """Return ``limit_s`` for a job as shipped: its slowest bolt may get the dearest record."""
        spouts = len(self.joins_s)
        work_s = spouts * self.records * self.record_s / self.speed_total
        slowest = min(self.speed_of(bolt) for bolt in range(self.bolts))
        dearest_s = (
            spouts * self.records * self.record_s if self.pareto or self.data_cv else self.record_s
        ) / slowest
        fixed_s = 20 * self.tuple_s / slowest
        return 15 * work_s + dearest_s + fixed_s + 40 * self.no_load_net_s + 60.0
