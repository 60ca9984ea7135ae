"""What the last run learned: a first guess that the first acks overrule, and never more."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from flowctl.core.cost import ServicePool
from flowctl.core.first_guess import Learned
from flowctl.core.settings import TupleSettings
from flowctl.core.sizing import first_size
from flowctl.core.spout import SpoutCore
from flowctl.errors import CheckpointUnavailableError
from flowctl.runtime.control import RunControl
from flowctl.runtime.last_run import Learning, last_run_of, pack, unpack
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_lab.simulation.scenario import Scenario
from tests.benchmarks.law import scenario_of
from tests.benchmarks.law_known import run_again

DEAR = Learned(call_s=0.3, record_s=0.002, scatter=0.1, path_s=0.001, records=3_000, tuples=50)
JOB = Scenario(name="dear", what="", tuple_s=0.3, record_s=0.002, records=8_000, bolts=6)


def recalled(learned: Learned) -> ServicePool:
    pool = ServicePool()
    pool.recall(learned)
    return pool


def sizes(learned: Learned | None) -> list[int]:
    pool = ServicePool() if learned is None else recalled(learned)
    return [first_size(number, TupleSettings(), pool) for number in range(3)]


def test_first_tuples_have_the_size_that_is_worth_a_call() -> None:
    assert sizes(None) == [25, 100, 100]
    assert sizes(DEAR) == [400, 1_600, 1_600]  # 3,600 are worth it: at most 16 times as usual
    assert sizes(replace(DEAR, record_s=0.02)) == [89, 359, 359]
    assert sizes(replace(DEAR, record_s=1.0)) == [1, 7, 7]


def test_two_sizes_at_one_bolt_overrule_calls_that_are_four_times_as_dear_or_cheap() -> None:
    for wrong in (0.25, 1.0, 4.0):
        pool = recalled(replace(DEAR, call_s=wrong * DEAR.call_s))
        core = SpoutCore()
        core.book.pool = pool
        core.add_bolt("b", slots=1, epoch=1, now_s=0.0)
        service = core.bolts["b"].service
        for records in (400, 1_600, 3_000, 3_500, 400, 1_600, 3_000, 3_500):
            service.on_sample(1.0, DEAR.call_s + DEAR.record_s * records, 0.001, records)
        assert pool.call_s == pytest.approx(DEAR.call_s, rel=0.5)
        assert pool.record_s == pytest.approx(DEAR.record_s, rel=0.2)


def test_a_second_run_is_quicker_where_calls_are_dear() -> None:
    first, learned = run_again(JOB, 3)
    second, again = run_again(JOB, 3, learned)
    assert learned[0] is not None and again[0] is not None
    assert learned[0].call_s == pytest.approx(0.3, rel=0.25)
    assert second.makespan_s < first.makespan_s


def test_a_bolt_whose_speed_nobody_knows_gets_a_part_of_its_share() -> None:
    """Half of the bolts are four times slower: all of a share at once made the job half as long
    again."""
    job = scenario_of("random:31:78")
    first, learned = run_again(job, 31)
    second, _ = run_again(job, 31, learned)
    assert second.makespan_s < 1.2 * first.makespan_s


def test_what_took_too_few_acks_to_learn_is_not_kept() -> None:
    assert SpoutCore().learn() is None
    core = SpoutCore()
    core.recall(DEAR)
    assert core.learn() is None, "or a run of two records would replace what a long one learned"


@pytest.mark.parametrize(
    "name, value", [("call_s", -1.0), ("record_s", 0.0), ("records", 0.0), ("path_s", 1e300)]
)
def test_what_no_run_can_have_learned_is_not_taken(name: str, value: float) -> None:
    damaged = pack("j", DEAR, 1).replace(b'"tuples":50', b'"tuples":51')
    assert unpack("j", damaged) is None
    with pytest.raises(ValueError, match="no run"):
        Learned(**{**{f: getattr(DEAR, f) for f in DEAR.__struct_fields__}, name: value})


def test_it_is_of_one_job_and_version_and_has_a_checksum() -> None:
    packed = pack("j", DEAR, 7)
    last = unpack("j", packed)
    assert last is not None and (last.learned, last.at_unix_ms) == (DEAR, 7)
    assert last.told() == "a call costs 300 ms, a slot does 500/s"
    bare = b"{" + packed.split(b",", 1)[1]
    for foreign in (unpack("k", packed), unpack("j", packed[:-9]), unpack("j", bare)):
        assert foreign is None
    assert unpack("j", b"") is None


class Away(MemoryCheckpointStore):
    def remember(self, job: str, learned: bytes) -> None:
        raise CheckpointUnavailableError("away.", remedy="wait.")

    def remembered(self, job: str) -> bytes:
        raise CheckpointUnavailableError("away.", remedy="wait.")


def test_a_store_that_is_away_or_keeps_nothing_costs_the_run_nothing() -> None:
    for store in (Away(), object()):
        core = SpoutCore()
        control = RunControl(core)
        learning = Learning(control, store, "j", "keep")
        core.learn = lambda: DEAR  # type: ignore[method-assign]
        learning.keep(is_last=True)
        assert learning.began_with == "" and last_run_of(store, "j") is None


@pytest.mark.parametrize(
    "use, begins, keeps", [("keep", True, True), ("forget", False, True), ("off", False, False)]
)
def test_a_setting_says_whether_it_is_used_and_kept(use: str, begins: bool, keeps: bool) -> None:
    store, core = MemoryCheckpointStore(), SpoutCore()
    before = pack("j", DEAR, 1)
    store.remember("j", before)
    learning = Learning(RunControl(core), store, "j", use)  # type: ignore[arg-type]
    assert (core.book.pool.learned == DEAR) is begins
    core.learn = lambda: replace(DEAR, tuples=99)  # type: ignore[method-assign]
    learning.keep()
    assert (store.remembered("j") != before) is keeps
