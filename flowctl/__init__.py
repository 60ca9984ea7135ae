"""flowctl: adaptive flow control for ETL on Spark.

What a job needs is here by name: ``from flowctl import FlowControlSpout``.  Names are loaded
when they are first used (PEP 562), so that a worker which needs ``Batch`` alone does not pay
for the runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl.bolts.batch import Batch
    from flowctl.bolts.local import LocalBolts
    from flowctl.config import Settings
    from flowctl.core.records import Position, Record, Span
    from flowctl.errors import (
        AuthenticationError,
        BoltsUnavailableError,
        CheckpointCorruptError,
        CheckpointUnavailableError,
        ConfigError,
        EnvironmentFault,
        FencedError,
        FlowctlError,
        InternalError,
        JobError,
        ProcessError,
        RetryLater,
        SourceError,
        TargetDownError,
        TooManyLostError,
        WireError,
    )
    from flowctl.instrumentation.snapshot import Report
    from flowctl.ports import CheckpointStore, FlowProducer, SourceChunk
    from flowctl.runtime.iterables import Records
    from flowctl.runtime.spout import FlowControlSpout

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "Batch",
    "BoltsUnavailableError",
    "CheckpointCorruptError",
    "CheckpointStore",
    "CheckpointUnavailableError",
    "ConfigError",
    "EnvironmentFault",
    "FencedError",
    "FlowControlSpout",
    "FlowProducer",
    "FlowctlError",
    "InternalError",
    "JobError",
    "LocalBolts",
    "Position",
    "ProcessError",
    "Record",
    "Records",
    "Report",
    "RetryLater",
    "Settings",
    "SourceChunk",
    "SourceError",
    "Span",
    "TargetDownError",
    "TooManyLostError",
    "WireError",
    "__version__",
]

_ELSEWHERE = {
    "Batch": "flowctl.bolts.batch",
    "CheckpointStore": "flowctl.ports",
    "FlowControlSpout": "flowctl.runtime.spout",
    "FlowProducer": "flowctl.ports",
    "LocalBolts": "flowctl.bolts.local",
    "Position": "flowctl.core.records",
    "Record": "flowctl.core.records",
    "Records": "flowctl.runtime.iterables",
    "Report": "flowctl.instrumentation.snapshot",
    "Settings": "flowctl.config",
    "SourceChunk": "flowctl.ports",
    "Span": "flowctl.core.records",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # What is public and not listed is an error class.
    value = getattr(importlib.import_module(_ELSEWHERE.get(name, "flowctl.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
