"""``async def process`` against a slow service: ``python -m tests.benchmarks async``.

2 bolts of 64 slots call a service that takes 50 ms, which runs in a process of its own.  The gate:
.9 of what slots (or the service) allow, from when the bolts were there to the last ack, with the
first tuples and the end of the input in it.  Beside it a bare asyncio client with as many calls at
once: where a machine is too slow for that to reach .9, the gate is .97 of what it reaches, as two
runs of one program differ by some hundredths.
"""

from __future__ import annotations

import asyncio
import time

from flowctl import Batch, FlowControlSpout, LocalBolts, Settings
from flowctl.testing.stores import MemoryCheckpointStore
from tests.benchmarks.http_service import Client, service
from tests.benchmarks.parts import MemoryProducer, Stopwatch

BOLTS = 2
SLOTS = 64
LATENCY_S = 0.05
SERVICE_AT_ONCE = 40  # of the service that is the bottleneck: 800 calls a second
RECORDS = 40_000  # some 16 s
GATE = 0.9
GATE_BARE = 0.97


class Caller:
    """A process that makes one call for each record, one after the other in each tuple."""

    def __init__(self, port: int) -> None:
        self._port = port
        # A connection belongs to the loop that opened it, and each bolt has its own.
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}

    async def __call__(self, batch: Batch) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = Client(self._port)
        client = self._clients[loop]
        for record in batch:
            assert await client.get(f"/{record.position}") == b"ok"


def calls_a_second(
    *, at_once: int = 0, records: int = RECORDS, **overrides: object
) -> tuple[float, float]:
    """Return the rate of a run, and its CPU seconds (driver and bolts) per thousand calls."""
    watch = Stopwatch()
    with service(LATENCY_S, at_once) as port:
        begun_s = time.process_time()
        FlowControlSpout(
            name="async",
            producer=MemoryProducer(records, "x" * 100),
            bolts=LocalBolts(Caller(port), count=BOLTS, slots=SLOTS),
            checkpoint=MemoryCheckpointStore(),
            settings=Settings().with_overrides(overrides),
        ).run(view=watch)
        cpu_s = time.process_time() - begun_s
    return watch.rates(BOLTS)[1], 1000 * cpu_s / records


def bare_calls_a_second(*, at_once: int = 0, records: int = RECORDS) -> float:
    """Return the rate of a program that does nothing else."""

    async def call_all(port: int) -> None:
        client, left = Client(port), iter(range(records))

        async def slot() -> None:
            for number in left:
                await client.get(f"/{number}")

        await asyncio.gather(*(slot() for _ in range(BOLTS * SLOTS)))

    with service(LATENCY_S, at_once) as port:
        begun_s = time.monotonic()
        asyncio.run(call_all(port))
        return records / (time.monotonic() - begun_s)


def main() -> bool:
    """Print the figures; False if the gate is missed."""
    ok = True
    slots_allow = BOLTS * SLOTS / LATENCY_S
    for label, at_once, overrides in (
        ("one record a tuple", 0, {"tuple.records_max": 1}),
        ("sizes as they come", 0, {}),
        (f"a service of {SERVICE_AT_ONCE} at once", SERVICE_AT_ONCE, {"tuple.records_max": 1}),
    ):
        allowed = min(slots_allow, at_once / LATENCY_S if at_once else slots_allow)
        records = RECORDS if not at_once else RECORDS // 4
        bare = bare_calls_a_second(at_once=at_once, records=records // 2)
        rate, cpu_s = calls_a_second(at_once=at_once, records=records, **overrides)
        gate = GATE if bare >= GATE * allowed else GATE_BARE * bare / allowed
        held = rate / allowed >= gate
        ok = ok and held
        print(
            f"async, {label:26}: {rate:6,.0f} of {allowed:5,.0f} calls/s = {rate / allowed:.2f}"
            f" (gate {gate:.2f}{'' if held else ': MISSED'}; bare asyncio {bare / allowed:.2f}),"
            f" {1000 * cpu_s:.0f} us of CPU a call"
        )
    return ok


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
