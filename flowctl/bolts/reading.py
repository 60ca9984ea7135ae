"""Which thread reads a bolt's connection: its link thread, or its process thread between short
calls.

A tuple that the link thread reads wakes the process thread, which costs more than a short
``process``: two threads change places, and each waits for the interpreter.  So while calls are
short, the process thread reads what it is about to process by itself, and the link thread only
looks now and then whether it still does.  As soon as a call takes longer, the link thread reads
again, so that the bolt keeps answering.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import Final

from flowctl.bolts.work import Outcome
from flowctl.core.messages import Ack
from flowctl.errors import WireError
from flowctl.wire.codec import FrameReader
from flowctl.wire.frames import ToBolt
from flowctl.wire.stream import WaitingStream

# -- Which tuples of this connection a bolt already has, so that it does not process any twice -


# A copy follows the first sending within a few timeouts.  At 1,000 tuples a second that is a few
# thousand tuples ago; an older copy is processed again, which at-least-once delivery allows.  At
# least this many are known, and at most twice as many.
KNOWN_MIN: Final = 1 << 13
# At most this many new ones are kept separately, in the order in which they came.
_APART_MAX: Final = 1 << 8


class KnownTuples:
    """Ids of the tuples that are queued, being processed or done.  Not thread-safe.

    When a timeout expires and no other bolt can take the tuple, the spout sends it to the same bolt
    again.  That bolt still has the first copy and acks it sooner or later, as the connection loses
    nothing.  Processing the copy too would be waste; for a bolt that keeps state between calls it
    would be wrong: a join would match an input with itself, and the input's real partner would wait
    until its tree expires.

    Ids of tuples that failed, were refused or given back must be forgotten: the spout sends these
    again on purpose.  ``arrived`` counts what came, copies too.
    """

    __slots__ = ("_apart", "_begun", "_highest", "_ids", "_older", "_slots", "arrived")

    def __init__(self, slots: int = 1) -> None:
        # The newest ids, and KNOWN_MIN before them.  The old ones are dropped all at once: a dict
        # that loses its first key each time it gets one is slow.
        self._ids: set[int] = set()
        self._older: set[int] = set()
        # Ids rise, so nearly all are known to be new by the highest.  These are appended to a list:
        # a set of thousands is scattered in memory, and a bolt that sleeps between two tuples finds
        # none of it in the cache.
        self._apart: list[int] = []
        self._highest = -1
        self._begun: dict[int, None] = {}
        self._slots = slots
        self.arrived: int = 0

    def add(self, tuple_id: int) -> bool:
        """Remember ``tuple_id``; return False if it was known, so this is a copy."""
        self.arrived += 1
        if tuple_id > self._highest:
            self._highest = tuple_id
            self._apart.append(tuple_id)
            if len(self._apart) >= _APART_MAX:
                self._sort_in()
            return True
        self._sort_in()
        if tuple_id in self._ids or tuple_id in self._older:
            return False
        self._put(tuple_id)
        return True

    def _sort_in(self) -> None:
        for tuple_id in self._apart:
            self._put(tuple_id)
        self._apart.clear()

    def _put(self, tuple_id: int) -> None:
        if len(self._ids) >= KNOWN_MIN:
            self._older, self._ids = self._ids, set()
        self._ids.add(tuple_id)

    @property
    def begun(self) -> list[int]:
        """The tuples that the slots are working on; empty for one slot, whose acks show it
        already.
        """
        return list(self._begun)

    def begin(self, tuple_id: int) -> None:
        """Note that a slot takes the tuple from the queue."""
        if self._slots > 1:
            self._begun[tuple_id] = None

    def end(self, tuple_id: int) -> None:
        """Note that the tuple is done, or failed."""
        self._begun.pop(tuple_id, None)

    def forget(self, *tuple_ids: int) -> None:
        """Forget tuples that may come again."""
        self._sort_in()
        for tuple_id in tuple_ids:
            self._ids.discard(tuple_id)
            self._older.discard(tuple_id)


# -- Who reads a bolt's connection -------------------------------------------------------------


# one call receives a window of small tuples, or four tuples of 64 KB
_RECEIVE_BYTES: Final = 256 << 10
# A change of threads costs some 30 us on each side: little beside calls that take longer than this
# [s].
_SHORT_S: Final = 100e-6
# This many short calls in a row are needed: a call that takes longer makes a few acks and orders
# wait for _LOOK_S once, which must stay rare.  A short one that was interrupted must not end it: a
# long call takes back what 16 short ones give, and the third within 64 ends it.
_SHORT_CALLS: Final = 64
_LONG_COSTS: Final = 16
_ENOUGH: Final = 32
# How often the link thread looks whether the process thread still reads.  It is the shortest round
# trip that a window can feel on a busy machine, and acks wait no longer than the call lasts; each
# look is a wake-up, and 200 a second were a twentieth of what a bolt with a window of 2 takes.
_LOOK_S: Final = 0.01
# While more is queued it also reads this often [s], so that the time a tuple waited is known
# exactly.
_AGAIN_S: Final = 100e-6


class _Reader(enum.Enum):
    LINK = "the link thread waits for bytes"
    LINK_NOW = "the link thread receives"
    SLOT = "the process thread waits for bytes or receives"
    SLOT_LATER = "the process thread will, after this call"


_LINK, _LINK_NOW, _SLOT, _SLOT_LATER = _Reader  # a lookup in an enum costs as much as a call


class Reading:
    """Receives the spout's messages, and decides which thread does so.

    ``obey`` is called with the messages and the time, ``end`` with how the connection ended;
    neither while ``lock`` is held.  ``may_change``: the process thread may read at all.
    """

    def __init__(
        self,
        stream: WaitingStream,
        frames: FrameReader[ToBolt],
        lock: threading.Lock,
        *,
        obey: Callable[[list[ToBolt], float], None],
        end: Callable[[str], None],
        may_change: bool,
    ) -> None:
        self._stream = stream
        self._frames = frames
        self._buffer: Final = memoryview(bytearray(_RECEIVE_BYTES))
        self._obey = obey
        self._end = end
        # Guarded by the lock:
        self._lock = lock
        self._may_change = may_change
        self._reader = _LINK
        self._shortness = 0  # up to _SHORT_CALLS
        self._calls = 0
        self._received_at_s = 0.0
        # The link thread sleeps on a lock that is held, and is woken by its release.  A condition
        # would make a new lock for each wait and take the other one three times.
        self._given_back = threading.Lock()
        self._given_back.acquire()

    def receive(self) -> None:
        """Receive what has arrived; the end of the stream and errors end the link.

        For the thread whose turn it is, without the lock.
        """
        self._received_at_s = time.monotonic()
        self._receive(self._stream.recv_into)

    def _receive(self, first: Callable[[memoryview], int | None]) -> bool:
        """Receive, beginning with a read by ``first``; return whether it read anything."""
        stream, buffer = self._stream, self._buffer
        try:
            size = first(buffer)
            if size is None:
                return False
            now_s = self._received_at_s = time.monotonic()
            while size is not None:
                if size == 0:
                    self._end("eof")
                    return True
                self._obey(self._frames.feed(buffer[:size]), now_s)
                if not stream.pending():
                    return True
                size = stream.recv_into(buffer)
        except OSError as error:
            self._end(f"eof: {error.strerror or error}")
        except WireError as error:
            self._end(f"broken: {error.problem}")
        return True

    # -- for the link thread, without the lock ---------------------------------------------

    def receive_in_link(self) -> None:
        """Receive, unless the process thread has begun to do so."""
        with self._lock:
            if self._reader is not _LINK:
                return
            self._reader = _LINK_NOW
        self.receive()
        with self._lock:
            self._reader = _LINK

    def look(self) -> bool:
        """Return whether the process thread reads; if it does, wait a while first.

        If it stays in the same call all that time, the link thread reads from then on.
        """
        if not self.is_slots:
            return False
        calls = self._calls
        if not self._given_back.acquire(timeout=_LOOK_S) and self._calls == calls:
            with self._lock:
                if self._reader is _SLOT_LATER and self._calls == calls:
                    self.give_back()
        return True

    # -- for the process thread, with the lock ---------------------------------------------

    @property
    def is_slots(self) -> bool:
        """Whether the process thread reads."""
        reader = self._reader  # read once: the link thread asks without the lock
        return reader is _SLOT_LATER or reader is _SLOT

    def note(self, outcome: Outcome) -> None:
        """Note that a call has ended."""
        self._calls += 1
        if isinstance(outcome, Ack) and (outcome.service_s or 0.0) < _SHORT_S:
            if self._shortness < _SHORT_CALLS:
                self._shortness += 1
        else:
            self._shortness -= min(self._shortness, _LONG_COSTS)
            if self._shortness < _ENOUGH:
                self.give_back()

    def slot_begins(self) -> bool:
        """Return whether the process thread is to call :meth:`receive_in_slot`."""
        if self._reader is _SLOT_LATER:
            return True
        return self._may_change and self._shortness == _SHORT_CALLS and self._reader is _LINK

    def receive_in_slot(self) -> None:
        """Wait for bytes and receive; the lock is released meanwhile.

        If nothing comes for a long time, the link thread takes over the waiting.
        """
        self._reader = _SLOT
        self._lock.release()
        came = False
        try:
            came = self._receive(self._stream.await_into)
        finally:
            self._lock.acquire()
            self._reader = _SLOT_LATER
            if not came:
                self.give_back()

    def give_back(self) -> None:
        """Let the link thread read from now on, until calls have been short for a while."""
        self._shortness = 0
        if self.is_slots:
            self._reader = _LINK
            if self._given_back.locked():
                self._given_back.release()

    @property
    def is_due(self) -> bool:
        """Whether the process thread should receive although more is queued."""
        if self._reader is not _SLOT_LATER:
            return False
        return time.monotonic() - self._received_at_s >= _AGAIN_S
