"""A bolt's way through ranges, against the list of the records that lie in them.

Ranges are drawn, with blocks of any size, splits between and during calls, calls that fail, and
times.  What is told must be all that was done: each record once, in order, with its times.  The
clock is the test's; only the thread that reads is real.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain, cycle
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.bolts.batch import Batch
from flowctl.bolts.pauses import Pauses
from flowctl.bolts.range_ahead import NOT_YET
from flowctl.bolts.range_claims import PROGRESS_EARLY
from flowctl.bolts.range_desk import PATIENCE_S, RangeDesk
from flowctl.bolts.range_pace import BatchPace
from flowctl.bolts.range_turns import RangeTurn
from flowctl.bolts.slots import Calls, Idleness
from flowctl.bolts.turns import Turns
from flowctl.bolts.work import Work
from flowctl.core.messages import Progress, RangeEmission, RangeFail, Split, SplitAnswer
from flowctl.core.records import Record
from flowctl.errors import RetryLater
from tests.range_parts import NumberBlock, NumberReader

WAITED_S = 0.25  # in the bolt's queue


def range_frame(tuple_id: int, start: int, stop: int) -> RangeEmission:
    return RangeEmission(tuple_id, "b1", 1, "p", (), None, 0, None, start, stop, "v1")


def split_frame(tuple_id: int, request: int, keep: float) -> Split:
    return Split("b1", tuple_id, request, keep)


class Step(NamedTuple):
    """One call of ``process``, and what happens around it."""

    takes_s: float
    ends: str  # how: "well", "receipt", "rejects", "raises", "refused"
    in_sink_s: float
    split: float | None  # the driver asks for the end of the range, to keep this share
    beat: bool  # a heartbeat is due: what was held back is told


STEPS = st.builds(
    Step,
    st.sampled_from([0.0, 0.001, 0.02, 0.3]),
    st.sampled_from(["well", "well", "receipt", "rejects", "raises", "refused"]),
    st.sampled_from([0.0, 0.0, 0.001]),
    st.none() | st.none() | st.none() | st.floats(0, 1),
    st.booleans(),
)


class Bolt:
    """A desk with one slot; what it tells is in ``frames``."""

    def __init__(self, reader: object) -> None:
        self.now_s = 100.0
        self.frames: list[Any] = []
        self.sent = 0
        self.learned: list[RangeFail | None] = []
        self.pauses = Pauses()
        self.desk = RangeDesk(
            threading.Condition(), self.pauses, SimpleNamespace(append=self.frames.append),
            Idleness(1), lambda slot, fail: self.learned.append(fail),
        )  # type: ignore[arg-type]  # fmt: skip
        self.link: Any = SimpleNamespace(
            ranges=self.desk, calls=Calls(), flush_range=self.flush, prolong=None
        )
        endpoint: Any = SimpleNamespace(job="job", reader=reader)
        welcome: Any = SimpleNamespace(job_epoch=7)
        self.turns = Turns(endpoint, "b1", welcome, self.link, None, pace=BatchPace())

    def flush(self) -> None:
        self.sent = len(self.frames)

    def take(self, frame: RangeEmission, on_ready: Callable[[], None] = lambda: None) -> RangeTurn:
        self.desk.add([frame])
        work = Work(frame, self.now_s - WAITED_S, 0.0)
        return RangeTurn(self.turns, work, self.link, "slot", on_ready)

    def told(self, kind: type, tuple_id: int) -> list[Any]:
        return [f for f in self.frames if type(f) is kind and f.tuple_id == tuple_id]


@pytest.fixture(scope="module")
def clock() -> Iterator[list[Bolt]]:
    """The bolt whose time it is."""
    bolts: list[Bolt] = []
    with pytest.MonkeyPatch.context() as patch:
        time = SimpleNamespace(monotonic=lambda: bolts[0].now_s)
        for module in ("range_desk", "range_turns", "slots", "turns"):
            patch.setattr(f"flowctl.bolts.{module}.time", time)
        yield bolts


class Model:
    """What really happened in one range; records lie at the multiples of ``every``."""

    def __init__(self, bolt: Bolt, tuple_id: int, start: int, stop: int, every: int) -> None:
        self.bolt, self.tuple_id = bolt, tuple_id
        self.start, self.stop, self.every = start, stop, every
        self.done: list[int] = []
        self.failed: list[int] = []
        self.rejected: list[int] = []
        self.receipts: list[bytes] = []
        self.answers: list[int] = []
        self.service_s = self.sink_s = 0.0

    def call(self, turn: RangeTurn, batch: Batch, step: Step) -> None:
        """``process`` is called with ``batch``, and does what ``step`` says."""
        positions = [record.position for record in batch]
        span = batch.span
        assert (span.first, span.last, span.partition) == (positions[0], positions[-1], "p")
        assert [record.value for record in batch] == [f"n{p}" for p in positions]
        if step.split is not None:
            self.split(step.split, positions[-1])
        self.bolt.now_s += step.takes_s
        if step.in_sink_s:
            with batch.in_sink():
                self.bolt.now_s += step.in_sink_s
        if step.ends in ("raises", "refused"):
            self.failed += positions
            turn.raised(ValueError("bad") if step.ends == "raises" else RetryLater(after_s=0.0))
            return
        self.done += positions
        self.service_s += step.takes_s + step.in_sink_s
        self.sink_s += step.in_sink_s
        made = None
        if step.ends == "rejects":
            batch.reject(batch[0], "no use")
            batch.left_out += 1
            self.rejected.append(positions[0])
        elif step.ends == "receipt":
            made = b"%d" % positions[0]
            self.receipts.append(made)
        turn.returned(made)

    def split(self, keep: float, last: int) -> None:
        """The driver asks for the end of the range, and asks again."""
        order = split_frame(self.tuple_id, len(self.answers), keep)
        self.bolt.desk.answer(order)
        self.bolt.desk.answer(order)
        one, again = self.bolt.told(SplitAnswer, self.tuple_id)[-2:]
        assert one == again
        assert last < one.stop <= self.stop, "what is claimed is never given away"
        self.stop = one.stop
        self.answers.append(one.stop)

    def within(self, start: int, stop: int) -> list[int]:
        return [p for p in range(start, stop) if p % self.every == 0]

    def check(self) -> None:
        """The range is over, and all of it told."""
        progress = self.bolt.told(Progress, self.tuple_id)
        fails = self.bolt.told(RangeFail, self.tuple_id)
        spans = sorted(
            [(f.start, f.done_through) for f in progress] + [(f.start, f.stop) for f in fails]
        )
        edges = [self.start, *(stop for _, stop in spans)]
        assert [start for start, _ in spans] == edges[:-1] and edges[-1] == self.stop
        assert sorted(self.done + self.failed) == self.within(self.start, self.stop)
        failed = [self.within(f.start, f.stop) for f in fails]
        assert list(chain(*failed)) == self.failed
        assert [f.records for f in fails] == [len(each) for each in failed]
        for fail, records in zip(fails, failed, strict=True):
            alone = fail.record.position if fail.record is not None else None
            assert alone == (records[0] if len(records) == 1 else None)
        assert sum(f.did.records for f in progress) == len(self.done)
        assert [r.position for f in progress for r in f.did.rejected] == self.rejected
        assert sum(f.did.left_out for f in progress) == len(self.rejected)
        assert [r for f in progress for r in f.did.receipts] == self.receipts
        assert sum(f.did.service_s for f in progress) == pytest.approx(self.service_s)
        assert sum(f.did.sink_s or 0.0 for f in progress) == pytest.approx(self.sink_s)
        assert not any(f.did.is_awaited for f in progress), "nobody tells it of saves"
        first_s = 0.0 if fails and fails[0].start == self.start else WAITED_S
        waited_s = [f.did.wait_s for f in progress]
        assert waited_s == [first_s, *[0.0] * len(progress)][: len(progress)], "told once"
        assert {f.did.read_s for f in progress} <= {0.0}
        for request, stop in enumerate(self.answers):  # asked again though it is over
            self.bolt.desk.answer(split_frame(self.tuple_id, request, 0.5))
            assert self.bolt.told(SplitAnswer, self.tuple_id)[-1].stop == stop


@settings(max_examples=150)
@given(
    extents=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 400)), min_size=1, max_size=3),
    block=st.integers(1, 120),
    every=st.integers(1, 5),
    script=st.lists(STEPS, min_size=1, max_size=25),
)
def test_all_that_a_bolt_does_is_told_once_and_in_order(
    clock: list[Bolt], extents: list[tuple[int, int]], block: int, every: int, script: list[Step]
) -> None:
    bolt = Bolt(NumberReader(block, every))
    clock[:] = [bolt]
    steps, reported = cycle(script), 0
    models = []
    for tuple_id, (start, length) in enumerate(extents, 1):
        model = Model(bolt, tuple_id, start, start + length, every)
        with bolt.take(range_frame(tuple_id, start, start + length)) as turn:
            while (batch := turn.next_batch()) is not None:
                assert bolt.sent >= reported, "what was reported goes out first"
                step = next(steps)
                model.call(turn, batch, step)
                if step.beat:
                    bolt.desk.tell_due(bolt.now_s)
                reported = len(bolt.frames)
        assert bolt.sent == len(bolt.frames), "and at its end"
        model.check()
        models.append(model)
    turns = bolt.turns
    assert turns.records == sum(len(model.done) for model in models)
    assert turns.service_s == pytest.approx(sum(model.service_s for model in models))
    assert turns.failed == len([f for f in bolt.frames if type(f) is RangeFail])
    calls = [fail for fail in bolt.learned if fail is not None]
    assert calls == [f.fail for f in bolt.frames if type(f) is RangeFail]
    assert bolt.learned.count(None) == turns.acked, "each call that went well"


class Read:
    """A source that was read, in blocks that end where they like; the rest holds nothing."""

    def __init__(self, *blocks: Any) -> None:
        self.blocks = blocks

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[Any]:
        return iter(self.blocks)


def test_where_the_source_holds_nothing_more_the_rest_is_done_without_a_call(
    clock: list[Bolt],
) -> None:
    """As where a log was compacted: the last offsets of a range may hold no message."""
    bolt = Bolt(Read(NumberBlock(0, 30)))
    clock[:] = [bolt]
    model = Model(bolt, 1, 0, 30, 1)
    with bolt.take(range_frame(1, 0, 100)) as turn:
        while (batch := turn.next_batch()) is not None:
            model.call(turn, batch, Step(0.01, "well", 0.0, None, False))
    told = bolt.told(Progress, 1)
    assert (model.done, told[-1].done_through) == ([*range(30)], 100)
    assert sum(f.did.records for f in told) == 30


def test_where_there_is_little_few_reports_say_so(clock: list[Bolt]) -> None:
    """Keys of a table may lie far apart: most blocks hold nothing."""
    bolt = Bolt(NumberReader(block=10, step=5_000))
    clock[:] = [bolt]
    with bolt.take(range_frame(1, 0, 10_000)) as turn:
        while turn.next_batch() is not None:
            turn.returned(None)
    told = bolt.told(Progress, 1)
    assert sum(f.did.records for f in told) == 2
    assert told[-1].done_through == 10_000
    assert len(told) <= PROGRESS_EARLY + 2


def test_what_nobody_has_read_when_the_link_ends_is_not_done(clock: list[Bolt]) -> None:
    """The rest of a range at END, or as the connection is lost."""
    bolt = Bolt(Read(NumberBlock(0, 30)))
    clock[:] = [bolt]
    with bolt.take(range_frame(1, 0, 100)) as turn:
        while (batch := turn.next_batch()) is not None:
            if batch[-1].position == 29:
                bolt.desk.end()
            turn.returned(None)
        assert turn.poll() is None
    assert bolt.told(Progress, 1)[-1].done_through == 30


@pytest.mark.parametrize("tells_saved", [False, True])
def test_the_first_report_of_a_range_that_follows_another_can_wait(
    clock: list[Bolt], tells_saved: bool
) -> None:
    """The first ever tells the driver how fast the bolt is, and goes out at once."""
    bolt = Bolt(NumberReader(block=100))
    clock[:] = [bolt]
    bolt.desk.saved(1_000)  # whatever is told is saved
    for tuple_id, told in ((1, 1), (2, 0)):
        frame = msgspec.structs.replace(range_frame(tuple_id, 0, 100), tells_saved=tells_saved)
        with bolt.take(frame) as turn:
            assert turn.next_batch() is not None
            bolt.now_s += 0.08  # a batch has so few records that there are more
            turn.returned(None)
            assert len(bolt.told(Progress, tuple_id)) == told
            while turn.next_batch() is not None:
                bolt.now_s += 0.15
                turn.returned(None)
        assert bolt.told(Progress, tuple_id)[-1].done_through == 100


def test_who_does_not_wait_is_told_when_the_next_look_is_worth_it(clock: list[Bolt]) -> None:
    """As the slots of an event loop: a block was read, a save is known, or the range is over."""
    go, ready = threading.Event(), threading.Event()
    bolt = Bolt(NumberReader(block=20, before=lambda start: go.wait(60) and None))
    clock[:] = [bolt]
    with bolt.take(range_frame(1, 0, 40), ready.set) as turn:
        assert turn.pause_s() == 0.0
        assert turn.poll() is NOT_YET
        go.set()
        while (found := turn.poll()) is not None:
            if isinstance(found, Batch):
                bolt.now_s += 0.01
                turn.returned(None)
            else:
                assert ready.wait(60)
                ready.clear()
        ready.clear()
    assert ready.is_set(), "its reading has ended"
    assert bolt.told(Progress, 1)[-1].done_through == 40


def test_a_slot_that_waits_for_a_save_is_told_of_it(clock: list[Bolt]) -> None:
    ready = threading.Event()
    bolt = Bolt(NumberReader(block=50_000))
    clock[:] = [bolt]
    frame = msgspec.structs.replace(range_frame(1, 0, 50_000), tells_saved=True)
    with bolt.take(frame, ready.set) as turn:
        for _ in range(3):
            pause_s = turn.pause_s()
            if pause_s:
                break
            while (batch := turn.poll()) is NOT_YET:
                turn._ahead.wait()
            assert isinstance(batch, Batch)
            bolt.now_s += 0.2
            turn.returned(None)
            assert bolt.told(Progress, 1)[-1].did.is_awaited, "each report asks for a word"
        assert pause_s == pytest.approx(PATIENCE_S), "the third waits for the first one's save"
        ready.clear()
        bolt.desk.saved(1)
        assert ready.is_set()
        assert turn.pause_s() == 0.0


def test_reading_does_not_keep_a_process_alive(clock: list[Bolt]) -> None:
    kinds: list[bool] = []
    reader = NumberReader(before=lambda start: kinds.append(threading.current_thread().daemon))
    bolt = Bolt(reader)
    clock[:] = [bolt]
    with bolt.take(range_frame(1, 0, 10)) as turn:
        assert turn.next_batch() is not None
    assert kinds == [True]


def test_a_call_that_takes_too_long_is_told_once_and_the_bolt_leaves_the_rest(
    clock: list[Bolt],
) -> None:
    """It may return in the end: that is not told, as what failed is another's by then."""
    bolt = Bolt(NumberReader(block=50))
    clock[:] = [bolt]
    bolt.link.calls.timeout_s = 10.0
    with bolt.take(range_frame(1, 0, 50)) as turn:
        assert turn.next_batch() is not None
        turn.returned(None)
        batch = turn.next_batch()
        assert batch is not None
        bolt.now_s += 11.0
        assert bolt.link.calls.end_overdue(bolt.now_s)
        turn.returned(None)
        turn.raised(ValueError("later"))
        assert turn.next_batch() is None
    (fail,) = bolt.told(RangeFail, 1)
    assert (fail.fail.is_overdue, fail.records, fail.start) == (True, len(batch), 8)
    assert [f.done_through for f in bolt.told(Progress, 1)] == [8]


class Odd(NumberBlock):
    def batch_records(self, i: int, j: int) -> list[Record]:
        return [Record(k, object()) for k in range(i, j)]


def test_a_value_that_cannot_be_sent_is_told_as_what_it_looks_like(clock: list[Bolt]) -> None:
    bolt = Bolt(Read(Odd(0, 3)))
    clock[:] = [bolt]
    with bolt.take(range_frame(1, 0, 3)) as turn:
        batch = turn.next_batch()
        assert isinstance(batch, Batch)
        batch.reject(batch[1], "x" * 100_000)
        turn.returned(None)
    (rejected,) = bolt.told(Progress, 1)[0].did.rejected
    assert rejected.position == 1
    assert "<object object at" in str(rejected.value)
    assert len(rejected.reason) < 10_000


def test_slots_of_a_bolt_whose_target_refuses_begin_one_at_a_time(clock: list[Bolt]) -> None:
    bolt = Bolt(NumberReader())
    clock[:] = [bolt]
    desk = bolt.desk
    with bolt.take(range_frame(1, 0, 40)) as one, bolt.take(range_frame(2, 40, 80)) as other:

        def pause_s(slot: str) -> float | None:
            return desk.pause_s({"one": one, "other": other}[slot]._held, slot)

        assert pause_s("one") == pause_s("other") == 0.0
        bolt.pauses.refused("one", 2.0, bolt.now_s)
        assert pause_s("one") == pause_s("other") == 2.0
        bolt.now_s += 2.0
        assert pause_s("other") == 0.0
        assert pause_s("one") == 2.0, "the other has just begun"
        desk.end()
        assert pause_s("one") is None


def test_a_slot_does_not_wait_for_a_range_that_was_given_back(clock: list[Bolt]) -> None:
    """Its next range may be one that it can begin; and no call was made, which would count."""
    ready = threading.Event()
    bolt = Bolt(NumberReader())
    clock[:] = [bolt]
    with bolt.take(range_frame(1, 0, 40), ready.set) as turn:
        bolt.pauses.refused("other slot", 2.0, bolt.now_s)
        assert turn.pause_s() == 2.0
        ready.clear()
        bolt.desk.answer(Split("b", 1, 1, 0.0))
        assert ready.is_set(), "it looks again at once"
        assert turn.pause_s() is None
        assert turn.next_batch() is None
    bolt.now_s += 2.0
    with bolt.take(range_frame(2, 40, 80)) as turn:
        assert turn.pause_s() == 0.0, "no call was made since, so this one need not wait longer"


class Unreadable:
    """Columns with a value that Python has none for, such as a year above 9999."""

    start, stop, size_bytes = 0, 1, 8

    def __len__(self) -> int:
        return 1

    def position(self, i: int) -> int:
        return i

    def batch_records(self, i: int, j: int) -> Unreadable:
        return self

    def __getitem__(self, i: int) -> object:
        raise OverflowError("year 12026 is out of range")


def test_a_record_that_cannot_be_made_is_told_with_what_is_wrong_with_it(
    clock: list[Bolt],
) -> None:
    bolt = Bolt(Read(Unreadable()))
    clock[:] = [bolt]
    with bolt.take(range_frame(1, 0, 1)) as turn:
        batch = turn.next_batch()
        assert isinstance(batch, Batch)
        with pytest.raises(OverflowError) as caught:
            batch[0]
        turn.raised(caught.value)
    (fail,) = bolt.told(RangeFail, 1)
    assert fail.record.position == 0
    assert "can't be read: OverflowError: year 12026" in str(fail.record.value)


def test_what_a_reader_has_opened_is_closed_when_the_range_is_over(clock: list[Bolt]) -> None:
    closed = threading.Event()

    class Opened(Iterator[NumberBlock]):
        left: ClassVar = [NumberBlock(0, 30)]

        def __next__(self) -> NumberBlock:
            return self.left.pop()

        close = staticmethod(closed.set)

    bolt = Bolt(SimpleNamespace(open=lambda *where: Opened()))
    clock[:] = [bolt]
    with bolt.take(range_frame(1, 0, 30)) as turn:
        while turn.next_batch() is not None:
            turn.returned(None)
    assert closed.wait(60)
