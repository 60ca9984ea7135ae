"""One bad record does not take its tuple along."""

from __future__ import annotations

from math import ceil, log2

import pytest

from flowctl.core.events import RecordsRejected, TupleGaveUp
from flowctl.core.messages import DetailedAck, Emission, Rejected
from tests.core_driver import Driver


def positions(emission: Emission) -> list[int]:
    return [record.position for record in emission.records]  # type: ignore[misc]


class Job:
    """Runs all records; ``bad`` ones make their tuple fail; counts calls."""

    def __init__(self, *, bad: set[int], names_record: bool, **values: object) -> None:
        self.driver = Driver("a", "b", "c", has_dead_letter=True, **values)
        self.bad = bad
        self.names_record = names_record
        self.calls = 0
        self.failed_calls = 0
        self.done: list[int] = []
        self.letters: list[int] = []
        self.says: dict[str, object] = {}
        self.tried: dict[int, list[int]] = {}  # by bad record: how large the calls were

    def run(self, records: int) -> None:
        driver = self.driver
        left = records
        for _ in range(10_000):
            if left:
                left -= driver.offer(left)
            for emission in driver.emit():
                self._call(emission)
            while (letter := driver.core.poll_dead_letter()) is not None:
                self.letters += [r.position for r in letter.records]  # type: ignore[misc]
                driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())
            if not left and driver.core.is_drained:
                return
            if driver.core.next_deadline_s() is not None:
                driver.wait_for_deadline()
        raise AssertionError("stuck")

    def _call(self, emission: Emission) -> None:
        self.calls += 1
        poison = [i for i, p in enumerate(positions(emission)) if p in self.bad]
        if poison:
            self.failed_calls += 1
            for index in poison:
                sizes = self.tried.setdefault(positions(emission)[index], [])
                sizes.append(len(emission.records))
            at = poison[0] if self.names_record else None
            self.driver.fail(emission, record_index=at, **self.says)
        else:
            self.done += positions(emission)
            self.driver.ack(emission)


@pytest.mark.req("S109")
@pytest.mark.parametrize("names_record", [True, False])
@pytest.mark.parametrize("at", [1, 2, 9, 15, 16])
@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_the_poison_stands_alone_after_few_calls(
    at: int, attempts: int, names_record: bool
) -> None:
    size = 16
    job = Job(
        bad={at}, names_record=names_record, tuple_records_max=size, retry_attempts_max=attempts
    )
    job.run(size)
    assert job.letters == [at], "exactly one letter"
    assert sorted(job.done) == [n for n in range(1, size + 1) if n != at]
    # With a single attempt the record still fails alone once before it is given up.
    assert job.calls - 1 <= ceil(log2(size)) + max(attempts, 2)
    if names_record:  # nothing is searched: it is cut out at once, what is around it in two tuples
        around = (at > 1) + (at < size)
        assert job.calls == 1 + max(1, attempts - 1) + around
    assert job.driver.position() == size
    assert job.driver.core.counters.records_dead_lettered == 1


@pytest.mark.parametrize("names_record", [True, False])
def test_several_in_one_tuple_each_stand_alone(names_record: bool) -> None:
    bad = {3, 4, 50, 100}
    job = Job(bad=bad, names_record=names_record, tuple_records_max=100)
    job.run(400)
    assert sorted(job.letters) == sorted(bad)
    assert sorted(job.done) == [n for n in range(1, 401) if n not in bad]
    assert job.calls - 4 <= len(bad) * (ceil(log2(100)) + 5)


def test_a_failure_that_passes_costs_one_call() -> None:
    driver = Driver("a", "b", tuple_records_max=16)
    driver.offer(16)
    (emission,) = driver.emit()
    driver.fail(emission)
    driver.wait_for_deadline()
    (again,) = driver.emit()
    assert positions(again) == positions(emission)
    driver.ack(again)
    assert driver.core.is_drained


def test_a_record_is_given_up_only_after_it_failed_alone() -> None:
    job = Job(bad={5}, names_record=False, tuple_records_max=8, retry_attempts_max=1)
    alone: list[bool] = []
    call = job._call

    def watched(emission: Emission) -> None:
        if 5 in positions(emission):
            alone.append(len(emission.records) == 1)
        call(emission)

    job._call = watched  # type: ignore[method-assign]
    job.run(8)
    assert alone[-1], "the last call that failed had this record only"


def test_a_bolt_that_dies_takes_no_good_record_along() -> None:
    """The worker dies of one record (out of memory): only that one is given up."""
    driver = Driver("a", "b", has_dead_letter=True, tuple_records_max=16, retry_attempts_max=3)
    driver.offer(16)
    driver.end()
    letters: list[object] = []
    for _ in range(200):
        for emission in driver.emit():
            if 7 in positions(emission):
                driver.remove(emission.bolt, reason="killed")
                driver.add(emission.bolt, epoch=len(letters) + 1)
            else:
                driver.ack(emission, epoch=driver.core.bolts[emission.bolt].epoch)
        while (letter := driver.core.poll_dead_letter()) is not None:
            letters += [record.position for record in letter.records]
            driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())
        if driver.core.is_drained:
            break
        driver.wait(1.0)
    assert letters == [7]
    assert driver.core.is_drained


def ack_rejecting(driver: Driver, emission: Emission, *indices: int) -> None:
    rejected = [Rejected(index, f"bad {index}") for index in indices]
    ack = DetailedAck(emission.tuple_id, emission.attempt, rejected=rejected, left_out=2)
    driver.core.on_ack(emission.bolt, 1, ack, now_s=driver.clock())
    driver.wait(0)


@pytest.mark.parametrize("indices", [(0,), (9,), (0, 9), (3, 4), tuple(range(10))])
def test_what_process_rejects_waits_for_the_dead_letter_and_the_rest_is_done(
    indices: tuple[int, ...],
) -> None:
    driver = Driver("a", has_dead_letter=True, tuple_records_max=10)
    driver.offer(10)
    (emission,) = driver.emit()
    ack_rejecting(driver, emission, *indices)
    counters = driver.core.counters
    assert counters.records_rejected == len(indices)
    assert counters.records_acked == 10 - len(indices)
    assert counters.records_left_out == 2
    assert driver.position() == (indices[0] or None)
    assert not driver.core.is_drained
    letters = []
    while (letter := driver.core.poll_dead_letter()) is not None:
        letters.append((letter.records[0].position, letter.gave_up.reason))
        driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())
    driver.wait(0)
    assert letters == [(index + 1, f"rejected: bad {index}") for index in indices]
    assert driver.core.is_drained and driver.position() == 10
    assert counters.records_acked == 10
    assert counters.records_dead_lettered == 0, "rejected and dead-lettered are told apart"
    assert counters.tuples_acked == 1, "no bolt acked a rejected record as a tuple"
    (event,) = driver.events(RecordsRejected)
    assert event.positions == tuple(index + 1 for index in indices)
    assert not driver.events(TupleGaveUp)


def test_without_a_dead_letter_what_is_rejected_is_counted_and_done() -> None:
    driver = Driver("a", tuple_records_max=10)
    driver.offer(10)
    (emission,) = driver.emit()
    ack_rejecting(driver, emission, 2, 5)
    assert driver.core.is_drained and driver.position() == 10
    assert driver.core.counters.records_rejected == 2
    assert driver.core.gave_up is None


@pytest.mark.parametrize("names_record", [True, False])
def test_a_record_that_can_not_be_taken_is_tried_twice_the_second_time_alone(
    names_record: bool,
) -> None:
    job = Job(bad={5, 6, 11}, names_record=names_record, tuple_records_max=16)
    job.says = {"is_content": True, "is_data_error": True}
    job.run(16)
    assert sorted(job.letters) == [5, 6, 11]
    assert sorted(job.done) == [n for n in range(1, 17) if n not in job.bad]
    assert all(tried[-1] == 1 for tried in job.tried.values()), "alone in the end"
    # A record that lay aside with nothing around it was not known to be bad before.
    most = 1 if names_record else 2
    assert all(tried.count(1) <= most for tried in job.tried.values())
