"""Which reports of bolts are saved, for bolts that begin no third batch before that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.wire.frames import Saved


class Reports(NamedTuple):
    """How many reports came over a bolt's connection, which ``epoch`` numbers."""

    epoch: int
    number: int


class SavesTold:
    """Not thread-safe: the caller holds the control's lock.

    ``is_awaited``: some of the last reports asked for that.
    """

    def __init__(self) -> None:
        self.is_awaited: bool = False
        self._ranges: set[int] = set()  # that were reported on, and no save has begun since
        self._came: dict[str, Reports] = {}
        self._waiting: set[str] = set()  # bolts whose last reports are not saved
        self._news: dict[str, Reports] = {}

    def reported(self, bolt: str, epoch: int, tuple_id: int, *, is_awaited: bool) -> bool:
        """A report came; ``is_awaited``: the bolt wants to know when it is saved.

        Returns whether a slot is held up already, as the report before this one is not saved.
        """
        before = self._came.get(bolt)
        count = before.number if before is not None and before.epoch == epoch else 0
        self._came[bolt] = Reports(epoch, count + 1)
        if not is_awaited:
            return False
        self.is_awaited = True
        self._waiting.add(bolt)
        is_held_up = tuple_id in self._ranges
        self._ranges.add(tuple_id)
        return is_held_up

    def covered(self) -> dict[str, Reports]:
        """What a save that begins now will hold; for :meth:`saved`."""
        self._ranges.clear()
        self.is_awaited = bool(self._waiting)
        return {bolt: self._came[bolt] for bolt in self._waiting}

    def saved(self, covered: dict[str, Reports]) -> None:
        """That save succeeded."""
        self._waiting.difference_update([b for b, r in covered.items() if self._came[b] == r])
        self._news.update(covered)

    def take(self, bolts: Mapping[str, AdaptiveFlowConsumer]) -> list[tuple[str, Saved]]:
        """Return what to tell to which of ``bolts``: not to one that connected since."""
        if not self._news:
            return []
        news, self._news = self._news, {}
        return [
            (bolt, Saved(reports.number))
            for bolt, reports in news.items()
            if bolt in bolts and bolts[bolt].epoch == reports.epoch
        ]
