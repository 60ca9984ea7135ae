"""Whose fault it is that an input failed: its root's, or the target's that its stage calls.

As :mod:`flowctl.core.blame` has it for the tuples of a spout.  The inputs of a tuple fail one by
one, so a target that is down looks like many bad records, and each costs its root an attempt.  So a
root's next failure counts only if the bolt has processed something that it was sent after the
root's last failure; and while a stage processes nothing at all, roots go out one at a time, to ask.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from flowctl.core.attempts import Attempts, Fate
from flowctl.core.blame import (
    BAD_END_MAX,
    BAD_END_S,
    FEW_LEFT,
    GIVEN_UP_FIRST_MAX,
    REFUSALS_MAX,
)
from flowctl.core.breaker import Breaker
from flowctl.core.events import FlowEvent, TargetCameBack, TargetWentDown
from flowctl.core.failures import NOTHING_SUCCEEDED
from flowctl.core.letters import redrive_number
from flowctl.core.retry import DOUBT_WAIT_MAX_S, backoff_s
from flowctl.core.settings import RetrySettings
from flowctl.core.target import went_down
from flowctl.core.trees.settlement import Settlement
from flowctl.core.tuples import NEVER_JUDGED
from flowctl.topology.hub.stage import Stage
from flowctl.topology.hub.tree_root import Root


class FailedAt(NamedTuple):
    """Where an input failed; without a stage: not because of the user's code.

    ``may_be_target``: as far as can be seen, the target that the code calls may be to blame.
    """

    stage: Stage | None
    bolt: str
    may_be_target: bool = True

    @property
    def place(self) -> str:
        """What is down, or is not, as a whole: a stage, or one task if no other can do it."""
        return self.bolt if self.stage is None or self.stage.plan.is_keyed else self.stage.name


class RootBlame:
    """Part of ``Roots``, not thread-safe.  ``attempts`` are the roots'."""

    def __init__(
        self, attempts: Attempts[Root], settings: RetrySettings, events: deque[FlowEvent]
    ) -> None:
        self.down_s: float = 0.0  # how long places were down, stretches that are over
        most_s = min(DOUBT_WAIT_MAX_S, settings.backoff_max_s)
        self._settings = replace(settings, backoff_max_s=most_s)
        self._attempts = attempts
        self._given_up_first = 0  # before anything had succeeded where they failed
        self._events = events
        # When that was sent which succeeded last: by bolt, and by place.
        self._proven_at_s: dict[str, float] = {}
        self._breakers: dict[str, Breaker] = {}
        self._dismissed: set[str] = set()  # places where what is left counts as bad

    def settled(
        self,
        at: FailedAt,
        said: Settlement,
        records: int,
        *,
        sent_at_s: float | None,
        pending: int,
        now_s: float,
    ) -> None:
        """A bolt has ``said`` what became of ``records`` inputs, and of those that it held.

        ``sent_at_s`` is when they were sent, if known; ``pending`` roots are not done.
        """
        failed = [one for one in said.failed if not one.refused and not one.is_data_error]
        done = records + len(said.acked) - len(said.failed) - len(said.held)
        if done > 0:
            if sent_at_s is not None:
                self._succeeded(at, sent_at_s, now_s)
        elif failed and at.place in self._proven_at_s and pending > FEW_LEFT:
            self._nothing_done(at, failed[0].reason, now_s)

    def _succeeded(self, at: FailedAt, sent_at_s: float, now_s: float) -> None:
        for name in (at.bolt, at.place):
            self._proven_at_s[name] = max(sent_at_s, self._proven_at_s.get(name, 0.0))
        self._dismissed.discard(at.place)
        breaker = self._breakers.get(at.place)
        if breaker is not None and sent_at_s >= breaker.run_began_s:
            self._close(breaker, "", now_s)

    def _nothing_done(self, at: FailedAt, reason: str, now_s: float) -> None:
        if at.place in self._dismissed or at.stage is None:
            return
        breaker = self._breakers.setdefault(at.place, Breaker(self._settings.give_up_after_s))
        slots = 1 if at.stage.plan.is_keyed else at.stage.plan.count
        if breaker.on_failure(
            0, slots=slots, reason=reason, is_refusal=False, after_s=None, now_s=now_s
        ):
            self._went_down(breaker, now_s)

    def fault(
        self, root: Root, at: FailedAt | None, reason: str, *, pending: int, now_s: float
    ) -> Fate:
        """``root`` failed (``at`` None: it could not be planted); ``pending`` are not done."""
        attempts = self._attempts
        if at is None or at.stage is None:
            return attempts.fault(root, reason, now_s)
        may_be_target = at.may_be_target and attempts.sends_again
        if may_be_target and not self._counts(root, at, pending, now_s):
            root.doubts += 1
            wait_s = backoff_s(root.doubts, self._settings, attempts.chance)
            return attempts.again(root, now_s + wait_s, now_s)
        root.judged_at_s = now_s
        keeps = self._is_keepable(root, at)
        return attempts.fault(
            root, reason if keeps else f"{reason} ({NOTHING_SUCCEEDED})", now_s, keeps=keeps
        )

    def _is_keepable(self, root: Root, at: FailedAt) -> bool:
        """Whether a dead letter may keep it: a bolt that never works must not empty the source."""
        is_last = root.faults + 1 >= self._settings.attempts_max
        if not is_last or at.place in self._proven_at_s or redrive_number(root.partition):
            return True
        self._given_up_first += 1
        return self._given_up_first <= GIVEN_UP_FIRST_MAX

    def _counts(self, root: Root, at: FailedAt, pending: int, now_s: float) -> bool:
        """Whether the failure of ``root`` is to count against it.

        What never worked there is wrong.  A letter that is processed again is what fails alone, or
        it would be none.
        """
        place, proven_at_s = at.place, self._proven_at_s.get(at.bolt, NEVER_JUDGED)
        if place not in self._proven_at_s or place in self._dismissed:
            return True
        if root.judged_at_s <= proven_at_s or redrive_number(root.partition) is not None:
            return True
        breaker = self._breakers.get(place)
        if breaker is not None and breaker.is_down:
            return self._is_bad_end(breaker, place, pending, now_s)
        if at.bolt in self._proven_at_s and pending <= FEW_LEFT:
            return True
        return root.doubts >= REFUSALS_MAX

    def _is_bad_end(self, breaker: Breaker, place: str, pending: int, now_s: float) -> bool:
        if pending > BAD_END_MAX or now_s - breaker.down_since_s < BAD_END_S:
            return False
        self._dismissed.add(place)
        self._close(breaker, "so few roots are left that they count as bad", now_s)
        return True

    # -- while a place is down -----------------------------------------------------------

    @property
    def down(self) -> TargetWentDown | None:
        """Since when and why a place processes nothing; None: all do, or nobody knows."""
        for breaker in self._breakers.values():
            if breaker.is_down:
                return went_down(breaker, breaker.down_since_s)
        return None

    @property
    def is_lost(self) -> bool:
        """Whether that has lasted for ``retry.give_up_after_s``: the run has to fail."""
        return any(breaker.is_lost for breaker in self._breakers.values())

    def may_plant(self, now_s: float) -> bool:
        """Whether a root may be planted: while a place is down, one now and then."""
        return all(b.may_ask(now_s) for b in self._breakers.values() if b.is_down)

    def note_planted(self, now_s: float) -> None:
        """Roots were planted; while a place is down that was one, to ask."""
        for breaker in self._breakers.values():
            if breaker.is_down:
                breaker.note_asked(now_s)

    def next_s(self) -> float | None:
        """When :meth:`on_time` wants to be called, or None."""
        due_s = min((breaker.next_s() for breaker in self._breakers.values()), default=inf)
        return None if due_s == inf else due_s

    def on_time(self, now_s: float) -> None:
        """Time passed: a place may count as down now, or as lost."""
        for breaker in self._breakers.values():
            if breaker.on_deadline(now_s):
                self._went_down(breaker, now_s)

    def _went_down(self, breaker: Breaker, now_s: float) -> None:
        self._events.append(went_down(breaker, now_s))

    def _close(self, breaker: Breaker, reason: str, now_s: float) -> None:
        asked, down_s = breaker.asked, breaker.close(now_s)
        if down_s is not None:
            self.down_s += down_s
            self._events.append(
                TargetCameBack(at_s=now_s, down_s=down_s, asked=asked, reason=reason)
            )
