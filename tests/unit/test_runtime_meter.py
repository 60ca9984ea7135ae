"""Snapshots and the report: their numbers are what the core did."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.events import SinkCapChanged
from flowctl.core.messages import Ack, Emission, Fail
from flowctl.core.ranges.core import RangeCore
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.core.spout import SpoutCore
from flowctl.errors import (
    CheckpointUnavailableError,
    SourceError,
)
from flowctl.instrumentation import plain
from flowctl.instrumentation.snapshot import BoltView, Snapshot, Waits
from flowctl.ports import BoltNotice, Endpoint, SourceProgress
from flowctl.runtime.checkpointer import Checkpointer
from flowctl.runtime.control import RunControl
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.meter import Meter, snapshot_pause_s
from flowctl.runtime.run import VIEW_EVERY_S
from flowctl.testing.clock import ManualClock
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextRanges
from tests.range_driver import Ranges
from tests.runtime_parts import FailingStore, ListProducer, Witness, a_spout

RECORDS = [Record(n, "x") for n in range(1, 21)]
SETTINGS = Settings().with_overrides(
    {"tuple.records_max": 2, "lab.window.initial": 4, "lab.window.policy": "fixed"}
)


class MeasuredList(ListProducer):
    done = 0
    total = 20

    def progress(self) -> SourceProgress:
        return SourceProgress(self.done, self.total, "records")


class Stand:
    """A run without threads: 20 records read, two bolts, acks by hand."""

    def __init__(self, restored: Checkpoint | None = None) -> None:
        self.clock = ManualClock()
        self.store = FailingStore()
        restored = restored or Checkpoint()
        core = SpoutCore(SETTINGS, checkpoint=restored)
        self.control = RunControl(core, clock=self.clock, restored=restored)
        self.producer = MeasuredList(20)
        self.meter = Meter(self.control, self.producer, job="job", restored=restored)
        self.meter.begin()
        self.checkpointer = Checkpointer(
            self.control, self.store, job="job", epoch=self.store.acquire("job"), interval_s=1.0
        )
        for bolt in ("a", "b"):
            core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0)
        core.offer("p", RECORDS, now_s=0.0)
        self.producer.done = 20

    def emit(self) -> list[Emission]:
        found = []
        while (emission := self.control.core.poll_emit(now_s=self.clock())) is not None:
            found.append(emission)
        return found

    def ack(self, *emissions: Emission) -> None:
        for e in emissions:
            ack = Ack(e.tuple_id, e.attempt)
            self.control.core.on_ack(e.bolt, 1, ack, now_s=self.clock())

    def kill_reruns(self) -> int:
        return self.meter.snapshot("running", "").kill_reruns

    def rerun_after_a_kill(self, begun: set[int]) -> int:
        """What really happens: a new core on the saved checkpoint, all of it emitted."""
        again = Stand(self.store.load("job"))
        positions: set[int] = set()
        while emissions := again.emit():
            positions |= {r.position for e in emissions for r in e.records}
            again.ack(*emissions)
        return len(positions & begun)


def positions(*emissions: Emission) -> set[int]:
    return {r.position for e in emissions for r in e.records}


@pytest.mark.req("S13")
def test_kill_reruns_is_what_a_kill_would_run_again():
    stand = Stand()
    assert stand.kill_reruns() == 0
    sent = stand.emit()
    begun = positions(*sent)
    assert len(begun) == 16  # two windows of four tuples of two
    assert stand.kill_reruns() == stand.rerun_after_a_kill(begun) == 16
    stand.ack(sent[0], sent[3], sent[5])
    assert stand.kill_reruns() == stand.rerun_after_a_kill(begun) == 16, "acked and not saved"
    stand.checkpointer.save()
    assert stand.kill_reruns() == stand.rerun_after_a_kill(begun) == 10
    more = stand.emit()
    begun |= positions(*more)
    assert stand.kill_reruns() == stand.rerun_after_a_kill(begun) == 14
    stand.ack(*sent[1:3], sent[4], *sent[6:], *more)
    stand.checkpointer.save()
    assert stand.kill_reruns() == stand.rerun_after_a_kill(begun) == 0


def test_without_selective_acks_a_kill_would_run_more():
    stand = Stand()
    sent = stand.emit()
    stand.ack(*sent[1:])
    stand.checkpointer.save()
    snapshot = stand.meter.snapshot("running", "")
    assert (snapshot.kill_reruns, snapshot.kill_reruns_cumulative_only) == (2, 16)
    assert [(r.first, r.last, r.records) for r in snapshot.partitions[0].acked_above] == [
        (3, 16, 14)
    ]


def test_a_snapshot_has_each_bolts_rate_and_the_cap_for_the_target():
    stand = Stand()
    stand.meter.snapshot("running", "")
    stand.ack(*[e for e in stand.emit() if e.bolt == "a"])
    stand.clock.advance(2.0)
    stand.meter.take(SinkCapChanged(at_s=0.0, before=None, after=3, reason="it is full"))
    snapshot = stand.meter.snapshot("running", "")
    assert [bolt.records_per_s for bolt in snapshot.bolts] == [4.0, 0.0]
    assert snapshot.sink_cap == 3
    assert stand.meter.report("finished", None, 0).records_per_s == 4.0


def test_kill_reruns_is_honest_while_the_store_is_away():
    stand = Stand()
    sent = stand.emit()
    stand.ack(*sent)
    stand.store.error = CheckpointUnavailableError("away")
    with pytest.raises(CheckpointUnavailableError):
        stand.checkpointer.save()
    assert stand.kill_reruns() == stand.rerun_after_a_kill(positions(*sent)) == 16


def test_a_resumed_run_counts_all_runs_together():
    first = Stand()
    sent = first.emit()
    first.ack(*sent[:3], sent[5])
    first.checkpointer.save()
    second = Stand(first.store.load("job"))
    assert second.kill_reruns() == 0
    emissions = second.emit()
    second.ack(emissions[0])
    snapshot = second.meter.snapshot("running", "")
    assert snapshot.records_acked == 2
    assert snapshot.records_skipped == 8
    assert snapshot.records_saved == 8
    report = second.meter.report("finished", None, saves=3)
    assert report.resumed
    assert (report.resumed_records, report.records_acked, report.records_total) == (8, 2, 10)
    assert report.checkpoint_saves == 3


def test_letters_that_an_earlier_run_redrove_are_not_counted_twice():
    restored = Checkpoint(
        {"p": PartitionCheckpoint(8, 8), "redrive:1700000000000": PartitionCheckpoint(1, 2)}
    )
    report = Stand(restored).meter.report("finished", None, saves=0)
    assert (report.resumed_records, report.records_total, report.records_saved) == (8, 8, 8)


def test_progress_is_what_is_acked_not_what_is_read():
    stand = Stand()
    assert stand.meter.snapshot("running", "").progress == 0.0
    sent = stand.emit()
    stand.ack(*sent[:5])
    assert stand.meter.snapshot("running", "").progress == pytest.approx(0.5)
    stand.ack(*sent[5:], *stand.emit())
    assert stand.meter.snapshot("running", "").progress == pytest.approx(1.0)


def test_the_rate_is_over_the_last_seconds_and_gives_an_eta():
    stand = Stand()
    sent = stand.emit()
    stand.meter.snapshot("running", "")
    stand.clock.advance(2.0)
    stand.ack(*sent[:5])
    snapshot = stand.meter.snapshot("running", "")
    assert snapshot.records_per_s == pytest.approx(5.0)
    assert snapshot.eta_s == pytest.approx(2.0)


@pytest.mark.req("S39", "S40")
def test_what_the_spout_waited_for_lately_and_in_all():
    stand = Stand()
    said = Waits()
    stand.control.spout_waits = lambda: said
    first = stand.meter.snapshot("running", "")
    assert (first.held_up_by, first.held_up_share) == ("", 0.0)
    stand.clock.advance(2.0)
    said = Waits(backpressure_s=1.5, no_input_s=0.25)
    shot = stand.meter.snapshot("running", "")
    assert (shot.held_up_by, shot.held_up_share) == ("backpressure", 0.75)
    assert shot.waits == said
    for _ in range(8):  # lately: the last few seconds
        stand.clock.advance(1.0)
        said = Waits(backpressure_s=1.5, no_input_s=said.no_input_s + 0.5, empty_emit_streak=2)
        shot = stand.meter.snapshot("running", "")
    assert (shot.held_up_by, shot.held_up_share) == ("no_input", 0.5)
    assert stand.meter.report("finished", None, 0).waits == said


def test_the_report_counts_what_the_core_did():
    stand = Stand()
    core = stand.control.core
    sent = stand.emit()
    stand.ack(*sent[:2], sent[0])
    core.on_fail(sent[2].bolt, 1, Fail(sent[2].tuple_id, 1, "bad"), now_s=0.0)
    stand.meter.snapshot("running", "")  # as four times a second
    core.remove_bolt("b", now_s=0.0, reason="killed")
    report = stand.meter.report("failed", SourceError("a bad line.", remedy="Mend it."), 0)
    assert (report.outcome, report.error) == ("failed", "a bad line. Mend it.")
    assert (report.tuples_emitted, report.tuples_acked, report.records_acked) == (8, 2, 4)
    assert (report.acks_duplicate, report.acks_late) == (1, 0)
    assert report.bolts_lost == 1
    assert report.tuples_failed == 2  # one failed, and one was in process on the bolt that died
    assert report.max_in_flight_records == 16
    assert [bolt.name for bolt in report.bolts] == ["a", "b"], "a bolt that went is not forgotten"
    assert not report.bolts[1].up
    assert sum(bolt.share for bolt in report.bolts) == pytest.approx(1.0)


def test_a_run_over_a_store_in_memory_says_so_in_each_snapshot():
    witness = Witness()
    spout = FlowControlSpout(
        name="job",
        producer=ListProducer(20),
        bolts=LocalBolts(lambda batch: None, count=1),
        checkpoint=MemoryCheckpointStore(),
    )
    spout.run(view=witness)
    assert witness.snapshots and not any(s.store_survives for s in witness.snapshots)


def test_a_snapshot_of_many_partitions_is_a_screenful_with_holes_first():
    many = {f"q{n:03}": PartitionCheckpoint(n, n) for n in range(500)}
    stand = Stand(Checkpoint(many))
    sent = stand.emit()
    stand.ack(sent[1], sent[4])
    snapshot = stand.meter.snapshot("running", "")
    assert len(snapshot.partitions) == 20
    assert snapshot.partitions[0].name == "p"
    assert snapshot.holes == 2


def test_times_of_acks_stay_when_their_bolt_is_gone():
    stand = Stand()
    assert sum(stand.meter.snapshot("running", "").times.rtt.counts) == 0
    sent = stand.emit()
    stand.clock.advance(0.3)
    stand.ack(*sent)
    stand.meter.snapshot("running", "")
    for bolt in ("a", "b"):
        stand.control.core.remove_bolt(bolt, now_s=stand.clock())
    rtt = stand.meter.snapshot("running", "").times.rtt
    assert sum(rtt.counts) == 2, "every fourth of four acks of each"
    assert rtt.total_s == pytest.approx(0.6)


def test_the_age_of_the_checkpoint_is_since_what_it_holds_was_acked():
    stand = Stand()
    assert stand.meter.snapshot("running", "").checkpoint_age_s is None
    stand.checkpointer.save()
    stand.clock.advance(2.0)
    assert stand.meter.snapshot("running", "").checkpoint_age_s == 2.0, "nothing to save is saved"
    stand.ack(*stand.emit())
    stand.store.error = CheckpointUnavailableError("away")
    with pytest.raises(CheckpointUnavailableError):
        stand.checkpointer.save()
    assert stand.meter.snapshot("running", "").checkpoint_age_s == 2.0
    stand.store.error = None
    stand.checkpointer.save()
    assert stand.meter.snapshot("running", "").checkpoint_age_s == 0.0


def test_calls_that_cost_more_than_records_are_told_with_the_size_of_tuples() -> None:
    stand = Stand()
    pool = stand.control.core.book.pool
    pool.is_split, pool.fixed_records, pool.mean_records, pool.mean_s = True, 300.0, 800.0, 1.1
    told = stand.meter.snapshot("running", "").dear_call
    assert told is not None
    assert (round(told.call_s, 3), told.records) == (0.3, 800)
    assert stand.meter.report("finished", None, 0).dear_call == told


def test_a_call_of_a_millisecond_is_not_told() -> None:
    stand = Stand()
    pool = stand.control.core.book.pool
    pool.is_split, pool.fixed_records, pool.mean_records, pool.mean_s = True, 10.0, 90.0, 0.01
    assert stand.meter.snapshot("running", "").dear_call is None


def test_many_bolts_are_read_less_often_but_every_second() -> None:
    assert snapshot_pause_s(12) < VIEW_EVERY_S, "each turn of the view has a snapshot"
    assert [snapshot_pause_s(bolts) for bolts in (500, 1_000, 5_000)] == [0.5, 1.0, 1.0]


def test_a_bolt_that_went_stays_in_snapshots_and_new_ones_are_put_in_order() -> None:
    stand = Stand()
    core = stand.control.core
    core.remove_bolt("b", now_s=0.0)
    core.add_bolt("aa", slots=1, epoch=1, now_s=0.0)
    core.add_bolt("c", slots=1, epoch=1, now_s=0.0)
    bolts = stand.meter.snapshot("running", "").bolts
    assert [bolt.name for bolt in bolts] == ["a", "c", "aa"], "b was never in a snapshot"
    core.remove_bolt("c", now_s=0.0)
    bolts = stand.meter.snapshot("running", "").bolts
    assert [(bolt.name, bolt.up) for bolt in bolts] == [("a", True), ("c", False), ("aa", True)]


def test_in_a_crowd_bolts_are_read_in_turn_and_for_the_report_all():
    """Reading 3,000 bolts took 18 ms of each second."""
    stand = Stand()
    bolts = [f"c{number}" for number in range(2_500)]
    for bolt in bolts:
        stand.control.core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0)

    def medians_of(shown: tuple[BoltView, ...]) -> list[float | None]:
        return [view.ack_rtt_p50_s for view in shown if view.name in bolts]

    assert set(medians_of(stand.meter.snapshot("running", "").bolts)) == {None}
    for seconds in (1.0, 3.0):
        for bolt in bolts:
            for _ in range(40):
                stand.control.core.bolts[bolt].times.rtts.add(seconds)
        known = [
            sum(
                median == seconds
                for median in medians_of(stand.meter.snapshot("running", "").bolts)
            )
            for _ in range(3)
        ]
        assert 990 <= known[0] <= 1_000 and known[2] == 2_500, "each is at most three old"
    for bolt in bolts:
        for _ in range(40):
            stand.control.core.bolts[bolt].times.rtts.add(5.0)
    assert set(medians_of(stand.meter.report("finished", None, 0).bolts)) == {5.0}


def test_in_a_crowd_who_came_or_went_is_in_the_next_snapshot() -> None:
    stand = Stand()
    core = stand.control.core
    for number in range(2_500):
        core.add_bolt(f"c{number}", slots=1, epoch=1, now_s=0.0)
    stand.meter.snapshot("running", "")
    core.remove_bolt("c700", now_s=0.0)  # not one of those whose turn is next, nor after that
    core.add_bolt("c2500", slots=1, epoch=1, now_s=0.0)
    seen = {bolt.name: bolt.up for bolt in stand.meter.snapshot("running", "").bolts}
    assert (seen["c700"], seen["c2500"], seen["c2399"]) == (False, True, True)
    core.add_bolt("c700", slots=1, epoch=2, now_s=0.0)
    seen = {bolt.name: bolt.up for bolt in stand.meter.snapshot("running", "").bolts}
    assert seen["c700"]


def test_nothing_is_100_percent_while_nothing_is_known() -> None:
    """Kind: a view that states as known what isn't.  ``records 0  100 %`` stood for 20 s at the
    start of a job, also where its path did not exist."""
    stand = Stand()
    stand.producer.total = 0
    assert stand.meter.snapshot("starting", "").progress is None, "no file was found yet"
    stand.control.reader_done.set()
    assert stand.meter.snapshot("starting", "").progress is None, "what was read is not done"
    empty = RunControl(RangeCore(), clock=ManualClock())
    meter = Meter(empty, object(), job="job", restored=Checkpoint())
    assert meter.snapshot("starting", "").progress is None, "no range was found yet"
    empty.reader_done.set()
    empty.core.end_of_input(now_s=0.0)
    assert meter.snapshot("draining", "").progress == 1.0, "the input is empty, and that is known"


def test_a_kill_would_run_the_batches_again_that_are_begun() -> None:
    """Kind: a view that states as known what isn't.  With 12 paid batches under way it said that a
    kill would run 0 records again."""
    ranges = Ranges("a", "b")
    control = RunControl(ranges.core, clock=ranges.clock)
    meter = Meter(control, object(), job="job", restored=Checkpoint())
    assert meter.snapshot("running", "").batches_begun == 0
    sent = ranges.emit()
    assert {e.bolt for e in sent} == {"a", "b"}
    snapshot = meter.snapshot("running", "")
    assert (snapshot.kill_reruns, snapshot.batches_begun) == (0, 2)
    assert plain.kill_cost(snapshot) == (
        "a kill now would run 0 records again, and the batches that bolts have begun (up to 2)"
    )
    assert Stand().meter.snapshot("running", "").batches_begun == 0, "records by value are counted"


def test_a_pause_before_the_first_tuple_slows_neither_the_rate_nor_the_eta() -> None:
    """Kind: a pause counted as work.  While Spark started, 30 s were counted."""
    stand = Stand()
    for _ in range(120):
        stand.clock.advance(0.25)
        snapshot = stand.meter.snapshot("starting", "")
        assert (snapshot.records_per_s, snapshot.eta_s) == (0.0, None)
    sent = stand.emit()
    stand.clock.advance(1.0)
    stand.ack(*sent[:5])
    snapshot = stand.meter.snapshot("running", "")
    assert snapshot.records_per_s == pytest.approx(10.0)
    assert snapshot.eta_s == pytest.approx(1.0)


def test_the_eta_does_not_jump_where_each_bolt_reports_once_a_minute() -> None:
    """Kind: an estimate from too few samples.  It jumped between 36 minutes and 25 hours."""
    bolts, batch, total = 12, 10_000, 12 * 60 * 10_000
    ranges = Ranges(*(f"b{n}" for n in range(bolts)), stop=total)
    control = RunControl(ranges.core, clock=ranges.clock)
    meter = Meter(control, object(), job="job", restored=Checkpoint())
    meter.snapshot("starting", "")
    at = {e.bolt: (e, e.start) for e in ranges.emit()}
    # Batches of a minute, each bolt's a little longer than the last one's.
    period = {bolt: 240 + 2 * n for n, bolt in enumerate(sorted(at))}  # in quarters of a second
    guesses: list[float] = []
    for tick in range(1, 240 * 20):
        ranges.clock.advance(0.25)
        for bolt, every in period.items():
            if tick % every == 0:
                e, start = at[bolt]
                ranges.did(e, start, start + batch, records=10, service_s=60.0)
                at[bolt] = (e, start + batch)
        snapshot = meter.snapshot("running", "")
        if snapshot.eta_s is not None and snapshot.progress is not None:
            guesses.append(snapshot.eta_s / (1 - snapshot.progress))
    assert len(guesses) > 240 * 17, "after each bolt has reported, there is always one"
    assert max(guesses) < 3 * min(guesses)


def test_the_eta_follows_a_change_of_speed_within_seconds_where_reports_are_many() -> None:
    stand = Stand()
    stand.producer.total = 10_000
    stand.producer.done = 0
    for tick in range(200):
        speed = 1 if tick < 100 else 4
        stand.producer.done += speed
        stand.clock.advance(0.25)
        stand.ack(*stand.emit())
        snapshot = stand.meter.snapshot("running", "")
    assert snapshot.eta_s == pytest.approx((10_000 - stand.producer.done) / 16, rel=0.1)


class LateBolts(LocalBolts):
    """They start when :meth:`begin` is called, as Spark's do after half a minute."""

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        self.begin = lambda: super(LateBolts, self).start(endpoint, notify)


class StartsBoltsLate(Witness):
    """Starts the bolts once it has seen three states of a run without."""

    def __init__(self, bolts: LateBolts) -> None:
        super().__init__()
        self.bolts = bolts

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        if len(self.snapshots) == 3:
            self.bolts.begin()


def test_a_run_without_bolts_yet_starts_and_does_not_drain_though_all_input_is_read():
    """Kind: a view that states as known what isn't.  While Spark started it said "draining"."""
    bolts = LateBolts(lambda batch: None, count=1)
    view = StartsBoltsLate(bolts)
    a_spout(producer=ListProducer(20), bolts=bolts).run(view=view)
    assert {s.phase for s in view.snapshots[:3]} == {"starting"}
    assert {plain.line(s) for s in view.snapshots[:3]} == {"records 0  waiting for 1 bolt"}


def test_a_run_does_not_drain_while_records_that_were_read_wait_to_be_sent():
    """Kind: a view that states as known what isn't.  It said "draining" at 1 % of the input."""
    seen = threading.Event()

    class Sees(Witness):
        def update(self, snapshot: Snapshot) -> None:
            super().update(snapshot)
            if snapshot.tuples_emitted and snapshot.records_buffered:
                seen.set()

    view = Sees()
    bolts = LocalBolts(lambda batch: seen.wait(10.0) and None, count=1)
    a_spout(producer=ListProducer(2000), bolts=bolts).run(view=view)
    waiting = [s for s in view.snapshots if s.tuples_emitted and s.records_buffered]
    assert {s.phase for s in waiting} == {"running"}, "most of the input is read and not sent"


def test_a_run_over_ranges_does_not_drain_while_bolts_read_most_of_the_input(tmp_path: Path):
    """Kind: a view that states as known what isn't.  It said "draining" at 10 % of the input."""
    path = tmp_path / "in.txt"
    path.write_text("line\n" * 20)
    seen = threading.Event()

    def wait_for_the_view(batch: object) -> None:
        seen.wait(10.0)

    class Sees(Witness):
        def update(self, snapshot: Snapshot) -> None:
            super().update(snapshot)
            if snapshot.tuples_emitted and len(self.snapshots) > 1:
                seen.set()

    view = Sees()
    bolts = LocalBolts(wait_for_the_view, count=1)
    a_spout(producer=TextRanges(path), bolts=bolts).run(view=view)
    assert {s.phase for s in view.snapshots if s.tuples_emitted} <= {"running", "stopping"}
    assert "running" in {s.phase for s in view.snapshots}
