"""Which events are timed: only some of them, so that the others cost nothing."""

from __future__ import annotations

from typing import Protocol

from flowctl.errors import ConfigError


class Chance(Protocol):
    """The part of ``random.Random`` that is used here."""

    def randrange(self, stop: int, /) -> int: ...


class EvenSampler:
    """Fires exactly once in each run of ``one_in`` calls, at a random place in it.

    Exact, so that counts can be scaled by ``one_in``; random, so that work which repeats with the
    same period is not always hit or always missed.  ``one_in`` 0 never fires.  For one thread.
    """

    __slots__ = ("_at", "_call", "_chance", "one_in")

    def __init__(self, one_in: int, *, chance: Chance) -> None:
        if one_in < 0:
            raise ConfigError(
                "one_in", f"must be 0 or more, got {one_in}.", remedy="0 samples nothing."
            )
        self.one_in: int = one_in
        self._chance = chance
        self._call = one_in
        self._at = 0

    def __call__(self) -> bool:
        """Whether this event is to be timed."""
        if self._call >= self.one_in:
            if not self.one_in:
                return False
            self._call = 0
            self._at = self._chance.randrange(self.one_in)
        fires = self._call == self._at
        self._call += 1
        return fires
