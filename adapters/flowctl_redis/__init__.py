"""Checkpoints in Redis or Valkey, and an embedded server if there is none.

Importing this package is cheap; redis-py (130 ms) is imported when a store first connects.
"""

from __future__ import annotations

from flowctl_redis.server import DEFAULT_DATA_DIR, EmbeddedServer, ServerHandle, find_or_start
from flowctl_redis.store import RedisCheckpointStore, StoredJob

__all__ = [
    "DEFAULT_DATA_DIR",
    "EmbeddedServer",
    "RedisCheckpointStore",
    "ServerHandle",
    "StoredJob",
    "find_or_start",
]
