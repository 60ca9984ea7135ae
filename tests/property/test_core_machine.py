"""The core against a world of bolts that work, hang, lose, freeze, die and come back.

Replay a failure with the line that Hypothesis prints, or with `--hypothesis-seed=N`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, NamedTuple, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowctl.core.events import TupleExpired, TupleFailed, TupleLost, TupleRefused, WindowChanged
from flowctl.core.messages import Ack, Fail, Revoked
from flowctl.core.records import AckOutcome, Checkpoint, Position, Record
from flowctl.core.settings import PolicyName
from flowctl.core.spout import SpoutCore
from flowctl.testing.clock import ManualClock
from flowctl.testing.invariants import check
from tests.core_driver import core_settings
from tests.core_world import Bolt, RecordKey, covered_by, grew_unused

pytestmark = pytest.mark.on_change()

PARTITIONS = ("p", "q")
BOLTS = ("a", "b", "c")
PICK = st.integers(0, 50)
# Draining: heartbeats come 4 a second, a hung tuple is given up after 8 s, three bolts may be
# broken one after the other, and time-outs back off up to 8 s each.
DRAIN_STEPS_MAX = 4_000


class Sent(NamedTuple):
    """An ack on its way."""

    bolt: str
    epoch: int
    ack: Ack


class CoreMachine(RuleBasedStateMachine):
    """Rules are what can happen; the model is what was really processed."""

    OVERRIDES: ClassVar[dict[str, Any]] = {}  # settings
    TELLS_TRUTH = True
    IN_ORDER = False  # what bolts say of their acks

    @initialize(
        policy=st.sampled_from(
            [("aiad", "ack"), *((name, "round") for name in get_args(PolicyName))]
        ),
        initial=st.integers(1, 4),
        threshold_s=st.sampled_from([None, 0.05]),
        records_max=st.integers(1, 4),
        bolts=st.integers(1, 3),
        written=st.integers(0, 30),
    )
    def start(
        self,
        policy: tuple[str, str],
        initial: int,
        threshold_s: float | None,
        records_max: int,
        bolts: int,
        written: int,
    ) -> None:
        self.settings = core_settings(
            window_policy=policy[0],
            window_growth=policy[1],
            window_initial=initial,
            window_max=6,
            window_threshold_s=threshold_s,
            tuple_records_max=records_max,
            tuple_bytes_max=64,
            timeout_rto_max_s=8.0,
            retry_attempts_max=10_000,
            buffer_records_max=12,
            buffer_bytes_max=100,
            buffer_uncommitted_max=30,
            **self.OVERRIDES,
        )
        self.clock = ManualClock()
        self.source: dict[str, list[Record]] = {p: [] for p in PARTITIONS}
        self.processed: Counter[RecordKey] = Counter()
        self.epochs = Counter[str]()
        self.saved = Checkpoint()
        self.acked_since_save: set[RecordKey] = set()
        self.ended = False
        self._boot()
        for name in BOLTS[:bolts]:
            self.join(name)
        self.write("p", written, 5)

    def _boot(self) -> None:
        self.core = SpoutCore(self.settings, checkpoint=self.saved)
        self.bolts: dict[str, Bolt] = {}
        self.processed_now: set[RecordKey] = set()  # in this run
        self.acks: list[Sent] = []  # every ack that was ever under way in this run
        self.spans: dict[int, tuple[str, Position, Position]] = {}
        self.failed_on: dict[int, set[str]] = {}
        self.covered = covered_by(self.saved, self.source)
        self.position = {p: self._cumulative(p) for p in PARTITIONS}
        self.read = dict(self.position)

    def _cumulative(self, partition: str) -> int:
        done = self.core.checkpoint().partitions.get(partition)
        return int(done.position or 0) if done else 0  # type: ignore[arg-type]

    # -- the source ----------------------------------------------------------------------

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 15), size=st.integers(0, 40))
    def write(self, partition: str, count: int, size: int) -> None:
        """The source grows."""
        if not self.ended:
            log = self.source[partition]
            begin = len(log) + 1
            log.extend([Record(n, "x" * size) for n in range(begin, begin + count)])

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(0, 20), skip=st.booleans())
    def offer(self, partition: str, count: int = 20, skip: bool = False) -> None:
        """Read on; ``skip``: the producer leaves out what it knows to be done."""
        begin = self.read[partition]
        records = self.source[partition][begin : begin + count]
        if skip:
            while records and (partition, records[-1].position) in self.covered:
                records.pop()
            records = [r for r in records if (partition, r.position) not in self.covered]
        taken = self.core.offer(partition, records, now_s=self.clock())
        assert 0 <= taken <= len(records)
        if taken:
            self.read[partition] = int(records[taken - 1].position)  # type: ignore[arg-type]

    # -- the bolts -----------------------------------------------------------------------

    @rule(name=st.sampled_from(BOLTS), slots=st.integers(1, 2), beats=st.booleans())
    def join(self, name: str, slots: int = 1, beats: bool = True) -> None:
        """A bolt comes, or comes back with a new epoch."""
        self.epochs[name] += 1
        bolt = Bolt(name, self.epochs[name], slots, beats)
        self.bolts[name] = bolt
        self.core.add_bolt(
            name, slots=slots, epoch=bolt.epoch, now_s=self.clock(), in_order=self.IN_ORDER
        )
        bolt.window_at_start = self.core.bolts[name].window
        bolt.beat(self.core, self.clock())  # as bolts do when they have connected

    @precondition(lambda self: self.bolts)
    @rule(pick=PICK, lost=st.booleans())
    def leave(self, pick: int, lost: bool) -> None:
        bolt = self.bolts.pop(self._bolt(pick).name)
        self.core.remove_bolt(bolt.name, now_s=self.clock(), reason="test", lost=lost)

    @precondition(lambda self: self.bolts)
    @rule(pick=PICK, mode=st.sampled_from(["healthy", "hung", "frozen", "lossy"]))
    def change(self, pick: int, mode: str) -> None:
        self._bolt(pick).mode = mode

    @rule(most=st.integers(1, 20))
    def emit(self, most: int) -> None:
        for _ in range(most):
            if not self._emit_one():
                break

    def _emit_one(self) -> bool:
        self._read_events()
        usable = {n for n, c in self.core.bolts.items() if not c.is_suspect}
        usable = {n for n in usable if self.core.bolts[n].flight or self.core.bolts[n].has_room}
        work = {
            n: (c.held, c.window, c.work_s(), c.policy.work_max_s)
            for n, c in self.core.bolts.items()
        }
        emission = self.core.poll_emit(now_s=self.clock())
        if emission is None:
            return False
        consumer, bolt = self.core.bolts[emission.bolt], self.bolts[emission.bolt]
        assert not consumer.is_suspect, "a suspect bolt gets nothing until it speaks"
        held, window, work_s, work_max_s = work[bolt.name]
        if work_max_s is None:
            assert consumer.held <= consumer.window, "sent although the window was full (S10)"
        else:
            # A slot is free, however much work the others have, if the window has as many.
            is_free = held < min(bolt.slots, window)
            assert is_free or work_s < work_max_s, "sent although its work was full"
        bolt.held_max = max(bolt.held_max, consumer.held)
        span = (emission.partition, emission.records[0].position, emission.records[-1].position)
        assert self.spans.setdefault(emission.tuple_id, span) == span, "a replay keeps its span"
        keys = {(emission.partition, record.position) for record in emission.records}
        assert not keys & self.covered, "ran again what the checkpoint says is done"
        failed = self.failed_on.get(emission.tuple_id, set())
        assert bolt.name not in failed or usable <= failed, "back to a bolt that failed it (S7)"
        # What a bolt still has and gets again it does once (flowctl/bolts/reading.py).
        is_new = all(emission.tuple_id != held.tuple_id for held in bolt.held)
        if bolt.mode != "lossy" and is_new:
            bolt.held.append(emission)
            # What it really holds, as far as a bolt that tells can be known.
            is_known = self.TELLS_TRUTH and bolt.slots == 1 and bolt.beats and work_max_s is None
            assert len(bolt.held) <= consumer.window or not is_known
        return True

    @precondition(lambda self: any(b.held for b in self.bolts.values()))
    @rule(pick=PICK, index=PICK, answer=st.booleans())
    def process(self, pick: int, index: int, answer: bool = True) -> None:
        """A bolt is through with a tuple; its ack comes now, or some time."""
        bolt = self._bolt(pick)
        if bolt.mode != "healthy" or not bolt.held:
            return
        self.acks.append(self._process(bolt, index % min(bolt.slots, len(bolt.held))))
        if answer:
            self._deliver(self.acks[-1])

    def _process(self, bolt: Bolt, index: int) -> Sent:
        emission = bolt.held[index]
        del bolt.held[index]
        keys = {(emission.partition, r.position) for r in emission.records}
        self.processed.update(keys)
        self.processed_now |= keys
        return Sent(bolt.name, bolt.epoch, Ack(emission.tuple_id, emission.attempt))

    @precondition(lambda self: self.acks)
    @rule(pick=PICK)
    def deliver(self, pick: int) -> None:
        """An ack arrives: in any order, late, once more, or of an epoch that is over."""
        self._deliver(self.acks[-1 - pick % len(self.acks)])

    def _deliver(self, sent: Sent) -> None:
        self.clock.advance(0.001)  # nothing is acked in the instant that it is sent
        ack = sent.ack
        records = self.core.tuple_records(sent.bolt, ack.tuple_id)
        outcome = self.core.on_ack(*sent, now_s=self.clock())
        bolt = self.bolts.get(sent.bolt)
        is_first = bool(records)
        if bolt is None or bolt.epoch != sent.epoch:
            assert outcome is AckOutcome.UNKNOWN
        elif is_first:
            assert outcome in (AckOutcome.ACKED, AckOutcome.LATE)
            partition = self.spans[ack.tuple_id][0]
            self.acked_since_save |= {(partition, r.position) for r in records}
        else:
            assert outcome is AckOutcome.DUPLICATE

    @precondition(lambda self: any(b.held for b in self.bolts.values()))
    @rule(pick=PICK, index=st.sampled_from([None, None, 0, 1, 7, -1]))
    def fail(self, pick: int, index: int | None) -> None:
        """``index``: the record that was being read, as the bolt says; it may be none of these."""
        bolt = self._bolt(pick)
        if bolt.held and bolt.mode == "healthy":
            emission = bolt.held.popleft()
            fail = Fail(emission.tuple_id, emission.attempt, "test", record_index=index)
            self.core.on_fail(bolt.name, bolt.epoch, fail, now_s=self.clock())

    @precondition(lambda self: any(b.held for b in self.bolts.values()))
    @rule(pick=PICK, after_s=st.sampled_from([None, 0.0, 3.0]))
    def refuse(self, pick: int, after_s: float | None) -> None:
        bolt = self._bolt(pick)
        if bolt.held and bolt.mode == "healthy":
            emission = bolt.held.popleft()
            sent = (emission.tuple_id, emission.attempt)
            fail = Fail(*sent, "test", is_refused=True, after_s=after_s)
            self.core.on_fail(bolt.name, bolt.epoch, fail, now_s=self.clock())

    @rule()
    def beat(self) -> None:
        for bolt in self.bolts.values():
            bolt.beat(self.core, self.clock())
        self._read_events()  # what it keeps after all may be given back before anything is sent

    @rule()
    def answer_orders(self) -> None:
        while (order := self.core.poll_order()) is not None:
            bolt = self.bolts.get(order.bolt)
            if bolt is None or bolt.mode == "frozen":
                continue
            given = bolt.give_back(order)  # unbegun, which is no failure
            said = Revoked([e.tuple_id for e in given])
            self.core.on_revoked(bolt.name, bolt.epoch, said, now_s=self.clock())
            self._read_events()
            for emission in given:  # also where it had expired before
                self.failed_on.get(emission.tuple_id, set()).discard(bolt.name)

    @rule(by_s=st.sampled_from([0.01, 0.1, 0.25, 1.0, 4.0]))
    def advance(self, by_s: float) -> None:
        self.clock.advance(by_s)
        self.core.on_deadline(now_s=self.clock())

    @rule()
    def advance_to_deadline(self) -> None:
        deadline_s = self.core.next_deadline_s()
        if deadline_s is not None:
            self.clock.advance_to(deadline_s)
            self.core.on_deadline(now_s=self.clock())

    # -- checkpoint and restart ----------------------------------------------------------

    @rule()
    def save(self) -> None:
        self.saved = self.core.checkpoint()
        self.acked_since_save = set()

    @rule()
    def crash(self) -> None:
        """The driver dies; the next one goes on from what was saved."""
        in_flight = {
            (t.cut.partition, r.position)
            for t in self.core.book.pending.values()
            for r in t.cut.records
        }
        covered = covered_by(self.saved, self.source)
        again = self.processed_now - covered
        assert again <= in_flight | self.acked_since_save, "more runs again than was at risk"
        self.ended = False
        self.acked_since_save = set()
        self._boot()

    # -- what must always hold -----------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "core"):
            return
        self._read_events()
        check(self.core)
        for partition in PARTITIONS:
            position = self._cumulative(partition)
            assert position >= self.position[partition], "the cumulative ack went back (S14)"
            self.position[partition] = position
        done = covered_by(self.core.checkpoint(), self.source)
        assert done <= self.processed.keys(), "acked what nobody processed"
        for bolt in self.bolts.values():
            consumer = self.core.bolts[bolt.name]
            assert not grew_unused(bolt, consumer, self.settings.window), "grew unused"

    def _read_events(self) -> None:
        while (event := self.core.poll_event()) is not None:
            if isinstance(event, TupleExpired | TupleFailed | TupleLost | TupleRefused):
                self.failed_on.setdefault(event.tuple_id, set()).add(event.bolt)
            elif isinstance(event, WindowChanged):
                assert event.before != event.after
        for name, consumer in self.core.bolts.items():
            for tuple_id in consumer.flight:  # sent again, or not taken away after all
                self.failed_on.get(tuple_id, set()).discard(name)

    def _bolt(self, pick: int) -> Bolt:
        return list(self.bolts.values())[pick % len(self.bolts)]

    def teardown(self) -> None:
        """With one healthy bolt everything is done in a bounded number of steps."""
        if not hasattr(self, "core"):
            return
        if not any(b.mode == "healthy" for b in self.bolts.values()):
            self.join("c")
        for _ in range(DRAIN_STEPS_MAX):
            self._drain_step()
            if self.ended and self.core.is_drained:
                break
        self._read_events()
        check(self.core)
        assert self.core.is_drained, "no progress although a bolt is healthy"
        checkpoint = self.core.checkpoint()
        for partition, log in self.source.items():
            done = checkpoint.partitions.get(partition)
            assert (done.records if done else 0) == len(log)
            assert not (done and done.acked)
            assert all(self.processed[partition, record.position] for record in log)

    def _end_if_read(self) -> None:
        if all(self.read[p] >= len(log) for p, log in self.source.items()) and not self.ended:
            self.ended = True
            self.core.end_of_input(now_s=self.clock())

    def _drain_step(self) -> None:
        for partition, log in self.source.items():
            if self.read[partition] < len(log):
                self.offer(partition)
        self._end_if_read()
        while self._emit_one():
            pass
        for index, bolt in enumerate(list(self.bolts.values())):
            while bolt.held and bolt.mode == "healthy":
                self.process(index, 0)
        self.beat()
        self.answer_orders()
        self._read_events()
        deadline_s = self.core.next_deadline_s()
        beats_at_s = self.clock() + 0.25
        self.clock.advance_to(beats_at_s if deadline_s is None else min(deadline_s, beats_at_s))
        self.core.on_deadline(now_s=self.clock())


TestCore = pytest.mark.req("S11", "S14", "S7", "S10", "S13", "S48", "S53", "S70")(
    CoreMachine.TestCase
)
TestCore.settings = settings(max_examples=200, stateful_step_count=50)
