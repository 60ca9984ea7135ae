"""``paced`` in one process: blocks, calls and decorators; refusals, failures, budget and bounds."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from flowctl import ConfigError, Limits, RetryLater, paced
from flowctl.pacing import gates
from flowctl.pacing.gate import Gate


@pytest.fixture(autouse=True)
def no_gates() -> Iterator[None]:
    gates.close_gates()
    yield
    gates.close_gates()


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What calls would have slept [s]; permits don't rest either."""
    slept: list[float] = []
    monkeypatch.setattr("flowctl.pacing.call.time.sleep", slept.append)
    monkeypatch.setattr("flowctl.pacing.gate.ASKED_MOST_S", 0.0)
    return slept


def gate_of(target: str) -> Gate:
    return next(gate for settings, gate in gates._gates.values() if settings.target == target)


def test_a_block_is_one_call_and_gives_its_permit_back() -> None:
    with paced("t"):
        assert gate_of("t").in_flight == 1
    gate = gate_of("t")
    assert (gate.in_flight, gate.counters.calls) == (0, 1)


def test_each_run_of_a_block_is_a_call() -> None:
    with paced("t", cost=3) as call:
        assert [call.run(divmod, 7, 2), call.run(int)] == [(3, 1), 0]
    counters = gate_of("t").counters
    assert (counters.calls, counters.cost, gate_of("t").in_flight) == (2, 6, 0)


async def soon() -> int:
    return 1


def test_what_would_run_outside_of_its_permit_is_refused() -> None:
    """A generator's body, or a coroutine that nobody awaits: they were calls that took no time."""

    def lazily() -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigError, match="lazily is a generator function"):
        paced("t")(lazily)
    with paced("t") as call, pytest.raises(ConfigError, match="soon is a coroutine function"):
        call.run(soon)

    async def plainly() -> None:
        async with paced("t") as call:
            await call.run(int)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="returned a int, which can't be awaited"):
        asyncio.run(plainly())
    assert asyncio.run(paced("t")(functools.partial(soon))()) == 1
    assert gate_of("t").in_flight == 0


def test_a_refusal_is_waited_for_and_called_again(naps: list[float]) -> None:
    answers = iter([RetryLater(after_s=7.0), RetryLater(), None])

    def call_target() -> str:
        if (answer := next(answers)) is not None:
            raise answer
        return "done"

    with paced("t") as call:
        assert call.run(call_target) == "done"
    counters = gate_of("t").counters
    assert (counters.calls, counters.refused, counters.failed) == (1, 2, 0)
    assert naps[0] == 7.0
    assert 0 < naps[1] < 7.0


def test_a_failure_passes_through_at_once(naps: list[float]) -> None:
    with pytest.raises(ValueError, match="bad"), paced("t") as call:
        call.run(_raise, ValueError("bad"))
    counters = gate_of("t").counters
    assert (counters.calls, counters.refused, counters.failed) == (0, 0, 1)
    assert (gate_of("t").in_flight, naps) == (0, [])


class Connection:
    """As psycopg's: what the server ended stays closed."""

    def __init__(self) -> None:
        self.closed = False

    def insert(self) -> None:
        self.closed = True
        raise ConnectionResetError("the server closed the connection")

    def cursor(self) -> Cursor:
        return Cursor(self)


class Cursor:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def execute(self, words: str) -> None:
        self.connection.insert()


def test_a_connection_that_is_closed_now_is_not_called_again(naps: list[float]) -> None:
    """Each call of it was refused, for ten minutes, and made the limit smaller."""
    for call_it in (
        lambda call: call.run(Connection.insert, Connection()),
        lambda call: call.run(Connection().insert),
        lambda call: call.run(Connection().cursor().execute, "INSERT"),
    ):
        with pytest.raises(ConnectionResetError) as raised, paced("t") as call:
            call_it(call)
        assert "closed" in raised.value.__notes__[0]
    assert naps == []
    assert gate_of("t").counters.refused == 3


def test_a_connection_that_is_open_is_called_again(naps: list[float]) -> None:
    """A number may say that too: psycopg2's 0."""
    for is_closed in (False, 0, None, "no"):
        connection, errors = Connection(), [RetryLater()]
        connection.closed = is_closed  # type: ignore[assignment]
        with paced("t") as call:
            call.run(lambda _, errors=errors: _raise(errors.pop()) if errors else None, connection)
    assert len(naps) == 4


def test_a_connection_that_is_not_open_is_not_called_again(naps: list[float]) -> None:
    """As pymysql's says it."""

    class Open:
        open = True

        def insert(self) -> None:
            self.open = False
            raise ConnectionResetError("the server closed the connection")

    with pytest.raises(ConnectionResetError), paced("t") as call:
        call.run(Open().insert)
    assert naps == []


@pytest.mark.parametrize("closed", [1, 2])  # psycopg2's: closed, and lost
def test_a_number_may_say_that_a_connection_is_closed(naps: list[float], closed: int) -> None:
    class Numbered(Connection):
        def insert(self) -> None:
            self.closed = closed  # type: ignore[assignment]
            raise ConnectionResetError("the server closed the connection")

    with pytest.raises(ConnectionResetError), paced("t") as call:
        call.run(Numbered.insert, Numbered())
    assert naps == []


def test_what_is_hard_asks_for_a_connection_and_a_thread() -> None:
    hard = paced("t", hard=True, limits=Limits(in_flight_max=2))
    with pytest.raises(ConfigError, match="is not a connection") as one, hard as call:
        call.run(lambda connection: None, object())
    assert one.value.field == "hard"

    async def block() -> None:
        async with hard:
            pass

    with pytest.raises(ConfigError, match="not for coroutines"):
        asyncio.run(block())
    assert gate_of("t").in_flight == 0, "neither keeps its permit"


def test_one_call_at_once_may_be_the_start() -> None:
    limits = Limits(in_flight_min=1, in_flight_max=1, in_flight_start=1)
    with paced("t", limits=limits) as call:
        assert call.run(lambda: 5) == 5
    assert gate_of("t").permits == 1


def test_a_failure_after_a_refusal_says_so(naps: list[float]) -> None:
    """A deadlock leaves a transaction that fails: the second error alone explains nothing."""
    errors = [RetryLater("deadlock"), ValueError("current transaction is aborted")]
    with pytest.raises(ValueError) as raised, paced("t") as call:
        call.run(lambda: _raise(errors.pop(0)))
    assert raised.value.__notes__ == ["flowctl called again after a refusal: RetryLater: deadlock"]


def test_a_cost_that_is_known_afterwards_is_what_was_used(naps: list[float]) -> None:
    with paced("t", cost=5, budget=1e6) as call:
        call.run(int)
        call.cost = 50
        assert gate_of("t").counters.cost == 50
        call.run(int)
        call.cost = 20
    assert gate_of("t").counters.cost == 70
    errors = [RetryLater(), ValueError()]
    with pytest.raises(ValueError), paced("t", cost=5, budget=1e6) as call:
        try:
            call.run(lambda: _raise(errors.pop(0)))
        finally:
            call.cost = 7
    assert gate_of("t").counters.cost == 70, "it did not succeed"


def test_what_leaves_a_block_is_classified() -> None:
    with pytest.raises(RetryLater), paced("t"):
        raise RetryLater
    with pytest.raises(KeyError), paced("t"):
        raise KeyError
    counters = gate_of("t").counters
    assert (counters.refused, counters.failed) == (1, 1)


def test_the_program_may_say_what_it_saw() -> None:
    with paced("t") as call:
        call.throttled(0.0)
    with paced("t") as call:
        call.failed(ValueError())
    with paced("t") as call:
        call.failed(TimeoutError())
    counters = gate_of("t").counters
    assert (counters.refused, counters.failed, counters.calls) == (2, 1, 0)


@pytest.mark.parametrize("seconds", ["5", -1, float("nan")])
def test_a_wait_that_is_none_is_refused_and_keeps_no_permit(seconds: object) -> None:
    with pytest.raises(ConfigError, match="retry_after_s"), paced("t") as call:
        call.throttled(seconds)  # type: ignore[arg-type]
    assert (gate_of("t").in_flight, gate_of("t")._resting) == (0, [])


def test_the_users_own_rule_comes_first(naps: list[float]) -> None:
    errors = iter([KeyError("full"), None])

    def call_target() -> None:
        if (error := next(errors)) is not None:
            raise error

    rule = {KeyError: 2.0}
    with paced("t", refusal=lambda error: rule.get(type(error))) as call:
        call.run(call_target)
    assert naps == [2.0]


def test_a_refusal_that_does_not_end_is_raised(naps: list[float]) -> None:
    with (
        pytest.raises(RetryLater),
        paced("t", limits=Limits(give_up_after_s=100.0)) as call,
    ):
        call.run(_raise, RetryLater(after_s=300.0))
    assert (naps, gate_of("t").in_flight) == ([], 0)


def test_a_decorator_keeps_what_the_function_is() -> None:
    @paced("t", cost=len)
    def write(rows: list[int]) -> int:
        """Write."""
        return sum(rows)

    assert (write([1, 2, 3]), write.__name__, write.__doc__) == (6, "write", "Write.")
    assert gate_of("t").counters.cost == 3


def test_coroutines_wait_their_turn() -> None:
    at_once: list[int] = []

    @paced("t", limits=Limits(in_flight_max=3))
    async def call_target(number: int) -> int:
        at_once.append(gate_of("t").in_flight)
        await asyncio.sleep(0)
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*[call_target(n) for n in range(50)])

    assert asyncio.run(main()) == list(range(50))
    assert max(at_once) == 3


def test_an_async_block_and_a_task_that_is_cancelled_in_line() -> None:
    async def main() -> None:
        one = paced("t", limits=Limits(in_flight_max=1))
        async with one as call:
            waits = asyncio.ensure_future(one.__aenter__())
            await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert await call.run(asyncio.sleep, 0, "done") == "done"
        async with one:
            pass

    asyncio.run(main())
    assert (gate_of("t").in_flight, gate_of("t").waiting) == (0, 0)


def test_one_object_serves_many_threads() -> None:
    shared = paced("t", limits=Limits(in_flight_max=2))
    most: list[int] = []

    def work() -> None:
        for _ in range(50):
            with shared:
                most.append(gate_of("t").in_flight)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (gate_of("t").counters.calls, max(most) <= 2) == (400, True)


def test_it_travels_by_pickle_and_finds_its_gate_by_name() -> None:
    there = pickle.loads(pickle.dumps(paced("t", budget=5.0)))
    with there, paced("t", budget=5.0) as call:
        call.throttled()
    assert gate_of("t").counters.calls == 1
    assert gate_of("t").counters.refused == 1


def test_a_decorated_function_is_shipped_to_spark_by_value() -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")

    @paced("t", cost=lambda rows: float(len(rows)), refusal=lambda error: None)
    def write(rows: list[int]) -> int:
        return sum(rows)

    there = cloudpickle.loads(cloudpickle.dumps(write))
    assert (there([1, 2]), gate_of("t").counters.cost) == (3, 2)


def test_a_child_process_begins_with_gates_of_its_own() -> None:
    with paced("t"):
        child = os.fork()
        if not child:
            os._exit(len(gates._gates))  # 0: none
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("target", {"target": ""}),
        ("target", {"target": "a{b}"}),
        ("cost", {"cost": 0}),
        ("weight", {"weight": 0}),
        ("leave", {"leave": 1.0}),
        ("budget", {"budget": 0}),
        ("limits", {"limits": Limits(in_flight_min=5, in_flight_max=4)}),
        ("limits", {"limits": 5}),
        ("limits", {"limits": Limits(give_up_after_s=0)}),
        ("limits", {"limits": Limits(give_up_after_s="600")}),  # type: ignore[arg-type]
        ("limits", {"limits": Limits(in_flight_max="20")}),  # type: ignore[arg-type]
        ("limits", {"limits": Limits(in_flight_max=2.5)}),  # type: ignore[arg-type]
        ("limits", {"limits": {"in_flight_max": 20}}),
        ("hard", {"hard": True}),
        ("target", {"target": len}),
        ("target", {"target": 5}),
        ("name", {"name": None}),
        ("redis", {"redis": 6379}),
        ("weight", {"weight": [1]}),
        ("weight", {"weight": float("inf")}),
        ("leave", {"leave": "0.2"}),
        ("budget", {"budget": float("inf")}),
        ("budget", {"budget": 10**400}),
        ("weight", {"weight": 10**400}),
        ("cost", {"cost": 10**400}),
        ("cost", {"cost": float("nan")}),
        ("cost", {"cost": "x" * 100_000}),
        ("hard", {"hard": "no"}),
    ],
)
def test_a_wrong_parameter_is_named(field: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        paced(**{"target": "t", **arguments})  # type: ignore[arg-type]
    assert (raised.value.field, bool(raised.value.remedy)) == (field, True)
    assert len(str(raised.value)) < 500


def test_numbers_of_numpy_are_numbers() -> None:
    """The sum of a column is one; "must be greater than 0, got np.int64(5)" it was."""
    with paced("t", cost=numpy.int64(5), weight=numpy.float32(2), budget=numpy.int64(500)) as call:
        assert call.cost == 5.0
        call.cost = numpy.int64(7)
        assert type(call.cost) is float


def test_a_target_has_the_same_settings_everywhere_in_a_process() -> None:
    with paced("t", budget=5.0):
        pass
    with pytest.raises(ConfigError, match="budget"), paced("t", budget=6.0):
        pass


def _raise(error: Exception) -> None:
    raise error


def test_a_block_inside_a_block_ends_before_it() -> None:
    both = paced("t")
    with both as outer, both as inner:
        outer.cost, inner.cost = 5.0, 7.0
    with both:
        pass
    assert (gate_of("t").in_flight, gate_of("t").counters.cost) == (0, 13.0)


def test_tasks_that_share_an_object_end_their_own_blocks() -> None:
    async def block(cost: float, ends: asyncio.Event, other: asyncio.Event) -> None:
        async with shared as call:
            call.cost = cost
            await ends.wait()
            other.set()
            if cost > 1:
                raise KeyError(cost)

    async def run() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        tasks = [block(5.0, first, second), block(1.0, second, first)]
        running = asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        first.set()
        await running

    shared = paced("t")
    asyncio.run(run())
    assert (gate_of("t").counters.failed, gate_of("t").counters.cost) == (1, 1.0)


def test_a_function_for_a_target_is_a_forgotten_name() -> None:
    with pytest.raises(ConfigError, match=r"Write @paced\('pg-main'\)"):
        paced(len)  # type: ignore[arg-type]


def test_a_cost_that_is_a_function_is_for_decorators_and_checked_at_each_call() -> None:
    by_size = paced("t", cost=len)
    with pytest.raises(ConfigError, match="a block has no arguments") as caught, by_size:
        pass
    assert caught.value.field == "cost"
    with pytest.raises(ConfigError, match="greater than 0"):
        by_size(sum)([])
    assert (by_size(sum)([1, 2]), gate_of("t").counters.cost) == (3, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 0.5},
        {"weight": 0.5},
        {"leave": 0},
        {"limits": Limits(in_flight_min=1, in_flight_max=1, in_flight_start=1)},
        {"limits": Limits(in_flight_max=100_000)},
        {"limits": Limits(give_up_after_s=0.5)},
        {"limits": Limits(give_up_after_s=float("inf"))},
        {"cost": 0.5},
    ],
)
def test_what_is_just_possible_is_taken(arguments: dict[str, Any]) -> None:
    with paced("t", **arguments) as call:
        assert call.run(int) == 0


@pytest.mark.parametrize(
    "limits",
    [
        Limits(in_flight_max=100_001),
        Limits(in_flight_min=0),
        Limits(in_flight_start=0),
        Limits(in_flight_start=True),
        Limits(give_up_after_s=True),
    ],
)
def test_what_is_just_not_possible_is_named(limits: Limits) -> None:
    with pytest.raises(ConfigError) as caught:
        paced("t", limits=limits)
    assert caught.value.field == "limits"


def test_what_ends_a_decorated_call_gives_its_permit_back() -> None:
    """Also Ctrl-C, and a task that is cancelled in the middle of its call."""

    @paced("t")
    def stops() -> None:
        raise KeyboardInterrupt

    @paced("t")
    async def waits() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        assert gate_of("t").in_flight == 1
        task.cancel()
        await asyncio.wait([task])

    with pytest.raises(KeyboardInterrupt):
        stops()
    assert gate_of("t").in_flight == 0
    asyncio.run(main())
    assert gate_of("t").in_flight == 0


def test_a_coroutine_that_is_refused_waits_and_is_called_again(
    monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> None:
    real = asyncio.sleep

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        await real(0)

    monkeypatch.setattr("asyncio.sleep", nap)
    errors = [RetryLater(after_s=7.0)]

    @paced("t", cost=lambda rows, times: float(len(rows) * times))
    async def write(rows: list[int], *, times: int) -> int:
        if errors:
            raise errors.pop()
        return sum(rows) * times

    assert asyncio.run(write([1, 2], times=3)) == 9
    assert naps == [7.0]
    counters = gate_of("t").counters
    assert (counters.refused, counters.calls, counters.cost) == (1, 1, 6.0)


def test_a_hard_block_makes_its_call_with_run() -> None:
    hard = paced("t", hard=True, limits=Limits(in_flight_max=2))
    with pytest.raises(ConfigError, match=r"without call\.run") as caught, hard:
        pass
    assert (caught.value.field, gate_of("t").in_flight) == ("hard", 0)


def test_a_rule_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        paced("t", refusal=5)  # type: ignore[arg-type]
    assert caught.value.field == "refusal"


def test_what_is_left_to_others_is_left_of_a_budget_too() -> None:
    assert paced("t", budget=100.0, leave=0.25).settings.rate == 75.0
    assert paced("t", leave=0.25).settings.rate == float("inf")


def test_a_call_tells_what_it_costs() -> None:
    with paced("t", cost=3) as call:
        assert call.cost == 3
        call.cost = 5.5
        assert call.cost == 5.5
        with pytest.raises(ConfigError, match="greater than 0"):
            call.cost = 0
        assert call.cost == 5.5
