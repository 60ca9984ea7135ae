"""What the core costs: tuples a second at 12, 1,000 and 10,000 bolts, and memory with holes."""

from __future__ import annotations

import time
import tracemalloc
from collections import deque

from flowctl.core.driver import pump
from flowctl.core.ledger import PartitionLedger
from flowctl.core.records import Ack, Emission, Record
from flowctl.core.settings import CoreSettings, TupleSettings
from flowctl.core.spout import SpoutCore

BOLTS = (12, 1_000, 10_000)
TUPLES = 60_000  # 0.5 s a round: long against the clock, short enough for five rounds
TUPLES_PER_BOLT = 20  # at least: the first few of each bolt set up what the others use
ROUNDS = 5  # the best counts: what others do to the caches is not the core's cost
COST_MAX_S = 10e-6  # of CPU time, with 12 and with 10,000 bolts
RATE_MIN = 0.7  # of the rate with 12 bolts, with 10,000
_CHUNK = 2_000
_BATCH = 64  # acks that wait together, as under load
_STEP_S = 0.001


def core_seconds_per_tuple(bolts: int, *, tuples: int | None = None) -> float:
    """Seconds of driver CPU to offer, emit, ack and checkpoint one tuple of one record."""
    tuples = tuples or max(TUPLES, TUPLES_PER_BOLT * bolts)
    core = SpoutCore(CoreSettings(tuple=TupleSettings(records_max=1)))
    for number in range(bolts):
        core.add_bolt(f"b{number}", slots=1, epoch=1, now_s=0.0)
    records = [Record(number, b"x" * 100) for number in range(tuples)]
    in_flight: deque[Emission] = deque()
    in_flight_least = max(_BATCH, bolts)
    now_s, offered, acked = 0.0, 0, 0
    begun_s = time.process_time()
    while acked < tuples:
        now_s += _STEP_S
        while offered < tuples:
            taken = core.offer("p", records[offered : offered + _CHUNK], now_s=now_s)
            offered += taken
            if taken < _CHUNK:
                break
        in_flight.extend(pump(core, now_s, emits_max=in_flight_least - len(in_flight)).emissions)
        for _ in range(min(_BATCH, len(in_flight))):
            core.on_ack(_ack_of(in_flight.popleft()), now_s=now_s)
            acked += 1
    return (time.process_time() - begun_s) / tuples


def _ack_of(emission: Emission) -> Ack:
    return Ack(
        bolt=emission.bolt,
        epoch=1,
        tuple_id=emission.tuple_id,
        attempt=emission.attempt,
        wait_s=0.0001,
        service_s=0.001,
        idle_total_s=0.0,
    )


def ledger_bytes(acks: int, *, hole_every: int) -> int:
    """Bytes that a ledger takes after ``acks`` acks above a hole, every n-th one missing."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    ledger = PartitionLedger("p")
    ledger.admit([Record((0, 0), b"")])
    ledger.next_seq = acks + 1
    for seq in range(1, acks + 1):
        if seq % hole_every:
            ledger.ack(seq, seq + 1, (seq * 100, seq), (seq * 100, seq))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ledger.cumulative is None
    return after - before


def main() -> bool:
    """Print the figures; return whether the gates hold."""
    costs = {n: min(core_seconds_per_tuple(n) for _ in range(ROUNDS)) for n in BOLTS}
    for bolts, cost_s in costs.items():
        rate = costs[BOLTS[0]] / cost_s
        print(
            f"core, {bolts:6,} bolts: {1e6 * cost_s:5.1f} us of CPU a tuple,"
            f" {1 / cost_s:9,.0f} tuples/s, {rate:.2f} of the rate with {BOLTS[0]}"
        )
    few_s, many_s = costs[BOLTS[0]], costs[BOLTS[-1]]
    ok = max(few_s, many_s) <= COST_MAX_S and few_s / many_s >= RATE_MIN
    for every in (100, 10):
        size = ledger_bytes(1_000_000, hole_every=every)
        print(f"ledger, 1,000,000 acks, one hole in {every}: {size / 1e6:.1f} MB")
        ok = ok and size <= 50e6
    return ok


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
