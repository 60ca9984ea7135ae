"""The verdict on a run, from snapshots at their times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flowctl.core.events import BoltState
from flowctl.core.pacing.figures import TargetView
from flowctl.core.times import BOUNDS_S
from flowctl.instrumentation.diagnosis import Diagnosis
from flowctl.instrumentation.snapshot import (
    AckTimesView,
    BoltView,
    Limit,
    LongCallView,
    Snapshot,
    TimesView,
    Verdict,
    WaitReason,
    Waits,
)

STEP_S = 0.25
BOLT = BoltView(
    name="b1", state=BoltState.NORMAL, up=True, window=3, in_flight=2,
    ack_rtt_p50_s=0.1, service_p50_s=0.05, acked=10, share=0.5, records_per_s=100.0,
)  # fmt: skip
PACED = TargetView(
    target="crm", limit=10, reason="goodput kept", used=2.0, calls_per_s=20.0, refused_share=0.0,
    waited_s=0.0,
)  # fmt: skip


class Watched:
    """A run of two bolts that are busy, unless changed."""

    def __init__(self, sink_part: float = 0.0) -> None:
        self.sink_part = sink_part  # of the time in process
        self.diagnosis = Diagnosis()
        self.now_s = 0.0
        self.waited_s = dict.fromkeys(WaitReason, 0.0)
        self.acks = 0

    def go(
        self,
        for_s: float,
        *,
        waits: WaitReason = WaitReason.BACKPRESSURE,
        path_s: float = 0.001,
        **changes: Any,
    ) -> Verdict:
        """Let time pass with the spout waiting for ``waits``; return the last verdict."""
        for _ in range(round(for_s / STEP_S)):
            verdict = self.step(waits, path_s, changes)
        return verdict

    def step(self, waits: WaitReason, path_s: float, changes: dict[str, Any]) -> Verdict:
        self.now_s += STEP_S
        self.waited_s[waits] += STEP_S
        self.acks += 5
        waited = {f"{reason}_s": s for reason, s in self.waited_s.items() if reason}

        def taken(each_s: float) -> TimesView:
            return TimesView((self.acks, *(0,) * len(BOUNDS_S)), self.acks * each_s)

        paced = tuple(
            msgspec.structs.replace(each, waited_s=each.waited_s * self.now_s)
            for each in changes.pop("targets", ())
        )
        given = {
            "job": "j", "elapsed_s": self.now_s, "phase": "running", "tuples_emitted": 10,
            "tuples_acked": 4 * self.acks, "waits": Waits(**waited), "records_buffered": 1_000,
            "held_up_by": waits, "held_up_share": 1.0 if waits else 0.0,
            "bolts": (BOLT, msgspec.structs.replace(BOLT, name="b2")), "targets": paced,
            "times": AckTimesView(
                rtt=taken(path_s + 0.1), wait=taken(0.05), service=taken(0.05),
                sink_s=self.sink_part * taken(0.05).total_s,
            ),
        }  # fmt: skip
        snapshot = Snapshot(**given | changes)
        if paced:
            changes["targets"] = tuple(
                msgspec.structs.replace(each, waited_s=each.waited_s / self.now_s) for each in paced
            )
        return self.diagnosis.update(snapshot)


def test_bolts_that_are_all_busy_are_nothing_wrong() -> None:
    verdict = Watched().go(12.0)
    assert (verdict.limit, verdict.remedy) == (Limit.NOTHING, "")
    assert verdict.sentence.startswith("nothing is wrong: all bolts are busy (2 bolts")


HUNG = LongCallView(bolt="b2", partition="p", first=7, last=7, for_s=45.0)
STUCK = msgspec.structs.replace(BOLT, name="b2", refused=True, in_flight=0)
IDLE = (msgspec.structs.replace(BOLT, in_flight=0),) * 2


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"target_down_s": 4.0, "target_down_reason": "503"}, Limit.TARGET_DOWN),
        ({"long_calls": (HUNG,)}, Limit.CALL_HANGS),
        ({"bolts": (BOLT, STUCK)}, Limit.TARGET_REFUSES),
        ({"sink_cap": 4, "sink_cap_keeps": 0.96}, Limit.TARGET),
        ({"sink_cap": 500}, Limit.NOTHING),  # far from reached
        ({"waits": WaitReason.MAX_PENDING, "bolts": IDLE}, Limit.PENDING),
        ({"waits": WaitReason.MAX_PENDING, "store_away_s": 9.0}, Limit.STORE),
        ({"waits": WaitReason.NO_INPUT, "bolts": IDLE}, Limit.SOURCE),
        ({"waits": WaitReason.NO_INPUT}, Limit.NOTHING),  # processed as it comes
        ({"waits": WaitReason.NOTHING, "bolts": IDLE}, Limit.DRIVER),
        ({"path_s": 0.2}, Limit.PATH),
        (
            {"waits": WaitReason.LAST_TUPLES, "phase": "draining", "records_buffered": 0},
            Limit.LAST_TUPLES,
        ),
        ({"more_bolts_help": True}, Limit.TOO_FEW_BOLTS),
        ({"bolts_wanted": 12, "note": "no free Spark slot"}, Limit.TOO_FEW_BOLTS),
        ({"targets": (msgspec.structs.replace(PACED, used=9.5),)}, Limit.TARGET),
        ({"targets": (msgspec.structs.replace(PACED, waited_s=1.5),)}, Limit.TARGET_REFUSES),
        ({"targets": (msgspec.structs.replace(PACED, refused_share=0.1),)}, Limit.TARGET_REFUSES),
        ({"targets": (PACED,)}, Limit.NOTHING),
        ({"tuples_emitted": 0}, Limit.STARTING),
        ({"bolts": (msgspec.structs.replace(BOLT, up=False, window=0),)}, Limit.TOO_FEW_BOLTS),
    ],
)
def test_each_limit_has_its_sign(changes: dict[str, Any], limit: Limit) -> None:
    verdict = Watched().go(12.0, **changes)
    assert verdict.limit is limit
    assert bool(verdict.remedy) is not verdict.is_fine


@pytest.mark.parametrize(("in_flight", "limit"), [(0, Limit.ONE_STAGE), (2, Limit.NOTHING)])
def test_a_stage_that_is_busy_while_others_are_not_is_the_limit(
    in_flight: int, limit: Limit
) -> None:
    parse = msgspec.structs.replace(BOLT, name="parse.1", in_flight=in_flight)
    store = msgspec.structs.replace(BOLT, name="store.1")
    verdict = Watched().go(12.0, bolts=(parse, store))
    assert verdict.limit is limit
    assert verdict.names == (("store",) if limit is Limit.ONE_STAGE else ())


def test_the_sentence_names_numbers_and_says_since_when() -> None:
    verdict = Watched().go(12.0, sink_cap=4, sink_cap_keeps=0.96)
    assert verdict.said("10:32:07") == (
        "the target is the limit since 10:32:07: 4 tuples in flight give 96 % of the best goodput;"
        " more bolts would not help"
    )


def test_a_limit_that_flowctl_chose_is_not_called_the_targets() -> None:
    """ "So at most 1 tuple may be in flight: ask for a larger quota" hid who had set it to 1."""
    verdict = Watched().go(12.0, bolts=(BOLT, STUCK), sink_cap=1)
    assert verdict.limit is Limit.TARGET_REFUSES
    assert "flowctl keeps at most 1 tuple in flight" in verdict.sentence
    assert "each refusal lowers the limit" in verdict.remedy


def test_a_passing_sign_is_no_verdict_and_a_lasting_one_counts_from_its_beginning() -> None:
    run = Watched()
    assert run.go(12.0).limit is Limit.NOTHING
    assert run.go(1.0, sink_cap=4).limit is Limit.NOTHING
    began_s = run.now_s
    run.go(1.0)
    verdict = run.go(5.0, sink_cap=4)
    assert verdict.limit is Limit.TARGET
    assert verdict.since_s >= began_s


@pytest.mark.parametrize("changes", [{}, {"path_s": 0.2}, {"bolts": (BOLT, STUCK)}])
@pytest.mark.parametrize("waits", WaitReason)
def test_the_shares_of_the_slots_time_add_up(waits: WaitReason, changes: dict[str, Any]) -> None:
    shares = Watched().go(12.0, waits=waits, **changes).shares
    values = msgspec.structs.astuple(shares)
    assert sum(values) == pytest.approx(1.0)
    assert min(values) >= 0.0


def test_of_a_whole_run_what_held_longest_is_told_and_not_what_was_last() -> None:
    run = Watched()
    run.go(10.0)
    run.go(30.0, sink_cap=4, sink_cap_keeps=0.9)
    run.go(10.0)
    run.go(4.0, waits=WaitReason.LAST_TUPLES, phase="draining", records_buffered=0)
    assert run.diagnosis.of_run().limit is Limit.TARGET


def test_what_a_run_takes_to_stop_is_no_part_of_it() -> None:
    run = Watched()
    before = run.go(20.0)
    gone = msgspec.structs.replace(BOLT, in_flight=0, paused_s=9.0)
    assert run.go(10.0, phase="stopping", bolts=(gone,)) == before
    assert run.diagnosis.of_run().shares.pauses == 0.0


def test_of_a_run_that_sent_nothing_it_says_so_at_its_end() -> None:
    watched = Watched()
    assert watched.go(1.0, tuples_emitted=0).headline == "nothing was sent yet"
    assert watched.diagnosis.of_run().headline == "nothing was sent"


def test_of_a_run_of_less_than_a_second_nothing_is_said() -> None:
    run = Watched()
    run.go(0.75, waits=WaitReason.NOTHING, bolts=IDLE)
    verdict = run.diagnosis.of_run()
    assert (verdict.limit, verdict.shares.driver) == (Limit.STARTING, 0.0)


def test_a_run_that_ends_when_it_can_first_be_judged_has_not_just_begun() -> None:
    run = Watched()
    run.go(1.25)
    assert run.diagnosis.of_run().headline == "it was over too soon to say"


def test_a_limit_of_a_moment_leaves_a_run_fine() -> None:
    run = Watched()
    run.go(60.0)
    run.go(4.0, target_down_s=1.0)
    run.go(20.0)
    assert run.diagnosis.of_run().limit is Limit.NOTHING


@pytest.mark.parametrize("changes", [{"pauses": 0.1}, {"more_bolts_help": False}])
def test_where_threads_compute_their_interpreter_is_the_limit(changes: dict[str, Any]) -> None:
    watched = Watched()
    pauses = changes.pop("pauses", 0.0)
    for _ in range(48):
        paused = msgspec.structs.replace(BOLT, paused_s=pauses * watched.now_s)
        bolts = (paused, msgspec.structs.replace(paused, name="b2"))
        verdict = watched.go(STEP_S, bolts=bolts, shares_interpreter=True, **changes)
    assert verdict.sentence.startswith("the interpreter is the limit: 2 bolts share it with the")
    assert "SparkBolts" in verdict.remedy


@pytest.mark.parametrize(
    ("sink_part", "keeps", "headline"),
    [
        (0.1, 1.0, "process is the limit"),
        (0.1, None, "the target is the limit"),  # it refused more
        (0.0, 1.0, "the target is the limit"),  # process does not tell what of it is waiting
        (0.9, 1.0, "the target is the limit"),
    ],
)
def test_a_cap_is_no_reason_to_blame_a_target_that_process_hardly_waits_for(
    sink_part: float, keeps: float | None, headline: str
) -> None:
    watched = Watched(sink_part)
    verdict = watched.go(12.0, sink_cap=4, sink_cap_keeps=keeps)
    assert (verdict.limit, verdict.headline) == (Limit.TARGET, headline)
    assert verdict.why.endswith("more bolts would not help")


def test_threads_that_hardly_work_wait_for_the_driver_as_others_do() -> None:
    verdict = Watched().go(12.0, waits=WaitReason.NOTHING, bolts=IDLE, shares_interpreter=True)
    assert verdict.limit is Limit.DRIVER


@pytest.mark.parametrize(("share", "limit"), [(0.02, Limit.NOTHING), (0.3, Limit.PAUSES)])
def test_a_process_that_stands_still_is_no_work(share: float, limit: Limit) -> None:
    run = Watched()
    for _ in range(48):
        paused_s = share * (run.now_s + STEP_S)
        stood = [msgspec.structs.replace(BOLT, name=n, paused_s=paused_s) for n in ("b1", "b2")]
        verdict = run.go(STEP_S, bolts=tuple(stood))
    assert verdict.limit is limit
    assert verdict.shares.pauses == pytest.approx(share)
    assert verdict.shares.busy <= 1.0 - share
