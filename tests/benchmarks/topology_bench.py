"""What a hop of a topology costs the hub: ``python -m tests.benchmarks topology``."""

from __future__ import annotations

import time
from collections import deque

from flowctl.config import Settings
from flowctl.core.driver import pump
from flowctl.core.messages import Emission, SettledAck
from flowctl.core.records import Record
from flowctl.core.trees.settlement import Emitted, Settlement
from flowctl_storm.hub.core import HubPlan, TopologyCore
from flowctl_storm.hub.roots import TreeRules
from flowctl_storm.plan import StagePlan, Subscription
from flowctl_storm.topology_job import random_ids

ROUNDS = 3  # the best counts: the others were disturbed
RECORDS = 20_000  # some 0.3 s a hop
_VALUE = "x" * 100  # a log line
_STEP_S = 0.0005  # between turns of the loop
_ACKS_PER_STEP = 8


def _chain(hops: int) -> list[StagePlan]:
    return [
        StagePlan(
            name=f"h{hop}",
            count=2,
            slots=1,
            is_manual=False,
            code=None,
            subscriptions=(
                Subscription(component=f"h{hop - 1}" if hop else "s", kind="least_loaded"),
            ),
        )
        for hop in range(hops)
    ]


def _ack_of(emission: Emission, is_last: bool) -> SettledAck:
    """Each input makes one emit, save at the end of the chain."""
    emits = [] if is_last else [Emitted(r.value, [r.position]) for r in emission.records]  # type: ignore[list-item]
    return SettledAck(
        emission.tuple_id, emission.attempt, 0.0001, 0.001, 0.0, settlement=Settlement(emits)
    )


def hub_seconds(hops: int, per_tuple: int, records: int = RECORDS) -> float:
    """Driver seconds for ``records`` roots through a chain of ``hops`` stages of two bolts."""
    plans = _chain(hops)
    settings = Settings().with_overrides({"tuple.records_max": per_tuple})
    core = TopologyCore(HubPlan(plans, TreeRules(random_ids())), settings)
    for plan in plans:
        for bolt in plan.bolts:
            core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0)
    source = [Record(number, _VALUE) for number in range(records)]
    in_flight: deque[Emission] = deque()
    now_s, offered = 0.0, 0
    begun_s = time.perf_counter()
    while offered < records or not core.is_drained:
        now_s += _STEP_S
        offered += core.offer("s:p", source[offered : offered + 5_000], now_s=now_s)
        in_flight.extend(pump(core, now_s).emissions)
        for _ in range(min(_ACKS_PER_STEP, len(in_flight))):
            emission = in_flight.popleft()
            is_last = emission.bolt.startswith(plans[-1].name)
            core.on_ack(emission.bolt, 1, _ack_of(emission, is_last), now_s=now_s)
    seconds = time.perf_counter() - begun_s
    assert core.tree_figures().complete == records
    return seconds


def main() -> bool:
    """Print the figures; there is no gate, as a hop is paid for by what a bolt does."""
    for per_tuple in (1, 10, 200):
        one, three = (min(hub_seconds(hops, per_tuple) for _ in range(ROUNDS)) for hops in (1, 3))
        hop_us = 1e6 * (three - one) / 2 / RECORDS
        print(
            f"topology, {per_tuple:3} records a tuple: root and first hop"
            f" {1e6 * one / RECORDS:5.1f} us a record, each further hop {hop_us:5.1f} us a record,"
            f" {hop_us * per_tuple:7.1f} us a tuple; three stages {RECORDS / three:8,.0f} records/s"
        )
    return True


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
