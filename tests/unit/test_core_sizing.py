"""How many records ride in a tuple: found from the service times (S1)."""

from __future__ import annotations

import random

import pytest

from flowctl.core.cost import ServiceModel, ServicePool
from flowctl.core.messages import Emission
from tests.core_driver import Driver

pytestmark = pytest.mark.on_change()

FIXED_S, RECORD_S = 0.005, 0.00002  # the batch scenario: 5 ms a tuple and 20 us a record


def serve(driver: Driver, emission: Emission, service_s: float) -> None:
    driver.clock.advance(service_s)
    driver.ack(emission, wait_s=0.0, service_s=service_s, idle_total_s=0.0)


def run(driver: Driver, tuples: int, fixed_s: float, record_s: float) -> list[int]:
    """One tuple at a time; return their sizes."""
    sizes = []
    for _ in range(tuples):
        driver.offer(20_000)
        (emission,) = driver.emit(1)
        sizes.append(len(emission.records))
        serve(driver, emission, fixed_s + record_s * len(emission.records))
    return sizes


def one_bolt(**values: float) -> Driver:
    return Driver(
        "a", tuple_records_max=20_000, buffer_records_max=40_000, window_initial=1, **values
    )


@pytest.mark.req("S1")
def test_the_first_tuples_are_small_and_differ_then_the_fixed_cost_is_three_percent() -> None:
    sizes = run(one_bolt(), 40, FIXED_S, RECORD_S)
    assert sizes[0] == 25
    times_s = [FIXED_S + RECORD_S * size for size in sizes]
    assert all(later <= 4 * 1.16 * max(times_s[:n]) for n, later in enumerate(times_s) if n > 2)
    # a' = 5 ms and 60 us at the driver; 32 times that, in records, give or take the dither.
    best = 0.97 / 0.03 * (FIXED_S + 60e-6) / RECORD_S
    settled = sizes[10:]
    assert all(0.84 * best <= size <= 1.16 * best for size in settled)
    assert sum(settled) / len(settled) == pytest.approx(best, rel=0.03)
    assert len(set(settled)) > 20  # dithered, or a and b would blur


def test_a_slow_bolt_gets_smaller_tuples() -> None:
    """None takes longer than tuple.service_max_s."""
    sizes = run(one_bolt(tuple_service_max_s=0.25), 30, 0.009, 0.01)
    assert all(size <= 1.16 * 0.241 / 0.01 for size in sizes[5:])
    assert max(sizes[5:]) >= 0.23 / 0.01


@pytest.mark.req("S1")
@pytest.mark.parametrize("call_s", [0.02, 0.1, 0.2, 0.3, 0.7])
def test_a_dear_call_is_worth_24_times_its_time_in_records(call_s: float) -> None:
    """Also where the call alone takes longer than tuple.service_max_s: never one by one."""
    sizes = run(one_bolt(tuple_service_max_s=0.25), 40, call_s, 0.001)
    best = 24 * call_s / 0.001
    assert all(0.8 * best <= size <= 1.2 * best for size in sizes[12:])
    assert min(sizes[2:]) >= 25  # the second tells a call from its records


def test_where_records_cost_nothing_tuples_are_as_large_as_may_be() -> None:
    """And what a bolt holds is judged by what it takes, not by its records."""
    driver = one_bolt(tuple_service_max_s=0.5)
    assert run(driver, 12, 0.1, 0.0)[-1] == 20_000
    service = driver.core.bolts["a"].service
    assert service.of(1) > 0.03


def test_where_a_tuple_costs_nothing_beside_its_records_one_is_enough() -> None:
    sizes = run(one_bolt(), 45, 0.0, 0.01)[5:]
    assert sizes.count(1) == 35
    assert sizes.count(2) == 5  # now and then two, to see whether that is still so


def test_a_first_tuple_that_was_slow_by_chance_does_not_condemn_a_bolt_to_single_records() -> None:
    """The fixed cost of 20 ms looks like the records': the first calls took as long for each."""
    driver = one_bolt()
    for turn in range(200):
        driver.offer(20_000)
        (emission,) = driver.emit(1)
        size = len(emission.records)
        serve(driver, emission, 0.02 * size if turn < 3 else 0.02 + RECORD_S * size)
    assert size > 1_000


def test_records_that_take_very_long_are_never_tried_by_twos() -> None:
    """Two of them would be 32 times as long as a tuple should take."""
    assert set(run(one_bolt(tuple_service_max_s=0.25), 40, 0.0, 4.1)[5:]) == {1}


def test_the_two_costs_are_told_apart_at_any_speed_in_spite_of_noise() -> None:
    """Twelve bolts, speeds 8:1, 10 % noise, sizes within 15 %: r = 5 ms / 20 us is 250 records."""
    rng = random.Random(7)
    pool = ServicePool()
    models = [ServiceModel(pool) for _ in range(12)]
    for turn in range(400):
        for index, model in enumerate(models):
            speed = (2.0, 1.0, 0.25)[index % 3]
            records = (25, 100, 400)[turn] if turn < 3 else int(2_000 * rng.uniform(0.85, 1.15))
            service_s = (FIXED_S + RECORD_S * records) / speed * rng.lognormvariate(0.0, 0.1)
            model.on_sample(turn * 0.1, service_s, 0.002, records)
    assert pool.fixed_records == pytest.approx(250, rel=0.5)
    slow, fast = models[2], models[0]
    assert slow.of(1_000) == pytest.approx(8 * fast.of(1_000), rel=0.15)


def test_while_sizes_do_not_vary_all_cost_is_the_records() -> None:
    pool = ServicePool()
    model = ServiceModel(pool)
    for turn in range(50):
        model.on_sample(turn * 0.1, 0.01, 0.002, 100)
    assert (pool.fixed_records, model.tuple_s) == (0.0, 0.0)
    assert model.record_s == pytest.approx(0.0001)


def test_where_tuples_are_of_one_size_the_next_has_twice_as_many() -> None:
    """A call of a second: else nobody ever learns that it is not the record."""
    driver = one_bolt()
    driver.core.bolts["a"].service.on_sample(0.0, 1.0, 0.0, 1)
    driver.offer(100)
    (emission,) = driver.emit(1)
    assert len(emission.records) == 2


def test_a_bolt_that_goes_takes_its_line_along() -> None:
    pool = ServicePool()
    stays, goes = ServiceModel(pool), ServiceModel(pool)
    for turn, records in enumerate((25, 100, 400, 800)):
        stays.on_sample(turn, 0.001 + 1e-5 * records, 0.0, records)
    alone = pool.fixed_records
    assert alone == pytest.approx(100, rel=0.1)  # four tuples leave a doubt
    for turn, records in enumerate((25, 100, 400, 800)):
        goes.on_sample(turn, 1.0 + 1e-5 * records, 0.0, records)
    assert pool.fixed_records > 1.5 * alone
    goes.leave()
    assert pool.fixed_records == pytest.approx(alone, rel=0.1)


def test_a_bolt_that_tells_nothing_gets_sizes_by_its_round_trips() -> None:
    driver = one_bolt()
    for _ in range(20):
        driver.offer(20_000)
        (emission,) = driver.emit(1)
        driver.clock.advance(FIXED_S + RECORD_S * len(emission.records))
        driver.ack(emission)
    assert 10_000 < len(emission.records) < 16_000  # what service_max_s allows


def test_expensive_calls_of_a_bolt_that_tells_nothing_do_not_get_single_records() -> None:
    """A call of .4 s leaves none of ``service_max_s`` for records."""
    driver = Driver("a", window_policy="just_full", tuple_records_max=20_000)
    for _ in range(15):
        driver.offer(2_000)
        for emission in driver.emit():
            driver.clock.advance(0.4 + 0.001 * len(emission.records))
            driver.ack(emission)
    assert len(emission.records) > 300


def told(model: ServiceModel, records: int, service_s: float) -> None:
    model.on_sample(0.0, service_s, 0.0, records)


def test_two_tuples_do_not_tell_that_calls_are_free() -> None:
    """25 records took 10 ms, 100 took 49: by the line through them a call costs less than nothing,
    which is chance.  Many tuples of three records would be the price."""
    driver = one_bolt()
    driver.offer(20_000)
    first, second = driver.emit(1), driver.emit(1)
    serve(driver, first[0], 0.010)
    serve(driver, second[0] if second else driver.emit(1)[0], 0.049)
    (third,) = driver.emit(1)
    assert len(third.records) >= 100


def test_what_a_call_seems_to_cost_by_two_tuples_is_hardly_sure() -> None:
    """Two records were quicker than one: records vary, or calls are what costs."""
    pool = ServicePool()
    model = ServiceModel(pool)
    told(model, 2, 1.0)
    told(model, 1, 2.0)
    assert pool.fixed_least < 5
    assert pool.fixed_records < 8 * pool.fixed_least, "nor a hundred times"


def test_more_records_that_took_less_time_are_noise_not_free() -> None:
    """A record of 12 s and two of 2.3 s, next tuple 73 records: 670 s."""
    pool = ServicePool()
    model = ServiceModel(pool)
    told(model, 1, 12.0)
    told(model, 2, 4.6)
    assert pool.fixed_least < 5
    assert pool.scatter > 0.4


def test_two_sizes_that_are_far_apart_and_took_as_long_tell_that_calls_are_dear() -> None:
    """By sizes alone the tuple of 25 records would weigh 256 times as much as that of 400."""
    pool = ServicePool()
    model = ServiceModel(pool)
    told(model, 25, 0.7)
    told(model, 400, 0.7)
    assert pool.fixed_least > 400


def test_single_records_that_take_long_are_tried_in_twos() -> None:
    """Calls took .14 s of .3: by two tuples they seemed free, and all others had one record."""
    driver = one_bolt()
    sizes = run(driver, 40, 0.0, 0.3)
    assert sizes[-16:].count(2) == 2
    assert set(sizes[-16:]) == {1, 2}


def test_times_that_differ_more_than_bolts_do_are_scatter() -> None:
    def scatter(*times_s: float) -> float:
        pool = ServicePool()
        for service_s in times_s:
            told(ServiceModel(pool), 1, service_s)
        return pool.scatter

    assert scatter(0.5, 1.0, 1.0, 2.0) < 0.3, "bolts of other speeds"
    assert scatter(0.01, 1.0, 0.1, 30.0) > 1.0


def test_what_many_tuples_show_alike_is_sure() -> None:
    pool = ServicePool()
    model = ServiceModel(pool)
    for records in (25, 100, 400, 800, 700, 900, 750, 850) * 3:
        told(model, records, 0.3 + 0.001 * records)
    assert pool.fixed_records == pytest.approx(300, rel=0.1)
    assert pool.fixed_least > 0.8 * pool.fixed_records


def test_a_pair_that_misled_does_not_outweigh_all_that_follow() -> None:
    """Once a call seemed to cost 185 records, tuples weighed a 30,000th of the first two."""
    pool = ServicePool()
    unlucky, others = ServiceModel(pool), [ServiceModel(pool) for _ in range(4)]
    told(unlucky, 2, 1.0)
    told(unlucky, 1, 2.0)
    for _ in range(3):
        for model in others:
            told(model, 1, 1.0)
            told(model, 2, 2.0)
    assert pool.fixed_records < 2


def test_a_bolts_own_tuples_weigh_by_what_is_known_now() -> None:
    pool = ServicePool()
    model = ServiceModel(pool)
    told(model, 2, 1.0)
    told(model, 1, 2.0)
    for _ in range(20):
        told(model, 2, 2.0)
        told(model, 1, 1.0)
    assert pool.fixed_records < 2


def test_later_tuples_tell_more_where_their_sizes_are_further_apart_than_the_first_ones() -> None:
    """First tuples of one and two records hardly tell a call's cost; ten in the same time do."""
    pool = ServicePool()
    models = [ServiceModel(pool) for _ in range(3)]
    for model, records, service_s in zip(models, (1, 1, 2), (0.141, 0.163, 0.166), strict=True):
        told(model, records, service_s)
    assert 0 < pool.fixed_records < 2
    for model in models[:2]:
        told(model, 10, 0.158)
    assert pool.fixed_records > 10
