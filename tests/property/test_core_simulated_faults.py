"""The core under every policy with bolts that tell their times, under any faults, in virtual time.

The simulator's bolts send heartbeats, wait and service times, and ack in order, so that loss by
overtaking, overdue and suspect bolts, undone suspicion, sizes, taking back, copies and the sink's
guard all take part.  When a run fails, its scenario is printed: shrunk, and repeatable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowctl.config import name_of
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.messages import Emission
from flowctl.core.settings import PolicyName
from flowctl.core.state import Liveness
from flowctl.testing.invariants import check
from flowctl_lab.simulation.engine import Simulation
from flowctl_lab.simulation.network import Sending
from flowctl_lab.simulation.policies import settings_of
from flowctl_lab.simulation.scenario import Bursts, Death, Freeze, Loss, Scenario, Sink, Slow
from flowctl_lab.simulation.simulated_spout import SimSpout

pytestmark = pytest.mark.on_change()

# All faults end within 12 s or leave bolt 1 alone; the longest time-out is 60 s, and of a few
# dozen tuples each may be lost several times, at worst one after the other.
LIMIT_S = 20_000.0
TIMES = st.sampled_from([0.0, 0.05, 0.3, 1.0, 3.0])
LENGTHS = st.sampled_from([0.05, 0.4, 1.0, 4.0])
BOLTS = 3
BOLT = st.integers(0, BOLTS - 1)


def _times(*values: float) -> st.SearchStrategy[float]:
    return st.sampled_from(values)


SLOW = st.builds(
    lambda bolt, speed, from_s, for_s: Slow((bolt,), speed, from_s, from_s + for_s),
    BOLT, _times(0.01, 0.2), TIMES, LENGTHS,
)  # fmt: skip
FREEZE = st.builds(lambda bolt, from_s, for_s: Freeze(bolt, from_s, for_s, 1e6), BOLT, TIMES,
                   LENGTHS)  # fmt: skip
DEATH = st.builds(
    # Bolt 1 always comes back: somebody must be there in the end.
    lambda bolt, at_s, for_s, back, seen_s: Death(
        bolt, at_s, at_s + for_s if back or not bolt else None, seen_s
    ),
    BOLT, TIMES, LENGTHS, st.booleans(), st.sampled_from([None, 0.02]),
)  # fmt: skip
SCENARIOS = st.builds(
    Scenario,
    name=st.just("drawn"),
    what=st.just("drawn"),
    bolts=st.just(BOLTS),
    slots=st.sampled_from([1, 1, 2]),
    speeds=st.sampled_from([(), (2.0, 1.0, 0.25)]),
    tuples=st.integers(1, 60),
    sizes=st.sampled_from([(4,), (1,), (10, 100)]),
    record_s=_times(2.5e-3, 90e-6),
    service_cv=_times(0.0, 0.1, 1.0),
    one_way_s=_times(0.001, 0.05),
    jitter_s=_times(0.0, 0.004),
    bursts=st.sampled_from([None, Bursts(100.0, 0.2, 0.5)]),
    slow=st.lists(SLOW, max_size=2).map(tuple),
    freezes=st.lists(FREEZE, max_size=1).map(tuple),
    deaths=st.lists(DEATH, max_size=2, unique_by=lambda death: death.bolt).map(tuple),
    loss=st.sampled_from([None, Loss((0,), 0.3), Loss((0, 1, 2), 0.1)]),
    ack_flush_s=_times(0.0, 0.1),
    telemetry=st.sampled_from([True, True, True, False]),
    heartbeat_late_s=_times(0.0, 0.6),
    sink=st.sampled_from([None, Sink(slots=1, record_s=1e-3)]),
    joins_s=st.sampled_from([(0.0,), (0.0, 0.0)]),
)
RULES = st.fixed_dictionaries(
    {
        "lab.timeout.rule": st.sampled_from(["signs", "signs", "clock"]),
        "lab.timeout.rto_first_s": st.just(3.0),
        "lab.timeout.rto_min_s": st.just(0.2),
        "lab.timeout.rto_max_s": _times(8.0, 60.0),
        "hedge.enabled": st.booleans(),
        "lab.dispatch.sink_guard": st.just(True),
        "lab.dispatch.choice": st.sampled_from(["auto", "least_completion", "round_robin"]),
        "lab.window.max": st.sampled_from([3, 256]),
    }
)


class Watched:
    """Looks at a spout's core before and after each tuple that it sends, and between turns."""

    def __init__(self, spout: SimSpout, processed: set[tuple[int, int]]) -> None:
        self._spout = spout
        self._core = spout.core
        self._processed = processed
        self._cumulative = 0
        self._poll_emit: Callable[..., Emission | None] = spout.core.poll_emit
        spout.core.poll_emit = self.poll_emit  # type: ignore[method-assign]

    def poll_emit(self, *, now_s: float) -> Emission | None:
        before = {name: _state(consumer) for name, consumer in self._core.bolts.items()}
        emission = self._poll_emit(now_s=now_s)
        if emission is None:
            check(self._core)
            self._check_cumulative()
            return None
        held, work_s, work_max_s, window, is_usable = before[emission.bolt]
        slots = self._core.bolts[emission.bolt].slots
        assert is_usable, "a bolt that is silent or overdue gets nothing"
        assert held < self._core.settings.window.max
        if work_max_s is None:
            assert held < window, "sent although the window was full (S10)"
        else:
            # A slot is free, however much work the others have, if the window has as many.
            is_free = held < min(slots, window)
            assert is_free or work_s < work_max_s, "sent although its work was full"
        return emission

    def _check_cumulative(self) -> None:
        for ledger in self._core.intake.ledgers.values():
            reached = ledger.cumulative_seq
            assert reached >= self._cumulative, "the cumulative ack went back (S14)"
            for record in range(self._cumulative, reached):
                assert (self._spout.index, record) in self._processed, "it passed a hole (S11)"
            self._cumulative = reached


def _state(consumer: AdaptiveFlowConsumer) -> tuple[int, float, float | None, int, bool]:
    """What it holds, in tuples and in work, what it may hold, and whether it may get any."""
    service, flight = consumer.service, consumer.flight.values()
    records = sum(len(flow_tuple.cut.records) for flow_tuple in flight)
    # What a call costs is the pool's; a bolt's room is as of its last change.
    known = service.fixed_records + service.mean_records
    record_s = service.mean_s / known if known else 0.0
    work_s = (len(flight) * service.fixed_records + records) * record_s
    work_s += len(consumer.strays) * service.mean_s
    is_usable = consumer.liveness is Liveness.ALIVE
    window = int(consumer.policy.window)
    return consumer.held, work_s, consumer.policy.work_max_s, window, is_usable


def run(scenario: Scenario, policy: str, rules: dict[str, Any]) -> Simulation:
    """Run it to the end of the data, watched."""
    simulation = Simulation(scenario, settings_of(policy, scenario, rules), 1)
    processed: set[tuple[int, int]] = set()
    completed = simulation.work_done.completed

    def note(bolt: int, sending: Sending, at_s: float) -> None:
        last = sending.first + sending.count
        processed.update((sending.spout, record) for record in range(sending.first, last))
        completed(bolt, sending, at_s)

    simulation.work_done.completed = note  # type: ignore[method-assign]
    for spout in simulation.spouts:
        Watched(spout, processed)
    simulation.loop.run(LIMIT_S)
    return simulation


def drawn(**fields: Any) -> Scenario:
    """A scenario as Hypothesis draws them, most of it plain."""
    plain: dict[str, Any] = {"sizes": (4,), "record_s": 2.5e-3, "service_cv": 0.0}
    return Scenario(name="drawn", what="drawn", bolts=BOLTS, **{**plain, **fields})


def rules_of(**values: Any) -> dict[str, Any]:
    timeout = {"rto_first_s": 3.0, "rto_min_s": 0.2, "rto_max_s": 8.0}
    overrides = {f"lab.timeout.{name}": value for name, value in timeout.items()}
    overrides |= {"lab.window.max": 3, "hedge.enabled": False}
    return overrides | {name_of(*name.split("_", 1)): value for name, value in values.items()}


LOSSY = Loss((0, 1, 2), 0.1)


@pytest.mark.req("S7", "S10", "S11", "S13", "S14", "S48")
@pytest.mark.parametrize("policy", get_args(PolicyName))
@settings(max_examples=40)
# Found here: the first heartbeat comes after an ack, and the bolt's timer is another from then on.
@example(drawn(tuples=3, bursts=Bursts(100.0, 0.2, 0.5), loss=LOSSY, ack_flush_s=0.1), rules_of())
# A heartbeat ends that a bolt is overdue, or says that what it was thought to hold is gone.
@example(drawn(tuples=12, sizes=(10, 100), loss=Loss((0,), 0.3), joins_s=(0.0, 0.0)), rules_of())
@example(drawn(tuples=14, loss=LOSSY), rules_of(timeout_rule="clock"))
# A bolt that tells nothing, and holds nothing but what was given up.
@example(
    drawn(
        tuples=16,
        slots=2,
        service_cv=0.1,
        bursts=Bursts(100.0, 0.2, 0.5),
        loss=LOSSY,
        telemetry=False,
    ),
    rules_of(),
)
# A bolt speaks for the first time while the alarm of a backed-off time-out is far away.
@example(
    drawn(tuples=1, freezes=(Freeze(0, 0.0, 4.0, 1e6),), deaths=(Death(1, 0.0), Death(2, 0.0))),
    rules_of(),
)
@given(scenario=SCENARIOS, rules=RULES)
def test_whatever_happens_all_is_done_and_nothing_is_lost(
    policy: str, scenario: Scenario, rules: dict[str, Any]
) -> None:
    simulation = run(scenario, policy, rules)
    for spout in simulation.spouts:
        assert spout.is_done, "faults are over and it does not come to an end"
        assert spout.core.is_drained
        assert spout.core.checkpoint().records == spout.workload.records
    assert simulation._lost() == 0
