"""What the spout knows of the target: what ``process`` writes to, as its failures show it.

One face for :mod:`flowctl.core.breaker` (does it take anything at all?) and
:mod:`flowctl.core.refusal_cap` (how much at once?).
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from flowctl.core.breaker import Breaker
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, SinkCapChanged, TargetCameBack, TargetWentDown
from flowctl.core.refusal_cap import RefusalCap
from flowctl.core.refusal_size import RefusalSize
from flowctl.core.settings import RetrySettings
from flowctl.core.tuples import FlowTuple


def went_down(breaker: Breaker, at_s: float) -> TargetWentDown:
    """Return what is said of a target that counts as down."""
    return TargetWentDown(at_s=at_s, reason=breaker.reason, has_refused=breaker.has_refused)


class Refused(NamedTuple):
    """What a refusal says: why, how long the target asked to be left alone, and what it saw.

    ``in_flight`` tuples were at bolts then, the refused one included.  ``done``: so many records of
    it were worked on before; 0: none, or nobody knows.
    """

    reason: str
    after_s: float | None
    in_flight: int
    done: int = 0


class Target:
    """Part of ``TupleCore``; not thread-safe.

    ``is_troubled`` is False as long as nothing fails: then nobody needs to ask or tell anything
    else here.
    """

    __slots__ = ("_cap", "_counters", "_events", "_size", "breaker", "is_troubled")

    def __init__(
        self, settings: RetrySettings, counters: Counters, events: deque[FlowEvent]
    ) -> None:
        self.breaker: Breaker = Breaker(settings.give_up_after_s)
        self.is_troubled: bool = False
        self._cap = RefusalCap()
        self._size = RefusalSize()
        self._counters = counters
        self._events = events

    @property
    def is_down(self) -> bool:
        """Whether (nearly) nothing succeeds."""
        return self.breaker.is_down

    @property
    def down(self) -> TargetWentDown | None:
        """Since when and why (nearly) nothing succeeds; None: it does, or nobody knows."""
        if not self.breaker.is_down:
            return None
        return went_down(self.breaker, self.breaker.down_since_s)

    @property
    def records_max(self) -> float:
        """The most records that a new tuple should have."""
        return self._size.records_max

    def has_room(self, in_flight: int, now_s: float) -> bool:
        """Whether one more tuple may be sent."""
        if self.breaker.is_down:
            return self.breaker.may_ask(now_s)
        return self._cap.has_room(in_flight, now_s)

    def note_sent(self, now_s: float) -> None:
        """A tuple was sent while it is troubled."""
        if self.breaker.is_down:
            self.breaker.note_asked(now_s)

    def on_refused(
        self, flow_tuple: FlowTuple, refusal: Refused, *, slots: int, now_s: float
    ) -> bool:
        """It had no room, or is away; return whether it counts as down from now on."""
        self.is_troubled = True
        if refusal.done:  # it took some: it is full, not down
            self._size.on_refused(refusal.done, now_s)
            self.dismiss("", now_s)
        before = self._cap.cap
        if not self.breaker.is_down and self._cap.on_refused(
            sent_at_s=flow_tuple.sent_at_s,
            in_flight=refusal.in_flight,
            slots=slots,
            now_s=now_s,
        ):
            self._tell_cap(before, refusal.reason, now_s)
        if refusal.done:
            return False
        return self._note_failure(
            flow_tuple.tuple_id,
            slots=slots,
            reason=refusal.reason,
            is_refusal=True,
            after_s=refusal.after_s,
            now_s=now_s,
        )

    def on_failure(self, tuple_id: int, *, slots: int, reason: str, now_s: float) -> bool:
        """``process`` failed, perhaps because of it; return whether it counts as down now."""
        self.is_troubled = True
        return self._note_failure(
            tuple_id, slots=slots, reason=reason, is_refusal=False, after_s=None, now_s=now_s
        )

    def _note_failure(
        self,
        tuple_id: int,
        *,
        slots: int,
        reason: str,
        is_refusal: bool,
        after_s: float | None,
        now_s: float,
    ) -> bool:
        went_down = self.breaker.on_failure(
            tuple_id,
            slots=slots,
            reason=reason,
            is_refusal=is_refusal,
            after_s=after_s,
            now_s=now_s,
        )
        return went_down and self._goes_down(now_s)

    def _goes_down(self, now_s: float) -> bool:
        self._cap.forgive()
        self._events.append(went_down(self.breaker, now_s))
        return True

    def on_deadline(self, now_s: float) -> bool:
        """Time passed; return whether it counts as down from now on."""
        return self.breaker.on_deadline(now_s) and self._goes_down(now_s)

    def on_success(self, sent_at_s: float, now_s: float) -> None:
        """A tuple, sent at ``sent_at_s``, was processed while it was troubled.

        What was at work already when the first call failed says nothing of the target now.
        """
        if sent_at_s >= self.breaker.run_began_s:
            self.dismiss("", now_s)
        before = self._cap.cap
        if self._cap.on_success(now_s):
            self._tell_cap(before, "nothing is refused any more", now_s)
        self._size.on_success(now_s)
        is_full = self._cap.cap < inf or self._size.records_max < inf
        self.is_troubled = is_full or bool(self.breaker.failing)

    def dismiss(self, reason: str, now_s: float) -> None:
        """It is not down, or not any more; ``reason`` says why, if nothing has succeeded."""
        down_s = self.breaker.close(now_s)
        if down_s is not None:
            self._counters.target_down_total_s += down_s
            asked = self.breaker.asked
            self._events.append(
                TargetCameBack(at_s=now_s, down_s=down_s, asked=asked, reason=reason)
            )

    def _tell_cap(self, before: float, reason: str, now_s: float) -> None:
        shown = [None if c == inf else int(c) for c in (before, self._cap.cap)]
        if shown[0] == shown[1]:
            return
        self._events.append(
            SinkCapChanged(at_s=now_s, before=shown[0], after=shown[1], reason=reason)
        )
