"""Short runs of the simulator, for its tests."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from flowctl.core.events import FlowEvent
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.engine import Outcome, Simulation
from flowctl_lab.simulation.policies import settings_of

E = TypeVar("E", bound=FlowEvent)
BASE = CATALOGUE["homog"]


def run(
    scenario: str = "homog", policy: str = "fixed:2", seed: int = 1, **changes: Any
) -> tuple[Simulation, Outcome]:
    """Run a scenario of the catalogue with some fields changed, and keep its log."""
    declared = msgspec.structs.replace(CATALOGUE[scenario], **changes)
    simulation = Simulation(declared, settings_of(policy, declared), seed, keep_log=True)
    return simulation, simulation.run(policy)


def events(simulation: Simulation, kind: type[E]) -> list[E]:
    """The core's events of one kind, in order."""
    assert simulation.log is not None
    return [e[3] for e in simulation.log if e[2] == "event" and isinstance(e[3], kind)]


def said(simulation: Simulation, what: str) -> list[tuple[Any, ...]]:
    """The log's entries of one kind: ``emit``, ``ack``, ``revoked``."""
    assert simulation.log is not None
    return [entry for entry in simulation.log if entry[2] == what]
