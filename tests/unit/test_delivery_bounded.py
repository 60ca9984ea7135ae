"""A call of ``fn`` in a task of Spark that never returns: bounded, and the fault of its row."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from flowctl.bolts import slots
from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.delivery import bounded
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.options import SINK, checked
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.tally import Tally
from flowctl.errors import ConfigError, ProcessError
from tests.delivery_parts import Clock, PatientPacer
from tests.unit.test_delivery import Letters

BOUND_S = 0.2


class Hanging:
    """Takes values; a call with ``bad`` returns only when :attr:`release` is set."""

    def __init__(self, bad: int) -> None:
        self.bad = bad
        self.release = threading.Event()
        self.taken: Counter[int] = Counter()
        self.threads: set[int] = set()
        self.hung = 0

    def __call__(self, batch: Batch) -> None:
        self.threads.add(threading.get_ident())
        for record in batch:
            if record.value == self.bad:
                self.hung += 1
                self.release.wait(60)
                return
        self.taken.update(record.value for record in batch)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    target = Hanging(70)
    yield target
    target.release.set()


def _deliver(process: Any, **plan: Any) -> Tally:
    clock = Clock()
    plan = {"call_timeout_s": BOUND_S, **plan}
    made = Plan(process=process, **plan)
    where = Where("job", "7")
    delivery = Delivery(
        made, where, PatientPacer(clock, None), clock=clock, sleep=clock.sleep, chance=None
    )
    return delivery.run(range(200))


def test_a_call_of_fn_that_never_returns_is_the_fault_of_its_row(hanging: Hanging) -> None:
    """Kind: a call without an end, which nothing bounds."""
    letters = Letters()
    tally = _deliver(hanging, dead_letter=letters, attempts_max=2)
    assert [(value, attempts) for _, _, _, value, attempts, _ in letters.kept] == [(70, 2)]
    assert "took longer than 0.2 s" in letters.kept[0][-1]
    assert hanging.taken == Counter(value for value in range(200) if value != 70)
    assert (tally.written, tally.gave_up, tally.failed) == (199, 1, hanging.hung)


def test_without_a_dead_letter_the_task_fails_and_names_the_row(hanging: Hanging) -> None:
    with pytest.raises(ProcessError, match="row 70 of partition 7 failed 2 times: CallTooLong"):
        _deliver(hanging, attempts_max=2)


def test_all_calls_have_one_thread_until_one_gets_stuck() -> None:
    """A sink keeps a connection for each thread."""
    target = Hanging(-1)
    closed_in: list[int] = []
    _deliver(target, release=lambda: closed_in.append(threading.get_ident()))
    assert len(target.threads) == 1
    assert threading.get_ident() not in target.threads
    assert set(closed_in) == target.threads, "where its connection is"


def test_without_a_bound_calls_run_in_the_tasks_own_thread() -> None:
    target = Hanging(-1)
    _deliver(target, call_timeout_s=None)
    assert target.threads == {threading.get_ident()}


def test_an_async_fn_past_its_bound_is_cancelled() -> None:
    cancelled: list[int] = []
    taken: Counter[int] = Counter()

    async def load(batch: Batch) -> None:
        for record in batch:
            if record.value == 70:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(record.value)
        taken.update(record.value for record in batch)

    letters = Letters()
    _deliver(load, dead_letter=letters, attempts_max=2)
    assert [kept[3] for kept in letters.kept] == [70]
    assert len(cancelled) == 2
    assert taken == Counter(value for value in range(200) if value != 70)


def test_the_next_call_waits_until_a_cancelled_one_has_cleaned_up() -> None:
    """Kind: a connection is given back while the next call uses it already."""
    hung, cleaned = 0, 0

    async def load(batch: Batch) -> None:
        nonlocal hung, cleaned
        assert cleaned == hung
        if batch[0].value == 1:
            hung += 1
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(BOUND_S / 2)
                cleaned += 1

    tally = _deliver(load, rows_max=1, attempts_max=1, dead_letter=Letters())
    assert (tally.written, tally.gave_up, hung, cleaned) == (199, 1, 1, 1)


def test_a_call_sees_the_context_of_its_task_and_its_errors_come_out() -> None:
    name = contextvars.ContextVar[str]("name")
    name.set("of the task")
    seen: list[str] = []

    def fn(batch: Batch) -> None:
        seen.append(name.get())
        raise UnicodeError("no")

    with pytest.raises(ProcessError, match="UnicodeError: no"):
        _deliver(fn, attempts_max=1)
    assert set(seen) == {"of the task"}


def test_a_call_that_takes_long_is_logged_once_with_its_row(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: a call that never returns and is never named."""
    told: list[dict[str, Any]] = []
    again = threading.Event()

    class Log:
        def warning(self, event: str, **fields: Any) -> None:
            told.append({"event": event, **fields})

    def looked(self: Any, now_s: float) -> Any:
        found = long(self, now_s)
        if told:  # this is the second look at least
            again.set()
            hanging.release.set()
        return found

    long = slots.Calls.long
    monkeypatch.setattr(slots.Calls, "long", looked)
    monkeypatch.setattr(slots, "TELL_AFTER_S", 0.0)
    monkeypatch.setattr(bounded, "_LOOK_S", 0.01)
    monkeypatch.setattr(bounded, "_log", Log())
    _deliver(hanging, call_timeout_s=None)
    assert again.is_set()
    where = [(one["partition"], one["records"]) for one in told if one["records"] == "record 70"]
    assert where == [("7", "record 70")]


@pytest.mark.parametrize("wrong", [0, -1, "5", True, float("inf"), 15 * 24 * 3600])
def test_a_bound_that_can_not_be_one_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="call_timeout_s"):
        checked(SINK, {"call_timeout_s": wrong})


def _batch(*values: int) -> Batch:
    records = [Record(value, value) for value in values]
    return Batch(records, Span("job", "7", values[0], values[-1], 1), bolt="7", attempt=1)


def test_what_is_done_here_is_done_where_the_calls_are_and_its_error_comes_out() -> None:
    """A connection belongs to the thread that opened it."""
    threads: list[int] = []

    def note(_: object = None) -> None:
        threads.append(threading.get_ident())

    def fail() -> None:
        note()
        raise UnicodeError("no")

    with bounded.TaskCalls(60.0) as task_calls:
        task_calls.call(note, _batch(1))
        task_calls.here(note)
        with pytest.raises(UnicodeError, match="no"):
            task_calls.here(fail)
    assert len(threads) == 3 and len(set(threads)) == 1
    assert threading.get_ident() not in threads


def test_its_threads_end_with_it_and_hold_no_process_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "_LOOK_S", 0.01)
    before = set(threading.enumerate())
    with bounded.TaskCalls(60.0) as task_calls:
        task_calls.call(len, _batch(1))
        started = [each for each in threading.enumerate() if each not in before]
        assert len(started) == 2
        assert all(each.daemon for each in started)
    for each in started:
        each.join(10)
        assert not each.is_alive()


@pytest.mark.parametrize("bound_s", [None, 60.0])
def test_a_call_that_is_over_is_told_of_no_more(
    bound_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one of several records is told by the first and the last."""
    looks: list[list[tuple[Any, Any]]] = []
    long = slots.Calls.long

    def looked(self: Any, now_s: float) -> Any:
        found = long(self, now_s)
        looks.append([(call.first, call.last) for call in found])
        return found

    def wait_for(found: list[tuple[Any, Any]]) -> None:
        count = len(looks)
        for _ in range(1_000):
            if found in looks[count:]:
                return
            threading.Event().wait(0.01)
        raise AssertionError(looks[-1])

    told: list[str] = []

    class Log:
        def warning(self, event: str, *, records: str, **_: Any) -> None:
            told.append(records)

    monkeypatch.setattr(slots.Calls, "long", looked)
    monkeypatch.setattr(slots, "TELL_AFTER_S", 0.0)
    monkeypatch.setattr(bounded, "_LOOK_S", 0.01)
    monkeypatch.setattr(bounded, "_log", Log())
    with bounded.TaskCalls(bound_s) as task_calls:
        task_calls.call(lambda _: wait_for([(70, 71)]), _batch(70, 71))
        wait_for([])
    assert told == ["records 70 to 71"]
