"""The parts of ``make bench-control``: what runs on Spark is what the simulator runs."""

from __future__ import annotations

import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from flowctl.bolts.batch import Batch
from flowctl.core.messages import Emission, Revoke
from flowctl.core.records import Record, Span
from flowctl.errors import WireError
from flowctl.wire.auth import MAGIC, NONCE_BYTES, PROOF_BYTES
from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import Hello, Welcome
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.network import Sending
from flowctl_lab.simulation.scenario import Loss
from flowctl_lab.simulation.sink import SharedSink
from tests.benchmarks import control_trace
from tests.benchmarks.control_cases import CASES, LEFT_OUT, SHIPPED, shortened
from tests.benchmarks.control_faults import signals_of
from tests.benchmarks.control_net import Losses
from tests.benchmarks.control_sink import RealTime
from tests.benchmarks.control_trace import TRACE, TraceProducer, TraceWorker

PROOF = b"p" * (len(MAGIC) + NONCE_BYTES + PROOF_BYTES)


def test_every_scenario_with_a_gate_is_run_or_left_out_for_a_reason() -> None:
    gated = {name for name, scenario in CATALOGUE.items() if scenario.gates}
    gated -= {name for name in gated if not CATALOGUE[name].telemetry}  # real bolts tell all
    left_out = {name for names in LEFT_OUT for name in names.split(", ")}
    assert gated == CASES.keys() | left_out


def test_shortening_moves_all_that_happens() -> None:
    step = shortened(CATALOGUE["step"], 0.25)
    assert (step.tuples, step.slow[0].from_s, step.slow[0].until_s) == (6_000, 1.5, 3.5)
    crash = shortened(CATALOGUE["crash"], 0.5)
    assert [(d.at_s, d.back_at_s) for d in crash.deaths] == [(2.0, 6.0), (2.0, None)]
    drift = shortened(CATALOGUE["drift"], 0.25).drift
    assert drift is not None
    assert (drift.over_s, drift.cost) == (5.0, 3.0)


class Time:
    """Stands for the module ``time``: sleeping takes exactly as long as it should, and more."""

    def __init__(self, overruns_s: float) -> None:
        self.now_s = 50.0
        self._overruns_s = overruns_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s + self._overruns_s


@pytest.mark.parametrize("overruns_s", [0.0, 0.0007])
def test_a_worker_sleeps_the_traces_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overruns_s: float
) -> None:
    """Ten tuples in a row end when the profile says, however late each sleep returns."""
    time = Time(overruns_s)
    monkeypatch.setattr(control_trace, "time", time)
    (tmp_path / "start").write_text("50.0")
    scenario = shortened(CATALOGUE["step"], 0.01)  # bolt 0 is slow from 0.06 s on
    sent = TraceWorker(scenario, 7, str(tmp_path), None)
    worker = pickle.loads(pickle.dumps(sent))
    workload, machine = sent._workload, Machine(scenario, 7, 0)
    ends_s = 0.0
    for index in range(10):
        first, count = workload.block(index)
        records = [Record(position, None) for position in range(first, first + count)]
        span = Span("job", TRACE, first, first + count - 1, 1)
        worker(Batch(records, span, bolt="b1", attempt=1))
        ends_s = machine.profile.finish(ends_s, workload.cost_s(first, count, 1))
        assert time.now_s - 50.0 == pytest.approx(ends_s + overruns_s)


def test_a_worker_that_died_takes_the_fate_of_one_that_did(tmp_path: Path) -> None:
    scenario = replace(
        CATALOGUE["crash"],
        deaths=tuple(replace(d, at_s=0.0, back_at_s=0.0) for d in CATALOGUE["crash"].deaths),
    )
    first = TraceWorker(scenario, 7, str(tmp_path), None)
    assert pickle.loads(pickle.dumps(first))._returned is None  # before the start: alive
    (tmp_path / "start").write_text("0.0")
    restarted = [pickle.loads(pickle.dumps(first)) for _ in scenario.deaths]
    fates = [worker._machines.index(worker._returned) for worker in restarted]
    assert fates == [death.bolt for death in scenario.deaths]
    with pytest.raises(RuntimeError, match="should not have"):
        pickle.loads(pickle.dumps(first))


def test_the_producer_reads_the_whole_trace_once(tmp_path: Path) -> None:
    scenario = replace(CATALOGUE["sizes"], tuples=30)
    ready: list[bool] = []
    producer = TraceProducer(scenario, 7, tmp_path, lambda: bool(ready))
    warm = producer.poll(5_000)
    assert warm is not None
    early = producer.poll(5_000)
    assert early is not None
    assert not early.records
    ready.append(True)
    positions = []
    while (chunk := producer.poll(7)) is not None:
        positions += [record.position for record in chunk.records]
    assert positions == list(range(producer.records - len(warm.records)))
    assert control_trace.start_s(tmp_path) == producer.start_s


def test_a_job_as_shipped_begins_when_all_workers_are_there(tmp_path: Path) -> None:
    """Its records are read before; the end is told late, after the beginning."""
    scenario = replace(SHIPPED["W3"].scenario, bolts=3)
    producer = TraceProducer(scenario, 7, tmp_path, lambda: False)
    chunk = producer.poll(1_000)
    assert chunk is not None
    assert len(chunk.records) == producer.records == 24
    worker = pickle.dumps(TraceWorker(scenario, 7, str(tmp_path), None))
    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(pickle.loads, worker) for _ in range(2)]
        assert control_trace.start_s(tmp_path) is None
        pool.submit(pickle.loads, worker).result()
        for future in first:
            future.result()
    assert control_trace.start_s(tmp_path) is not None
    assert producer.poll(1_000) is not None, "half a second late"


def test_faults_are_the_machines_own() -> None:
    flap = CATALOGUE["flap"]
    plan = signals_of([Machine(flap, 1, bolt) for bolt in range(flap.bolts)])
    assert plan == sorted(plan)
    assert [(at_s, number) for at_s, bolt, number in plan if bolt == 1][:3] == [
        (6.0, signal.SIGSTOP),
        (9.0, signal.SIGCONT),
        (12.0, signal.SIGSTOP),
    ]
    assert {bolt for _, bolt, _ in plan} == {0, 1}
    crash = CATALOGUE["crash"]
    plan = signals_of([Machine(crash, 1, bolt) for bolt in range(crash.bolts)])
    assert plan == [(4.0, 0, signal.SIGKILL), (4.0, 1, signal.SIGKILL)]


def _frames(*frames: object) -> bytes:
    writer = FrameWriter(1 << 20)
    for frame in frames:
        writer.append(frame)  # type: ignore[arg-type]
    return bytes(writer.take())


@pytest.mark.parametrize("bolt", [1, 3])
def test_the_network_loses_the_tuples_that_the_simulator_loses(bolt: int) -> None:
    """Those of bolts 0 and 1 only, and no other frame, however the bytes are cut."""
    scenario = replace(CATALOGUE["lossy"], loss=Loss(bolts=(0, 1), share=0.3))
    losses = Losses(scenario, 5)
    hello = PROOF + _frames(Hello(1, f"b{bolt + 1}", 1, 1, "host"))
    for byte in hello:
        losses.note(bytes([byte]))
    tuples = [Emission(n, "b1", 1, "p", [Record(n, None)], None, 0) for n in range(100)]
    stream = PROOF + _frames(Welcome(1, 1, 1), *tuples[:50], Revoke("b1", [1]), *tuples[50:])
    left = b"".join(losses.left_of(stream[at : at + 11]) for at in range(0, len(stream), 11))
    reader = FrameReader(decoder_of(Welcome | Emission | Revoke), 1 << 20)
    arrived = reader.feed(left[len(PROOF) :])
    rng = Random(f"bolt 5 {bolt}")
    rng.random()  # its heartbeat's
    kept = [t for t in tuples if bolt == 3 or rng.random() >= 0.3]
    assert [frame for frame in arrived if isinstance(frame, Emission)] == kept
    assert len(arrived) == len(kept) + 2
    assert reader.is_between_frames


def test_a_stranger_breaks_the_network_loudly() -> None:
    losses = Losses(CATALOGUE["lossy"], 5)
    with pytest.raises(WireError):
        losses.note(PROOF + _frames(Revoke("b1", [1])))


def test_the_sink_is_as_late_as_it_should_be_and_no_later() -> None:
    """Requests that came in between are served at the times at which the sink was free."""
    sink = CATALOGUE["sink"].sink
    assert sink is not None
    loop = RealTime()
    shared = SharedSink(loop, sink)
    through: list[float] = []

    def done(at_s: float, _: object, __: object) -> None:
        through.append(at_s)

    for _ in range(3):
        loop.catch_up(0.0)
        shared.enter(0.0, Sending(0, 0, 1, 0, 600), done)
    loop.catch_up(0.005)
    assert not through
    loop.catch_up(0.025)  # late for the first, and two are through
    assert through == pytest.approx([0.01, 0.02])
    loop.catch_up(1.0)
    assert through == pytest.approx([0.01, 0.02, 0.03])
