"""Whose fault a failure is: that of what failed, or of the place where it did.

A place is the target of a spout, a stage of a topology or one task of it, or what a partition of
``flow_sink`` writes to.  Nobody can tell from one failure of a kind that is not known.  But a
record that fails does so while others succeed, and a place that is down fails everything.  So a run
of failures opens the breaker of the place, and the next failure of something counts against it only
if something that was sent after its last one has succeeded since.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from flowctl.core.breaker import Breaker
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, TargetCameBack, TargetWentDown
from flowctl.core.letters import redrive_number
from flowctl.core.tuples import NEVER_JUDGED

# A target that is full refuses at most every other call for long: twenty refusals in a row of one
# tuple, while others succeed, are one in a million then.
REFUSALS_MAX: Final = 20
# So many records may be given up, and kept elsewhere, while nothing succeeds: a process that never
# works must not empty the source into the dead letter.
GIVEN_UP_FIRST_MAX: Final = 8
# Where all that is left of a job fails, the target may be down, or all of that bad.  If so few
# are left, they count as bad after so long: most restarts of a service behind a balancer are over
# then, and nobody minds that a job with a bad end takes that much longer.  Of more it is likelier
# that the target is down.
BAD_END_MAX: Final = 100
BAD_END_S: Final = 10.0
# So few that are left are not worth waiting for, as so few may be given up anyway.
FEW_LEFT: Final = GIVEN_UP_FIRST_MAX


def fails_alone(partition: str, refusals: int) -> bool:
    """Return whether what fails is known to do so by itself, whatever its place.

    A letter of ``partition`` that is processed again failed alone, or it would be none.
    ``refusals``: how often it was sent again without a fault, while its place was not down.
    """
    return redrive_number(partition) is not None or refusals >= REFUSALS_MAX


class Place:
    """What successes and failures show of one place.  Pure; not thread-safe.

    ``proven_at_s``: when that was sent which succeeded last there in this run, so the place was
    well then or later.  Whoever sees a success writes it.  ``is_known``: the code has worked there
    before, so where nothing has succeeded yet it need not be wrong.
    """

    __slots__ = (
        "_cleared_at_s", "_counters", "_events", "_failing_since_s", "_proven_then_s", "breaker",
        "proven_at_s",
    )  # fmt: skip

    def __init__(
        self,
        give_up_after_s: float,
        counters: Counters,
        events: deque[FlowEvent],
        *,
        is_known: bool = False,
    ) -> None:
        self.proven_at_s: float = NEVER_JUDGED
        self.breaker: Breaker = Breaker(give_up_after_s)
        self._cleared_at_s: float = -inf if is_known else NEVER_JUDGED
        self._proven_then_s: float | None = None  # at the first failure since a success
        self._failing_since_s: float = NEVER_JUDGED
        self._counters = counters
        self._events = events

    # -- is it to blame? -----------------------------------------------------------------

    @property
    def has_succeeded(self) -> bool:
        """Whether anything succeeded there, in this run."""
        return self.proven_at_s > NEVER_JUDGED

    @property
    def is_cleared(self) -> bool:
        """Whether what fails there is not its fault: it never worked, so the code is wrong; or what
        is left counts as bad."""
        return self._cleared_at_s >= self.proven_at_s

    def lacks_proof(self, judged_at_s: float, proven_at_s: float | None = None) -> bool:
        """Whether a failure of what failed before, at ``judged_at_s``, may be the place's fault:
        nothing that was sent since has succeeded.

        Records that fail are found while others succeed; so nothing is lost by waiting for that.
        ``proven_at_s``: of a part of the place, if that has to show it.
        """
        proven_at_s = self.proven_at_s if proven_at_s is None else proven_at_s
        return not self.is_cleared and judged_at_s > proven_at_s

    def fails_for_long(self, now_s: float) -> bool:
        """Whether nothing has succeeded there for :data:`BAD_END_S`, which begin when this is first
        asked after a success."""
        if self._proven_then_s != self.proven_at_s:
            self._proven_then_s, self._failing_since_s = self.proven_at_s, now_s
        return now_s - self._failing_since_s >= BAD_END_S

    def clear_at_end(self, *, few_left: bool, now_s: float) -> bool:
        """Clear it if what is left, all of which fails, counts as bad; return whether it does."""
        breaker = self.breaker
        if not few_left or breaker.has_refused or now_s - breaker.down_since_s < BAD_END_S:
            return False
        self._cleared_at_s = now_s
        self.close("so few are left that they count as bad", now_s)
        return True

    # -- is it down? ---------------------------------------------------------------------

    @property
    def is_down(self) -> bool:
        """Whether (nearly) nothing succeeds."""
        return self.breaker.is_down

    @property
    def down(self) -> TargetWentDown | None:
        """Since when and why (nearly) nothing succeeds; None: it does, or nobody knows."""
        return self._went_down(self.breaker.down_since_s) if self.breaker.is_down else None

    def note_failure(
        self,
        number: int,
        *,
        slots: int,
        reason: str,
        now_s: float,
        is_refusal: bool = False,
        after_s: float | None = None,
    ) -> None:
        """What has this ``number`` failed, perhaps by its fault; as :meth:`Breaker.on_failure`."""
        if self.breaker.on_failure(
            number,
            slots=slots,
            reason=reason,
            is_refusal=is_refusal,
            after_s=after_s,
            now_s=now_s,
        ):
            self._go_down(now_s)

    def on_deadline(self, now_s: float) -> None:
        """Time passed: it may count as down now, or as lost."""
        if self.breaker.on_deadline(now_s):
            self._go_down(now_s)

    def _go_down(self, now_s: float) -> None:
        self._events.append(self._went_down(now_s))

    def _went_down(self, at_s: float) -> TargetWentDown:
        breaker = self.breaker
        return TargetWentDown(at_s=at_s, reason=breaker.reason, has_refused=breaker.has_refused)

    def on_success(self, sent_at_s: float, now_s: float) -> None:
        """Something that was sent at ``sent_at_s`` was processed.

        What was at work already when the first call failed says nothing of the place now.
        """
        if sent_at_s >= self.breaker.run_began_s:
            self.close("", now_s)

    def close(self, reason: str, now_s: float) -> None:
        """It is not down, or not any more; ``reason`` says why, if nothing has succeeded."""
        asked, down_s = self.breaker.asked, self.breaker.close(now_s)
        if down_s is not None:
            self._counters.target_down_total_s += down_s
            came_back = TargetCameBack(at_s=now_s, down_s=down_s, asked=asked, reason=reason)
            self._events.append(came_back)
