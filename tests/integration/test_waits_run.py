"""A whole run under each wait strategy: it reaches the bolts, and the report tells of waits."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.ports import BoltNotice, Endpoint, SourceChunk
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import ListProducer, Witness

STRATEGIES = ["blocking", "progressive", "park"]


class Bolts(LocalBolts):
    """Keeps what the bolts were started with."""

    endpoint: Endpoint

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        self.endpoint = endpoint
        super().start(endpoint, notify)


class Pausing(ListProducer):
    """Gives nothing from its second record on until the first is processed and waited for."""

    def __init__(self, count: int, may_go_on: Callable[[], bool]) -> None:
        super().__init__(count, poll_max=1)
        self.may_go_on = may_go_on

    def poll(self, max_records: int) -> SourceChunk | None:
        if self._next > 1 and not self.may_go_on():
            return SourceChunk("p", [])
        return super().poll(max_records)


def settings(strategy: str, **others: object) -> Settings:
    situations = ("spout", "bolt", "backpressure")
    named = {f"lab.wait.{situation}_strategy": strategy for situation in situations}
    return Settings().with_overrides({**named, **others, "tuple.records_max": 1})


def run(strategy: str, producer: ListProducer, process: Callable[[Batch], None], **others: object):
    bolts, view = Bolts(process, count=2), Witness()
    spout = FlowControlSpout(
        name="waits",
        producer=producer,
        bolts=bolts,
        checkpoint=MemoryCheckpointStore(),
        settings=settings(strategy, **others),
    )
    report = spout.run(view=view)
    endpoint = pickle.loads(pickle.dumps(bolts.endpoint))  # as Spark does
    assert endpoint.wait == spout.settings.wait
    assert report.records_acked == producer.count
    return report.waits, view


@pytest.mark.req("S31", "S40")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_slow_source_is_what_the_spout_waits_for(strategy: str) -> None:
    looks = 0

    def seen() -> bool:
        nonlocal looks
        looks += 1
        return looks > 10  # each comes 50 ms after the one before

    waits, _ = run(strategy, Pausing(3, seen), lambda batch: None)
    assert waits.no_input_s > 0.2
    assert waits.no_input_s > 5 * (waits.backpressure_s + waits.max_pending_s)
    assert waits.empty_emit_streak > 0


@pytest.mark.req("S31", "S39")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slow_bolts_are_what_the_spout_waits_for(strategy: str) -> None:
    slow = threading.Event()
    waits, view = run(
        strategy,
        ListProducer(40),
        lambda batch: slow.wait(0.05) and None,
        **{"lab.window.policy": "fixed", "lab.window.initial": 1},
    )
    assert waits.backpressure_s > 5 * (waits.no_input_s + waits.max_pending_s)
    assert waits.last_tuples_s > 0.02, "the last call"
    assert any(shot.held_up_by == "backpressure" for shot in view.snapshots)


@pytest.mark.req("S37", "S40")
def test_a_limit_of_pending_is_what_the_spout_waits_for() -> None:
    slow = threading.Event()
    limit = {"dispatch.in_flight_max": 1}
    waits, _ = run("blocking", ListProducer(20), lambda batch: slow.wait(0.03) and None, **limit)
    assert waits.max_pending_s > 5 * (waits.backpressure_s + waits.no_input_s)
