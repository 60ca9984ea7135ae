"""Topologies: spouts and bolts in several stages, with Storm's guarantees.

``from flowctl_storm import Topology, LocalStages, SparkStages``.  Names are loaded when they are
first used (PEP 562): a worker loads only what bolts need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl.instrumentation.hooks import TaskHook
    from flowctl.instrumentation.task_metrics import Point, TaskInfo
    from flowctl_storm.figures import TopologyReport
    from flowctl_storm.hub.news import RootEnd
    from flowctl_storm.local_stages import LocalStages, Stages
    from flowctl_storm.spark_stages import SparkStages
    from flowctl_storm.topology import Topology
    from flowctl_storm.topology_job import TopologyJob
    from flowctl_storm.worker.inputs import Collector, Input, ManualCollector
    from flowctl_storm.worker.tasks import Batched, ManualBolt

__all__ = [
    "Batched",
    "Collector",
    "Input",
    "LocalStages",
    "ManualBolt",
    "ManualCollector",
    "Point",
    "RootEnd",
    "SparkStages",
    "Stages",
    "TaskHook",
    "TaskInfo",
    "Topology",
    "TopologyJob",
    "TopologyReport",
]

_HOMES = {
    "Batched": "flowctl_storm.worker.tasks",
    "Collector": "flowctl_storm.worker.inputs",
    "Input": "flowctl_storm.worker.inputs",
    "LocalStages": "flowctl_storm.local_stages",
    "ManualBolt": "flowctl_storm.worker.tasks",
    "ManualCollector": "flowctl_storm.worker.inputs",
    "Point": "flowctl.instrumentation.task_metrics",
    "RootEnd": "flowctl_storm.hub.news",
    "SparkStages": "flowctl_storm.spark_stages",
    "Stages": "flowctl_storm.local_stages",
    "TaskHook": "flowctl.instrumentation.hooks",
    "TaskInfo": "flowctl.instrumentation.task_metrics",
    "Topology": "flowctl_storm.topology",
    "TopologyJob": "flowctl_storm.topology_job",
    "TopologyReport": "flowctl_storm.figures",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        from flowctl.errors import MissingExtraError

        raise MissingExtraError(name, "pyspark", "spark") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
