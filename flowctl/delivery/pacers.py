"""Who decides when a call may begin, and waits after a refusal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from flowctl.bolts.refusals import RefusalRule, refusal_of
from flowctl.errors import TargetDownError

T = TypeVar("T")

# As a bolt waits (flowctl/bolts/pauses.py): half a second, doubled up to some seconds, so that a
# target that comes back is noticed soon.
_FIRST_S = 0.5
_MOST_S = 8.0
_JITTER_SHARE = 0.5  # partitions that were refused together must not come back together


class Pacer(Protocol):
    """Runs calls to one target, each when it may begin; for one thread."""

    def run(self, call: Callable[[], T], cost: float | None) -> T:
        """Run ``call`` until it is not refused, and return what it returns.

        ``cost``: what it takes of the target's budget; None: nothing but a place.  Raises what
        ``call`` raises, if it is not a refusal, and :class:`TargetDownError` if nothing was taken
        for too long.
        """


class PatientPacer:
    """Waits after refusals, and knows nothing of other partitions: for where no limit is shared.

    ``rule`` is the user's own (:mod:`flowctl.bolts.refusals`); ``give_up_after_s``: so long a call
    may be refused before the partition fails.
    """

    def __init__(
        self,
        rule: RefusalRule | None,
        *,
        give_up_after_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._rule = rule
        self._give_up_after_s = give_up_after_s
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    def run(self, call: Callable[[], T], cost: float | None) -> T:
        """See :class:`Pacer`; ``cost`` is not used."""
        del cost
        began_at_s = self._clock()
        row = 0
        while True:
            try:
                return call()
            except Exception as error:
                refusal = refusal_of(error, self._rule)
                if refusal is None:
                    raise
                spent_s = self._clock() - began_at_s
                if spent_s >= self._give_up_after_s:
                    raise TargetDownError(
                        f"the target refused every call for {spent_s:.0f} s ({refusal.reason}).",
                        remedy="What is written stays. See why it takes nothing, then run again;"
                        " give_up_after_s= waits longer.",
                    ) from error
            row += 1
            self._sleep(self._wait_s(row, refusal.after_s))

    def _wait_s(self, row: int, after_s: float | None) -> float:
        if after_s is not None and row == 1:
            return after_s
        wait_s = min(_MOST_S, _FIRST_S * 2.0 ** (row - 1))
        wait_s *= 1.0 - _JITTER_SHARE * self._chance()
        return max(after_s or 0.0, wait_s)
