from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from wire_peers import PATIENCE_S, ThreadBolt, process_bolt, spout, tuple_of

from flowctl.bolts import link
from flowctl.bolts.link import LOOKS_IN_VAIN
from flowctl.bolts.worker import FlowControlBolt
from flowctl.core.messages import Ack, Heartbeat, Revoke, Revoked
from flowctl.errors import FencedError, UnrunnableError
from flowctl.wire.codec import LENGTH
from flowctl.wire.frames import Dying


class Gate:
    """A process that waits in every tuple whose first value is "wait" until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.leave = threading.Semaphore(0)
        self.seen: list[object] = []

    def __call__(self, batch) -> None:
        self.seen.append(batch[0].value)
        if batch[0].value == "wait":
            self.entered.release()
            assert self.leave.acquire(timeout=PATIENCE_S)

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE_S)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.leave.release(1000)


def test_process_gets_the_records_and_the_span():
    got = []
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", got.append)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "a", {"b": [1, None]}, attempt=3))
        s.until(lambda: s.acks("b1"))
        s.end("b1")
        bolt.wait()
    (batch,) = got
    assert [(r.position, r.value) for r in batch] == [(0, "a"), (1, {"b": [1, None]})]
    assert (batch.bolt, batch.attempt) == ("b1", 3)
    span = batch.span
    assert (span.job, span.partition, span.first, span.last) == ("test", "p", 0, 1)
    assert (span.epoch, span.acked_through) == (5, None)


def test_acks_tell_wait_service_and_idle_time():
    # Durations are compared with each other, never with a clock of ours.
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", lambda batch: time.sleep(batch[0].value))
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, 0.05), tuple_of(2, 0.1))
        s.until(lambda: len(s.acks("b1")) == 2)
        # Only a bolt that has seen its empty queue is idle: on a busy machine that takes a while.
        known = len(s.frames("b1", Heartbeat))
        s.until(lambda: any(b.busy_slots == 0 for b in s.frames("b1", Heartbeat)[known:]))
        s.send("b1", tuple_of(3, 0.0))
        s.until(lambda: len(s.acks("b1")) == 3)
        s.end("b1")
        bolt.wait()
        first, second, third = s.frames("b1", Ack)
    assert first.service_s >= 0.05
    assert second.service_s >= 0.1
    assert second.wait_s >= first.service_s  # it queued behind the first
    assert second.idle_total_s == first.idle_total_s  # nothing idle in between
    assert third.idle_total_s > second.idle_total_s
    assert third.wait_s < second.wait_s


def test_acks_tell_the_time_in_a_sink_if_process_does():
    def process(batch) -> None:
        if batch[0].value:
            with batch.in_sink(), batch.in_sink():  # one within another counts once
                time.sleep(batch[0].value)
            with batch.in_sink():
                time.sleep(batch[0].value)

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, 0), tuple_of(2, 0.02))
        s.until(lambda: len(s.acks("b1")) == 2)
        s.end("b1")
        bolt.wait()
        without, told = s.frames("b1", Ack)
    assert without.sink_s is None
    assert told.sink_s is not None
    assert 2 * 0.02 <= told.sink_s <= told.service_s


@pytest.mark.req("S8")
def test_what_is_raised_fails_and_names_the_record():
    def process(batch) -> None:
        for record in batch:
            if record.value == "bad":
                raise ValueError("bad line")
            if record.value == "exit":
                raise SystemExit(3)
            if record.value == "fenced":
                raise FencedError("a newer driver owns the sink")

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "a", "bad"), tuple_of(2, "exit"), tuple_of(4, "a", attempt=2))
        s.until(lambda: s.acks("b1") == [4])
        s.send("b1", tuple_of(3, "a", "a", "fenced"))
        s.until(lambda: len(s.fails("b1")) == 3)
        s.end("b1")
        summary = bolt.wait()
        fails = s.fails("b1")
    assert [(f.tuple_id, f.record_index, f.is_fenced) for f in fails] == [
        (1, 1, False),
        (2, 0, False),
        (3, 2, True),
    ]
    assert fails[0].error == "ValueError: bad line"
    assert "in process" in fails[0].traceback
    assert (summary.acked, summary.failed, summary.records) == (1, 3, 1)


def dead_token(batch: Any) -> None:
    raise UnrunnableError("process", "the token has expired.", remedy="Renew it.")


async def dead_token_later(batch: Any) -> None:
    dead_token(batch)


@pytest.mark.parametrize("process", [dead_token, dead_token_later])
def test_a_bolt_makes_no_further_call_while_the_driver_ends_its_run(process: Any):
    """The kind: what is queued at a bolt is called as well, hundreds of times."""
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        s.send("b1", *(tuple_of(number) for number in range(50)))
        s.until(lambda: s.fails("b1"))
        s.end("b1")
        assert bolt.wait().failed == 1


def test_an_interrupt_ends_the_bolt():
    def process(batch) -> None:
        raise KeyboardInterrupt

    with spout() as s:
        for slots in (1, 2):
            bolt = ThreadBolt(s.endpoint, f"b{slots}", process, slots=slots)
            s.until(lambda slots=slots: s.joined(f"b{slots}"))
            s.send(f"b{slots}", tuple_of(1), tuple_of(2))
            s.until(lambda slots=slots: s.left(f"b{slots}"))
            with pytest.raises(KeyboardInterrupt):
                bolt.wait()
            assert s.frames(f"b{slots}", Dying)[0] == Dying("process raised KeyboardInterrupt")


def test_tuples_not_begun_are_given_back_while_process_is_busy(gate):
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", gate)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "wait"), *(tuple_of(n, n) for n in (2, 3, 4, 5)))
        gate.wait_entered()
        s.send("b1", Revoke("b1", [1, 3, 5, 99]))
        s.until(lambda: s.frames("b1", Revoked))
        assert s.frames("b1", Revoked) == [Revoked([3, 5])]  # 1 had begun, 99 is unknown
        assert s.acks("b1") == []
        gate.leave.release()
        s.until(lambda: s.acks("b1") == [1, 2, 4])
        s.send("b1", Revoke("b1", [2]))
        s.until(lambda: len(s.frames("b1", Revoked)) == 2)
        assert s.frames("b1", Revoked)[1] == Revoked([])
        s.end("b1")
        assert bolt.wait().revoked == 2
    assert gate.seen == ["wait", 2, 4]


def test_after_a_fatal_error_what_was_not_begun_goes_back_for_the_run_ends(gate):
    """Kind: the end of a run waits for tuples that nobody is going to begin."""

    def process(batch) -> None:
        gate(batch)
        raise UnrunnableError("process", "no such function")

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "wait"), tuple_of(2), tuple_of(3))
        gate.wait_entered()
        gate.leave.release()
        s.until(lambda: s.frames("b1", Revoked))
        s.send("b1", tuple_of(4))  # the spout had sent it by then
        s.until(lambda: len(s.frames("b1", Revoked)) == 2)
        assert s.frames("b1", Revoked) == [Revoked([2, 3]), Revoked([4])]
        assert [fail.tuple_id for fail in s.fails("b1")] == [1]
        s.end("b1")
        bolt.wait()
    assert gate.seen == ["wait"]


def test_a_revoke_right_behind_the_tuples_is_obeyed_in_order(gate):
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", gate)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "wait"))
        gate.wait_entered()
        s.send("b1", tuple_of(2), Revoke("b1", [2]), tuple_of(2, "again", attempt=2))
        s.until(lambda: s.frames("b1", Revoked) == [Revoked([2])])
        gate.leave.release()
        s.until(lambda: s.acks("b1") == [1, 2])
        assert s.frames("b1", Ack)[1].attempt == 2
        s.end("b1")
        bolt.wait()


def test_each_tuple_is_either_processed_or_given_back_never_both():
    processed = []
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", lambda batch: processed.append(batch[0].value), slots=2)
        s.until(lambda: s.joined("b1"))
        for start in range(0, 4000, 40):  # revokes meet tuples at all stages
            ids = range(start, start + 40)
            s.send("b1", *(tuple_of(n, n) for n in ids))
            s.send("b1", Revoke("b1", list(ids)[::2]))
            s.poll(0)

        def given() -> list[int]:
            return [n for frame in s.frames("b1", Revoked) for n in frame.tuple_ids]

        s.until(lambda: len(given()) + len(s.acks("b1")) == 4000)
        s.end("b1")
        bolt.wait()
    assert sorted(given() + processed) == list(range(4000))
    assert sorted(s.acks("b1")) == sorted(processed)


def test_acks_come_in_the_order_of_the_tuples():
    count = 5_000
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: s.joined("b1"))
        s.send("b1", *(tuple_of(n) for n in range(count)))
        s.until(lambda: s.acks("b1")[-1:] == [count - 1])
        s.end("b1")
        bolt.wait()
    assert s.acks("b1") == list(range(count))


def test_an_ack_is_not_held_back_by_a_slow_tuple_behind_it(gate):
    with spout(heartbeat_s=60) as s:  # no heartbeat carries it along
        bolt = ThreadBolt(s.endpoint, "b1", gate)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "quick"), tuple_of(2, "quick"), tuple_of(3, "wait"), tuple_of(4))
        gate.wait_entered()
        s.until(lambda: s.acks("b1") == [1, 2])
        gate.leave.release()
        s.until(lambda: s.acks("b1") == [1, 2, 3, 4])
        s.end("b1")
        bolt.wait()


def test_a_busy_bolt_still_speaks(gate):
    with spout(heartbeat_s=0.02) as s:
        bolt = ThreadBolt(s.endpoint, "b1", gate)
        # The first one comes at once, perhaps before the slot has begun to wait.
        s.until(lambda: [b for b in s.frames("b1", Heartbeat) if not b.busy_slots])
        s.send("b1", tuple_of(7, "wait"), tuple_of(8), tuple_of(9))
        gate.wait_entered()
        known = len(s.frames("b1", Heartbeat))
        s.until(lambda: len(s.frames("b1", Heartbeat)) >= known + 5)
        beats = s.frames("b1", Heartbeat)[-3:]
        assert {(b.busy_slots, b.queued) for b in beats} == {(1, 2)}
        gate.leave.release()
        s.until(lambda: len(s.acks("b1")) == 3)
        s.end("b1")
        bolt.wait()


def test_slots_work_at_the_same_time(gate):
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", gate, slots=3)
        s.until(lambda: s.joined("b1"))
        assert s.joined("b1")[0].slots == 3
        s.send("b1", *(tuple_of(n, "wait") for n in range(5)))
        for _ in range(3):
            gate.wait_entered()
        assert len(gate.seen) == 3
        gate.leave.release(5)
        s.until(lambda: sorted(s.acks("b1")) == [0, 1, 2, 3, 4])
        s.end("b1")
        assert bolt.wait().acked == 5


def test_end_drops_what_is_queued(gate):
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", gate)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "wait"), tuple_of(2))
        gate.wait_entered()
        s.end("b1")
        s.until(lambda: not any(t.name == "flowctl-link-b1" for t in threading.enumerate()))
        gate.leave.release()
        summary = bolt.wait()
    assert summary.ended == "end"
    assert gate.seen == ["wait"]


def test_a_spout_that_is_gone_ends_the_bolt_after_the_current_call(gate):
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", gate)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "wait"), tuple_of(2))
        gate.wait_entered()
    assert bolt.thread.is_alive()
    gate.leave.release()
    summary = bolt.wait()
    assert summary.ended.startswith("eof")
    assert gate.seen == ["wait"]


def test_a_spout_that_speaks_nonsense_ends_the_bolt():
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: s.joined("b1"))
        s.server.connections["b1"].writer.outbox += LENGTH.pack(1) + b"\xc1"
        s.server._dirty.add(s.server.connections["b1"])
        s.server.flush()
        s.until(lambda: s.left("b1"))
        assert bolt.wait().ended.startswith("broken")


def test_cancel_from_another_thread(gate):
    with spout() as s:
        running = FlowControlBolt(s.endpoint, "b1", gate)
        summaries = []
        thread = threading.Thread(target=lambda: summaries.append(running.run()))
        thread.start()
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "wait"), tuple_of(2))
        gate.wait_entered()
        running.cancel()
        s.until(lambda: s.left("b1"))
        gate.leave.release()
        thread.join(PATIENCE_S)
    assert summaries[0].ended == "cancelled"
    assert gate.seen == ["wait"]


def test_nothing_is_left_behind(gate):
    def sockets() -> int:
        import os

        return sum(
            os.readlink(f"/proc/self/fd/{fd}").startswith("socket")
            for fd in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{fd}")
        )

    threads, before = threading.active_count(), sockets()
    for use_tls in ("on", "off"):
        with spout(tls=use_tls) as s:
            ending = ThreadBolt(s.endpoint, "b1", lambda batch: None, slots=2)
            cut_off = ThreadBolt(s.endpoint, "b2", lambda batch: None)
            stranger = socket.create_connection((s.endpoint.host, s.endpoint.port))
            s.until(lambda: s.joined("b1") and s.joined("b2"))
            stranger.close()
            s.end("b1")
        ending.wait()
        cut_off.wait()
    assert (threading.active_count(), sockets()) == (threads, before)


def test_a_slow_process_costs_no_wakeups(gate, monkeypatch):
    """The link promises to look for acks each millisecond; seeing none it goes to sleep."""
    looks = 0
    keep_promise = link.Link.keep_promise

    def counted(self, now_s: float) -> None:
        nonlocal looks
        looks += 1
        keep_promise(self, now_s)

    monkeypatch.setattr(link.Link, "keep_promise", counted)
    with spout(heartbeat_s=60) as s:
        bolt = ThreadBolt(s.endpoint, "b1", gate)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "wait"), tuple_of(2))
        gate.wait_entered()
        s.poll(0.3)  # nothing comes; 300 looks, if it went on
        assert looks <= LOOKS_IN_VAIN
        gate.leave.release()
        s.until(lambda: len(s.acks("b1")) == 2)
        s.end("b1")
        bolt.wait()


def test_a_worker_killed_in_process_leaves_its_tuples_unacked():
    with spout() as s, process_bolt(s.endpoint, "b1", "time.sleep(batch[0].value)") as child:
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, 0), tuple_of(2, 600), tuple_of(3, 0))
        s.until(lambda: s.acks("b1") == [1])
        child.kill()
        s.until(lambda: s.left("b1"))
        assert s.acks("b1") == [1]
