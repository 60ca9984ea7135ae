"""The scenarios of the control law, by name, with the gates of the default policy.

``what`` is the row of the specification; ``CATALOGUE`` keeps their order.  Those without gates
are variants for comparison.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from flowctl_lab.simulation.scenario import (
    Bursts,
    Converge,
    Death,
    Drift,
    Freeze,
    Gate,
    Loss,
    Pauses,
    Scenario,
    Sink,
    Slow,
)

_ONE_LONG_RTT_S = 0.11  # 50 ms each way and 10 ms of service
_HETERO = (2.0,) * 4 + (1.0,) * 4 + (0.25,) * 4


def _e(at_least: float) -> Gate:
    return Gate("E", at_least=at_least)


def _most(metric: str, at_most: float) -> Gate:
    return Gate(metric, at_most=at_most)  # type: ignore[arg-type]


_STEADY = (
    Scenario(
        name="homog",
        steady=True,
        what="nothing happens",
        gates=(_e(0.99), _most("q", 1.0), _most("R99", 2.5)),
    ),
    Scenario(
        name="highbdp",
        what="50 ms one way",
        one_way_s=0.05,
        converge=Converge(changes_s=(0.0,), window_s=_ONE_LONG_RTT_S, unit_s=_ONE_LONG_RTT_S),
        gates=(_e(0.985), _most("q", 2.0), _most("converged", 8.0)),
    ),
    Scenario(
        name="multi4",
        what="4 slots a bolt",
        steady=True,
        slots=4,
        tuples=48_000,
        gates=(_e(0.99),),
    ),
    Scenario(
        name="jitter",
        steady=True,
        what="service CV 1, up to 4 ms more each way",
        service_cv=1.0,
        jitter_s=0.004,
        gates=(_e(0.985),),
    ),
    Scenario(
        name="hetero",
        steady=True,
        what="speeds 2, 1, 1/4, four bolts each",
        speeds=_HETERO,
        gates=(_e(0.99), _most("R99", 2.5)),
    ),
    Scenario(
        name="sizes",
        steady=True,
        what="tuples of 10 or 1,000 records, 50 us a record",
        sizes=(10, 1000),
        record_s=50e-6,
        tuples=9_000,
        gates=(_e(0.98),),
    ),
)

_CHANGING = (
    Scenario(
        name="drift",
        what="cost rises to 3x over 20 s",
        drift=Drift(cost=3.0, over_s=20.0),
        tuples=20_000,
        gates=(_e(0.99),),
    ),
    Scenario(
        name="step",
        what="bolts 0-2 at 1/5 speed from 6 to 14 s",
        slow=(Slow(bolts=(0, 1, 2), speed=0.2, from_s=6.0, until_s=14.0),),
        converge=Converge(changes_s=(6.0, 14.0), window_s=0.2, unit_s=1.0),
        gates=(_e(0.99), _most("converged", 1.0)),
    ),
    Scenario(
        name="heavy",
        what="data skewed: lognormal, CV 3",
        data_cv=3.0,
        gates=(_e(0.97), _most("wasted", 0.01)),
    ),
)

_FAULTS = (
    Scenario(
        name="gc",
        what="each bolt stops for 1 s, every 10 s or so",
        pauses=Pauses(for_s=1.0, gap_s=10.0),
        gates=(_e(0.98), _most("dup", 0.003)),
    ),
    Scenario(
        name="flap",
        what="bolts 0 and 1 frozen in turn, 3 s of every 6",
        freezes=(
            Freeze(bolt=0, from_s=3.0, for_s=3.0, every_s=6.0),
            Freeze(bolt=1, from_s=6.0, for_s=3.0, every_s=6.0),
        ),
        gates=(_e(0.98), _most("dup", 0.003)),
    ),
    Scenario(
        name="crash",
        what="bolt 0 dead 4-12 s, bolt 1 from 4 s on; nobody is told",
        deaths=(Death(bolt=0, at_s=4.0, back_at_s=12.0), Death(bolt=1, at_s=4.0)),
        gates=(_e(0.98), _most("lag_s", 1.0), _most("lost", 0)),
    ),
    Scenario(
        name="lossy",
        what="bolts 0 and 1 lose 5 % of the tuples",
        loss=Loss(bolts=(0, 1), share=0.05),
        gates=(_e(0.98),),
    ),
    Scenario(
        name="delack",
        what="acks leave every 100 ms",
        ack_flush_s=0.1,
        gates=(_e(0.97), _most("q", 7.0)),
    ),
)

_SINKS = (
    Scenario(
        name="sink",
        what="a serial sink at 50 %, from 16 s on 25 % of the bolts' capacity",
        sink=Sink(slots=1, record_s=1 / 60_000, later_s=16.0, later_speed=0.5),
        tuples=18_000,
        gates=(_e(0.97), _most("R50", 1.5)),
    ),
    Scenario(
        name="sinkknee",
        what="a sink of 12 slots that degrades above 6 callers",
        tuple_s=0.0002,
        record_s=10e-6,
        sink=Sink(slots=12, record_s=1 / 9_000, knee=6, slope=0.25),
        tuples=14_000,
        gates=(_e(0.96),),
    ),
)

_LOAD = (
    Scenario(
        name="applim",
        what="bursts: 1 s at 1,440 tuples/s, then 1.4 s nothing",
        bursts=Bursts(rate=1_440.0, for_s=1.0, gap_s=1.4),
        tuples=12_000,
        gates=(_e(0.95), _most("growth", 0.0), _most("R99", 2.5)),
    ),
    Scenario(
        name="drain",
        what="600 tuples, hetero with one bolt at 1/20",
        speeds=(*_HETERO[:-1], 0.05),
        tuples=600,
        gates=(
            Gate("E", at_least=0.95, of_mean=True),
            Gate("min_E", at_least=0.90),
            _most("dup", 0.01),
        ),
    ),
    Scenario(
        name="two",
        what="two spouts on the same bolts, 5 s apart, 50 ms one way",
        one_way_s=0.05,
        joins_s=(0.0, 5.0),
        until_s=30.0,
        measured_from_s=10.0,
        gates=(_e(0.99), Gate("jain", at_least=0.97)),
    ),
    Scenario(
        name="three",
        what="three spouts on the same bolts, 5 s apart, 50 ms one way",
        one_way_s=0.05,
        joins_s=(0.0, 5.0, 10.0),
        until_s=35.0,
        measured_from_s=15.0,
        gates=(_e(0.99), Gate("jain", at_least=0.97)),
    ),
    Scenario(
        name="batch",
        steady=True,
        what="10 M records, 5 ms a tuple + 20 us a record; size is free",
        tuple_s=0.005,
        record_s=20e-6,
        sizes=(12_250,),  # 250 ms, the longest that a tuple should take
        tuples=10_000_000 // 12_250 + 1,
        free_size=True,
        gates=(_e(0.97),),
    ),
)

_VARIANTS = (
    Scenario(
        name="crash_seen",
        what="as crash, connections end within 20 ms",
        deaths=(
            Death(bolt=0, at_s=4.0, back_at_s=12.0, seen_after_s=0.02),
            Death(bolt=1, at_s=4.0, seen_after_s=0.02),
        ),
    ),
    Scenario(
        name="two_near",
        what="as two, 1 ms one way",
        joins_s=(0.0, 5.0),
        until_s=30.0,
        measured_from_s=10.0,
    ),
    # Without telemetry windows vary randomly: by a tuple more, for a tenth of the time.
    Scenario(
        name="homog_bare",
        steady=True,
        what="as homog, no telemetry",
        telemetry=False,
        gates=(_e(0.98), _most("q", 1.5), _most("R99", 3.0)),
    ),
    Scenario(
        name="highbdp_bare",
        what="as highbdp, no telemetry",
        telemetry=False,
        one_way_s=0.05,
        converge=Converge(changes_s=(0.0,), window_s=_ONE_LONG_RTT_S, unit_s=_ONE_LONG_RTT_S),
        gates=(_e(0.97), _most("q", 2.5), _most("R99", 3.0), _most("converged", 8.0)),
    ),
    Scenario(
        name="hetero_bare",
        steady=True,
        what="as hetero, no telemetry",
        telemetry=False,
        speeds=_HETERO,
        gates=(_e(0.98), _most("q", 1.5), _most("R99", 3.0)),
    ),
    Scenario(
        name="crash_bare",
        what="as crash, no telemetry",
        telemetry=False,
        deaths=(Death(bolt=0, at_s=4.0, back_at_s=12.0), Death(bolt=1, at_s=4.0)),
    ),
    Scenario(
        name="multi4_bare",
        what="as multi4, no telemetry",
        telemetry=False,
        slots=4,
        tuples=48_000,
    ),
    Scenario(
        name="jitter_bare",
        what="as jitter, no telemetry",
        telemetry=False,
        service_cv=1.0,
        jitter_s=0.004,
    ),
    Scenario(
        name="drift_bare",
        what="as drift, no telemetry",
        telemetry=False,
        drift=Drift(cost=3.0, over_s=20.0),
        tuples=20_000,
    ),
    Scenario(name="delack_bare", what="as delack, no telemetry", telemetry=False, ack_flush_s=0.1),
    Scenario(
        name="two_bare",
        what="as two, no telemetry",
        telemetry=False,
        one_way_s=0.05,
        joins_s=(0.0, 5.0),
        until_s=30.0,
        measured_from_s=10.0,
    ),
    # Held by tests/simulation/test_simulation_law_faults.py.
    Scenario(
        name="dead_early",
        what="3 bolts, 50 ms one way, pauses of .3 s each second or so; bolt 2 dies before its"
        " first heartbeat",
        bolts=3,
        one_way_s=0.05,
        tuples=3_000,
        deaths=(Death(bolt=2, at_s=0.15),),
        pauses=Pauses(for_s=0.3, gap_s=1.0),
    ),
    Scenario(
        name="frozen_far",
        what="3 bolts, 45 ms one way, each frozen for .7 s of 2.1 s in turn",
        bolts=3,
        one_way_s=0.045,
        tuples=6_000,
        freezes=tuple(
            Freeze(bolt=bolt, from_s=1.0 + 0.7 * bolt, for_s=0.7, every_s=2.1) for bolt in range(3)
        ),
    ),
    Scenario(
        name="lossy4",
        what="as lossy, 4 slots a bolt",
        slots=4,
        tuples=12_000,
        loss=Loss(bolts=(0, 1), share=0.05),
    ),
    Scenario(
        name="late_beats",
        what="heartbeats up to 600 ms late",
        heartbeat_late_s=0.6,
        tuples=12_000,
    ),
)

CATALOGUE: Final = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (*_STEADY, *_CHANGING, *_FAULTS, *_SINKS, *_LOAD, *_VARIANTS)
    }
)
