"""How a bolt slows down while its target refuses: the rule in one place.

A bolt's queue would be used up in a millisecond against a target that refuses.  So:

1. **The slot that was refused waits** before it takes its next tuple: what the target asked for, at
   most 5 s (a longer wait is the driver's business: it holds the tuples back); else .5 s, doubled
   with each further refusal of this slot in a row, up to 2 s.  A shorter wait than that is
   believed once: if the next call is refused too, the doubling begins.  The slot's first success
   ends it.
2. **The bolt is shut from a refusal to the next success** of any of its slots.  While it is shut
   all slots together begin one call per wait, by the same scale, which grows only when a call is
   refused that began after it shut: sixty calls that were under way when a target went down are
   one refusal.  So a bolt makes at most two calls a second while nothing succeeds, however many
   slots it has.
3. **A success opens the bolt at once.**  Where a target has room for ten calls and a bolt has 64
   slots, each success lets the others go on within one call's time, and only those slots that
   were refused still wait for themselves.

A fault (``process`` raised something that is not a refusal) of a call that began since counts as a
success here: the call was not refused, and whether the target is down is for the spout to tell.
A wait ends when the link does.  It is not idle time: the bolt would
not have taken a tuple.  Tuples that are queued meanwhile can be taken back by the spout.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from flowctl.core.retry import ASKED_MOST_S, TARGET


class _Wait(NamedTuple):
    row: int
    until_s: float


class Pauses:
    """The waits of one bolt's slots.  Pure; not thread-safe: the caller holds a lock.

    A slot is any value that identifies it.  ``is_free``: no slot has to wait for anything.
    """

    __slots__ = ("_next_at_s", "_own", "_probes", "_row", "_wait_s", "is_free", "is_shut")

    def __init__(self) -> None:
        self.is_free: bool = True
        self.is_shut: bool = False
        self._own: dict[Hashable, _Wait] = {}
        self._probes: set[Hashable] = set()  # slots whose call began while the bolt was shut
        self._row = 0
        self._wait_s = 0.0  # seconds between two calls while shut
        self._next_at_s = 0.0

    def wait_s(self, slot: Hashable, now_s: float) -> float:
        """Return how long ``slot`` has to wait before it may take a tuple [s]; 0 or less: not at
        all.
        """
        own = self._own.get(slot)
        until_s = self._next_at_s if self.is_shut else now_s
        if own is not None and own.until_s > until_s:
            until_s = own.until_s
        return until_s - now_s

    def begun(self, slot: Hashable, now_s: float) -> None:
        """Note that ``slot`` took a tuple."""
        if self.is_shut:
            self._probes.add(slot)
            self._next_at_s = now_s + self._wait_s

    def succeeded(self, slot: Hashable) -> None:
        """Note that the call of ``slot`` succeeded."""
        self._own.pop(slot, None)
        self._probes.clear()
        self.is_shut = False
        self.is_free = not self._own

    def failed(self, slot: Hashable) -> None:
        """Note that the call of ``slot`` failed, but was not refused."""
        if slot in self._probes:
            self.succeeded(slot)
        elif self._own.pop(slot, None) is not None:
            self.is_free = not (self._own or self.is_shut)

    def refused(self, slot: Hashable, after_s: float | None, now_s: float) -> None:
        """Note that the call of ``slot`` was refused; ``after_s`` as in
        :class:`flowctl.core.messages.Fail`.
        """
        own = self._own.get(slot)
        row = 1 if own is None else own.row + 1
        self._own[slot] = _Wait(row, now_s + _wait(row, after_s))
        if not self.is_shut:
            self._shut(1, after_s, now_s)
        elif slot in self._probes:
            self._shut(self._row + 1, after_s, now_s)
        self.is_free = False

    def _shut(self, row: int, after_s: float | None, now_s: float) -> None:
        self.is_shut = True
        self._row = row
        self._wait_s = _wait(row, after_s)
        self._next_at_s = now_s + self._wait_s
        self._probes.clear()  # calls in progress belong to this refusal


def _wait(row: int, after_s: float | None) -> float:
    """Return how long to wait after the ``row``-th refusal in a row [s]."""
    if after_s is None:
        return TARGET.after(row)
    return TARGET.asked(row, min(after_s, ASKED_MOST_S))
