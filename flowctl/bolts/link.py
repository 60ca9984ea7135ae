"""A bolt's end of the wire: tuples received but not begun, and results not yet reported.

One thread, the *link*, reads the connection, answers for the bolt and sends heartbeats, even while
``process`` is busy.  It runs no user code.  The process threads take work here and report here.

Four things make it fast.  The link decodes all that one read brings and wakes the process threads
once.  A process thread reports and takes its next tuple under one lock.  An ack waits for others
while more tuples are queued, but not much longer than ``ACK_DELAY_S``: the link thread flushes it.
While calls are short, the process thread also reads (:mod:`flowctl.bolts.reading`).
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final

from flowctl.bolts.batch import Batch
from flowctl.bolts.paced_targets import TargetTeller
from flowctl.bolts.pauses import Pauses
from flowctl.bolts.range_desk import RangeDesk
from flowctl.bolts.reading import KnownTuples, Reading
from flowctl.bolts.slots import Calls, Idleness
from flowctl.bolts.work import Outcome, Work
from flowctl.config import WaitSettings
from flowctl.core.messages import (
    Emission,
    Fail,
    Heartbeat,
    RangeEmission,
    Revoke,
    Revoked,
    Split,
)
from flowctl.core.pacing.figures import TargetFigures
from flowctl.ports import Endpoint
from flowctl.threads import death_of
from flowctl.waiting.idling import Episode, Idling
from flowctl.waiting.strategies import WaitInterrupted, WaitSituation, make_wait_strategy
from flowctl.wire.codec import FRAME_BYTES_MAX, FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import Dying, Saved, ToBolt
from flowctl.wire.stream import Stream, WaitingStream

# -- Whether acks may wait for each other: only while somebody has promised to flush them ------


# The spout learns of free room at most this much later [s]: a tenth of the shortest round trip that
# a window can notice on a busy machine.
ACK_DELAY_S: Final = 0.001
# How often the link may find nothing to flush before it sleeps.  More than once, because a process
# thread may wait some milliseconds for the interpreter; few, because each is a wake-up.
LOOKS_IN_VAIN: Final = 4
# A heartbeat that is due within this share of the interval is sent with a report on a range: the
# spout then wakes up once for both (7 times a second and bolt in place of 11), which costs it more
# than reading one.  Half of .25 s: reports come each .15 s, so no heartbeat is sent alone.
BEAT_EARLY: Final = 0.5
# An ack is 40 bytes and a send costs some 10 us: shared by 64 acks it is 0.2 us each, and more
# would only make the spout wait.
_ACKS_PER_SEND: Final = 64


class FlushPromise:
    """Counts the acks that wait.  Not thread-safe: the caller holds the link's lock.

    ``is_given``: waiting acks will be flushed at ``look_at_s`` (monotonic).
    """

    __slots__ = ("_looks_left", "_reported", "is_given", "look_at_s", "waiting")

    def __init__(self) -> None:
        self.is_given: bool = False
        self.look_at_s: float = 0.0
        self.waiting: int = 0
        self._looks_left = 0  # looks left if nothing is reported
        self._reported = False  # an ack was reported since the last look

    def give(self, now_s: float) -> None:
        """Note that there are tuples, so acks will follow."""
        self._looks_left = LOOKS_IN_VAIN
        if not self.is_given:
            self.is_given = True
            self.look_at_s = now_s + ACK_DELAY_S

    def reported(self) -> bool:
        """Note that one more ack waits; return whether it may wait for others."""
        self.waiting += 1
        self._reported = True
        return self.is_given and self.waiting < _ACKS_PER_SEND

    def keep(self, now_s: float) -> bool:
        """Return whether to flush now.  The next look is scheduled while tuples are being finished.

        If none are, acks are sent one by one until tuples come or a heartbeat is due: a slow
        ``process`` costs no wake-ups, a fast one few system calls.
        """
        self._looks_left = LOOKS_IN_VAIN if self._reported else self._looks_left - 1
        self.is_given = self._looks_left > 0
        self._reported = False
        self.look_at_s = now_s + ACK_DELAY_S
        return self.waiting > 0


# -- Sending ----------------------------------------------------------------------------------
#
# A bolt's sending: everything it was given, in order, however slowly the connection takes it.


class Sending:
    """Sends over ``stream``; if it accepts no more, waits as ``wait`` says.  For one thread."""

    def __init__(self, stream: Stream, wait: WaitSettings, *, bolt: str) -> None:
        self._stream = stream
        self._backpressure = Idling(
            make_wait_strategy(wait, WaitSituation.BACK_PRESSURE_WAIT, park=self._await_writable),
            Episode("backpressure_began", "backpressure_ended", bolt=bolt),
        )

    def send(self, data: bytearray) -> None:
        """Send all of ``data``; the link thread notices a lost connection."""
        has_waited = False
        try:
            while data:
                del data[: self._stream.send(data)]
                if data:
                    has_waited = True
                    self._backpressure.wait()
        except (OSError, ValueError):  # ValueError: closed, so it has no descriptor
            pass
        if has_waited:
            self._backpressure.over()

    def _await_writable(self, timeout_s: float) -> None:
        """Wait as a :data:`Parking`: a stop ends the wait by shutting down the connection."""
        writable = select.poll()
        writable.register(self._stream.fileno(), select.POLLOUT)
        writable.poll(timeout_s * 1000)


# -- A bolt's end of the wire ------------------------------------------------------------------


# How long a bolt waits for its run to end after it reported a fatal error [s]: each further call
# would only fail too, with a dead token, or in a program that can't work.
_END_WITHIN_S: Final = 5.0


class Link:
    """Owns the connection from Welcome to its end.

    :meth:`take` and :meth:`report_and_take` are for process threads, :meth:`close` and
    :meth:`prolong` for any.  Process threads wait as ``endpoint.wait`` says, for tuples and for a
    connection that takes no more. ``ended`` says how the link ended: "end" (as told), "eof" (the
    spout is gone), "cancelled", or None. A tuple that comes twice is processed once
    (:class:`.KnownTuples`). An event loop does not wait: it takes with :meth:`take_now`, reports
    with :meth:`report` and :meth:`flush`.  Set before :meth:`start`, called by any thread:
    ``on_end`` at the end, perhaps twice; ``on_tuples`` for slots that had found no tuples.
    """

    def __init__(self, stream: WaitingStream, endpoint: Endpoint, *, bolt: str, slots: int) -> None:
        self._stream = stream
        self._bolt = bolt
        self._wait = endpoint.wait
        self._heartbeat_s = endpoint.heartbeat_s
        self._slots = slots
        # Guarded by _changed, which is notified when the queue grows or the link ends.
        self._lock = lock = threading.Lock()
        self._changed = threading.Condition(lock)
        may_change = slots == 1 and endpoint.wait.bolt_strategy == "blocking"
        frames = FrameReader[ToBolt](decoder_of(ToBolt), FRAME_BYTES_MAX)
        self._reading = Reading(
            stream, frames, lock, obey=self.obey, end=self._end, may_change=may_change
        )
        # For slots that have to wait although there are tuples.  A separate condition, or they
        # would be woken in place of a free slot.
        self._let_go = threading.Condition(lock)
        self._pauses = Pauses()
        self._queue: deque[tuple[Emission, float]] = deque()
        # After a fatal error, until when tuples go back unbegun: the end of the run waits for them.
        self._ends_by_s = 0.0
        self._known = KnownTuples(slots)  # ids of tuples queued, being processed or done
        self._writer = FrameWriter(FRAME_BYTES_MAX)
        self.promise: FlushPromise = FlushPromise()
        self.idleness: Idleness = Idleness(slots)
        parts = self._let_go, self._pauses, self._writer, self.idleness, self._learn
        self.ranges: RangeDesk = RangeDesk(*parts, report_s=endpoint.report_s)
        self._beat_at_s = 0.0  # when the next heartbeat is due
        self._prolonged: dict[int, None] = {}  # inputs to report with the next heartbeat
        self._targets = TargetTeller()
        self.calls: Calls = Calls(endpoint.call_timeout_s)
        self._has_ranges = endpoint.reader is not None
        # Ends the process of a bolt whose call took too long; None: the bolt only leaves.
        self.end_process: Callable[[str], object] | None = None
        self.ended: str | None = None
        self.on_end: Callable[[], None] = lambda: None
        self.on_stuck: Callable[[], object] = lambda: None  # no slot is left
        self.on_tuples: Callable[[], None] = lambda: None
        self._idle_since_s: dict[Hashable, float] = {}  # idle slots of an event loop
        self.revoked: int = 0
        # Held while bytes are sent, outside _changed: what was written first is sent first.
        self._sending = threading.Lock()
        self._out = Sending(stream, endpoint.wait, bolt=bolt)
        self._thread = threading.Thread(target=self._run, name=f"flowctl-link-{bolt}", daemon=True)

    def start(self) -> None:
        """Start receiving."""
        self._thread.start()

    def new_idling(self) -> Idling:
        """Return an object for the waits of one process thread: each has its own, which also
        identifies its slot.
        """
        # Not logged: all bolts are idle at once when the source is slow, and the spout reports
        # that.
        episode = Episode(
            "consume_wait_began", "consume_wait_ended", long_s=math.inf, bolt=self._bolt
        )
        strategy = make_wait_strategy(self._wait, WaitSituation.BOLT_WAIT, park=self._await_tuples)
        return Idling(strategy, episode)

    def take(self, idling: Idling) -> Work | None:
        """Wait for a tuple; return None when there will be no more."""
        with self._lock:
            return self._take(idling)

    def report_and_take(self, outcome: Outcome, idling: Idling) -> Work | None:
        """Report on a tuple, then behave as :meth:`take`: one turn of a bolt.

        The report is sent first, unless more is queued and the link will flush it.
        """
        with self._lock:
            may_wait = self._note(outcome, idling)
            self._reading.note(outcome)
            queued = len(self._queue)
            must_flush = not (queued and may_wait)
            # After the last tuple it receives in any case.
            if not must_flush and (queued == 1 or not self._reading.is_due):
                return self._take(idling)
        if must_flush:
            self.flush()
        else:
            self._receive_on_time()
        return self.take(idling)

    def report(self, outcome: Outcome, slot: Hashable) -> bool:
        """Report on a tuple with the next :meth:`flush`; return whether the report may wait for
        others.
        """
        with self._lock:
            was_shut = self._pauses.is_shut
            self._note(outcome, slot)
            return was_shut or self._pauses.is_shut

    def take_now(self, slot: Hashable) -> Work | float | None:
        """Return a tuple for ``slot``, or how long it has to wait until it may take one [s].

        None: there is none, or the link has ended; the slot is idle until it asks again.
        """
        with self._lock:
            since_s = self._idle_since_s.pop(slot, None)
            if since_s is not None:
                self.idleness.end(since_s)
            if self.ended is not None:
                return None
            if not self._pauses.is_free and (pause_s := self._pause_s(slot)) > 0:
                return pause_s
            if not self._queue:
                self._idle_since_s[slot] = self.idleness.begin()
                return None
            return self._next(slot)

    @property
    def is_pausing(self) -> bool:
        """Whether some slot may have to wait although there are tuples."""
        return not self._pauses.is_free

    def flush(self, last: Dying | None = None) -> None:
        """Send the reports that wait, and ``last``.  A thread that waits here takes no tuples."""
        with self._sending:
            with self._lock:
                if last is not None:
                    self._writer.append(last)
                data = self._writer.take()
                self.promise.waiting = 0
            self._out.send(data)

    def flush_range(self) -> None:
        """Like :meth:`flush`, for reports on a range, with a heartbeat that is due soon."""
        if (now_s := time.monotonic()) >= self._beat_at_s - BEAT_EARLY * self._heartbeat_s:
            targets = self._targets.due(now_s)
            with self._lock:
                if self._writer.outbox:
                    self._write_beat(now_s, targets)
        self.flush()

    def report_overdue(self, fail: Fail) -> None:
        """Report, with the next :meth:`flush`, a call that took too long and has not returned."""
        with self._lock:
            self._writer.append(fail)
            self._known.end(fail.tuple_id)
            self._known.forget(fail.tuple_id)

    def prolong(self, input_id: int, batch: Batch) -> None:
        """Report with the next heartbeat that an input, and so all of ``batch``, takes longer."""
        with self._lock:
            if input_id not in self._prolonged:  # otherwise they are already to be reported
                self._prolonged[input_id] = None
                ids: list[Any] = [record.position for record in batch[:]]
                self._prolonged.update(dict.fromkeys(ids))

    def close(self, why: str) -> None:
        """End the link (an ended one keeps its reason): process threads get no more tuples."""
        self._end(why)
        self._stream.shutdown(socket.SHUT_RDWR)  # wakes the link thread

    def join(self) -> None:
        """Wait for the link thread, then release the connection."""
        if self._thread.ident is not None:
            self._thread.join()
        self._stream.close()

    def _note(self, outcome: Outcome, slot: Hashable) -> bool:
        """Report an outcome, which may wait for others or not.  Holding _changed."""
        self._writer.append(outcome)
        if self._slots > 1:
            self._known.end(outcome.tuple_id)
        if type(outcome) is Fail:
            self._known.forget(outcome.tuple_id)
            self._learn(slot, outcome)
        elif not self._pauses.is_free:
            self._learn(slot, None)
        return self.promise.reported()

    def _learn(self, slot: Hashable, fail: Fail | None) -> None:
        pauses = self._pauses
        ends_run = fail is not None and (fail.is_fatal or fail.is_fenced)
        if fail is not None and (fail.is_refused or ends_run):
            after_s = _END_WITHIN_S if ends_run else fail.after_s
            pauses.refused(slot, after_s, time.monotonic())
            if ends_run:
                self._ends_by_s = time.monotonic() + _END_WITHIN_S
                self._unqueue([frame.tuple_id for frame, _ in self._queue])
            self._changed.notify_all()  # slots are no longer idle: they have to wait
        elif fail is not None:
            pauses.failed(slot)
        elif not pauses.is_free:
            pauses.succeeded(slot)
            self._let_go.notify_all()

    def _take(self, idling: Idling) -> Work | None:
        """Holding _changed."""
        while self.ended is None:
            if not self._pauses.is_free and (pause_s := self._pause_s(idling)) > 0:
                self._let_go.wait(pause_s)
            elif self._queue:
                break
            else:
                self._idle(idling)
        return None if self.ended is not None else self._next(idling)

    def _next(self, slot: Hashable) -> Work:
        """Return the next item for a slot.  Holding _changed, with something queued."""
        frame, received_at_s = self._queue.popleft()
        # With a range no call begins: that is asked for batch by batch.
        if not self._pauses.is_free and type(frame) is not RangeEmission:
            self._pauses.begun(slot, time.monotonic())
            self._changed.notify_all()  # idle slots may have to wait now
        if self._slots > 1 and type(frame) is Emission:
            self._known.begin(frame.tuple_id)
        return Work(frame, received_at_s, self.idleness.total_s())

    def _pause_s(self, slot: Hashable) -> float:
        return self._pauses.wait_s(slot, time.monotonic())

    def _idle(self, idling: Idling) -> None:
        """Wait until there is a tuple, a pause or the end.  Holding _changed."""
        if self._reading.slot_begins():
            since_s = self.idleness.begin()
            try:
                self._reading.receive_in_slot()
            finally:
                self.idleness.end(since_s)
            return
        with self.idleness.one(), suppress(WaitInterrupted):
            while not self._queue:
                idling.wait()
                if not self._pauses.is_free and self._pause_s(idling) > 0:
                    break
        idling.over()

    def _await_tuples(self, timeout_s: float) -> None:
        """Wait as a process thread's :data:`Parking`.

        Holding _changed, which is released meanwhile.
        """
        if timeout_s > 0:
            self._changed.wait(timeout_s)
        else:  # otherwise the link could never add a tuple
            self._changed.release()
            time.sleep(0)
            self._changed.acquire()
        if self.ended is not None:
            raise WaitInterrupted

    def _receive_on_time(self) -> None:
        """Do what the link thread would do between two short calls, if that thread were reading."""
        self._reading.receive()
        if (now_s := time.monotonic()) >= self.promise.look_at_s:
            self.keep_promise(now_s)

    # -- the link thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._receive_until_end()
            self.on_end()  # again: the link may have ended before on_end was set
        except BaseException as error:  # the connection ends with it, which the spout notices
            # Shut at once: a process thread may be in a call that takes long, or for ever.
            self.close(f"broken: {death_of(self._thread.name, error).problem}")

    def _receive_until_end(self) -> None:
        readable = select.poll()
        readable.register(self._stream.fileno(), select.POLLIN)
        self.beat()  # at once, so that the spout knows that this bolt sends heartbeats
        now_s = time.monotonic()
        while self.ended is None:
            if self._reading.look():  # the process thread does the rest between its calls
                now_s = time.monotonic()
                is_due = self.promise.waiting > 0
            else:
                wait_s = ACK_DELAY_S if self.promise.is_given else max(self._beat_at_s - now_s, 0)
                if ready := readable.poll(wait_s * 1000):
                    self._reading.receive_in_link()
                now_s = time.monotonic()
                is_due = self.promise.is_given and (not ready or now_s >= self.promise.look_at_s)
            if is_due:
                self.keep_promise(now_s)
            if now_s >= self._beat_at_s:
                self.beat()

    def obey(self, orders: list[ToBolt], now_s: float) -> None:
        """Take the spout's messages: the reading thread calls this with all messages of one
        read.
        """
        tuples: list[Emission] = []
        for order in orders:
            # Not isinstance, which takes longer to refuse the wire's types than all the rest here.
            if type(order) is Emission or type(order) is RangeEmission:
                tuples.append(order)
                continue
            self._queue_up(tuples, now_s)
            tuples = []
            if isinstance(order, Revoke):
                self._give_back(set(order.tuple_ids))
            elif isinstance(order, Split):
                self.ranges.answer(order)
                self.flush()
            elif isinstance(order, Saved):
                self.ranges.saved(order.reports)
            else:
                self._end("end")
        self._queue_up(tuples, now_s)

    def _queue_up(self, tuples: list[Emission], now_s: float) -> None:
        if not tuples:
            return
        with self._lock:
            for frame in tuples:
                if self._known.add(frame.tuple_id):
                    self._queue.append((frame, now_s))
                    if type(frame) is RangeEmission:
                        self.ranges.add([frame])
            if now_s < self._ends_by_s:  # sent before the spout knew
                self._unqueue([frame.tuple_id for frame, _ in self._queue])
            self.promise.give(now_s)
            if not self._reading.is_slots:  # then no thread waits
                self._changed.notify(min(len(tuples), self._slots))
            waited_for = len(self._idle_since_s) > 0
        if waited_for:
            self.on_tuples()

    def keep_promise(self, now_s: float) -> None:
        """Flush the acks that wait, if it is time: called by the reading thread now and then."""
        with self._lock:
            must_flush = self.promise.keep(now_s)
        if must_flush:
            self.flush()

    def _give_back(self, tuple_ids: set[int]) -> None:
        with self._lock:
            self._unqueue([f.tuple_id for f, _ in self._queue if f.tuple_id in tuple_ids])
        self.flush()

    def _unqueue(self, given: list[int]) -> None:
        """Give back tuples that are queued.  Holding _changed."""
        if given:
            self._queue = deque(i for i in self._queue if i[0].tuple_id not in given)
            self._known.forget(*given)
            self.ranges.forget(given)
        self._writer.append(Revoked(given))
        self.revoked += len(given)

    def beat(self) -> None:
        """Send a heartbeat, and end the calls that took too long."""
        now_s = time.monotonic()
        is_one_over = self.calls.end_overdue(now_s)
        if is_one_over and self.end_process is not None:
            self._leave()  # the heartbeat would list calls that end now
            return
        targets = self._targets.due(now_s)
        with self._lock:
            self._write_beat(time.monotonic(), targets)
        self.flush()
        if is_one_over and (self.calls.over >= self._slots or self._has_ranges):
            self._leave()

    def _leave(self) -> None:
        """End the bolt, as a call took too long and was reported.

        A process can be ended, and its calls with it.  A thread can't: its slot is lost until the
        call returns.  The rest of a range goes to other bolts, too.
        """
        why = f"a call took longer than {self.calls.timeout_s:g} s"
        self.flush(Dying(why, is_told=True, is_stuck=self.end_process is None))
        if self.end_process is not None:
            self.end_process(why)
        self.close(f"overdue: {why}")
        self.on_stuck()

    def _write_beat(self, now_s: float, targets: list[TargetFigures]) -> None:
        """Holding _changed."""
        self._beat_at_s = now_s + self._heartbeat_s
        busy, known = self._slots - self.idleness.idle_slots, self._known
        prolonged, self._prolonged = list(self._prolonged), {}
        queued, begun = len(self._queue), known.begun
        calls = self.calls.long(now_s)
        beat = Heartbeat(busy, queued, begun, known.arrived, prolonged, targets, calls)
        self._writer.append(beat)
        self.ranges.tell_due(now_s)
        if self._queue:
            self.promise.give(now_s)

    def _end(self, why: str) -> None:
        with self._lock:
            if self.ended is None:
                self.ended = why
            self._queue.clear()
            self.ranges.end()
            self._changed.notify_all()
            self._let_go.notify_all()
            self._reading.give_back()
        self.on_end()
