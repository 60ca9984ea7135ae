"""Topologies: spouts and bolts in several stages, with Storm's guarantees.

``from flowctl.topology import Topology, LocalStages``.  Names are loaded when they are first used
(PEP 562): a worker loads only what bolts need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl.instrumentation.hooks import TaskHook
    from flowctl.instrumentation.task_metrics import Point, TaskInfo
    from flowctl.topology.figures import TopologyReport
    from flowctl.topology.hub.news import RootEnd
    from flowctl.topology.local_stages import LocalStages, Stages
    from flowctl.topology.topology import Topology
    from flowctl.topology.topology_job import TopologyJob
    from flowctl.topology.worker.inputs import Collector, Input, ManualCollector
    from flowctl.topology.worker.tasks import Batched, ManualBolt

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
    "Batched": ".worker.tasks",
    "Collector": ".worker.inputs",
    "Input": ".worker.inputs",
    "LocalStages": ".local_stages",
    "ManualBolt": ".worker.tasks",
    "ManualCollector": ".worker.inputs",
    "Point": "flowctl.instrumentation.task_metrics",
    "RootEnd": ".hub.news",
    "Stages": ".local_stages",
    "TaskHook": "flowctl.instrumentation.hooks",
    "TaskInfo": "flowctl.instrumentation.task_metrics",
    "Topology": ".topology",
    "TopologyJob": ".topology_job",
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
