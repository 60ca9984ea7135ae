"""What the bolts of a run learn when they connect, and which bolts may join it."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from flowctl.config import WaitSettings


class RunTerms(NamedTuple):
    """What the bolts of one run learn when they connect, and which bolts are accepted.

    ``key`` proves that a bolt belongs to the run; ``expected`` are the names of its bolts (None:
    any name).  A bolt sends a heartbeat every ``heartbeat_s`` and waits as ``wait`` says.
    """

    job: str
    job_epoch: int
    key: bytes
    heartbeat_s: float
    wait: WaitSettings = WaitSettings()
    expected: Container[str] | None = None
