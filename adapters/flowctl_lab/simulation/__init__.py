"""The simulator: the same core as on Spark, with simulated bolts, network and sink.

Read :mod:`.scenario` first, then :mod:`.engine`; ``flowctl simulate`` is the command.
"""

from __future__ import annotations

from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.engine import Outcome, Simulation, simulate
from flowctl_lab.simulation.scenario import Scenario

__all__ = ["CATALOGUE", "Outcome", "Scenario", "Simulation", "simulate"]
