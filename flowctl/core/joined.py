"""What the core learns of a bolt that has connected."""

from __future__ import annotations

from typing import NamedTuple


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
