"""What the core learns of a bolt: that it has connected, and what it says of itself then."""

from __future__ import annotations

from typing import NamedTuple

from flowctl.core.tuples import Ids


class Joined(NamedTuple):
    """A bolt that came at ``now_s``; ``in_order`` as in ``TupleCore.add_bolt``.

    ``counts``: what it did before it went and came back (tuples acked, records acked, tuples that
    went from it to others).
    """

    bolt: str
    slots: int
    epoch: int
    now_s: float
    in_order: bool = False
    counts: tuple[int, int, int] = (0, 0, 0)


class Beat(NamedTuple):
    """What a heartbeat says, the bolt's own sign of life.

    ``begun``: the tuples that it is at work on, as a bolt of several slots reports them.
    ``arrived``: how many tuples came to it on this connection; None: it doesn't count them.
    """

    busy_slots: int
    queued: int
    begun: Ids = ()
    arrived: int | None = None

    @property
    def holds(self) -> int:
        """The tuples that it has, begun or not."""
        return self.busy_slots + self.queued
