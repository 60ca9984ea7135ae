"""Building topologies: names, groupings, circles; what workers run; several sources as one."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import flowctl_storm
from flowctl.bolts.batch import Batch
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record, Span
from flowctl.core.trees.settlement import Emitted, FailedInput, Settlement
from flowctl.errors import ConfigError, FencedError
from flowctl_files import TextRanges
from flowctl_storm import Batched, Collector, Input, LocalStages, Topology
from flowctl_storm.hub.routing import make_choice, task_of_key
from flowctl_storm.plan import Subscription, input_id_of
from flowctl_storm.topology_job import Sources
from flowctl_storm.worker.tasks import StageCode
from tests.runtime_parts import ListProducer

ROOT = Path(__file__).parents[2]


def nothing(given: Input, out: Collector) -> None:
    pass


def made() -> Topology:
    topology = Topology("t")
    topology.spout("s", ListProducer(0))
    return topology


def test_a_spout_whose_records_nobody_gets_is_refused_and_not_done() -> None:
    topology = made()
    topology.spout("unread", ListProducer(3))
    topology.bolt("a", nothing).shuffle("s")
    with pytest.raises(ConfigError, match="unread: no bolt subscribes to this spout"):
        topology.run(LocalStages(), view="off")


def test_stages_come_in_the_order_of_the_flow() -> None:
    topology = made()
    topology.bolt("c", nothing).shuffle("b").shuffle("a")
    topology.bolt("b", nothing).shuffle("a")
    topology.bolt("a", nothing).shuffle("s")
    assert [plan.name for plan in topology.plans()] == ["a", "b", "c"]


def test_a_circle_is_refused() -> None:
    topology = made()
    topology.bolt("a", nothing).shuffle("s").shuffle("b")
    topology.bolt("b", nothing).shuffle("a")
    with pytest.raises(ConfigError, match="a, b form a cycle"):
        topology.plans()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda t: t.bolt("a", nothing), "has no source"),
        (lambda t: t.bolt("a", nothing).shuffle("x"), "no 'x' to subscribe to. Known: a, s"),
        (lambda t: t.bolt("s", nothing), "is taken"),
        (lambda t: t.bolt("a.b", nothing), "can't be a name"),
        (lambda t: t.bolt("a", nothing, count=0), "must be 1 or more, got 0"),
        (lambda t: t.bolt("a", 7).shuffle("s"), "an int can't be a bolt"),
        (lambda t: t.bolt("a", lambda given: None).shuffle("s"), "two arguments, an input and"),
        (lambda t: t.bolt("a", type("NoExecute", (), {})).shuffle("s"), "NoExecute.* can't be"),
        (lambda t: t.bolt("a", Batched(lambda given: None)).shuffle("s"), "two arguments"),
        (lambda t: t.bolt(5, nothing), "5 can't be a name"),
        (lambda t: t.bolt("a", nothing).fields("s"), "none given"),
        (lambda t: t.bolt("a", type("M", (), {"execute": 1}), slots=2), "one thread"),
        (lambda t: Topology("t").plans(), "no spout"),
        (lambda t: Topology("t", max_pending=0), "max_pending"),
        (lambda t: Topology("t", tree_timeout_s=0), "tree_timeout_s"),
        (lambda t: Topology("t", tree_timeout_s="30"), "tree_timeout_s: .*'30'"),  # type: ignore[arg-type]
        (lambda t: Topology("t", ackers=-1), "ackers"),
    ],
)
def test_what_can_not_run_is_refused_with_words(build: Any, words: str) -> None:
    topology = made()
    with pytest.raises(ConfigError, match=words):
        build(topology)
        topology.plans()


def test_a_key_has_the_same_task_in_every_process() -> None:
    # Python's own hash would differ: this is what keeps a bolt's state its own over restarts.
    assert [task_of_key([key], 4) for key in ("a", "b", 1, None)] == [
        task_of_key([key], 4) for key in ("a", "b", 1, None)
    ]
    program = "from flowctl_storm.hub.routing import task_of_key as t; print(t(['ann', 7], 1000))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == task_of_key(["ann", 7], 1000)


@pytest.mark.req("S56")
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("shuffle", [0, 1, 2, 0]), ("least_loaded", [1, 1, 1, 1]), ("all", [0, 1, 2] * 4)],
)
def test_who_gets_a_value(kind: Any, wanted: list[int]) -> None:
    choose = make_choice(Subscription(component="s", kind=kind), lambda: [5, 1, 2])
    assert [task for _ in range(4) for task in choose("x", None)] == wanted
    assert not choose("x", 1)  # emitted to one task: only direct groupings get it


def test_direct_takes_only_what_is_emitted_to_a_task() -> None:
    choose = make_choice(Subscription(component="s", kind="direct"), lambda: [0, 0])
    assert list(choose("x", 1)) == [1]
    assert not choose("x", None)
    with pytest.raises(Exception, match="emit to task 2: there are 2"):
        choose("x", 2)


def test_keys_are_spread_evenly() -> None:
    counts = Counter(task_of_key([f"user{n}"], 4) for n in range(10_000))
    assert all(2_250 < count < 2_750 for count in counts.values())


# -- what workers run ------------------------------------------------------------------------


def batch(*values: Any) -> Batch:
    records = [Record(input_id_of(n, 1), value) for n, value in enumerate(values, 1)]
    return Batch(records, Span("t", "a", 1, len(values), 1), bolt="a.1", attempt=1)


X, Y = input_id_of(1, 1), input_id_of(2, 1)  # ids of the inputs


def run(code: Any, *values: Any) -> Settlement:
    return StageCode(code, ["r", "s"]).for_connection("a.1")(batch(*values))


@pytest.mark.req("S84")
def test_an_auto_bolt_anchors_each_emit_to_its_input() -> None:
    said = run(lambda given, out: [out(given.value), out("loose", anchored=False)], "x", "y")
    assert said.emits == [
        Emitted("x", [X]),
        Emitted("loose", []),
        Emitted("y", [Y]),
        Emitted("loose", []),
    ]
    assert not (said.failed or said.held)


@pytest.mark.req("S85")
def test_a_value_that_can_not_be_sent_fails_its_input() -> None:
    def emit(given: Any, out: Collector) -> None:
        out({"a": bytearray(b"x")} if given.value == "x" else given.value)

    said = run(emit, "x", "y")
    assert [failed.input_id for failed in said.failed] == [X]
    assert "value['a'] is a bytearray" in said.failed[0].reason
    assert said.emits == [Emitted("y", [Y])]


def test_a_batched_bolt_anchors_to_all() -> None:
    said = run(Batched(lambda inputs, out: out(len(inputs))), "x", "y")
    assert said.emits == [Emitted(2, [X, Y])]

    def failing(inputs: Any, out: Collector) -> None:
        out("gone")
        raise ValueError("redis://user:secret@host is away")

    reason = "ValueError: redis://***@host is away"
    assert run(Batched(failing), "x", "y").failed == [
        FailedInput(X, reason, is_data_error=True),
        FailedInput(Y, reason, is_data_error=True),
    ]


@pytest.mark.req("S64", "S83")
def test_a_batched_bolt_may_name_what_an_emit_comes_from() -> None:
    def each(inputs: Any, out: Collector) -> None:
        for given in inputs:
            out(given.value, anchors=given)
        out("both", anchors=inputs)

    said = run(Batched(each), "x", "y")
    assert said.emits == [Emitted("x", [X]), Emitted("y", [Y]), Emitted("both", [X, Y])]


def test_a_sink_that_fences_stops_the_run_and_fails_no_root() -> None:
    def fenced(given: Input, out: Collector) -> None:
        raise FencedError("newer")

    with pytest.raises(FencedError):
        run(fenced, "x")


def test_an_input_knows_where_it_is_from() -> None:
    assert run(lambda given, out: out(given.component), "x").emits == [Emitted("s", [X])]
    given = Input(1, {"k": 7}, "parse/bad")
    assert (given.component, given.stream, given["k"]) == ("parse", "bad", 7)
    assert (Input(1, "x", "parse").component, Input(1, "x", "parse").stream) == ("parse", "default")


# -- several sources --------------------------------------------------------------------------


def test_several_producers_are_read_in_turn_each_from_its_own_checkpoint() -> None:
    sources = Sources({"a": ListProducer(5, poll_max=2), "b": ListProducer(3, poll_max=2)})
    sources.open(Checkpoint({"a:p": PartitionCheckpoint(1, 1)}))
    read = []
    while (chunk := sources.poll(100)) is not None:
        read.append((chunk.partition, [record.position for record in chunk.records]))
    assert read == [("a:p", [2, 3]), ("b:p", [1, 2]), ("a:p", [4, 5]), ("b:p", [3])]
    assert sources.partitions() == ["a:p", "b:p"]


def test_every_public_name_is_there() -> None:
    for name in flowctl_storm.__all__:
        assert getattr(flowctl_storm, name) is not None
    with pytest.raises(AttributeError):
        flowctl_storm.no_such_name  # noqa: B018


def test_a_worker_loads_none_of_the_runtime() -> None:
    program = "import flowctl_storm.worker.tasks, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert not {name for name in loaded if name.startswith(("flowctl.runtime", "pyspark", "rich"))}


def test_a_source_that_bolts_read_themselves_is_refused_when_it_is_added(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("a\n")
    with pytest.raises(ConfigError, match=r"^lines: TextRanges is read by the bolts") as refused:
        Topology("t").spout("lines", TextRanges(path))  # type: ignore[arg-type]
    assert "TextLines" in refused.value.remedy
