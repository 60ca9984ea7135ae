"""Rows in, rows out: :func:`apply_parquet` runs a function over Parquet files.

A run that was killed goes on from the results that it already has.
"""

from __future__ import annotations

from flowctl_apply.parquet_apply import Applied, apply_parquet

__all__ = ["Applied", "apply_parquet"]
