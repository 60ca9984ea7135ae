"""Topologies over real sockets and threads: exact, slowed by their slowest stage, resumable."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowctl.config import Settings
from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, ProcessError
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextLines
from flowctl_storm import Collector, Input, LocalStages, Topology, TopologyReport
from tests.runtime_parts import Witness
from tests.topology_driver import Numbers, topology

# On a busy machine a bolt may be silent for seconds, and its tuples go to others: allowed, but not
# what these tests count.
ONCE = Settings().with_overrides(
    {
        "hedge.enabled": False,
        "lab.timeout.rto_first_s": 60.0,
        "lab.timeout.rto_min_s": 60.0,
        "lab.timeout.silence_s": 60.0,
        "lab.timeout.silence_max_s": 60.0,
        "timeout.end_after_s": None,
    }
)
RECORD_S = 0.0004  # a quick stage's work on a record; the slow one takes ten times as long


def run(made: Topology, **arguments: Any) -> TopologyReport:
    arguments.setdefault("checkpoint", MemoryCheckpointStore())
    return made.run(LocalStages(), view=Witness(), **arguments)


def passing(given: Input, out: Collector) -> None:
    out(given.value)


class Sink:
    """Thread-safe: counts what came."""

    def __init__(self) -> None:
        self.got: Counter[Any] = Counter()
        self._lock = threading.Lock()

    def __call__(self, given: Input, out: Collector) -> None:
        value = given.value if given.component != "parse" else given.value[0]
        with self._lock:
            self.got[given.component, value] += 1


@pytest.mark.req("S81", "S70")
def test_a_diamond_is_exact() -> None:
    sink = Sink()
    ended: list[Any] = []
    made = Topology("diamond")
    made.spout("s", Numbers(5_000), on_ack=ended.append)
    made.bolt("b1", passing, count=2).shuffle("s")
    made.bolt("b2", passing, count=2).least_loaded("s")
    made.bolt("b3", sink, count=2).shuffle("b1").shuffle("b2")
    report = run(made, settings=ONCE)
    assert sink.got == {(b, n): 1 for b in ("b1", "b2") for n in range(1, 5_001)}
    assert report.trees is not None
    assert (report.trees.complete, report.trees.ledger_now, report.trees.failed) == (5_000, 0, 0)
    assert report.records_acked == report.records_saved == 5_000
    assert sorted(end.position for end in ended) == list(range(1, 5_001))  # all were told


@pytest.mark.slow
@pytest.mark.req("S52", "S59", "S37")
def test_the_slow_third_stage_sets_the_pace_and_no_queue_grows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lock = threading.Lock()
    busy: list[tuple[float, float]] = []

    def quick(given: Input, out: Collector) -> None:
        time.sleep(RECORD_S)
        out(given.value)

    def slow(given: Input, out: Collector) -> None:
        began_s = time.monotonic()
        time.sleep(10 * RECORD_S)
        with lock:
            busy.append((began_s, time.monotonic()))

    records = 4_000
    made = topology(records)
    made.bolt("a", quick, count=2).shuffle("s")
    made.bolt("b", quick, count=2).shuffle("a")
    made.bolt("c", slow, count=2).least_loaded("b")
    report = run(made)

    lasted_s = max(end for _, end in busy) - min(began for began, _ in busy)
    used = sum(end - began for began, end in busy) / 2 / lasted_s  # of what two bolts can do
    rate = records / lasted_s
    with capsys.disabled():
        print(f"\nthird stage at work {used:.1%} of the time, {rate:.0f} records/s")
        for stage in report.stages:
            print(f"  {stage.stage}: waiting <= {stage.waiting_max}, bolts <= {stage.at_bolts_max}")
    assert used > 0.95
    ahead = rate * 4 * Settings().tuple.service_max_s
    for stage in report.stages:
        # What a stage does in a second, and one tuple's emits: 0.25 s of a quick stage, which is
        # what the slow one does in 2.5 s.  The first tuples go out before anyone knows.
        assert stage.waiting_max < 4 * ahead, stage
        assert stage.at_bolts_max < 4 * ahead, stage


class Lines:
    """A spout of lines that fails for good at one of them, until it is mended."""

    def __init__(self, place: Path) -> None:
        self.sink = Sink()
        self.is_mended = False
        (place / "in.log").write_text("".join(f"line {n}\n" for n in range(2_000)))
        self.topology = Topology("lines")
        self.topology.spout("lines", TextLines(str(place / "in.log")))
        self.topology.bolt("parse", self.parse, count=2).shuffle("lines")
        self.topology.bolt("sink", self.sink, count=3).fields("parse", 0)

    def parse(self, given: Input, out: Collector) -> None:
        if given.value == "line 1000" and not self.is_mended:
            raise ValueError("poison")
        out([int(given.value.split()[1])])


def test_poison_ends_the_run_and_only_what_was_not_done_runs_again(tmp_path: Path) -> None:
    store = MemoryCheckpointStore()
    lines = Lines(tmp_path)
    # Back-offs in which all else gets done, also on a busy machine.
    settings = Settings().with_overrides(
        {"retry.attempts_max": 3, "retry.backoff_first_s": 0.2, "tuple.records_max": 50}
    )
    with pytest.raises(ProcessError, match="poison"):
        run(lines.topology, checkpoint=store, settings=settings)
    saved: Checkpoint = store.load("lines")
    (part,) = saved.partitions.values()
    done = saved.records
    assert part.records <= 1_000 < done  # the hole is there, and what lies above it is kept
    lines.is_mended = True
    before = lines.sink.got.copy()
    report = run(lines.topology, checkpoint=store, settings=settings)
    assert report.records_total == 2_000
    assert report.records_acked == 2_000 - done
    assert set(lines.sink.got) == {("parse", n) for n in range(2_000)}
    again = lines.sink.got - before
    assert sum(again.values()) == 2_000 - done


@pytest.mark.req("S82")
def test_a_callback_that_raises_changes_nothing() -> None:
    def raising(end: Any) -> None:
        raise ValueError("mine")

    made = Topology("callbacks")
    made.spout("s", Numbers(100), on_ack=raising)
    made.bolt("a", passing).shuffle("s")
    assert run(made).records_acked == 100


def test_several_spouts_meet_in_one_bolt() -> None:
    sink = Sink()
    made = Topology("two")
    made.spout("a", Numbers(300))
    made.spout("b", Numbers(200), translate=lambda partition, record: -record.position)
    made.bolt("both", sink, count=2).shuffle("a").shuffle("b")
    report = run(made)
    assert report.records_acked == 500
    assert sink.got == {
        **{("a", n): 1 for n in range(1, 301)},
        **{("b", -n): 1 for n in range(1, 201)},
    }


def test_a_list_without_a_checkpoint_is_enough_to_try_it() -> None:
    seen: list[int] = []

    def store(given: Input, out: Collector) -> None:
        seen.append(given.value)

    made = Topology("tried")
    made.spout("numbers", list(range(300)))
    made.bolt("store", store, count=2).shuffle("numbers")
    report = made.run(LocalStages(), view="off")
    assert report.outcome == "finished"
    assert sorted(seen) == list(range(300))
    with pytest.raises(ConfigError, match=r"path: str is not a producer.*TextLines"):
        Topology("tried").spout("path", "logs/*.log")
    with pytest.raises(ConfigError, match="checkpoint: the text does not begin"):
        made.job(LocalStages(), checkpoint="store.db")
