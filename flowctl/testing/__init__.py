"""For tests of your own ``process`` (:func:`batch`, :func:`run_local`) and of adapters."""

from __future__ import annotations

from flowctl.testing.processes import LocalRun, LostRecord, batch, run_local

__all__ = ["LocalRun", "LostRecord", "batch", "run_local"]
