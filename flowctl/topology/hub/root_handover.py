"""Partitions of a topology's spouts that are taken away and given."""

from __future__ import annotations

from collections import deque

from flowctl.core.events import FlowEvent, PartitionGiven, PartitionTakenAway
from flowctl.core.records import PartitionCheckpoint
from flowctl.topology.hub.roots import Roots


class RootHandover:
    """As :class:`flowctl.core.handover.Handover`, where what is in flight are trees.

    What the stages hold of a partition that went runs out without any effect on the checkpoint.
    Its accounts stay with the ackers until then: taken out, the acks that still come would open
    them again, and leave orphans.
    """

    def __init__(self, roots: Roots, events: deque[FlowEvent]) -> None:
        self._roots = roots
        self._events = events

    def give(self, partition: str, state: PartitionCheckpoint, *, now_s: float) -> None:
        """``partition`` is read by this driver from now on, from just after ``state``."""
        self._roots.forget(partition)
        self._roots.intake.give(partition, state)
        self._events.append(
            PartitionGiven(at_s=now_s, partition=partition, position=state.position)
        )

    def hold_back(self, partition: str) -> int:
        """Plant no more of ``partition``; return its roots whose trees are not complete.

        What was committed before it was sent is nobody else's: it still goes out, and 0 is
        returned.
        """
        return self._roots.hold_back(partition)

    def take_away(self, partition: str, *, now_s: float) -> None:
        """``partition`` is read by another driver from now on.

        Acks that still come for it change nothing.
        """
        handed_over = self._roots.forget(partition)
        state = self._roots.intake.forget(partition)
        self._events.append(
            PartitionTakenAway(
                at_s=now_s,
                partition=partition,
                position=state.position if state is not None else None,
                handed_over=handed_over,
            )
        )
