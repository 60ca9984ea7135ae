"""A service that is down for 12 s, then takes 10 calls at once, then is well: who does what?

Beside it what a user writes today: ``foreachPartition`` with a loop that sleeps and tries again.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

from flowctl import Batch, FlowControlSpout, LocalBolts, Report
from flowctl.testing.stores import MemoryCheckpointStore
from tests.benchmarks.outage_service import Answered, answered, outage_service
from tests.benchmarks.parts import MemoryProducer

BOLTS = 16
LATENCY_S = 0.05
# Eight seconds in which windows and sizes settle: the first tuples of a bolt have 25 and 100
# records.
WELL_S, DOWN_S, LIMITED_S, LIMIT = 8, 12, 8, 10
PHASES = f"{WELL_S}:0,{DOWN_S}:down,{LIMITED_S}:{LIMIT},9:0"
# Full speed for so long: for the whole schedule, and some more.
FULL_S = WELL_S + LIMITED_S + 9
# The loop of the other arm sleeps so long: what people write.
LOOP_SLEEP_S = 1.0


def call(port: int, record: object) -> None:
    """One call; raises HTTPError for 429 and 503."""
    with urlopen(f"http://127.0.0.1:{port}/{record}", timeout=30) as answer:
        answer.read()


class Outcome(NamedTuple):
    """What one arm did to the service, by the service's own log."""

    calls_down: list[int]  # in each second while it was down
    refused_limited: float  # share of the calls while it was limited
    limited_rate: float  # successes a second while limited, without the first two seconds
    well_rate: float  # before; the median of half seconds: a hiccup of the machine is not ours
    back_rate: float  # after, from the third second on; the same
    missing: int
    repeated: int


def outcome_of(log: list[Answered], records: int) -> Outcome:
    """Sum up what the service saw."""
    seconds: Counter[tuple[int, int]] = Counter((int(a.at_s), a.status) for a in log)
    halves = Counter(int(2 * a.at_s) for a in log if a.status == 200)

    def rate(first: int, last: int) -> float:
        return sum(seconds[s, 200] for s in range(first, last)) / (last - first)

    def steady_rate(first: int, last: int) -> float:
        return statistics.median(2 * halves[half] for half in range(2 * first, 2 * last))

    down, limited = WELL_S, WELL_S + DOWN_S
    well = limited + LIMITED_S
    of_limited = [a for a in log if limited <= a.at_s < well]
    done = Counter(a.path for a in log if a.status == 200)
    return Outcome(
        calls_down=[sum(seconds[s, status] for status in (429, 503)) for s in range(down, limited)],
        refused_limited=sum(a.status != 200 for a in of_limited) / max(1, len(of_limited)),
        limited_rate=rate(limited + 2, well),
        well_rate=steady_rate(WELL_S - 3, WELL_S - 1),
        back_rate=steady_rate(well + 3, well + 6),
        missing=records - len(done),
        repeated=sum(done.values()) - len(done),
    )


def flowctl_arm(
    make_bolts: Callable[[Callable[[Batch], None]], Any], latency_s: float = LATENCY_S
) -> tuple[Outcome, Report]:
    """Run the job under flowctl, with settings as shipped."""
    records = int(BOLTS / latency_s * FULL_S)
    with outage_service(latency_s, PHASES) as port:

        def process(batch: Batch) -> None:
            for record in batch:
                call(port, record.position)

        report = FlowControlSpout(
            name="outage",
            producer=MemoryProducer(records, "x"),
            bolts=make_bolts(process),
            checkpoint=MemoryCheckpointStore(),
        ).run(view="off")
        return outcome_of(answered(port), records), report


def loop_arm(spark: Any) -> Outcome:
    """``foreachPartition`` with a loop that sleeps and tries again."""
    records = int(BOLTS / LATENCY_S * FULL_S)
    with outage_service(LATENCY_S, PHASES) as port:
        sleep_s = LOOP_SLEEP_S

        def send(rows: Iterable[Any]) -> None:
            for row in rows:
                while True:
                    try:
                        call(port, row)
                        break
                    except HTTPError:
                        time.sleep(sleep_s)

        spark.sparkContext.parallelize(range(records), BOLTS).foreachPartition(send)
        return outcome_of(answered(port), records)


def show(name: str, outcome: Outcome) -> None:
    """Print a line of figures."""
    o = outcome
    print(
        f"  {name:<17} calls a second while down {o.calls_down}\n"
        f"  {'':<17} while limited {o.refused_limited:.1%} refused, {o.limited_rate:.0f}/s of"
        f" {LIMIT / LATENCY_S:.0f}; well {o.well_rate:.0f}/s, 3 s after it is well again"
        f" {o.back_rate:.0f}/s; missing {o.missing}, again {o.repeated}"
    )


def gates(outcome: Outcome, report: Report) -> list[str]:
    """Return what is not as it must be."""
    found = []
    if outcome.missing or report.records_dead_lettered or report.records_rejected:
        found.append("records were lost")
    if max(outcome.calls_down) > 2 * BOLTS:
        found.append("more than two calls a second and bolt while down")
    if max(outcome.calls_down[4:]) > BOLTS / 4:
        found.append("calls do not fall while it is down")
    if outcome.back_rate < 0.9 * outcome.well_rate:
        found.append("not back within 10 % after 3 s")
    return found


def main(spark: Any) -> bool:
    """Run both arms; print; return whether the gates hold."""
    from pyspark_flowctl import SparkBolts

    print(f"outage: {BOLTS} bolts, {LATENCY_S:g} s a call, {PHASES} (seconds: limit)")
    outcome, report = flowctl_arm(lambda process: SparkBolts(process, count=BOLTS, spark=spark))
    show("flowctl", outcome)
    show("loop with sleep", loop_arm(spark))
    missed = gates(outcome, report)
    for problem in missed:
        print(f"  MISSED: {problem}")
    return not missed


if __name__ == "__main__":
    local, said = flowctl_arm(lambda process: LocalBolts(process, count=BOLTS))
    show("flowctl, threads", local)
    raise SystemExit("; ".join(gates(local, said)) or None)
