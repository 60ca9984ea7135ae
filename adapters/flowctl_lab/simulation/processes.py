"""The processes in which runs are simulated side by side."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def pool_of(processes: int) -> ProcessPoolExecutor:
    """Return a pool of new processes: a fork of one that has threads may hang for ever."""
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
