"""Bolts that read ranges themselves, against a spout that is moved by hand."""

from __future__ import annotations

import threading

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.messages import Revoke, Revoked, Split, SplitAnswer
from flowctl.errors import RetryLater, SourceError, UnrunnableError
from flowctl.wire.frames import Dying
from tests.integration.range_peers import Gate, range_of, started, told
from tests.integration.wire_peers import PATIENCE_S, spout, tuple_of
from tests.range_parts import NumberReader


def both(process):
    """``process`` as a plain function and as a coroutine function."""

    async def slowly(batch):
        process(batch)

    return [process, slowly]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_range_is_processed_once_and_in_order_and_reported_without_gaps(is_async):
    seen: list[tuple[int, str]] = []
    spans: list[tuple[int, int]] = []

    def process(batch: Batch) -> None:
        seen.extend([(record.position, record.value) for record in batch])
        spans.append((batch.span.first, batch.span.last))
        assert batch.span.partition == "p"

    with spout() as s:
        bolt = started(s, NumberReader(block=30, step=3), both(process)[is_async])
        s.send("b1", range_of(1, 1, 100), range_of(2, 100, 101), tuple_of(3, "x"))
        s.until(lambda: told(s, 1).covers(1, 100) and told(s, 2).covers(100, 101) and s.acks("b1"))
        s.end("b1")
        bolt.wait()
    assert seen == [(n, f"n{n}") for n in range(3, 100, 3)] + [(0, "x")]
    assert sum(frame.did.records for frame in told(s, 1).progress) == 33
    assert all(first <= last for first, last in spans)
    # Calls this short share their reports: one at the start, then every 100 ms and at the end.
    assert len(told(s, 1).progress) < 10


@pytest.mark.parametrize("is_async", [False, True])
def test_a_split_never_gives_away_what_is_claimed_and_is_answered_alike_again(is_async):
    gate = Gate()
    reader = NumberReader(block=10)
    with spout() as s:
        bolt = started(s, reader, gate.slowly if is_async else gate)
        s.send("b1", range_of(1, 0, 1000))
        assert gate.begun.acquire(timeout=PATIENCE_S)  # 0 … 7 are claimed: the first batch
        s.send("b1", Split("b1", 1, 7, 0.25), Split("b1", 1, 7, 0.9))
        s.until(lambda: len(s.frames("b1", SplitAnswer)) == 2)
        assert s.frames("b1", SplitAnswer) == [SplitAnswer(1, 7, 8 + 248)] * 2
        s.send("b1", Split("b1", 1, 8, 0.0))
        s.until(lambda: len(s.frames("b1", SplitAnswer)) == 3)
        assert s.frames("b1", SplitAnswer)[-1] == SplitAnswer(1, 8, 8)
        gate.go.release(100)
        s.until(lambda: told(s, 1).covers(0, 8))
        # It is finished: asked again, the bolt says the same; asked anew, it gives nothing more.
        s.send("b1", Split("b1", 1, 7, 0.5), Split("b1", 1, 9, 0.5), Split("b1", 2, 1, 0.5))
        s.until(lambda: len(s.frames("b1", SplitAnswer)) == 6)
        assert [a.stop for a in s.frames("b1", SplitAnswer)[3:]] == [256, 8, 0]
        assert reader.closed.wait(PATIENCE_S)
        s.end("b1")
        bolt.wait()
    assert gate.seen == [*range(8)]
    assert max(reader.begun) <= 20  # one block ahead, and no further


def test_a_split_within_a_block_cuts_the_next_batch():
    gate = Gate()
    with spout() as s:
        bolt = started(s, NumberReader(block=100, step=3), gate)
        s.send("b1", range_of(1, 0, 100))
        assert gate.begun.acquire(timeout=PATIENCE_S)  # 0, 3, … 21
        s.send("b1", Split("b1", 1, 1, 0.1))  # ends at 24 + 8 = 32: 24, 27, 30 are left
        s.until(lambda: s.frames("b1", SplitAnswer))
        gate.go.release(100)
        s.until(lambda: told(s, 1).covers(0, 32))
        s.end("b1")
        bolt.wait()
    assert gate.seen == [*range(0, 32, 3)]


def test_reading_ahead_stops_after_one_block():
    gate = Gate()
    reader = NumberReader(block=5)
    with spout() as s:
        bolt = started(s, reader, gate)
        s.send("b1", range_of(1, 0, 1000))
        assert gate.begun.acquire(timeout=PATIENCE_S)
        s.until(lambda: len(reader.begun) == 2)
        for _ in range(5):
            s.poll()
        assert reader.begun == [0, 5]
        s.end("b1")
        assert reader.closed.wait(PATIENCE_S)  # END has arrived
        gate.go.release()
        assert bolt.wait().ended == "end"
    assert gate.seen == [*range(5)]  # END drops the rest


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_that_fails_is_its_own_part_and_the_rest_goes_on(is_async):
    seen: list[int] = []

    def process(batch: Batch) -> None:
        for record in batch:
            if record.position == 20:
                raise ValueError("bad number")
        seen.extend([record.position for record in batch])

    with spout() as s:
        bolt = started(s, NumberReader(block=10), both(process)[is_async])
        s.send("b1", range_of(1, 0, 60))
        s.until(lambda: told(s, 1).covers(0, 60))
        s.send("b1", range_of(2, 20, 21))
        s.until(lambda: told(s, 2).fails)
        s.end("b1")
        bolt.wait()
    [fail] = told(s, 1).fails
    assert fail.start <= 20 < fail.stop
    assert (fail.records, fail.record_at) == (fail.stop - fail.start, 20)
    assert (fail.fail.is_data_error, fail.fail.is_read_error) == (True, False)
    assert "bad number" in fail.fail.error and "in process" in fail.fail.traceback
    assert seen == [n for n in range(60) if not fail.start <= n < fail.stop]
    [alone] = told(s, 2).fails  # the record itself comes with it: the spout has never seen it
    assert (alone.start, alone.stop, alone.record.value) == (20, 21, "n20")


def test_rejected_records_ride_on_progress_with_their_values():
    def process(batch: Batch) -> None:
        with batch.in_sink():
            for record in batch:
                if record.position % 10 == 3:
                    batch.reject(record, "ends in 3")
        batch.left_out += 1

    with spout() as s:
        bolt = started(s, NumberReader(), process)
        s.send("b1", range_of(1, 0, 40))
        s.until(lambda: told(s, 1).covers(0, 40))
        s.end("b1")
        bolt.wait()
    progress = told(s, 1).progress
    rejected = [each for frame in progress for each in frame.did.rejected]
    assert [(r.position, r.value, r.reason) for r in rejected] == [
        (n, f"n{n}", "ends in 3") for n in (3, 13, 23, 33)
    ]
    assert sum(frame.did.left_out for frame in progress) >= 4
    assert all(frame.did.sink_s is not None for frame in progress)


def test_a_receipt_that_is_data_is_refused():
    with spout() as s:
        bolt = started(s, NumberReader(), lambda batch: bytes(1 << 20))
        s.send("b1", range_of(1, 0, 5))
        s.until(lambda: told(s, 1).fails)
        s.end("b1")
        bolt.wait()
    assert told(s, 1).fails[0].fail.is_fatal
    problem = "process: returned 1048576 bytes; a receipt may have 65536 at most."
    assert problem in told(s, 1).fails[0].fail.error


def test_times_of_reading_and_processing_are_told_apart():
    slow = threading.Event()
    with spout() as s:
        reader = NumberReader(block=10, before=lambda start: slow.wait(0.05) and None)
        bolt = started(s, reader, lambda batch: None)
        s.send("b1", range_of(1, 0, 50))
        s.until(lambda: told(s, 1).covers(0, 50))
        s.end("b1")
        bolt.wait()
    progress = told(s, 1).progress
    # Nothing but reading takes time here: waiting for it is not a slow bolt.
    assert sum(frame.did.read_s for frame in progress) > sum(
        frame.did.service_s for frame in progress
    )


@pytest.mark.parametrize(
    ("error", "fatal"),
    [(SourceError("a.log changed.", remedy="Bring it back."), True), (OSError("reset"), False)],
)
def test_a_source_that_cannot_be_read_fails_the_rest_of_the_range(error, fatal):
    def before(start: int) -> None:
        if start >= 20:
            raise error

    seen: list[int] = []
    with spout() as s:
        reader = NumberReader(block=10, before=before)
        bolt = started(s, reader, lambda batch: seen.extend(r.position for r in batch))
        s.send("b1", range_of(1, 0, 100))
        s.until(lambda: told(s, 1).covers(0, 100))
        s.end("b1")
        bolt.wait()
    [fail] = told(s, 1).fails
    assert seen == [*range(20)]
    assert (fail.start, fail.stop, fail.records) == (20, 100, 0)
    said = fail.fail
    assert (said.is_read_error, said.is_fatal, said.is_refused) == (True, fatal, False)
    assert said.error == ("a.log changed.\nBring it back." if fatal else "OSError: reset")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_refused_batch_says_so_and_a_range_ends_while_its_target_is_away(is_async):
    def process(batch: Batch) -> None:
        raise RetryLater("full", after_s=60)

    with spout() as s:
        bolt = started(s, NumberReader(), both(process)[is_async])
        s.send("b1", range_of(1, 0, 100))
        s.until(lambda: told(s, 1).fails)
        s.send("b1", Split("b1", 1, 1, 0.0))  # the spout may take the rest while the bolt waits
        s.until(lambda: s.frames("b1", SplitAnswer))
        s.end("b1")
        assert bolt.wait().ended == "end"
    [fail] = told(s, 1).fails
    assert (fail.fail.is_refused, fail.fail.after_s) == (True, 60)
    assert s.frames("b1", SplitAnswer)[0].stop == fail.stop


def test_the_next_range_is_opened_while_the_last_block_is_processed():
    gate = Gate()
    reader = NumberReader(block=8)
    with spout() as s:
        bolt = started(s, reader, gate)
        s.send("b1", range_of(1, 0, 8), range_of(2, 100, 108), range_of(3, 200, 208))
        assert gate.begun.acquire(timeout=PATIENCE_S)
        s.until(lambda: reader.begun == [0, 100])
        s.send("b1", Revoke("b1", [2]))  # reading ahead is no claim: it can still be given back
        s.until(lambda: s.frames("b1", Revoked))
        gate.go.release(10)
        s.until(lambda: told(s, 1).covers(0, 8) and told(s, 3).covers(200, 208))
        s.end("b1")
        bolt.wait()
    assert gate.seen == [*range(8), *range(200, 208)]
    assert reader.begun == [0, 100, 200]


def test_a_range_that_has_not_begun_is_given_back():
    gate = Gate()
    with spout() as s:
        bolt = started(s, NumberReader(), gate)
        s.send("b1", range_of(1, 0, 8), range_of(2, 8, 16), range_of(2, 8, 16))
        assert gate.begun.acquire(timeout=PATIENCE_S)
        s.send("b1", Revoke("b1", [1, 2]))
        s.until(lambda: s.frames("b1", Revoked))
        assert s.frames("b1", Revoked) == [Revoked([2])]
        s.send("b1", Split("b1", 2, 1, 0.5))  # no longer the bolt's: it gives nothing
        s.until(lambda: s.frames("b1", SplitAnswer))
        assert s.frames("b1", SplitAnswer)[0].stop == 0
        gate.go.release(10)
        s.until(lambda: told(s, 1).covers(0, 8))
        s.end("b1")
        bolt.wait()
    assert gate.seen == [*range(8)]


def test_progress_does_not_wait_for_a_long_call():
    gate = Gate()
    with spout() as s:
        bolt = started(s, NumberReader(block=4), gate)
        gate.go.release(2)
        s.send("b1", range_of(1, 0, 100))
        # The third call never ends by itself; the first two are known all the same.
        s.until(lambda: told(s, 1).covers(0, 8))
        s.end("b1")
        gate.go.release(100)
        bolt.wait()


def test_a_process_that_can_never_work_is_fatal():
    with spout() as s:
        bolt = started(s, NumberReader(), lambda batch: (record for record in batch))
        s.send("b1", range_of(1, 0, 5))
        s.until(lambda: told(s, 1).fails)
        s.end("b1")
        bolt.wait()
    assert told(s, 1).fails[0].fail.is_fatal
    assert UnrunnableError.__name__ not in told(s, 1).fails[0].fail.error


def test_slots_work_on_ranges_at_once():
    meet = threading.Barrier(2)
    with spout() as s:
        bolt = started(s, NumberReader(), lambda batch: meet.wait(PATIENCE_S), slots=2)
        s.send("b1", range_of(1, 0, 8), range_of(2, 8, 16))
        s.until(lambda: told(s, 1).covers(0, 8) and told(s, 2).covers(8, 16))
        s.end("b1")
        bolt.wait()


def test_an_interrupt_in_process_ends_the_bolt_and_its_reading():
    def process(batch: Batch) -> None:
        raise KeyboardInterrupt

    reader = NumberReader()
    with spout() as s:
        bolt = started(s, reader, process)
        s.send("b1", range_of(1, 0, 100))
        with pytest.raises(KeyboardInterrupt):
            bolt.wait()
        assert reader.closed.wait(PATIENCE_S)
        s.until(lambda: s.left("b1"))
        assert s.frames("b1", Dying)[0] == Dying("process raised KeyboardInterrupt")
        assert told(s, 1).spans() == []


@pytest.mark.parametrize("is_async", [False, True])
def test_bytes_that_process_returns_ride_on_the_report_of_what_they_are_of(is_async):
    def process(batch: Batch) -> object:
        if batch.span.first == 0:
            return None
        return f"{batch.span.first}-{batch.span.last}".encode()

    async def slowly(batch: Batch) -> object:
        return process(batch)

    with spout() as s:
        bolt = started(s, NumberReader(block=10), slowly if is_async else process)
        s.send("b1", range_of(1, 0, 40))
        s.until(lambda: told(s, 1).covers(0, 40))
        s.end("b1")
        bolt.wait()
    done = {
        n
        for frame in told(s, 1).progress
        for receipt in frame.did.receipts
        for first, last in [map(int, receipt.split(b"-"))]
        if frame.start <= first <= last < frame.done_through
        for n in range(first, last + 1)
    }
    assert done == set(range(8, 40))  # the first batch has 8 records, and no receipt


def test_a_process_may_say_how_long_a_batch_should_take():
    sizes: list[int] = []

    class Sized:
        batch_s = 1e9  # no batch is long enough: each is as large as it may become

        def __call__(self, batch: Batch) -> None:
            sizes.append(len(batch))
            threading.Event().wait(0.002)

    with spout() as s:
        bolt = started(s, NumberReader(block=10_000), Sized())
        s.send("b1", range_of(1, 0, 680))
        s.until(lambda: told(s, 1).covers(0, 680))
        s.end("b1")
        bolt.wait()
    assert sizes == [8, 32, 128, 512]
