"""What can't be run is refused by name, before anything is sent to it."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import sqlite3
import warnings
from concurrent.futures import Future
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from flowctl import FlowControlSpout, LocalBolts
from flowctl.errors import ConfigError, UnrunnableError
from flowctl.failure.callables import check_process, check_returned, is_async
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Batched, Topology
from pyspark_flowctl import SparkBolts
from tests.benchmarks.parts import MemoryProducer


def plain(batch: Any) -> None:
    pass


async def coroutine(batch: Any) -> None:
    pass


def generator(batch: Any) -> Any:
    yield batch


async def async_generator(batch: Any) -> Any:
    yield batch


def with_two(batch: Any, other: Any) -> None:
    pass


def with_none() -> None:
    pass


class Loader:
    def __call__(self, batch: Any) -> None:
        pass

    def method(self, batch: Any) -> None:
        pass

    def lazy(self, batch: Any) -> Any:
        yield batch

    async def soon(self, batch: Any) -> None:
        pass

    @staticmethod
    async def static(batch: Any) -> None:
        pass


class Lazy:
    def __call__(self, batch: Any) -> Any:
        yield batch


class Soon:
    async def __call__(self, batch: Any) -> None:
        pass


def from_a_pool(method: str, *arguments: Any) -> Any:
    with ThreadPool(1) as pool:
        return getattr(pool, method)(plain, *arguments)


def plainly_decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


def run_by_decorator(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return asyncio.run(function(*arguments))

    return wrapper


GENERATORS = [
    pytest.param(generator, "generator is a generator function", id="function"),
    pytest.param(async_generator, "async_generator is an async generator function", id="async"),
    pytest.param(functools.partial(generator), "generator is a generator", id="partial"),
    pytest.param(Lazy(), "Lazy is a generator function", id="object"),
    pytest.param(functools.partial(Lazy()), "Lazy is a generator", id="partial of an object"),
    pytest.param(Loader().lazy, "Loader.lazy is a generator function", id="method"),
]
RUNNABLE = [
    plain, coroutine, Loader(), Soon(), Loader().method, Loader().soon, [].append, print,
    functools.partial(with_two, other=1), functools.partial(coroutine), plainly_decorated(with_two),
    lambda batch: None, lambda *anything: None, Loader.static, dict,
]  # fmt: skip


@pytest.mark.parametrize(("process", "said"), GENERATORS)
@pytest.mark.parametrize("bolts", [lambda p: LocalBolts(p, count=1), SparkBolts])
def test_a_generator_is_refused_by_name_when_bolts_are_made(bolts: Any, process: Any, said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        bolts(process)
    assert caught.value.field == "process"
    assert "without yield" in caught.value.remedy


@pytest.mark.parametrize("process", [with_none, with_two, Loader.method, Loader, lambda: None])
@pytest.mark.parametrize("bolts", [lambda p: LocalBolts(p, count=1), SparkBolts])
def test_what_does_not_take_one_argument_is_refused(bolts: Any, process: Any):
    with pytest.raises(ConfigError, match="can't be called with the batch"):
        bolts(process)


@pytest.mark.parametrize("process", RUNNABLE)
def test_what_can_be_run_is_accepted(process: Any):
    check_process(process)


@pytest.mark.parametrize(
    "process",
    [coroutine, Soon(), Loader().soon, Loader.static, functools.partial(coroutine),
     functools.partial(Soon()), functools.partial(Loader().soon)],
)  # fmt: skip
def test_async_is_seen_through_partials_methods_and_objects(process: Any):
    assert is_async(process)


@pytest.mark.parametrize("process", [plain, Loader(), run_by_decorator(coroutine), print])
def test_what_runs_by_itself_is_not_async(process: Any):
    assert not is_async(process)


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (coroutine, r"a coroutine \(coroutine\)"),
        (plainly_decorated(coroutine), r"a coroutine \(coroutine\)"),
        (generator, r"a generator \(generator\)"),
        (lambda batch: (each for each in batch), "a generator"),
        (async_generator, r"an async generator \(async_generator\)"),
        (lambda batch: map(plain, batch), "a map object"),
        (lambda batch: filter(plain, batch), "a filter object"),
        (lambda batch: Future(), "a Future"),
        (
            lambda batch: [coroutine(batch), coroutine(batch)],
            "a list of which the first is a corou",
        ),
        (lambda batch: (Future(),), "a tuple of which the first is a Future"),
        (lambda batch: {Future()}, "a set of which the first is a Future"),
        (lambda batch: {1: coroutine(batch), 2: coroutine(batch)}, "a dict of which the first is"),
        (lambda batch: zip(map(plain, batch), batch, strict=True), "a zip object"),
        (lambda batch: enumerate(map(plain, batch)), "an enumerate object"),
        (lambda batch: itertools.starmap(plain, batch), "an itertools.starmap object"),
        (lambda batch: from_a_pool("map_async", batch), "a MapResult"),
        (
            lambda batch: [from_a_pool("apply_async", (batch,))],
            "a list of which the first is an ApplyResult",
        ),
        (lambda batch: [None, 1, coroutine(batch)], r"a list of which one is a coroutine"),
        (lambda batch: {1: None, 2: [None, Future()]}, "a dict of which one is a list of which"),
        (lambda batch: from_a_pool("imap", batch), "an IMapIterator"),
        (lambda batch: asyncio.Future(loop=asyncio.new_event_loop()), r"an awaitable \(Future\)"),
    ],
)
def test_work_that_is_only_handed_back_is_refused(process: Any, said: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # also "was never awaited"
        with pytest.raises(UnrunnableError, match=f"process: returned {said}") as caught:
            check_returned(process([1]))
        gc.collect()
    assert caught.value.remedy


@pytest.mark.parametrize(
    "made",
    [
        *(None, 0, "x", [1], {}, {1: 2}, set(), frozenset({1}), iter([]), object(), range(3)),
        # What a driver's execute() returns can be iterated, and its work is done.
        sqlite3.connect(":memory:").execute("SELECT 1"),
    ],
)
def test_other_results_mean_nothing(made: Any):
    check_returned(made)


# -- what is not process ----------------------------------------------------------------------


class Producer(MemoryProducer):
    pass


class AsyncPoll(Producer):
    async def poll(self, max_records: int) -> Any:
        return None


class LazyPoll(Producer):
    def poll(self, max_records: int) -> Any:
        yield None


class Letters:
    async def dead_letter(self, *arguments: Any, **more: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Counting:
    async def open_letters(self, job: str) -> int:
        return 0


class Listener:
    async def on_ack(self, emission: Any) -> None:
        pass


class Store(MemoryCheckpointStore):
    async def save(self, *arguments: Any, **more: Any) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"producer": AsyncPoll(1, "x")}, "producer.poll"),
        ({"producer": LazyPoll(1, "x")}, "producer.poll"),
        ({"dead_letter": Letters()}, "dead_letter.dead_letter"),
        ({"dead_letter": Counting()}, "dead_letter.open_letters"),
        ({"listener": Listener()}, "listener.on_ack"),
        ({"checkpoint": Store()}, "checkpoint.save"),
    ],
)
def test_async_parts_of_a_job_are_refused_by_name(part: dict[str, Any], field: str):
    parts = {"producer": Producer(1, "x"), "checkpoint": MemoryCheckpointStore(), **part}
    with pytest.raises(ConfigError) as caught:
        FlowControlSpout(name="j", bolts=LocalBolts(plain, count=1), **parts)
    assert caught.value.field == field
    assert "plain def" in caught.value.remedy


def test_a_part_that_is_replaced_later_is_looked_at_too():
    spout = FlowControlSpout(
        name="j",
        producer=Producer(1, "x"),
        bolts=LocalBolts(plain, count=1),
        checkpoint=MemoryCheckpointStore(),
    )
    spout.producer = AsyncPoll(1, "x")
    with pytest.raises(ConfigError, match=r"producer\.poll"):
        spout.run(view="off")


async def stage(given: Any, out: Any) -> None:
    pass


class AsyncManual:
    async def execute(self, given: Any, out: Any) -> None:
        pass


@pytest.mark.parametrize("code", [stage, Batched(stage), AsyncManual, Lazy()])
def test_async_and_lazy_stages_of_a_topology_are_refused(code: Any):
    with pytest.raises(ConfigError, match="store"):
        Topology("t").bolt("store", code)


@pytest.mark.parametrize("callback", ["translate", "on_ack", "on_fail"])
def test_async_callbacks_of_a_topology_are_refused(callback: str):
    with pytest.raises(ConfigError, match=f"lines: {callback}"):
        Topology("t").spout("lines", Producer(1, "x"), **{callback: stage})


@pytest.mark.parametrize("rule", [coroutine, generator, with_none, 1])
def test_a_rule_of_refusals_is_looked_at_too(rule: Any):
    for bolts in (LocalBolts, SparkBolts):
        with pytest.raises(ConfigError, match="refusal"):
            bolts(plain, count=1, refusal=rule)
