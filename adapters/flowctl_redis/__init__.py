"""Checkpoints in Redis or Valkey.

Importing this package is cheap; redis-py (130 ms) is imported when a store first connects.
"""

from __future__ import annotations

from flowctl_redis.store import RedisCheckpointStore

__all__ = ["RedisCheckpointStore"]
