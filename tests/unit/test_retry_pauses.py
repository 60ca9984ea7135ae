"""How long each door waits before it tries again: one table, in time that the test makes pass.

The kind of defect: four doors had a pause rule each, and whoever changed one left three behind.
"""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.bolts.pauses import Pauses
from flowctl.core.events import TupleFailed, TupleRefused
from flowctl.core.messages import Fail
from flowctl.core.spout import SpoutCore
from flowctl.core.trees.settlement import FailedInput, Settlement
from flowctl.errors import CheckpointUnavailableError, InfrastructureError
from flowctl.failure.classify import Kind, Meaning
from flowctl.pacing.gate import Gate
from flowctl.ports import BoltNotice, Endpoint
from flowctl.runtime.checkpointer import Checkpointer
from flowctl.runtime.control import RunControl
from flowctl.testing.clock import ManualClock
from pyspark_flowctl.outcome import Outcome, Restart, RestartPolicy
from tests.collecting_parts import Totals, collecting
from tests.core_driver import Driver
from tests.delivery_parts import Clock
from tests.range_driver import Ranges
from tests.runtime_parts import FailingStore
from tests.topology_driver import Hub, nothing, passing, topology
from tests.unit.test_delivery import Letters, delivery

NO_ROOM = Meaning(Kind.FULL, "full")


def waits_until_sent_again(hub: Hub, answer: Callable[[Any], Any]) -> Iterator[float]:
    """Answer each tuple with ``answer``; how long it took until the next one came."""
    answered_at_s = None
    while hub.core.gave_up is None:
        hub.emit()
        while hub.in_flight:
            if answered_at_s is not None:
                yield hub.now_s - answered_at_s
            answered_at_s = hub.now_s
            answer(hub.in_flight.popleft())
        due_s = hub.core.next_deadline_s()
        if due_s is None:
            return
        hub.now_s = max(hub.now_s, due_s)


# -- a spout -------------------------------------------------------------------------------------


def a_tuple_that_fails() -> Iterator[float]:
    driver = Driver("a", "b", has_dead_letter=True)
    driver.offer(1)
    driver.end()
    while driver.core.poll_dead_letter() is None:
        for emission in driver.emit():
            driver.fail(emission)
        if driver.core.next_deadline_s() is not None:
            driver.wait_for_deadline()
    return (failed.retry_at_s - failed.at_s for failed in driver.events(TupleFailed))


def a_tuple_that_is_refused() -> Iterator[float]:
    """While others are taken: the target is not down."""
    driver = Driver("a", "b")
    driver.offer(1)
    while len(driver.events(TupleRefused)) < 8:
        for emission in driver.emit():
            if emission.records[0].position == 1:
                refuse(driver, emission)
                driver.offer(1)
            else:
                driver.ack(emission)
        driver.wait(1 / 64)
    return (refused.retry_at_s - refused.at_s for refused in driver.events(TupleRefused))


def refuse(driver: Driver, emission: Any) -> None:
    fail = Fail(emission.tuple_id, emission.attempt, "429", is_refused=True)
    driver.core.on_fail(emission.bolt, 1, fail, now_s=driver.clock())
    driver.wait(0)


def a_bolt_that_is_refused() -> Iterator[float]:
    driver = Driver("a")
    driver.offer(1)
    consumer = driver.core.bolts["a"]
    for _ in range(5):
        while not (sent := driver.emit()):
            driver.wait_for_deadline()
        refuse(driver, sent[0])
        yield consumer.rests_until_s - driver.clock()


@pytest.mark.parametrize("by_reference", [False, True])
def test_a_bolt_whose_call_fails_otherwise_in_between_rests_as_after_its_first_refusal(
    by_reference: bool,
) -> None:
    """Kind: what one door mends for itself.  The row of refusals ends behind each."""
    driver: Any = Ranges("a", stop=10_000) if by_reference else Driver("a")
    if not by_reference:
        driver.offer(20)
    rests_s = []
    for is_refused in (True, True, False, True):
        while not (sent := driver.emit()):
            driver.wait_for_deadline() if not by_reference else driver.wait(0.25, "a")
        [first, *_] = sent
        how = {"error": "429", "is_refused": is_refused}
        if by_reference:
            driver.failed(first, first.start, first.stop, **how)
        else:
            driver.fail(first, **how)
        rests_s.append(driver.core.bolts["a"].rests_until_s - driver.clock())
    assert (rests_s[0], rests_s[1], rests_s[3]) == (0.5, 1.0, 0.5)


def a_target_that_is_down() -> Iterator[float]:
    """Between two questions."""
    driver = Driver("a", "b", "c", "d", slots=4)
    driver.offer(40)
    driver.ack(*driver.emit(1))
    asked_at_s: list[float] = []
    while driver.clock() < 12.0:
        for emission in driver.emit():
            if driver.core.target_down is not None:
                asked_at_s.append(driver.clock())
            driver.fail(emission)
        driver.wait(1 / 64)
    return (later - before for before, later in itertools.pairwise(asked_at_s))


# -- in a bolt, and in any process ---------------------------------------------------------------


def a_slot_that_is_refused() -> Iterator[float]:
    pauses, now_s = Pauses(), 0.0
    for _ in range(5):
        pauses.begun("s", now_s)
        pauses.refused("s", None, now_s)
        yield pauses.wait_s("s", now_s)
        now_s += pauses.wait_s("s", now_s)


def a_paced_call_that_is_refused() -> Iterator[float]:
    """Two permits, so each pause comes twice."""

    class Middle(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return (a + b) / 2

        def random(self) -> float:
            return 0.5

    gate = Gate(clock=ManualClock(), chance=Middle())
    gate.set_permits(2)
    for _ in range(8):
        gate.in_flight += 1
        yield gate.leave_refused(None)


# -- a topology ----------------------------------------------------------------------------------


def a_root_that_fails() -> Iterator[float]:
    def failing(given: Any, out: Any) -> None:
        raise ValueError("bad")

    made = topology()
    made.bolt("a", failing).shuffle("s")
    hub = Hub(made, has_dead_letter=True)
    hub.offer(["x"])
    hub.core.end_of_input(now_s=0.0)
    while hub.core.poll_dead_letter() is None:
        if not hub.step():
            hub.now_s = max(hub.now_s, hub.core.next_deadline_s() or 0.0)
    failed = [event for event in hub.events if isinstance(event, TupleFailed)]
    return (event.retry_at_s - event.at_s for event in failed)


def an_input_that_is_refused() -> Iterator[float]:
    made = topology()
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"])
    hub.step()

    def refused(emission: Any) -> None:
        said = FailedInput(emission.records[0].position, "no room", True, None)
        hub.ack(emission, Settlement(failed=[said]))

    return waits_until_sent_again(hub, refused)


def ending(answer: Callable[[Hub, Any], Any]) -> Iterator[float]:
    hub = Hub(collecting(Totals))
    hub.offer(["x"])
    while hub.step():
        pass
    hub.core.end_of_input(now_s=hub.now_s)
    return waits_until_sent_again(hub, lambda emission: answer(hub, emission))


def an_on_end_that_raises() -> Iterator[float]:
    def fail(hub: Hub, call: Any) -> None:
        fail = Fail(call.tuple_id, call.attempt, "no")
        hub.core.on_fail(call.bolt, hub.epoch[call.bolt], fail, now_s=hub.now_s)

    return ending(fail)


def an_on_end_that_is_refused() -> Iterator[float]:
    return ending(lambda hub, call: hub.refuse(call, NO_ROOM))


# -- a partition of flow_sink --------------------------------------------------------------------


def waits_between_calls(**plan: Any) -> Iterator[float]:
    clock, began_at_s = Clock(), []

    def fail(batch: Batch) -> None:
        began_at_s.append(clock())
        raise RuntimeError("no")

    delivery(fail, clock, dead_letter=Letters(), **plan).run([1])
    return (later - before for before, later in itertools.pairwise(began_at_s))


def a_row_that_fails() -> Iterator[float]:
    """It is the only one: for ten seconds the target may be to blame."""
    return waits_between_calls()


def a_partition_whose_target_is_down() -> Iterator[float]:
    """Between two questions, once it counts as down."""
    clock, failed_at_s = Clock(), list[float]()

    def take(batch: Batch) -> None:
        clock.sleep(1 / 64)
        if 1.0 < clock.now_s < 9.5:
            failed_at_s.append(clock.now_s)
            raise RuntimeError("no")

    delivery(take, clock, rows_max=1, dead_letter=Letters()).run(range(400))
    waits = [later - before for before, later in itertools.pairwise(failed_at_s)]
    first = next(at for at, wait in enumerate(waits) if wait > 0.4)  # before the first question
    return iter(waits[first + 1 :])


# -- threads: the time that they would have waited is written down ---------------------------------


def waited(do: Callable[[], Any], *, of: str = "") -> list[float]:
    """What threads whose name begins with ``of`` waited for an event; "": this thread."""
    found: list[float] = []
    here, plain = threading.current_thread(), threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        thread = threading.current_thread()
        is_meant = thread.name.startswith(of) if of else thread is here
        if not is_meant or timeout is None:
            return plain(event, timeout)
        found.append(timeout)
        return event.is_set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Event, "wait", wait)
        do()
    return found


def nowhere() -> Endpoint:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    return Endpoint(host="127.0.0.1", port=port, key=b"k" * 32, job="j")


def a_bolt_that_connects() -> list[float]:
    from flowctl.bolts.worker import run_bolt

    def connect() -> None:
        with pytest.raises(InfrastructureError):
            run_bolt(nowhere(), "b1", lambda batch: None)

    return waited(connect)


def a_local_bolt_that_dies() -> list[float]:
    bolts, said = LocalBolts(lambda batch: None, count=1), []
    enough = threading.Event()

    def notify(notice: BoltNotice) -> None:
        said.append(notice)
        if len(said) > 8:
            enough.set()

    def run() -> None:
        bolts.start(nowhere(), notify)
        assert enough.wait(60.0)
        bolts.stop(timeout_s=10.0)

    found = waited(run, of="flowctl-bolt-")
    return found[7::8][:7]  # after the seven between tries to connect


def a_spark_bolt(kind: Any) -> Iterator[float]:
    policy = RestartPolicy(nowhere())
    for _ in range(8):
        step = policy.after(Outcome(kind=kind))
        assert isinstance(step, Restart)
        yield step.after_s


def store_away(interval_s: float) -> Checkpointer:
    store = FailingStore()
    epoch = store.acquire("job")
    store.error = CheckpointUnavailableError("away")
    control = RunControl(SpoutCore(), clock=ManualClock())
    saving = Checkpointer(control, store, job="job", epoch=epoch, interval_s=interval_s)

    def save() -> None:
        raise store.error

    saving.save = save  # type: ignore[method-assign]
    return saving


def a_first_save(interval_s: float) -> list[float]:
    """In the mode that saves before it sends."""
    saving, found = store_away(interval_s), []

    def wait(timeout_s: float) -> bool:
        found.append(timeout_s)
        return len(found) == 6

    saving._control.stopping.wait = wait  # type: ignore[method-assign, assignment]
    assert not saving.save_first()
    return found


DOORS: dict[str, tuple[Callable[[], Any], list[float]]] = {
    "spout, a fault": (a_tuple_that_fails, [0.1, 0.2, 0.4, 0.8]),
    "spout, a refusal": (a_tuple_that_is_refused, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]),
    "spout, a bolt rests": (a_bolt_that_is_refused, [0.5, 1.0, 2.0, 2.0, 2.0]),
    "spout, a question": (a_target_that_is_down, [0.5, 1.0, 2.0, 2.0]),
    "bolt, a slot rests": (a_slot_that_is_refused, [0.5, 1.0, 2.0, 2.0, 2.0]),
    "paced": (a_paced_call_that_is_refused, [0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]),
    "topology, a root": (a_root_that_fails, [0.1, 0.2, 0.4, 0.8]),
    "topology, a refusal": (an_input_that_is_refused, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]),
    "topology, on_end": (an_on_end_that_raises, [0.1, 0.2, 0.4, 0.8]),
    "topology, on_end is refused": (
        an_on_end_that_is_refused,
        [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0],
    ),
    "flow_sink, a fault": (
        a_row_that_fails,
        [0.1, 0.2, 0.4, 0.8, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0],
    ),
    "flow_sink, a question": (a_partition_whose_target_is_down, [0.5, 1.0, 2.0, 2.0]),
    "bolt, connecting": (a_bolt_that_connects, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]),
    "bolt, as a thread": (a_local_bolt_that_dies, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]),
    "bolt, on Spark": (lambda: a_spark_bolt("lost"), [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
    "bolt, whose worker died": (lambda: a_spark_bolt("crashed"), [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
    "store, before it sends": (lambda: a_first_save(0.5), [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]),
    "store, rarely": (lambda: a_first_save(60.0), [5.0] * 6),
}


@pytest.mark.parametrize("door", DOORS)
def test_the_pauses_before_the_next_try(door: str) -> None:
    waits, expected = DOORS[door]
    assert list(itertools.islice(waits(), len(expected))) == pytest.approx(expected)
