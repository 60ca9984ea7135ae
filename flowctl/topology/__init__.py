"""Topologies: spouts and bolts in several stages, with Storm's guarantees.

``from flowctl.topology import Topology, LocalStages``.  Names are loaded when they are first used
(PEP 562): a worker needs only what bolts are made of.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl.instrumentation.hooks import TaskHook
    from flowctl.instrumentation.ticks import Point, TaskInfo
    from flowctl.topology.figures import TopologyReport
    from flowctl.topology.inputs import Collector, Input, ManualCollector
    from flowctl.topology.job import TopologyJob
    from flowctl.topology.news import RootEnd
    from flowctl.topology.stages import LocalStages, Stages
    from flowctl.topology.tasks import Batched, ManualBolt
    from flowctl.topology.topology import Topology

__all__ = [
    "Batched",
    "Collector",
    "Input",
    "LocalStages",
    "ManualBolt",
    "ManualCollector",
    "Point",
    "RootEnd",
    "Stages",
    "TaskHook",
    "TaskInfo",
    "Topology",
    "TopologyJob",
    "TopologyReport",
]

_ELSEWHERE = {
    "Batched": ".tasks",
    "Collector": ".inputs",
    "Input": ".inputs",
    "LocalStages": ".stages",
    "ManualBolt": ".tasks",
    "ManualCollector": ".inputs",
    "Point": "flowctl.instrumentation.ticks",
    "RootEnd": ".news",
    "Stages": ".stages",
    "TaskHook": "flowctl.instrumentation.hooks",
    "TaskInfo": "flowctl.instrumentation.ticks",
    "Topology": ".topology",
    "TopologyJob": ".job",
    "TopologyReport": ".figures",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use and keep it."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_ELSEWHERE[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
