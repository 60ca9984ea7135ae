"""For tests of your own ``process`` (:func:`batch`, :func:`run_local`), of restarts
(:class:`MemoryCheckpointStore`), and of adapters."""

from __future__ import annotations

from flowctl.testing.processes import LocalRun, LostRecord, batch, run_local
from flowctl.testing.stores import MemoryCheckpointStore

__all__ = ["LocalRun", "LostRecord", "MemoryCheckpointStore", "batch", "run_local"]
