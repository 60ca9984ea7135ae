"""The control law's scenarios as they are run on real Spark: their length, gate, differences.

The length is 5 to 10 s of work, so that three runs of all take some ten minutes; tuples stay as
long as they are.  The simulator runs the very same, shortened scenario beside it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.scenario import Scenario


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario.  ``gate_e``: the median of the runs' E must reach it.

    ``recovered_most_s``: tuples of a bolt that died are all sent again within this time.
    ``growth_most``: windows that nobody uses grow by at most so many tuples.
    ``differs`` says what is not as in the full, simulated scenario beside its length.
    """

    scenario: Scenario
    gate_e: float
    recovered_most_s: float | None = None
    growth_most: int | None = None
    differs: str = ""


def shortened(scenario: Scenario, factor: float) -> Scenario:
    """``scenario`` with ``factor`` times the tuples, all that happens as much sooner."""
    changes: dict[str, object] = {
        "tuples": round(scenario.tuples * factor),
        "slow": tuple(
            replace(s, from_s=s.from_s * factor, until_s=s.until_s * factor) for s in scenario.slow
        ),
        "deaths": tuple(
            replace(d, at_s=d.at_s * factor, back_at_s=d.back_at_s and d.back_at_s * factor)
            for d in scenario.deaths
        ),
    }
    if scenario.drift:
        changes["drift"] = replace(scenario.drift, over_s=scenario.drift.over_s * factor)
    if scenario.sink:
        changes["sink"] = replace(scenario.sink, later_s=scenario.sink.later_s * factor)
    return replace(scenario, **changes)


_QUARTER = 0.25  # of 20 s of work: 5 s
_HALF = 0.5  # where the start or the end takes long: a round trip, a pause that is seen out
# Pauses, freezes and bursts keep their lengths, which stand against time-outs that are fixed: only
# the input is shorter.
_UNCHANGED = "; events at full length"


def _case(
    known_as: str,
    gate_e: float,
    factor: float = _QUARTER,
    *,
    differs: str = "",
    recovered_most_s: float | None = None,
    growth_most: int | None = None,
    **changes: object,
) -> Case:
    scenario = shortened(CATALOGUE[known_as], factor)
    return Case(
        scenario=replace(scenario, **changes) if changes else scenario,
        gate_e=gate_e,
        recovered_most_s=recovered_most_s,
        growth_most=growth_most,
        differs=differs,
    )


_PROXY = "a TCP proxy delays bytes, not messages"
_BATCH_SHARE = 10  # so many times fewer records, each so much dearer: two cores must carry them
_BATCH = CATALOGUE["batch"]

CASES: Final = MappingProxyType(
    {
        case.scenario.name: case
        for case in (
            _case("homog", 0.97),
            _case("highbdp", 0.95, _HALF, differs=_PROXY),
            _case("multi4", 0.95),
            _case("jitter", 0.95, differs=_PROXY),
            _case("hetero", 0.97),
            _case("sizes", 0.95),
            _case("drift", 0.96),
            _case("step", 0.97),
            _case("heavy", 0.94),
            # SIGSTOP and SIGCONT to the worker's process.
            _case("gc", 0.95, _HALF, differs="real SIGSTOP" + _UNCHANGED),
            _case("flap", 0.95, _HALF, differs="real SIGSTOP" + _UNCHANGED),
            # SIGKILL; the end of the connection is seen at once, Spark starts the task again, and
            # the new worker stays away until its bolt is due.
            _case(
                "crash_seen",
                0.93,
                _HALF,
                name="crash",
                recovered_most_s=2.0,
                differs="real SIGKILL: the connection's end is seen at once (as crash_seen)",
            ),
            _case("lossy", 0.95, differs="a TCP proxy takes tuples out of the stream"),
            _case(
                "delack", 0.93, _HALF, differs="a TCP proxy holds acks, and heartbeats with them"
            ),
            _case("sink", 0.95, differs="the sink is a server process"),
            # The search takes two seconds: a quarter of the data would measure little else.
            _case("sinkknee", 0.93, 1.0, differs="the sink is a server process"),
            # Its gates are growth and R99; for E the catalogue's stands in.  0.36: three bursts.
            _case("applim", 0.95, 0.36, growth_most=0, differs="R99 is not measured" + _UNCHANGED),
            _case("drain", 0.90, 1.0, differs="at full length: 0.5 s"),
            _case(
                "batch",
                0.95,
                record_s=_BATCH.record_s * _BATCH_SHARE,
                sizes=(_BATCH.sizes[0] // _BATCH_SHARE,),
                differs="a tenth of the records at ten times the cost",
            ),
        )
    }
)

_SPEEDS = (2.0,) * 4 + (1.0,) * 4 + (0.25,) * 4
_AS_SHIPPED = "settings as shipped, nothing is known before; E: against greedy"


def _shipped(name: str, what: str, gate_e: float, **values: object) -> Case:
    scenario = Scenario(name=name, what=what, **values)  # type: ignore[arg-type]
    return Case(scenario=scenario, gate_e=gate_e, differs=f"{what}; {_AS_SHIPPED}")


# Jobs as users start them, of some seconds: the second that twelve workers take to connect counts.
# The gates of W1, W3 and F2 are what one run on a busy machine had, rounded down (without shares W3
# has .08); those of W2 and W4 are guesses below what the simulator has.
SHIPPED: Final = MappingProxyType(
    {
        case.scenario.name: case
        for case in (
            _shipped(
                "W1", "a call costs .3 s, a record 1 ms", 0.60,
                records=24_000, tuple_s=0.3, record_s=0.001,
            ),
            _shipped(
                "W2", "records of 2 s, as 20 to 300 s", 0.85,
                records=60, tuple_s=0.01, record_s=2.0,
            ),
            _shipped(
                "W3", "24 records of 1 s, the end is told late", 0.50,
                records=24, tuple_s=0.001, record_s=1.0, end_late_s=0.5,
            ),
            _shipped(
                "W4", "uneven bolts and skewed records", 0.70,
                records=5_000, tuple_s=0.01, record_s=0.01, pareto=1.1, speeds=_SPEEDS,
            ),
            _shipped(
                "F2", "bolts connect one after the other", 0.70,
                records=12_000, tuple_s=0.001, record_s=0.002,
                connects_s=tuple(0.15 * number for number in range(12)),
            ),
        )
    }
)  # fmt: skip

# What can't be had here, and why.
LEFT_OUT: Final = MappingProxyType(
    {"two, three": "the bolts of a SparkBolts belong to one spout; there is no way to share them"}
)
