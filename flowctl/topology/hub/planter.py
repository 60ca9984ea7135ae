"""When trees begin, and what delays them: absent bolts, full stages, ``max_pending``."""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.topology.hub.roots import PLANT_RECORDS, Roots
from flowctl.topology.hub.routing import Router
from flowctl.topology.hub.stage import Stage


class Planter:
    """Plants roots in the first stages.  Part of ``TopologyCore``, not thread-safe.

    ``max_pending`` bounds the roots that are planted and not done (None: no limit).
    """

    def __init__(
        self, stages: Sequence[Stage], roots: Roots, router: Router, max_pending: int | None
    ) -> None:
        self._stages = stages
        self._first = [stage for stage in stages if stage.is_first]
        self._roots = roots
        self._router = router
        self._max_pending = max_pending

    def plant(self, now_s: float) -> None:
        """Begin trees, while the first stages have room."""
        if not self.was_served:
            return  # otherwise a tree's timer would run while Spark starts
        roots, blame = self._roots, self._roots.blame
        while not any(stage.is_full for stage in self._first) and blame.may_plant(now_s):
            batch = roots.take(1 if blame.down is not None else self._room())
            if not batch:
                break
            for root in batch:
                self._router.plant(root, now_s)
            for stage in self._first:
                stage.flush()
            blame.note_planted(now_s)

    @property
    def was_served(self) -> bool:
        """Whether every stage has had a bolt."""
        return all(stage.was_served for stage in self._stages)

    @property
    def is_at_limit(self) -> bool:
        """Whether the limit of pending roots is reached, so no new one may be planted."""
        return self._room() <= 0

    def _room(self) -> int:
        """How many more new roots may be planted at once."""
        most = self._max_pending
        return (
            PLANT_RECORDS
            if most is None
            else min(PLANT_RECORDS, most - (self._roots.pending - self._roots.dying))
        )

    def pass_end_on(self, now_s: float) -> None:
        """Nothing is left to plant: each stage learns when nothing is left before it."""
        for stage in self._stages:
            if not stage.is_ended and all(f.is_ended and f.is_drained for f in stage.fed_by):
                stage.end_of_input(now_s)
