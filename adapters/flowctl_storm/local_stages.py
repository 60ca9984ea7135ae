"""The port for places where stages run, and an implementation with threads of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from flowctl.bolts.local import LocalBolts
from flowctl.ports import BoltNotice, Bolts, Endpoint
from flowctl_storm.plan import StagePlan


class Stages(Protocol):
    """Runs the bolts of all stages: :class:`LocalStages`, or ``pyspark_flowctl.SparkStages``."""

    def bolts(self, plans: Sequence[StagePlan]) -> Bolts:
        """Return the bolts of all ``plans``, with the plans' names and code."""


class LocalStages:
    """Bolts as threads of this process, for laptops and tests."""

    def bolts(self, plans: Sequence[StagePlan]) -> Bolts:
        """See :class:`Stages`."""
        return LocalStageBolts(plans)


class LocalStageBolts:
    """The bolts of all stages (:class:`flowctl.ports.Bolts`)."""

    def __init__(self, plans: Sequence[StagePlan]) -> None:
        self.count: int = sum(plan.count for plan in plans)
        #: See :class:`flowctl.ports.NamedBolts`.
        self.names: list[str] = [bolt for plan in plans for bolt in plan.bolts]
        self._stages = [
            LocalBolts(plan.code, count=plan.count, slots=plan.slots, prefix=f"{plan.name}.")
            for plan in plans
        ]

    def listen_host(self) -> str:
        """Return loopback, since the bolts run here."""
        return "127.0.0.1"

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        """Start all bolts and return."""
        for stage in self._stages:
            stage.start(endpoint, notify)

    def stop(self, *, timeout_s: float) -> None:
        """End all bolts, within ``timeout_s`` altogether."""
        deadline_s = time.monotonic() + timeout_s
        for stage in self._stages:
            stage.stop(timeout_s=max(0.0, deadline_s - time.monotonic()))
