"""flowctl: adaptive flow control for ETL on Spark.

What a job needs can be imported from here: ``from flowctl import FlowControlSpout``.  Names are
loaded when they are first used (PEP 562), so a worker that needs only ``Batch`` does not load the
runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl.bolts.batch import Batch
    from flowctl.bolts.local import LocalBolts
    from flowctl.config import (
        CallSettings,
        CheckpointSettings,
        EventsSettings,
        ListenSettings,
        LossSettings,
        MetricsSettings,
        RecordSettings,
        Settings,
        StartSettings,
    )
    from flowctl.core.messages import Emission
    from flowctl.core.ranges.extent import Extent
    from flowctl.core.records import (
        AckedRange,
        AckOutcome,
        Checkpoint,
        PartitionCheckpoint,
        Position,
        Record,
        Span,
    )
    from flowctl.core.settings import (
        BufferSettings,
        DispatchSettings,
        GuaranteeSettings,
        HedgeSettings,
        RetrySettings,
        TimeoutSettings,
        TupleSettings,
    )
    from flowctl.errors import (
        AuthenticationError,
        BoltsUnavailableError,
        CallTooLongError,
        CheckpointCorruptError,
        CheckpointUnavailableError,
        ConfigError,
        DeadlineError,
        FencedError,
        FlowctlError,
        InfrastructureError,
        InternalError,
        JobError,
        MissingExtraError,
        ProcessError,
        QuotaUsedUpError,
        RetryLater,
        RowError,
        SourceError,
        SpentError,
        TargetDownError,
        TooManyLostError,
        UnknownNameError,
        UnrunnableError,
        WireError,
    )
    from flowctl.instrumentation.snapshot import BoltView, Report, Snapshot, View
    from flowctl.instrumentation.views import Page
    from flowctl.pacing.api import paced
    from flowctl.pacing.target_settings import Limits
    from flowctl.ports import (
        BoltNotice,
        Bolts,
        CheckpointStore,
        DeadLetter,
        Endpoint,
        FlowProducer,
        Process,
        SourceChunk,
        SourceProgress,
        SpoutListener,
    )
    from flowctl.range_ports import Block, RangeProducer, RangeReader
    from flowctl.runtime.detached import DetachedRun, Ended
    from flowctl.runtime.file_store import FileCheckpointStore
    from flowctl.runtime.flow_control_spout import FlowControlSpout
    from flowctl.runtime.iterables import Records
    from flowctl.runtime.launch import Interrupted
    from flowctl.runtime.manual import ManualSpout

__version__ = "0.1.0"

__all__ = [
    "AckOutcome",
    "AckedRange",
    "AuthenticationError",
    "Batch",
    "Block",
    "BoltNotice",
    "BoltView",
    "Bolts",
    "BoltsUnavailableError",
    "BufferSettings",
    "CallSettings",
    "CallTooLongError",
    "Checkpoint",
    "CheckpointCorruptError",
    "CheckpointSettings",
    "CheckpointStore",
    "CheckpointUnavailableError",
    "ConfigError",
    "DeadLetter",
    "DeadlineError",
    "DetachedRun",
    "DispatchSettings",
    "Emission",
    "Ended",
    "Endpoint",
    "EventsSettings",
    "Extent",
    "FencedError",
    "FileCheckpointStore",
    "FlowControlSpout",
    "FlowProducer",
    "FlowctlError",
    "GuaranteeSettings",
    "HedgeSettings",
    "InfrastructureError",
    "InternalError",
    "Interrupted",
    "JobError",
    "Limits",
    "ListenSettings",
    "LocalBolts",
    "LossSettings",
    "ManualSpout",
    "MetricsSettings",
    "MissingExtraError",
    "Page",
    "PartitionCheckpoint",
    "Position",
    "Process",
    "ProcessError",
    "QuotaUsedUpError",
    "RangeProducer",
    "RangeReader",
    "Record",
    "RecordSettings",
    "Records",
    "Report",
    "RetryLater",
    "RetrySettings",
    "RowError",
    "Settings",
    "Snapshot",
    "SourceChunk",
    "SourceError",
    "SourceProgress",
    "Span",
    "SpentError",
    "SpoutListener",
    "StartSettings",
    "TargetDownError",
    "TimeoutSettings",
    "TooManyLostError",
    "TupleSettings",
    "UnknownNameError",
    "UnrunnableError",
    "View",
    "WireError",
    "__version__",
    "paced",
]

_HOMES = {
    "flowctl.bolts.batch": ("Batch",),
    "flowctl.bolts.local": ("LocalBolts",),
    "flowctl.config": (
        "CallSettings",
        "CheckpointSettings",
        "EventsSettings",
        "ListenSettings",
        "LossSettings",
        "RecordSettings",
        "MetricsSettings",
        "Settings",
        "StartSettings",
    ),
    "flowctl.core.messages": ("Emission",),
    "flowctl.core.records": (
        "AckOutcome",
        "AckedRange",
        "Checkpoint",
        "PartitionCheckpoint",
        "Position",
        "Record",
        "Span",
    ),
    "flowctl.core.settings": (
        "BufferSettings",
        "DispatchSettings",
        "GuaranteeSettings",
        "HedgeSettings",
        "RetrySettings",
        "TimeoutSettings",
        "TupleSettings",
    ),
    "flowctl.instrumentation.snapshot": ("BoltView", "Report", "Snapshot", "View"),
    "flowctl.instrumentation.views": ("Page",),
    "flowctl.pacing.api": ("paced",),
    "flowctl.pacing.target_settings": ("Limits",),
    "flowctl.ports": (
        "BoltNotice",
        "Bolts",
        "CheckpointStore",
        "DeadLetter",
        "Endpoint",
        "FlowProducer",
        "Process",
        "SourceChunk",
        "SourceProgress",
        "SpoutListener",
    ),
    "flowctl.core.ranges.extent": ("Extent",),
    "flowctl.range_ports": ("Block", "RangeProducer", "RangeReader"),
    "flowctl.runtime.detached": ("DetachedRun", "Ended"),
    "flowctl.runtime.file_store": ("FileCheckpointStore",),
    "flowctl.runtime.iterables": ("Records",),
    "flowctl.runtime.launch": ("Interrupted",),
    "flowctl.runtime.manual": ("ManualSpout",),
    "flowctl.runtime.flow_control_spout": ("FlowControlSpout",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name on first use and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Public names that are not listed are error classes.
    value = getattr(importlib.import_module(_HOME_OF.get(name, "flowctl.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
