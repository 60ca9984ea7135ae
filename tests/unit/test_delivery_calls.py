"""Several calls of one partition, at once or of columns: each row as exact as with one."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from flowctl.bolts.batch import Batch
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.pacers import Pacer, TargetPacer
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.sections import ColumnSections, Sections, section_of
from flowctl.errors import RetryLater, TargetDownError, UnrunnableError
from flowctl.failure.classify import refusal_of
from flowctl.pacing.gates import close_gates
from flowctl.pacing.target_settings import Limits
from tests.unit.test_delivery import Letters

T = TypeVar("T")
_LONG_S = 30.0  # a wait that is over by far when a test passes


class Eager:
    """A pacer that calls again at once."""

    def run(self, call: Callable[[], T], cost: float | None) -> T:
        while True:
            try:
                return call()
            except Exception as error:
                if refusal_of(error) is None:
                    raise


def delivery(process: Any, pacer: Pacer | None = None, **plan: Any) -> Delivery:
    made = Plan(process=process, **{"calls": 4, "rows_max": 1, **plan})
    return Delivery(made, Where("job", "7"), pacer or Eager())


@pytest.mark.parametrize("timeout_s", [None, _LONG_S])
def test_as_many_calls_as_asked_are_under_way_at_once(timeout_s: float | None) -> None:
    here, threads = threading.Barrier(4), set()

    def meet(batch: Batch) -> None:
        threads.add(threading.get_ident())
        here.wait(_LONG_S)

    tally = delivery(meet, call_timeout_s=timeout_s).run(range(40))
    assert (tally.written, tally.calls, tally.failed) == (40, 40, 0)
    assert len(threads) == 4


def test_after_a_pause_of_the_source_as_many_calls_are_made_again() -> None:
    """Kind: a thread that waited once counts as idle for ever, and no other is started."""
    first_is_done, here = threading.Event(), threading.Barrier(3)

    def rows() -> Iterator[int]:
        yield 0
        assert first_is_done.wait(_LONG_S)  # one thread reads, the other waits for it
        yield from range(1, 31)

    def call(batch: Batch) -> None:
        if batch[0].value:
            here.wait(_LONG_S)

    made = delivery(call, Told(first_is_done), calls=3)
    assert made.run(rows()).written == 31


class Told(Eager):
    """Says when a call is over, to those that its thread leaves waiting."""

    def __init__(self, is_over: threading.Event) -> None:
        self._is_over = is_over

    def run(self, call: Callable[[], T], cost: float | None) -> T:
        made = super().run(call, cost)
        threading.Timer(0.05, self._is_over.set).start()  # by then it waits for the reader
        return made


def test_after_an_error_nothing_more_is_read() -> None:
    read: list[int] = []
    failed: list[threading.Thread] = []
    is_called = threading.Event()

    def rows() -> Iterator[int]:
        for row in range(100):
            read.append(row)
            yield row

    def call(batch: Batch) -> None:
        if batch[0].value == 1:
            failed.append(threading.current_thread())
            is_called.set()
            raise UnrunnableError("fn", "is wrong")
        assert is_called.wait(_LONG_S)
        failed[0].join(_LONG_S)

    with pytest.raises(UnrunnableError):
        delivery(call, calls=2).run(rows())
    assert read == [0, 1]


def test_an_error_is_told_though_another_thread_waits_for_the_target() -> None:
    """Kind: a task ends only when a target that is full has room."""
    is_told, waited = threading.Event(), []

    class Waiting:
        def run(self, call: Callable[[], T], cost: float | None) -> T:
            try:
                return call()
            except RetryLater:
                waited.append(is_told.wait(_LONG_S))
                raise

    failed: list[threading.Thread] = []
    is_called = threading.Event()

    def call(batch: Batch) -> None:
        if batch[0].value == 1:
            failed.append(threading.current_thread())
            is_called.set()
            raise UnrunnableError("fn", "is wrong")
        assert is_called.wait(_LONG_S)
        failed[0].join(_LONG_S)
        threading.Event().wait(0.05)  # by then run() waits for this call
        raise RetryLater("full")

    with pytest.raises(UnrunnableError):
        delivery(call, Waiting(), calls=2).run(range(2))
    assert not waited, "the error came only when the wait was over"
    is_told.set()


def test_no_thread_is_made_that_has_nothing_to_do() -> None:
    seen = set()
    delivery(lambda batch: seen.add(threading.active_count()), calls=1_000).run(range(2))
    assert max(seen) <= threading.active_count() + 3


def test_calls_that_are_async_meet_in_the_event_loop() -> None:
    here: list[asyncio.Event] = []

    async def meet(batch: Batch) -> None:
        here.append(own := asyncio.Event())
        if len(here) % 4 == 0:
            for each in here:
                each.set()
        await asyncio.wait_for(own.wait(), _LONG_S)

    tally = delivery(meet).run(range(40))
    assert (tally.written, tally.failed) == (40, 0)


class Moody:
    """A target that takes, refuses, takes a part, rejects and fails, as ``seed`` decides.

    A call of more than ``most`` rows is too large.
    """

    def __init__(self, seed: int, rows: int, most: int) -> None:
        self.most, self.too_large = most, 0
        chance = random.Random(seed)
        self.poison = set(chance.sample(range(rows), 3))
        self.rejected = set(chance.sample(range(rows), 5)) - self.poison
        self.taken: Counter[int] = Counter()
        self._chance, self._lock = chance, threading.Lock()

    def take(self, batch: Batch) -> None:
        values = list(batch.values)
        with self._lock:
            mood = self._chance.random()
            if mood < 0.1:
                raise RetryLater("full")
            if len(values) > self.most:
                self.too_large += 1
                raise RuntimeError("payload too large")
            left = [i for i in range(len(values)) if mood < 0.3 and self._chance.random() < 0.5]
            if self.poison & set(values):
                raise ConnectionAbortedError if mood < 0.2 else ValueError("poison")
            for index, value in enumerate(values):
                if index not in left and value in self.rejected:
                    batch.reject(index, "bad")
                elif index not in left:
                    self.taken[value] += 1
        if left:
            raise RetryLater("some", again=left)


@pytest.mark.parametrize("most", [20, 7])
@pytest.mark.parametrize("seed", range(4))
def test_each_row_is_taken_once_or_kept_once(seed: int, most: int) -> None:
    rows, letters = 600, Letters()
    target = Moody(seed, rows, most)
    sections = Sections((number,) for number in range(rows))
    values = (row[0] for row in sections)
    plan = Plan(
        process=target.take, calls=8, rows_max=20, dead_letter=letters, attempts_max=3,
    )  # fmt: skip
    where = Where(
        "job", "7", place=sections.place, rest=sections.rest, section_of=section_of, before=(-1,)
    )
    tally = Delivery(plan, where, Eager()).run(values)
    lost = target.poison | target.rejected
    assert target.taken == Counter(set(range(rows)) - lost)
    assert sorted(letter[3] for letter in letters.kept) == sorted(lost)
    assert [letter[2][-1] for letter in letters.kept] == [letter[3] for letter in letters.kept]
    assert (tally.rows, tally.written, tally.lost) == (rows, rows - len(lost), len(lost))
    assert tally.gave_up == len(target.poison)
    assert (target.too_large > 0) == (most == 7)


def test_what_is_read_slowly_holds_up_no_call() -> None:
    """Kind: a place of the target would be held, and a letter wait, until the next row comes."""
    ended, is_reading = threading.Event(), threading.Event()

    class Tells(Eager):
        def run(self, call: Callable[[], T], cost: float | None) -> T:
            made = super().run(call, cost)
            ended.set()
            return made

    def rows() -> Iterator[int]:
        yield 1
        is_reading.set()
        assert ended.wait(5.0)
        yield 2

    assert delivery(lambda batch: is_reading.wait(_LONG_S), Tells()).run(rows()).written == 2


def test_an_error_that_ends_the_partition_lets_no_other_call_begin() -> None:
    """Those under way are waited for; who waits for the target is not."""
    others, may_end, returned = threading.Barrier(3), threading.Event(), []
    waits, is_over, held = threading.Event(), threading.Event(), []

    class Holds(Eager):
        def run(self, call: Callable[[], T], cost: float | None) -> T:
            if held:
                return super().run(call, cost)
            held.append(call)
            waits.wait(_LONG_S)
            try:
                return super().run(call, cost)
            finally:
                is_over.set()

    def end(batch: Batch) -> None:
        number = others.wait(_LONG_S)
        if number == 0:
            threading.Timer(0.05, may_end.set).start()
            raise UnrunnableError("fn", "is wrong.", remedy="Mend it.")
        assert may_end.wait(_LONG_S)
        returned.append(number)

    made = delivery(end, Holds())
    with pytest.raises(UnrunnableError, match="is wrong"):
        made.run(range(1_000))
    assert (len(returned), made.tally.calls) == (2, 3)
    waits.set()
    assert is_over.wait(_LONG_S)
    assert made.tally.calls == 3


def test_a_source_that_fails_ends_the_partition() -> None:
    def rows() -> Iterator[int]:
        yield from range(10)
        raise OSError("the shuffle is gone")

    with pytest.raises(OSError, match="shuffle"):
        delivery(lambda batch: None).run(rows())


def test_what_belongs_to_a_thread_is_given_back_by_it() -> None:
    here, called, released = threading.Barrier(4), set(), set()

    def call(batch: Batch) -> None:
        called.add(threading.get_ident())
        here.wait(_LONG_S)

    delivery(call, release=lambda: released.add(threading.get_ident())).run(range(4))
    assert called <= released


def test_the_limit_of_the_target_holds_for_all_of_them(request: pytest.FixtureRequest) -> None:
    """As many threads as asked wait for it, and no more calls than it lets are made at once."""
    request.addfinalizer(close_gates)
    now, most, lock = 0, 0, threading.Lock()

    def call(batch: Batch) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1

    pacer = TargetPacer("takes-three", limits=Limits(in_flight_max=3, in_flight_start=3))
    made = delivery(call, pacer, calls=32)
    assert made.run(range(300)).written == 300
    assert 1 <= most <= 3


def test_a_target_that_is_down_for_too_long_is_told_with_its_last_word() -> None:
    def call(batch: Batch) -> None:
        raise RetryLater("connection refused: port 1.", after_s=60)  # longer than is waited for

    pacer = TargetPacer("away", limits=Limits(give_up_after_s=1))
    with pytest.raises(TargetDownError, match=r"60 s\): RetryLater: connection .*1\. What"):
        delivery(call, pacer).run([1])


def test_rows_that_come_as_columns_are_taken_by_the_call() -> None:
    pa = pytest.importorskip("pyarrow")
    batches = [pa.RecordBatch.from_pydict({"n": list(range(at, at + 7))}) for at in (0, 7, 14)]
    columns = ColumnSections(batches, lambda columns: columns.to_pylist())
    where = Where(
        "job", "7", place=columns.place, rest=columns.rest, section_of=section_of, before=(-1,)
    )
    calls: list[tuple[Any, list[Any]]] = []

    def fn(batch: Batch) -> None:
        calls.append((batch.span, list(batch.values)))

    made = Delivery(Plan(process=fn, rows_max=10), where, Eager())
    assert made.run(columns).written == 21
    assert [value["n"] for _, values in calls for value in values] == list(range(21))
    assert all(len(values) <= 10 for _, values in calls)
    [first, *_, last] = [span for span, _ in calls]
    # What earlier attempts wrote is not joined over; what this one settled in the section is.
    assert first.unsettled is None
    assert last.unsettled == ((-1,), section_of(first.first)[0])
    assert last.section == section_of(last.first)
    assert section_of((4, 2, 99, 5)) == ((4, 2, 99, -1), (4, 2, 99, sys.maxsize))
