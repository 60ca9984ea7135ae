"""The ranges that a bolt holds, for its link and its process threads.

All reports on a range are decided here, under the link's lock: a split is answered between two
claims, never during one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from flowctl.bolts.pauses import Pauses
from flowctl.bolts.range_ahead import ReadAhead
from flowctl.bolts.range_claims import PROGRESS_EVERY_S, RangeClaims
from flowctl.bolts.slots import Idleness
from flowctl.core.messages import (
    Fail,
    Processed,
    Progress,
    RangeEmission,
    RangeFail,
    Split,
    SplitAnswer,
)
from flowctl.range_ports import RangeReader
from flowctl.wire.codec import FrameWriter

# -- Patience: how long a slot waits for a save -----------------------------------------------
#
# When a slot waits for a save, so that a kill of the driver repeats at most two batches. Pure.
#
# The driver tells a bolt how many of its reports are saved. A slot begins a batch once the batch
# before the last one is: then only the last one and the new one may have to be done again. Nearly
# always it is by then, as a batch takes longer than a save and what leads to it. Only after a
# short batch, or while saves are slow, the slot waits, and never for long: a store that is away
# must not stop the work.


# A slot may wait this long for saves in all [s]: while costs are learned it has three short
# batches, and on a busy machine a save takes .05 s, and at times more than .1 s.
PATIENCE_S: Final = 0.5
# Used waiting time comes back as this share of the time of batches that did not have to wait.  So
# waits cost at most a twentieth of the work, and with a store that is always slow only the half
# second; on an idle machine a wait takes some milliseconds, after short batches only.
SHARE: Final = 0.05


class SlotSaves:
    """Which batches of one slot are known to be saved.  Not thread-safe.

    Reports are numbered from 1, by connection.
    """

    __slots__ = ("_batch_s", "_before", "_last", "_patience_s", "_waits_since_s")

    def __init__(self) -> None:
        # The numbers of the reports on the last batch and the one before; None: not reported yet.
        self._last: int | None = 0
        self._before: int | None = 0
        self._batch_s = 0.0
        self._patience_s = PATIENCE_S
        self._waits_since_s: float | None = None

    @property
    def must_tell(self) -> bool:
        """Whether two batches are done and not reported: no save can include them."""
        return self._before is None

    @property
    def is_waiting(self) -> bool:
        """Whether the next batch waits for a save."""
        return self._waits_since_s is not None

    def done(self, batch_s: float) -> None:
        """Note that a batch is done, which took ``batch_s``."""
        self._before, self._last = self._last, None
        self._batch_s = batch_s

    def reported(self, number: int, *, is_awaited: bool) -> None:
        """Note that the done batches went with report ``number``; ``is_awaited``: the driver
        announces its save.
        """
        number = number if is_awaited else 0
        if self._before is None:
            self._before = number
        if self._last is None:
            self._last = number

    def wait_s(self, saved: int, now_s: float) -> float:
        """Return how long the next batch may wait to begin [s]; 0: it begins now.

        ``saved``: how many reports are known to be saved.
        """
        if self._before is None or self._before <= saved:
            self._begin(now_s)
            return 0.0
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        left_s = self._patience_s - (now_s - self._waits_since_s)
        if left_s > 0:
            return left_s
        self._patience_s, self._waits_since_s, self._batch_s = 0.0, None, 0.0
        return 0.0

    def _begin(self, now_s: float) -> None:
        if self._waits_since_s is None:
            back_s = SHARE * self._batch_s
        else:
            back_s = self._waits_since_s - now_s
            self._waits_since_s = None
        self._patience_s = min(PATIENCE_S, max(0.0, self._patience_s + back_s))
        self._batch_s = 0.0


# -- The ranges that a bolt holds, for its link and its process threads ------------------------


# Finished ranges whose splits are answered as before: a request that is sent again follows within
# a few timeouts, and a bolt finishes a few ranges a second.
_FINISHED_MAX: Final = 256


class HeldRange:
    """A range that was received.

    ``ahead`` reads it from when it is begun or, earlier, from when a slot has read all of its own
    range: opening a file in an object store takes as long as some batches.
    """

    __slots__ = ("ahead", "claims", "frame", "saves")

    def __init__(self, frame: RangeEmission, report_s: float) -> None:
        self.frame: RangeEmission = frame
        self.claims: RangeClaims = RangeClaims(frame.start, frame.stop, report_s)
        self.ahead: ReadAhead | None = None
        self.saves: SlotSaves | None = None  # the slot that has begun it

    def cancel(self) -> None:
        """Stop reading; from any thread."""
        if self.ahead is not None:
            self.ahead.close()


class RangeDesk:
    """Thread-safe, except for methods "with the lock held": these are for the link.

    ``let_go`` is notified when a slot need no longer wait; its lock is the link's, and guards the
    rest.  ``learn`` is called with a slot and a fail (None: a success), with the lock held.
    ``report_s``: how often a range is reported on [s].
    """

    def __init__(
        self,
        let_go: threading.Condition,
        pauses: Pauses,
        writer: FrameWriter,
        idleness: Idleness,
        learn: Callable[[Hashable, Fail | None], None],
        *,
        report_s: float = PROGRESS_EVERY_S,
    ) -> None:
        self._let_go = let_go
        self._pauses = pauses
        self._put = writer.append
        self._idle_total_s = idleness.total_s
        self._learn = learn
        self._report_s = report_s
        self._held: dict[int, HeldRange] = {}
        self._finished: OrderedDict[int, RangeClaims] = OrderedDict()
        self._has_ended = False
        self._slots: dict[Hashable, SlotSaves] = {}
        self._reports = self._saved = 0  # how many reports there were, and how many are saved

    # -- for the link, with the lock held --------------------------------------------------

    def add(self, frames: Iterable[RangeEmission]) -> None:
        """Take ``frames``, which arrived."""
        for frame in frames:
            self._held[frame.tuple_id] = HeldRange(frame, self._report_s)

    def forget(self, tuple_ids: Iterable[int]) -> None:
        """Forget ranges that were given back."""
        for tuple_id in tuple_ids:
            held = self._held.pop(tuple_id, None)
            if held is not None:
                held.cancel()

    def tell_due(self, now_s: float) -> None:
        """Report progress that was held back: the batch that follows it may take long."""
        for held in self._held.values():
            self._tell(held, held.claims.progress(now_s))

    def end(self) -> None:
        """Drop the ranges that are not begun, and stop reading, as there is no more work."""
        self._has_ended = True
        for held in self._held.values():
            held.cancel()

    # -- for the link, without the lock ------------------------------------------------------

    def answer(self, asked: Split) -> None:
        """Split the range, and report where it ends now."""
        with self._let_go:
            held = self._held.get(asked.tuple_id)
            claims = held.claims if held is not None else self._finished.get(asked.tuple_id)
            stop = claims.split(asked.request, asked.keep) if claims is not None else 0
            self._put(SplitAnswer(asked.tuple_id, asked.request, stop))
            if held is not None and held.claims.is_finished:
                self._wake([held])  # its slot may wait to go on with it

    def saved(self, reports: int) -> None:
        """Take the number of saved reports: slots that wait for one of them may go on."""
        with self._let_go:
            self._saved = reports
            all_held = self._held.values()
            self._wake(one for one in all_held if one.saves is not None and one.saves.is_waiting)

    def _wake(self, waiting: Iterable[HeldRange]) -> None:
        """Let the slots look again that have begun these ranges, and wait."""
        self._let_go.notify_all()
        for held in waiting:
            if held.ahead is not None:
                held.ahead.on_ready()

    # -- for process threads ---------------------------------------------------------------

    def begin(
        self, tuple_id: int, reader: RangeReader, slot: Hashable
    ) -> tuple[HeldRange, ReadAhead]:
        """Return the range that ``slot`` took from the link's queue, and its reader."""
        with self._let_go:
            held = self._held[tuple_id]
            held.saves = self._slots.setdefault(slot, SlotSaves())
            if self._finished:
                held.claims.follows(time.monotonic())
            return held, self._read(held, reader)

    def read_next(self, reader: RangeReader) -> None:
        """Begin to read a queued range, if there is one that is not being read yet."""
        with self._let_go:
            for held in self._held.values():
                if held.saves is None and held.ahead is None and not self._has_ended:
                    self._read(held, reader)
                    return

    def _read(self, held: HeldRange, reader: RangeReader) -> ReadAhead:
        ahead = held.ahead
        if ahead is None:
            ahead = held.ahead = ReadAhead(reader, held.frame, stop=lambda: held.claims.stop)
            if not self._has_ended:
                ahead.start()
        return ahead

    def claim(self, held: HeldRange, through: int) -> int:
        """As :meth:`RangeClaims.claim`."""
        with self._let_go:
            return held.claims.claim(through)

    def done(self, held: HeldRange, did: Processed, slot: Hashable) -> None:
        """Note that the claimed part is processed."""
        with self._let_go:
            at_once = False
            if did.records:
                self._learn(slot, None)
                saves = self._slots[slot]
                saves.done(did.service_s)
                at_once = saves.must_tell and did.is_awaited
            held.claims.done(did)
            at_once = self._close(held) or at_once
            self._tell(held, held.claims.progress(time.monotonic(), at_once=at_once))

    def failed(self, held: HeldRange, said: RangeFail, slot: Hashable) -> None:
        """Note that the claimed part failed."""
        with self._let_go:
            self._tell(held, held.claims.progress(time.monotonic(), at_once=True))
            held.claims.failed()
            self._put(said)
            if not said.fail.is_read_error:
                self._learn(slot, said.fail)
            self._close(held)

    def pause_s(self, held: HeldRange, slot: Hashable) -> float | None:
        """Return how long ``slot`` has to wait before its next batch of ``held`` [s]; None: there
        will be none.  0: it may begin, and counts as begun.
        """
        with self._let_go:
            return self._pause_s(held, slot)

    def await_turn(self, held: HeldRange, slot: Hashable) -> bool:
        """Wait until ``slot`` may begin its next batch of ``held``; return False if there will be
        none.
        """
        with self._let_go:
            while (pause_s := self._pause_s(held, slot)) is not None and pause_s > 0:
                self._let_go.wait(pause_s)
            return pause_s is not None

    def _pause_s(self, held: HeldRange, slot: Hashable) -> float | None:
        # Of a range that was given back there is no call to wait for, nor to count.
        if self._has_ended or self._close(held):
            return None
        now_s = time.monotonic()
        saves = self._slots.get(slot)
        if saves is not None and (save_s := saves.wait_s(self._saved, now_s)) > 0:
            return save_s
        if self._pauses.is_free:
            return 0.0
        pause_s = max(self._pauses.wait_s(slot, now_s), 0.0)
        if pause_s == 0:
            self._pauses.begun(slot, now_s)
        return pause_s

    def _close(self, held: HeldRange) -> bool:
        """Forget a finished range, except for its splits."""
        if held.claims.is_finished:
            self._held.pop(held.frame.tuple_id, None)
            self._finished[held.frame.tuple_id] = held.claims
            if len(self._finished) > _FINISHED_MAX:
                self._finished.popitem(last=False)
        return held.claims.is_finished

    def _tell(self, held: HeldRange, told: tuple[int, int, Processed] | None) -> None:
        if told is None:
            return
        start, done_through, did = told
        self._reports += 1
        if held.saves is not None:
            held.saves.reported(self._reports, is_awaited=did.is_awaited)
        frame, idle_s = held.frame, self._idle_total_s()
        self._put(Progress(frame.tuple_id, frame.attempt, start, done_through, idle_s, did))
