"""A checkpoint store in memory, for tests."""

from __future__ import annotations

from flowctl.runtime.memory_store import MemoryCheckpointStore

__all__ = ["MemoryCheckpointStore"]
