"""Events of a topology for others to read; what a stage gave up fails its roots instead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from flowctl.core.events import FlowEvent
from flowctl.core.tuple_core import TupleCore
from flowctl.topology.hub.blame import FailedAt
from flowctl.topology.hub.roots import Roots
from flowctl.topology.hub.routing import Router
from flowctl.topology.hub.stage import Stage


class TopologyEvents:
    """Returns the topology's own ``events``, then those of its cores.

    Part of ``TopologyCore``, not thread-safe.
    """

    def __init__(
        self, events: deque[FlowEvent], stages: Sequence[Stage], roots: Roots, router: Router
    ) -> None:
        self._events = events
        self._stages = stages
        self._roots = roots
        self._router = router

    def poll(self) -> FlowEvent | None:
        """Return the next thing that happened and why, or None."""
        if self._roots.drops:
            self._events.extend(self._roots.drops.take())
        if self._events:
            return self._events.popleft()
        for stage in self._stages:
            for core in stage.cores:
                event = core.poll_event()
                if event is not None:
                    return event
        return None

    def collect(self, stage: Stage, core: TupleCore, now_s: float) -> None:
        """Take a core's events; what it gave up or dropped is not lost but fails its roots.

        The consequence is reported for each root; a report on a tuple of inputs would tell nobody
        anything.
        """
        while (event := core.poll_event()) is not None:
            self._events.append(event)
        while (lost := core.poll_lost()) is not None:
            ids: list[Any] = [record.position for record in lost.records]
            at = FailedAt(stage, lost.bolt)
            self._router.fail_inputs(stage, lost.bolt, ids, lost.reason, now_s, at=at)
