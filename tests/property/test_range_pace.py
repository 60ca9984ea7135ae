"""What batches of ranges learn of a call's cost, from drawn times.  Nothing sleeps."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from random import Random
from statistics import fmean, median

import pytest

from flowctl.bolts.range_pace import DEAR_CALLS, FIRST_RECORDS, RECORDS_MAX, TARGET_S, BatchPace

pytestmark = pytest.mark.on_change()

# Of one batch: its records, and the time of each.
Batch = tuple[int, float]


def lognormal(rng: Random, cv: float) -> float:
    """Mean 1, and a standard deviation of ``cv``."""
    variance = log(1 + cv * cv)
    return rng.lognormvariate(-variance / 2, sqrt(variance))


def pareto(rng: Random) -> float:
    """Mean 1, and no variance."""
    return rng.paretovariate(1.5) / 3


def batches(pace: BatchPace, cost_s: Callable[[int], float], count: int) -> list[Batch]:
    """Let ``pace`` choose the sizes of so many batches, of which ``cost_s`` tells the times."""
    made = []
    for _ in range(count):
        records = pace.next_records
        service_s = cost_s(records)
        pace.took(records, service_s)
        made.append((records, service_s))
    return made


def calls(
    call_s: float, record_s: float, seed: object, noise: float = 0.2
) -> Callable[[int], float]:
    rng = Random(str(seed))
    return lambda records: (call_s + record_s * records) * lognormal(rng, noise)


def each(record_s: float, seed: object, draw: Callable[[Random], float]) -> Callable[[int], float]:
    """Calls cost nothing, and each record what is drawn."""
    rng = Random(str(seed))
    return lambda records: sum(record_s * draw(rng) for _ in range(records))


def throughput(made: list[Batch]) -> float:
    return sum(records for records, _ in made) / sum(service_s for _, service_s in made)


@pytest.mark.parametrize("record_s", [0.001, 0.02])
@pytest.mark.parametrize("call_s", [0.1, 0.3, 1.0])
def test_a_dear_call_gets_so_many_records_that_it_costs_little(
    call_s: float, record_s: float
) -> None:
    reached = []
    for seed in range(20):
        pace = BatchPace()
        made = batches(pace, calls(call_s, record_s, seed), 300)
        reached.append(record_s * throughput(made[100:]))
        assert pace.call_s < 1.15 * call_s
        # What a kill repeats.
        assert fmean(service_s for _, service_s in made[100:]) < DEAR_CALLS * call_s
    assert min(reached) > 0.75
    assert fmean(reached) > 0.8


def test_a_dear_call_is_known_after_some_tens_of_calls() -> None:
    for seed in range(20):
        made = batches(BatchPace(), calls(0.3, 0.001, seed), 60)
        assert 0.001 * throughput(made) > 0.3, seed  # one by one it would be .003


@pytest.mark.parametrize("call_s", [0.0, 0.0001, 0.005])
@pytest.mark.parametrize("record_s", [0.00001, 0.001, 0.02])
def test_a_cheap_call_changes_nothing(call_s: float, record_s: float) -> None:
    for seed in range(10):
        pace = BatchPace()
        made = batches(pace, calls(call_s, record_s, seed), 300)[20:]
        wanted = min((TARGET_S - call_s) / record_s, RECORDS_MAX)
        usual = [records for records, _ in made if 2 * records > wanted]
        assert len(usual) > 0.9 * len(made)  # the others are trials
        assert 0.8 * wanted - 1 < median(usual) < 1.25 * wanted + 1
        assert pace.call_s < TARGET_S / DEAR_CALLS


DRAWS: dict[str, Callable[[Random], float]] = {
    "half": lambda rng: lognormal(rng, 0.5),
    "one": lambda rng: lognormal(rng, 1),
    "three": lambda rng: lognormal(rng, 3),
    "pareto": pareto,
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("record_s", [1.0, 20.0])
def test_records_of_seconds_are_not_taken_for_dear_calls(draw: str, record_s: float) -> None:
    runs, few = 200, 0
    for seed in range(runs):
        made = batches(BatchPace(), each(record_s, seed, DRAWS[draw]), 200)
        sizes = [records for records, _ in made[1:]]
        assert max(sizes) <= 2 * FIRST_RECORDS
        assert fmean(sizes) < 1.5
        few += max(sizes) <= 4
    assert few >= 0.98 * runs


@pytest.mark.parametrize("draw", DRAWS)
def test_records_of_which_a_few_fit_get_about_as_many_as_without_trials(draw: str) -> None:
    sizes, without = [], []
    for seed in range(50):
        made = batches(BatchPace(), each(0.05, seed, DRAWS[draw]), 200)
        sizes += [records for records, _ in made[1:]]
        pace, cost_s = BatchPace(), each(0.05, seed, DRAWS[draw])
        for _ in range(200):
            without.append(pace.records)
            pace.took(pace.records, cost_s(pace.records))
    assert fmean(sizes) < 1.1 * fmean(without)


def test_a_source_in_which_costs_drift_has_no_dear_calls() -> None:
    """A batch has as many records as fit, so its time is the same whatever they cost."""
    longest = 0.0
    for seed in range(20):
        rng, at, factor = Random(seed), 0, 1.0
        pace = BatchPace()

        def cost_s(records: int, rng: Random = rng) -> float:
            nonlocal at, factor
            before, at = at // 2_000, at + records
            if at // 2_000 > before:
                factor = lognormal(rng, 3)
            return records * 0.001 * factor

        for _ in range(500):
            batches(pace, cost_s, 1)
            longest = max(longest, pace.call_s)
    assert longest < TARGET_S


def test_a_bolt_that_becomes_slower_has_no_dear_calls() -> None:
    for slower in (5, 100):
        pace = BatchPace()
        batches(pace, calls(0.0, 0.001, 1), 50)
        batches(pace, calls(0.0, 0.001 * slower, 2), 50)
        made = batches(pace, calls(0.0, 0.001 * slower, 3), 50)
        assert pace.call_s == 0
        assert fmean(service_s for _, service_s in made) < 1.5 * TARGET_S


def test_a_first_call_that_imports_says_nothing_of_the_others() -> None:
    pace = BatchPace()
    pace.took(pace.next_records, 20.0)
    made = batches(pace, calls(0.0, 0.001, 1, noise=0.01), 60)
    assert pace.call_s == 0
    assert max(service_s for _, service_s in made[30:]) < 1.1 * TARGET_S


def test_calls_that_become_cheap_or_dear_are_noticed() -> None:
    pace = BatchPace()
    batches(pace, calls(0.3, 0.001, 1), 200)
    assert pace.call_s > 0.15
    made = batches(pace, calls(0.0, 0.001, 2), 120)
    assert pace.call_s < TARGET_S / DEAR_CALLS
    assert sum(service_s for _, service_s in made[60:]) < 100
    batches(pace, calls(0.3, 0.001, 3), 500)
    assert pace.call_s > 0.15


def test_a_trial_is_small_and_of_single_records_it_has_two() -> None:
    pace = BatchPace()
    batches(pace, lambda records: 0.02 * records, 20)
    sizes = [records for records, _ in batches(pace, lambda records: 0.02 * records, 60)]
    assert min(sizes) == 1 < max(sizes) <= pace.records
    pace = BatchPace()
    batches(pace, lambda records: 1.0 * records, 20)
    sizes = [records for records, _ in batches(pace, lambda records: 1.0 * records, 60)]
    assert set(sizes) == {1, 2}
    assert sizes.count(2) < 10


def test_where_a_short_batch_has_shown_that_calls_are_cheap_there_are_few_trials() -> None:
    """Each costs a save; calls that become dear are noticed all the same, see above."""
    pace = BatchPace()
    made = batches(pace, lambda records: 0.001 * records, 2_000)
    assert sum(2 * records < 150 for records, _ in made[20:]) < 12


def test_batches_that_end_early_teach_too() -> None:
    """As at the end of a block: whatever the sizes are, dear calls are seen."""
    pace, rng, cost_s = BatchPace(), Random(1), calls(0.3, 0.001, 1)
    for _ in range(300):
        records = min(pace.next_records, rng.randint(1, 3_000))
        pace.took(records, cost_s(records))
    assert 0.15 < pace.call_s < 0.35
