"""Decide whether a failed input is the fault of its root or of the target that its stage calls.

The places of :mod:`flowctl.core.blame` are stages here, and tasks.  The inputs of a tuple fail one
by one, so a target that is down looks like many bad records, and each costs its root an attempt.
So a root's next failure counts only if the bolt has processed something that it was sent after the
root's last failure; and while a stage processes nothing at all, roots go out one at a time, to ask.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from flowctl.core.blame import BAD_END_MAX, FEW_LEFT, Place, fails_alone, given_up_first_max
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, TargetWentDown
from flowctl.core.letters import redrive_number
from flowctl.core.settings import RetrySettings
from flowctl.core.trees.settlement import Settlement
from flowctl.core.tuples import NEVER_JUDGED
from flowctl_storm.hub.stage import Stage
from flowctl_storm.hub.tree_root import Root


class FailedAt(NamedTuple):
    """The place of an input's failure; without a stage the user's code is not the cause.

    ``may_be_target``: the target that the code calls may be to blame, by all that is known.
    """

    stage: Stage | None
    bolt: str
    may_be_target: bool = True

    @property
    def place(self) -> str:
        """The place that counts as down or up as a whole: a stage, or one irreplaceable task."""
        return self.bolt if self.stage is None or self.stage.plan.is_keyed else self.stage.name


class RootBlame:
    """Part of ``Roots``, not thread-safe.  ``done_before``: roots that earlier runs did."""

    def __init__(
        self, settings: RetrySettings, events: deque[FlowEvent], done_before: int = 0
    ) -> None:
        self._settings = settings
        self._events = events
        self._counters = Counters()
        self._places: dict[str, Place] = {}
        self._failing: dict[str, Place] = {}  # places with failures: nearly always none
        # When that was sent which succeeded last at a bolt: a root, unlike a tuple, can't avoid a
        # bolt that reaches nothing.
        self._proven_at_s: dict[str, float] = {}
        self._given_up_first_max = given_up_first_max(done_before)
        self._given_up_first = 0  # before anything had succeeded where they failed

    def _place(self, at: FailedAt) -> Place:
        place = self._places.get(at.place)
        if place is None:
            give_up_after_s = self._settings.give_up_after_s
            place = Place(give_up_after_s, self._counters, self._events)
            self._places[at.place] = place
        return place

    def settled(
        self,
        at: FailedAt,
        said: Settlement,
        records: int,
        *,
        sent_at_s: float | None,
        left: int,
        now_s: float,
    ) -> None:
        """Take a bolt's report about ``records`` inputs, and about inputs that it held.

        ``sent_at_s`` is when they were sent, if known; ``left`` is the number of roots not done.
        """
        failed = [one for one in said.failed if not one.refused and not one.is_data_error]
        place = self._place(at)
        if records + len(said.acked) > len(said.failed) + len(said.held):
            if sent_at_s is not None:
                place.proven_at_s = max(sent_at_s, place.proven_at_s)
                of_bolt_s = self._proven_at_s.get(at.bolt, NEVER_JUDGED)
                self._proven_at_s[at.bolt] = max(sent_at_s, of_bolt_s)
                if at.place in self._failing:
                    place.on_success(sent_at_s, now_s)
                    if not place.breaker.failing:
                        del self._failing[at.place]
        elif failed and not place.is_cleared and left > FEW_LEFT and at.stage is not None:
            slots = 1 if at.stage.plan.is_keyed else at.stage.plan.count
            self._failing[at.place] = place
            place.note_failure(0, slots=slots, reason=failed[0].reason, now_s=now_s)

    def counts(self, root: Root, at: FailedAt, *, left: int, now_s: float) -> bool:
        """Whether this failure of ``root`` counts against it; ``left`` roots are not done."""
        place = self._place(at)
        is_bad = fails_alone(root.partition, 0 if place.is_down else root.refusals)
        proven_at_s = self._proven_at_s.get(at.bolt, NEVER_JUDGED)
        if is_bad or not at.may_be_target or not place.lacks_proof(root.judged_at_s, proven_at_s):
            return True
        if place.is_down:
            return place.clear_at_end(few_left=left <= BAD_END_MAX, now_s=now_s)
        return at.bolt in self._proven_at_s and left <= FEW_LEFT

    def is_keepable(self, root: Root, at: FailedAt) -> bool:
        """Whether ``root`` may be a letter: a bolt that never works must not empty the source."""
        if self.has_succeeded(root, at):
            return True
        self._given_up_first += 1
        return self._given_up_first <= self._given_up_first_max

    def has_succeeded(self, root: Root, at: FailedAt) -> bool:
        """Whether something has succeeded where ``root`` failed, or the root surely fails alone."""
        return self._place(at).has_succeeded or redrive_number(root.partition) is not None

    # -- while a place is down -----------------------------------------------------------

    @property
    def down_s(self) -> float:
        """Seconds for which places were down, without the current one."""
        return self._counters.target_down_total_s

    @property
    def down(self) -> TargetWentDown | None:
        """The start and the reason of a place's outage; None if none is known."""
        return next((place.down for place in self._down_now()), None)

    def _down_now(self) -> list[Place]:
        return [place for place in self._failing.values() if place.is_down]

    @property
    def is_lost(self) -> bool:
        """Whether an outage has lasted for ``retry.give_up_after_s``: the run has to fail."""
        return any(place.breaker.is_lost for place in self._down_now())

    def may_plant(self, now_s: float) -> bool:
        """Whether a root may be planted: while a place is down, only one now and then."""
        return all(place.breaker.may_ask(now_s) for place in self._down_now())

    def note_planted(self, now_s: float) -> None:
        """Note that roots were planted: while a place is down just one, as a probe."""
        for place in self._down_now():
            place.breaker.note_asked(now_s)

    def next_s(self) -> float | None:
        """Return when to call :meth:`on_time` next, or None."""
        due_s = min((place.breaker.next_s() for place in self._failing.values()), default=inf)
        return None if due_s == inf else due_s

    def on_time(self, now_s: float) -> None:
        """Advance the time, by which a place may now count as down or as lost."""
        for place in self._failing.values():
            place.on_deadline(now_s)
