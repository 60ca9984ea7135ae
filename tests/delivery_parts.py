"""What tests of deliveries share: virtual time, and who waits in it after a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowctl.errors import TargetDownError
from flowctl.failure.classify import RefusalRule, refusal_of

T = TypeVar("T")
_PAUSE_S = 0.5  # after a refusal that does not say how long


class Clock:
    """Virtual time: sleeping is all that takes any."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class PatientPacer:
    """A pacer without a limit, in virtual time; it gives up after a minute of refusals."""

    def __init__(self, clock: Clock, rule: RefusalRule | None = None) -> None:
        self._clock = clock
        self._rule = rule

    def run(self, call: Callable[[], T], cost: float | None) -> T:
        began_at_s = self._clock()
        while True:
            try:
                return call()
            except Exception as error:
                refusal = refusal_of(error, self._rule)
                if refusal is None:
                    raise
                if self._clock() - began_at_s >= 60:
                    raise TargetDownError("refused every call") from error
            self._clock.sleep(_PAUSE_S if refusal.after_s is None else refusal.after_s)
